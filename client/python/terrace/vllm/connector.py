"""TerraceConnector: vLLM's OffloadingConnector, a KVConnectorBase_V1 with SupportsHMA, with TerraceOffloadingSpec in
it.

What it adds: the fingerprint, which needs vLLM's whole configuration; the bytes of adapters in the keys; requests
whose load failed, which vLLM then computes; and the engine's speed, for load or recompute.

The speed is measured by steps. vLLM plans a step while the one before runs, so a step that computes enough tokens has
a number, which travels to the workers with the step and comes back with its results."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import time
from typing import AbstractSet, Any, Optional

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_cache_interface import FullAttentionSpec

from . import compatibility, fingerprint
from .spec import PRIVATE

logger = logging.getLogger("vllm.terrace")
STEP_TOKENS_LEAST = 64  # of a step that tells how quickly tokens are computed
STEPS_MOST = 16  # that are under way and measured
OPTIONS: dict[str, tuple[str, ...]] = {  # with the values that it may have, where these are words
    "terrace.address": (), "terrace.tenant": (), "terrace.call_ms": (), "terrace.identity": (),
    "terrace.share": ("restarts", "required", "process"), "terrace.load": ("estimate", "always")}


def with_spec(kv_transfer_config: Any) -> dict[str, Any]:
    """Completes the configuration: the spec's name and module."""
    extra: dict[str, Any] = kv_transfer_config.kv_connector_extra_config
    extra["spec_name"], extra["spec_module_path"] = "TerraceOffloadingSpec", "terrace.vllm"
    return extra


def unstable_keys(algorithm: str) -> Optional[str]:
    """None, or the sentence that says why an engine's keys will be others after a restart."""
    if "PYTHONHASHSEED" in os.environ or not algorithm.startswith("xxhash"):
        return None
    return ("--prefix-caching-hash-algo %s without PYTHONHASHSEED makes other keys in every process: nothing that Terrace keeps will be found "
            "after a restart, or by another engine. Set PYTHONHASHSEED to the same number everywhere, or use sha256" % algorithm)


def check_options(extra: dict[str, Any]) -> None:
    """Raises ValueError for an option that is not there, or a value that means nothing."""
    for name, value in extra.items():
        if name.startswith("terrace.") and name not in OPTIONS and name != PRIVATE:
            raise ValueError("%s is no option of terrace.vllm, which are %s" % (name, ", ".join(sorted(OPTIONS))))
        words = OPTIONS.get(name)
        if words and value not in words:
            raise ValueError("%s: %r is none of %s" % (name, value, ", ".join('"%s"' % word for word in words)))
    milliseconds = extra.get("terrace.call_ms", 1)
    if not isinstance(milliseconds, (int, float)) or milliseconds <= 0:
        raise ValueError("terrace.call_ms: %r is no number of milliseconds above 0" % (milliseconds,))


def check_sharing(wish: str, algorithm: str) -> None:
    """The option terrace.share."""
    sentence = unstable_keys(algorithm)
    if sentence is None or wish == "process":
        return
    if wish == "required":
        raise ValueError("terrace.share is \"required\", but " + sentence)
    logger.warning("%s", sentence)


def check_parallel(parallel: Any) -> None:
    """Raises ValueError for ways to share a model among workers in which a worker's pages are not a part of each block."""
    # Workers that share out the tokens of a decode are among the tensor parallel ones: world_size does not tell of them.
    if parallel.world_size != parallel.tensor_parallel_size or parallel.decode_context_parallel_size > 1:
        raise ValueError("terrace.vllm refuses pipeline and context parallel workers; this engine has %d workers, %d of "
                         "them tensor parallel, and decode context parallel %d: leave the options for those at 1"
                         % (parallel.world_size, parallel.tensor_parallel_size, parallel.decode_context_parallel_size))


def window_of(spec: Any) -> Optional[int]:
    """Tokens before a prefix's end that a group's layers attend to; 0: they keep a state. None: all, or not known."""
    if isinstance(spec, FullAttentionSpec):
        return None
    if hasattr(spec, "sliding_window"):
        return int(spec.sliding_window) + int(getattr(spec, "extra_retained_tokens", 0))
    if hasattr(spec, "attention_chunk_size"):
        return int(spec.attention_chunk_size)
    return 0 if hasattr(spec, "mamba_cache_mode") else None


class StepMetadata(OffloadingWorkerMetadata):
    """What workers tell of a step, with the step's number (-1: it is not measured) and what was not stored of jobs that
    have ended: vLLM has no word for a store that failed."""

    def __init__(self, completed_jobs: Any, transfer_stats: Any, step: int,
                 unstored: AbstractSet[Any] = frozenset()) -> None:
        super().__init__(completed_jobs, transfer_stats)
        self.step, self.unstored = step, unstored

    def aggregate(self, other: Any) -> StepMetadata:
        """Of two workers, each with a StepMetadata."""
        both = super().aggregate(other)
        return StepMetadata(both.completed_jobs, both.transfer_stats, max(self.step, other.step),
                            self.unstored | other.unstored)


def _nothing() -> tuple[Any, Any]:
    empty = OffloadingWorkerMetadata()
    return empty.completed_jobs, empty.transfer_stats


class TerraceConnector(OffloadingConnector):
    """See the top of the file, and terrace.vllm for options."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        compatibility.check()
        check_parallel(vllm_config.parallel_config)
        extra = with_spec(vllm_config.kv_transfer_config)
        check_options(extra)
        check_sharing(extra.get("terrace.share", "restarts"), vllm_config.cache_config.prefix_caching_hash_algo)
        vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute"
        text = fingerprint.text_of(vllm_config, kv_cache_config, str(extra.get("terrace.identity", "")))
        # A layout a group: a model's groups with equal pages still hold other layers.
        groups = dict(enumerate(kv_cache_config.kv_cache_groups))
        extra[PRIVATE] = {"groups": {number: (text + " " + fingerprint.group_text(number, group),
                                              fingerprint.group_bytes(group)) for number, group in groups.items()},
                          "prefix_groups": frozenset(number for number, group in groups.items()
                                                     if isinstance(group.kv_cache_spec, FullAttentionSpec)),
                          "windows": {number: window for number, group in groups.items()
                                      if (window := window_of(group.kv_cache_spec)) is not None}}
        super().__init__(vllm_config, role, kv_cache_config)
        # Those that are measured: when they were planned, and how many tokens they compute.
        self._steps: dict[int, tuple[float, int]] = {}
        self._numbers = itertools.count()
        self._ended = 0.0  # when the last step ended
        self._adapters = fingerprint.Adapters()
        if role == KVConnectorRole.SCHEDULER:
            self._manager = self.connector_scheduler.manager
            if fingerprint.sampled(vllm_config.model_config.model):
                logger.info("%s is larger than %d GiB: the times of its files count for what this engine shares with others; "
                            "copy it with its times (cp -p, rsync -t)", vllm_config.model_config.model, fingerprint.FULL_BYTES >> 30)
            logger.info("Terrace serves this engine's KV; fingerprint %s", hashlib.sha256(text.encode()).hexdigest()[:16])

    def on_new_request(self, request: Any) -> None:
        if request.lora_request is not None:
            digest = self._adapters.digest(request.lora_request.lora_path)
            if digest is None:
                self._manager.leave_alone(request.request_id)
            else:
                self._manager.salt(request.request_id, digest)
        super().on_new_request(request)
        if not request.skip_reading_prefix_cache:
            self._manager.queued(request.request_id, request.block_hashes, self._in_own_cache)

    def _in_own_cache(self, block_hash: bytes, group: int) -> bool:
        caches = self._kv_cache_manager
        return caches is not None and caches.block_pool.get_cached_block(block_hash, [group]) is not None

    def shutdown(self) -> None:
        self._adapters.close()
        super().shutdown()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[Optional[int], bool]:
        self._manager.looks(request.request_id, num_computed_tokens)
        found: tuple[Optional[int], bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return found

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self._manager.scheduled(scheduler_output.num_scheduled_tokens)
        meta = super().build_connector_meta(scheduler_output)
        tokens = sum(scheduler_output.num_scheduled_tokens.values())
        if tokens >= STEP_TOKENS_LEAST:
            meta.terrace_step = next(self._numbers)
            self._steps[meta.terrace_step] = time.monotonic(), tokens
            while len(self._steps) > STEPS_MOST:
                self._steps.pop(next(iter(self._steps)))
        return meta

    def build_connector_worker_meta(self) -> Any:
        meta = super().build_connector_worker_meta()
        if self.connector_worker is None:
            return meta
        step = getattr(self._connector_metadata, "terrace_step", -1)
        unstored = self.connector_worker.worker.take_unstored() if self.connector_worker.worker else set()
        if meta is None and step < 0 and not unstored:
            return None
        return StepMetadata(*((meta.completed_jobs, meta.transfer_stats) if meta else _nothing()), step, unstored)

    def update_connector_output(self, connector_output: Any) -> None:
        now, step = time.monotonic(), getattr(connector_output.kv_connector_worker_meta, "step", -1)
        planned, tokens = self._steps.pop(step, (now, 0))
        if tokens:  # it began when the step before had ended, if that was later
            self._manager.estimate.computed(tokens, now - max(planned, self._ended))
        self._ended = now
        self._manager.loads_failed(connector_output.failed_recving)
        self._manager.stores_failed(getattr(connector_output.kv_connector_worker_meta, "unstored", ()))
        super().update_connector_output(connector_output)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        done = super().get_transfer_results(finished_req_ids)
        failed = self.connector_worker.worker.take_failed()
        return KVConnectorTransferResults(done.finished_sending, done.finished_recving | failed,
                                          done.failed_recving | failed)

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: Any) -> Any:
        with_spec(vllm_config.kv_transfer_config)
        return super().build_prom_metrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

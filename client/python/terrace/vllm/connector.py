"""TerraceConnector: vLLM's OffloadingConnector, a KVConnectorBase_V1 with SupportsHMA, with TerraceOffloadingSpec in
it.

What it adds: the fingerprint, which needs vLLM's whole configuration; the bytes of adapters in the keys; requests
whose load failed, which vLLM then computes; and the engine's speed, for load or recompute."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from typing import Any, Optional

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from . import compatibility, fingerprint
from .spec import PRIVATE

logger = logging.getLogger("vllm.terrace")
STEP_TOKENS_LEAST = 64  # of a step that tells how quickly tokens are computed


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


def check_sharing(wish: str, algorithm: str) -> None:
    """The option terrace.share."""
    if wish not in ("restarts", "required", "process"):
        raise ValueError('terrace.share: %r is none of "restarts", "required" and "process"' % (wish,))
    sentence = unstable_keys(algorithm)
    if sentence is None or wish == "process":
        return
    if wish == "required":
        raise ValueError("terrace.share is \"required\", but " + sentence)
    logger.warning("%s", sentence)


def check_parallel(parallel: Any) -> None:
    """Raises ValueError for ways to share a model among workers in which the workers' pages are not of one size."""
    if parallel.world_size != parallel.tensor_parallel_size:
        raise ValueError("terrace.vllm was run with tensor parallel workers alone; this engine has %d workers, %d of them tensor "
                         "parallel" % (parallel.world_size, parallel.tensor_parallel_size))


class TerraceConnector(OffloadingConnector):
    """See the top of the file, and terrace.vllm for options."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        compatibility.check()
        check_parallel(vllm_config.parallel_config)
        extra = with_spec(vllm_config.kv_transfer_config)
        check_sharing(extra.get("terrace.share", "restarts"), vllm_config.cache_config.prefix_caching_hash_algo)
        vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute"
        text = fingerprint.text_of(vllm_config, kv_cache_config, str(extra.get("terrace.identity", "")))
        # A layout a group: a model's groups with equal pages still hold other layers.
        extra[PRIVATE] = {"groups": {number: (text + " " + fingerprint.group_text(number, group), fingerprint.group_bytes(group))
                                     for number, group in enumerate(kv_cache_config.kv_cache_groups)}}
        super().__init__(vllm_config, role, kv_cache_config)
        self._step: Optional[tuple[float, int]] = None  # when a step began that computes enough tokens, and how many
        self._adapters: dict[str, tuple[Any, Optional[str]]] = {}  # by path: the stamp of the files, their digest
        if role == KVConnectorRole.SCHEDULER:
            self._manager = self.connector_scheduler.manager
            logger.info("Terrace serves this engine's KV; fingerprint %s", hashlib.sha256(text.encode()).hexdigest()[:16])

    def on_new_request(self, request: Any) -> None:
        if request.lora_request is not None:
            self._manager.salt(request.request_id, self._adapter(request.lora_request))
        super().on_new_request(request)

    def _adapter(self, lora: Any) -> bytes:
        """What the bytes of an adapter are. An adapter that cannot be read shares with no other request, nor does one whose
        files have changed since its first request: vLLM may have the old ones or the new ones."""
        try:
            files = fingerprint.stamp_of(lora.lora_path)
            if lora.lora_path not in self._adapters:
                self._adapters[lora.lora_path] = (files, fingerprint.digest_of(lora.lora_path))
            known, digest = self._adapters[lora.lora_path]
            if digest is not None and known == files:
                return digest.encode()
        except OSError as e:
            logger.debug("an adapter cannot be read: %s", e)
        self._adapters[lora.lora_path] = (None, None)
        return os.urandom(32)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        tokens = sum(scheduler_output.num_scheduled_tokens.values())
        self._step = (time.monotonic(), tokens) if tokens >= STEP_TOKENS_LEAST else None
        return super().build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        if self._step is not None:
            began, tokens = self._step
            self._step = None
            self._manager.estimate.computed(tokens, time.monotonic() - began)
        super().update_connector_output(connector_output)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        done = super().get_transfer_results(finished_req_ids)
        failed = self.connector_worker.worker.take_failed()
        return KVConnectorTransferResults(done.finished_sending, done.finished_recving | failed, done.failed_recving | failed)

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: Any) -> Any:
        with_spec(vllm_config.kv_transfer_config)
        return super().build_prom_metrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

"""vLLM's OffloadingSpec whose store is the daemon: makes the manager in the scheduler's process and the worker in the
worker's.

Each tensor parallel worker has a layout of its own, by its rank, because it has pages of its own. The scheduler's
session has the layouts of all of them: a block is a hit once every worker has stored its part.

A spec sees too little of vLLM's configuration to know which bytes may be shared, and a plain OffloadingConnector
cannot be told of a load that failed. So TerraceConnector makes the spec, and a spec that was made by another is
refused."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import terrace
from vllm.v1.kv_offload.base import OffloadingCounterMetadata, OffloadingSpec

from . import compatibility
from .estimate import Estimate
from .manager import TerraceManager
from .store import Store

PRIVATE = "terrace.private"  # in the extra configuration, from TerraceConnector
METRICS = {  # {name here: (vLLM's name, what it counts)}
    "load_blocks": ("vllm:terrace_load_blocks", "Blocks that were leased to be loaded from Terrace."),
    "store_blocks": ("vllm:terrace_store_blocks", "Blocks that were offered to Terrace."),
    "failed_loads": ("vllm:terrace_failed_loads", "Requests whose load from Terrace failed; they were computed."),
    "late": ("vllm:terrace_late_lookups", "Lookups that took longer than loading was worth; the tokens were computed."),
}


class TerraceOffloadingSpec(OffloadingSpec):
    """See the top of the file. Options: terrace.vllm."""

    @classmethod
    def build_metric_definitions(cls, extra_config: Any) -> dict[str, OffloadingCounterMetadata]:
        return {name: OffloadingCounterMetadata(documentation=text) for name, text in METRICS.values()}

    def __init__(self, config: Any) -> None:
        compatibility.check()
        super().__init__(config)
        private = self.extra_config.get(PRIVATE)
        if private is None:
            raise ValueError('terrace.vllm: TerraceOffloadingSpec is made by TerraceConnector alone, which tells it of the model\'s revision '
                             'and recovers failed loads: use {"kv_connector": "TerraceConnector", "kv_connector_module_path": "terrace.vllm"}')
        if self.blocks_per_chunk != 1:
            raise ValueError("terrace.vllm: a block of Terrace is one block of vLLM: leave blocks_per_chunk and block_size out of "
                             "kv_connector_extra_config, and set --block-size")
        self._private = private
        self.manager: Optional[TerraceManager] = None
        self.worker: Any = None

    def _ranks(self) -> range:
        """Of the workers whose pages differ. Of MLA the pages are all the same, and vLLM has the first worker store them."""
        replicated = getattr(self.config, "replicated_layout", False)
        return range(1 if replicated else self.config.parallel.world_size)

    def _block_bytes(self, group_id: int) -> int:
        """Of a worker. Of one group vLLM says it, for the scheduler too, which does not know all forms of the group's layers."""
        groups = self._private["groups"]
        size = int(self.config.worker_kv_bytes_per_block) if len(groups) == 1 else groups[group_id][1]
        if size is None:
            raise ValueError("terrace.vllm: group %d of several has layers of several forms, which is not supported" % group_id)
        return -(-int(size) // 16) * 16

    def _store(self, role: str, ranks: Sequence[int]) -> Store:
        layouts: dict[int, Sequence[terrace.Layout]] = {}
        for group in self.config.groups:
            text, _ = self._private["groups"][group.group_id]
            layouts[group.group_id] = [
                terrace.Layout.opaque("%s rank %d" % (text, rank), "vllm/pages/1", self._block_bytes(group.group_id),
                                      block_tokens=group.tokens_per_block) for rank in ranks]
        return Store(layouts, self.extra_config.get("terrace.address"), self.extra_config.get("terrace.tenant"),
                     float(self.extra_config.get("terrace.call_ms", 250)) / 1000, "vllm-" + role)

    def get_manager(self) -> TerraceManager:
        if self.manager is None:
            tokens = {group.group_id: group.tokens_per_block for group in self.config.groups}
            self.manager = TerraceManager(self._store("scheduler", self._ranks()), Estimate(), tokens,
                                          self.config.enable_kv_cache_events,
                                          self.extra_config.get("terrace.load", "estimate") == "always",
                                          self._private["prefix_groups"], self._private["windows"],
                                          self.tokens_per_hash)
        return self.manager

    def get_worker(self, kv_caches: Any) -> Any:
        if self.worker is None:
            from .pages import of_groups
            from .worker import TerraceWorker
            pages = of_groups(kv_caches, [group.group_id for group in self.config.groups])
            for group, one in pages.items():
                if one.block_bytes > self._block_bytes(group):
                    raise ValueError("terrace.vllm: group %d has %d bytes a block in the worker and %d in vLLM's configuration: this "
                                     "form of KV cache is not supported" % (group, one.block_bytes, self._block_bytes(group)))
            rank = min(self.config.parallel.rank, len(self._ranks()) - 1)
            self.worker = TerraceWorker(self._store("worker", [rank]), pages, _waiter(kv_caches))
        return self.worker


def _waiter(kv_caches: Any) -> Optional[Callable[[], None]]:
    """What waits until the device has written the pages; None for a CPU, whose work is done when it returns."""
    device = kv_caches.tensors[0].tensor.device
    if device.type == "cpu":
        return None
    import torch

    def wait() -> None:
        torch.accelerator.current_stream(device).synchronize()
    return wait

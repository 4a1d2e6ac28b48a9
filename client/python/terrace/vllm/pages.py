"""Where a KV group's pages lie in the engine's memory, and how they get into a block of Terrace's and back.

A block is the pages of the group's layers side by side, in vLLM's order of layers, each as vLLM has it: nothing here
looks into a page. Copies go through torch, so that the engine's memory may be a CPU's or a GPU's."""

from __future__ import annotations

import warnings
from typing import Any, Iterator

import torch

# Of a leased block, which is read alone.
warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)


class Pages:
    """One group. refs: [(tensor of shape (blocks, bytes) and dtype int8, bytes of a page)], a layer each."""

    def __init__(self, refs: list[tuple[Any, int]]) -> None:
        self._refs = refs
        self.block_bytes = sum(size for _, size in refs)

    def _parts(self, view: memoryview) -> Iterator[tuple[Any, int, Any]]:
        """The block of Terrace's as tensors, a layer each."""
        whole, at = torch.frombuffer(view, dtype=torch.int8), 0
        for tensor, size in self._refs:
            yield tensor, size, whole[at:at + size]
            at += size

    def store(self, block: int, view: memoryview) -> None:
        """Copies a block of the engine's into a writable view. The rest of the view, which only rounds its size up, is zeroed."""
        for tensor, size, part in self._parts(view):
            part.copy_(tensor[block, :size])
        if len(view) > self.block_bytes:
            view[self.block_bytes:] = bytes(len(view) - self.block_bytes)

    def load(self, block: int, view: memoryview) -> None:
        """The inverse."""
        for tensor, size, part in self._parts(view):
            tensor[block, :size].copy_(part)


def of_groups(kv_caches: Any, group_ids: list[int]) -> dict[int, Pages]:
    """{group: Pages} of vLLM's CanonicalKVCaches."""
    pages = {}
    for group, refs in zip(group_ids, kv_caches.group_data_refs):
        pages[group] = Pages([(kv_caches.tensors[ref.tensor_idx].tensor, ref.page_size_bytes) for ref in refs])
    return pages

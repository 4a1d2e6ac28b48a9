"""The worker's side: copies pages between the engine's memory and blocks of the daemon's, a thread for stores and one
for loads. The thread for stores takes all jobs that wait as one: each call, and each turn of the interpreter's lock,
is a delay of the engine's step.

A load leases the blocks in this process, while the manager's lease protects them. If that fails all the same, because
the daemon has gone between, the job is reported as done, as vLLM's worker wants it, and its request as one whose load
failed: vLLM then computes. A store that fails is dropped: nothing is published that was not written whole. Its job is
reported as done too, and take_unstored() says which blocks are not there.

vLLM waits in its step for transfers of blocks that it wants to reuse. It waits for those that copy; one that has not
begun within a call's time is dropped, so that a daemon with much to do does not stop the engine."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import logging
import threading
import time
from typing import AbstractSet, Any, Callable, Iterable, Optional, Sequence

import terrace
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult

from .store import Down, Store

Part = tuple[str, tuple[bytes, int]]  # a request, and the daemon's key with its group
Copy = Callable[[Any, list[int]], tuple[int, bool]]  # a TerraceTransfer, vLLM's blocks: bytes copied, and whether all were
logger = logging.getLogger("vllm.terrace")
TOGETHER_BYTES = 16 << 20  # of pages, at which jobs are no more taken as one: the engine may wait for one of them


def by_group(transfer: Any, block_ids: list[int]) -> dict[int, list[int]]:
    """{group: [index of a key]}. vLLM gives a block for each key, in the order of the keys."""
    if len(transfer.keys) != len(block_ids):
        raise ValueError("vLLM gave %d blocks for %d keys" % (len(block_ids), len(transfer.keys)))
    groups: dict[int, list[int]] = {}
    for i, (_, group) in enumerate(transfer.keys):
        groups.setdefault(group, []).append(i)
    return groups


class _Store:
    """A job that stores."""

    def __init__(self, job_id: int, transfer: Any, block_ids: list[int]) -> None:
        self.job_id, self.transfer, self.block_ids = job_id, transfer, block_ids
        self.future: concurrent.futures.Future[None] = concurrent.futures.Future()


class _Together:
    """Jobs that are stored as one, a key once: keys and infos as of a TerraceTransfer. stored: what the daemon has then;
    wrote: those of them that were copied."""

    def __init__(self, jobs: Sequence[_Store]) -> None:
        self.keys: list[tuple[bytes, int]] = []
        self.infos: list[tuple[Optional[bytes], int]] = []
        self.block_ids: list[int] = []
        self.stored: set[tuple[bytes, int]] = set()
        self.wrote: set[tuple[bytes, int]] = set()
        known = set()
        for job in jobs:
            for key, info, block in zip(job.transfer.keys, job.transfer.infos, job.block_ids):
                if key not in known:
                    known.add(key)
                    self.keys.append(key)
                    self.infos.append(info)
                    self.block_ids.append(block)


class TerraceWorker(OffloadingWorker):
    """vLLM's OffloadingWorker over a Store. pages: {group: Pages}. before_copy: waits until the device has done what is
    in vLLM's stream: it may still write pages that are to be stored, or zero and read those that are to be loaded."""

    def __init__(self, store: Store, pages: Any, before_copy: Optional[Callable[[], None]] = None) -> None:
        self._store, self._pages, self._before_copy = store, pages, before_copy
        self._stores = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="terrace-store")
        self._loads = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="terrace-load")
        self._waiting: collections.deque[_Store] = collections.deque()
        self._lock = threading.Lock()
        self._jobs: dict[int, tuple[concurrent.futures.Future[None], Any, bool]] = {}  # its transfer; whether it loads
        self._finished: list[tuple[TransferResult, Optional[str]]] = []  # with the request, if its load has failed
        self._failed: set[str] = set()
        self._unstored: set[Part] = set()

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self._ready()
        job = _Store(job_id, dst_spec, [int(b) for b in src_spec.block_ids])
        if len(job.block_ids) != len(dst_spec.keys):
            raise ValueError("vLLM gave %d blocks for %d keys" % (len(job.block_ids), len(dst_spec.keys)))
        self._jobs[job_id] = job.future, dst_spec, False
        self._waiting.append(job)
        self._stores.submit(self._store_waiting)
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self._ready()
        future = self._loads.submit(self._load, job_id, src_spec, [int(b) for b in dst_spec.block_ids])
        self._jobs[job_id] = future, src_spec, True
        return True

    def _ready(self) -> None:
        if self._before_copy is not None:
            self._before_copy()

    def _run(self, function: Copy, transfer: Any, block_ids: list[int]) -> tuple[int, bool, float]:
        """Bytes copied, whether all were, and seconds. Never raises."""
        began, copied, whole = time.monotonic(), 0, False
        try:
            copied, whole = function(transfer, block_ids)
        except Down:
            pass
        except terrace.Error as e:
            logger.debug("a transfer of Terrace failed: %s", e)
        except Exception:  # nothing of ours may end the engine
            logger.exception("a transfer of Terrace failed")
        return copied, whole, time.monotonic() - began

    def _load(self, job_id: int, transfer: Any, block_ids: list[int]) -> None:
        copied, whole, seconds = self._run(self._load_pages, transfer, block_ids)
        with self._lock:
            self._finished.append((TransferResult(job_id, True, copied, seconds), None if whole else transfer.req_id))

    def _store_waiting(self) -> None:
        """Stores what waits, as one, up to TOGETHER_BYTES. It runs once for each job, and mostly finds those after the first done."""
        jobs: list[_Store] = []
        size = 0
        while self._waiting and size < TOGETHER_BYTES:
            job = self._waiting.popleft()
            if job.future.set_running_or_notify_cancel():
                jobs.append(job)
                size += self._bytes_of(job.transfer.keys)
        if not jobs:
            return
        together = _Together(jobs)
        _, _, seconds = self._run(self._store_pages, together, together.block_ids)
        with self._lock:
            for job in jobs:
                self._unstored.update((job.transfer.req_id, key) for key in job.transfer.keys if key not in together.stored)
                wrote = together.wrote.intersection(job.transfer.keys)
                together.wrote -= wrote
                share = self._bytes_of(job.transfer.keys) / max(size, 1)
                self._finished.append((TransferResult(job.job_id, True, self._bytes_of(wrote), seconds * share), None))
        for job in jobs:
            job.future.set_result(None)

    def _bytes_of(self, keys: Iterable[tuple[bytes, int]]) -> int:
        return sum(self._store.block_bytes(group) for _, group in keys)

    def _store_pages(self, together: Any, block_ids: list[int]) -> tuple[int, bool]:
        for group, chosen in by_group(together, block_ids).items():
            for piece in self._store.pieces(group, chosen):
                self._store_piece(group, together, block_ids, piece)
        return self._bytes_of(together.wrote), True

    def _store_piece(self, group: int, together: Any, block_ids: list[int], chosen: Sequence[int]) -> None:
        """Stores blocks of a group, `chosen` of the keys. Adds what the daemon has then to `together`."""
        keys = [together.keys[i][0] for i in chosen]
        tokens = self._store.block_tokens(group)
        infos = [terrace.BlockInfo(parent, position, tokens) for parent, position in
                 (together.infos[i] for i in chosen)]
        slots = self._store.call(group, lambda s: s.reserve(keys, infos, timeout=self._store.call_s))
        try:
            wrote = [n for n, status in enumerate(slots.statuses) if status == terrace.Status.OK]
            for n in wrote:
                self._pages[group].store(block_ids[chosen[n]], slots.block(n))
            statuses = slots.statuses
            if wrote:
                statuses = self._store.call(group, lambda _: slots.commit(timeout=self._store.call_s))
            together.wrote.update((keys[n], group) for n in wrote)
            together.stored.update((key, group) for key, status in zip(keys, statuses)
                                   if status in (terrace.Status.OK, terrace.Status.EXISTS))
        finally:
            slots.close()  # aborts what was not committed

    def _load_pages(self, transfer: Any, block_ids: list[int]) -> tuple[int, bool]:
        copied = 0
        for group, all_chosen in by_group(transfer, block_ids).items():
            for chosen in self._store.pieces(group, all_chosen):
                keys = [transfer.keys[i][0] for i in chosen]
                lease = self._store.call(group, functools.partial(self._lease, keys=keys))
                if lease is None:
                    return copied, False
                with lease:
                    for n, i in enumerate(chosen):
                        self._pages[group].load(block_ids[i], lease.block(n))
                    copied += len(chosen) * self._store.block_bytes(group)
        return copied, True

    def _lease(self, session: terrace.Session, keys: list[bytes]) -> Optional[terrace.Lease]:
        return session.lease(keys, all=True, timeout=self._store.call_s)

    def get_finished(self) -> list[TransferResult]:
        with self._lock:
            finished, self._finished = self._finished, []
        for result, failed in finished:
            self._jobs.pop(result.job_id, None)
            if failed is not None:
                self._failed.add(failed)
        return [result for result, _ in finished]

    def take_failed(self) -> set[str]:
        """Requests whose load has failed, of those that get_finished() has told of since the last call. On the thread of get_finished()."""
        failed, self._failed = self._failed, set()
        return failed

    def take_unstored(self) -> set[Part]:
        """What stores that have ended since the last call did not store; of each store before get_finished() has it."""
        with self._lock:
            unstored, self._unstored = self._unstored, set()
        return unstored

    def wait(self, job_ids: Iterable[int]) -> None:
        waited = {job: self._jobs[job] for job in job_ids if job in self._jobs}
        concurrent.futures.wait([future for future, _, _ in waited.values()], self._store.call_s)
        for job, (future, transfer, loads) in list(waited.items()):
            if future.cancel():
                del waited[job]
                with self._lock:
                    if not loads:
                        self._unstored.update((transfer.req_id, key) for key in transfer.keys)
                    self._finished.append((TransferResult(job, True, 0, 0.0), transfer.req_id if loads else None))
        concurrent.futures.wait([future for future, _, _ in waited.values()])

    def shutdown(self) -> None:
        self._stores.shutdown(wait=True)
        self._loads.shutdown(wait=True)
        self._store.close()

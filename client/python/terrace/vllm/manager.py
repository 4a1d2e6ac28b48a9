"""The scheduler's side: which blocks are there, and which are to be stored. Every method runs on vLLM's scheduler
thread and returns within milliseconds; what waits for the daemon or for a disk runs on threads of the manager.

A request's first lookup asks for all of its keys at once and leases what is to be loaded, so that what was reported
as a hit stays until vLLM has loaded it. While that runs the answer is RETRY, and vLLM asks again in its next step,
until the time is up that loading is worth (estimate.py): from then on the answer is MISS, and the engine computes."""

from __future__ import annotations

import concurrent.futures
import hashlib
import logging
import os
import time
from typing import Any, Callable, Iterable, Optional, Sequence

import terrace
from vllm.v1.kv_offload.base import (LoadStoreSpec, LookupResult, OffloadingEvent, OffloadingManager, PrepareStoreOutput,
                                     RequestOffloadingContext)
from vllm.v1.kv_offload import base as interface

from .estimate import Estimate
from .store import Down, Store

Key = tuple[bytes, int]  # of a block in the daemon, and its group
Wanted = dict[int, list[tuple[bytes, bytes]]]  # {group: [(vLLM's key, the daemon's)]}
Seen = tuple[bytes, bytes, str]  # vLLM's key, the daemon's, "host" or "disk"
Found = tuple[list[terrace.Lease], dict[bytes, str], list[Key]]
logger = logging.getLogger("vllm.terrace")
FIRST_WAIT_S = 0.005  # a lookup of blocks in memory is answered within this, mostly
KEEP_MISS_S = 0.5  # for which a request's miss is not asked again
KNOWN_MOST = 1 << 16  # keys that are known to be stored,
KNOWN_S = 30.0  # and for how long: the daemon may evict them
THREADS = 4


def split(key: bytes) -> Key:
    """(hash, group) of vLLM's offload key."""
    return interface.get_offload_block_hash(key), interface.get_offload_group_idx(key)


def salted(block_hash: bytes, salt: bytes) -> bytes:
    """The daemon's key. A salt is of an adapter: vLLM's hash has its name and path, but not its bytes."""
    return hashlib.blake2b(block_hash + salt, digest_size=len(block_hash)).digest() if salt else block_hash


class TerraceTransfer(LoadStoreSpec):
    """What the worker needs of a load or a store: keys in the order of vLLM's blocks, a key each."""

    def __init__(self, req_id: str, keys: list[Key],
                 infos: Sequence[tuple[Optional[bytes], int]] = ()) -> None:
        self.req_id = req_id
        self.keys = keys
        self.infos = infos  # of a store: (parent or None, position)


class _Asked:
    """A request's lookup, under way or answered."""

    def __init__(self, future: concurrent.futures.Future[Found], deadline: Callable[[], float]) -> None:
        self.future, self.deadline, self.at = future, deadline, time.monotonic()
        self.leases: list[terrace.Lease] = []
        self.sources: dict[bytes, str] = {}
        self.answered = False
        self.loading = False


class TerraceManager(OffloadingManager):
    """vLLM's OffloadingManager over a Store."""

    def __init__(self, store: Store, estimate: Estimate, tokens_per_block: dict[int, int], events: bool = False,
                 always_load: bool = False) -> None:
        self._store, self.estimate, self._tokens = store, estimate, tokens_per_block  # {group: tokens}
        self._events: Optional[list[OffloadingEvent]] = [] if events else None
        self._always = always_load
        self._pool = concurrent.futures.ThreadPoolExecutor(THREADS, thread_name_prefix="terrace-lookup")
        self._asked: dict[str, _Asked] = {}  # by request
        self._salts: dict[str, bytes] = {}  # by request, of those that have one
        # Keys that are stored, as far as is known, and when that was learned, the oldest first.
        self._known: dict[Key, float] = {}
        self._known_of = store.generation
        self._generation = b""  # in all keys, once vLLM's cache was reset
        self._counts: dict[str, int] = {}

    def salt(self, req_id: str, salt: bytes) -> None:
        """What is to be mixed into the keys of a request; before on_new_request."""
        self._salts[req_id] = salt

    def _key(self, key: bytes, req_id: str) -> Key:
        block_hash, group = split(key)
        return salted(block_hash, self._generation + self._salts.get(req_id, b"")), group

    def _count(self, name: str, by: int = 1) -> None:
        self._counts[name] = self._counts.get(name, 0) + by

    # ---- lookups ----

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        asked = self._asked.get(req_context.req_id)
        if asked is not None and asked.answered and not asked.sources and time.monotonic() - asked.at > KEEP_MISS_S:
            asked = None
        if asked is None:
            if not self._store.up:
                return LookupResult.MISS
            asked = self._asked[req_context.req_id] = self._ask(key, req_context)
            concurrent.futures.wait([asked.future], FIRST_WAIT_S)
        if not asked.answered:
            if not asked.future.done() and time.monotonic() < asked.deadline():
                return LookupResult.RETRY
            self._answer(asked)
        return LookupResult.HIT if key in asked.sources else LookupResult.MISS

    def _ask(self, first: bytes, req_context: Any) -> _Asked:
        """Begins a request's lookup, for the keys from the first that vLLM wants of each group."""
        positions = getattr(req_context, "_offload_key_positions", None) or {first: 0}
        at = positions.get(first, 0)
        wanted: Wanted = {}
        for key, end in positions.items():
            mine, group = self._key(key, req_context.req_id)
            # What ends inside a block is a partial tail, which is not stored here.
            if end >= at and end % self._tokens[group] == 0:
                wanted.setdefault(group, []).append((key, mine))
        tokens = max((len(keys) * self._tokens[group] for group, keys in wanted.items()), default=0)
        search = _Search(self._store, self.estimate, self._tokens, self._always)
        began = time.monotonic()
        longest = self._store.call_s if self._always else min(self._store.call_s, self.estimate.compute_s(tokens))
        return _Asked(self._pool.submit(search.run, wanted), lambda: began + max(FIRST_WAIT_S, search.budget or longest))

    def _answer(self, asked: _Asked) -> None:
        asked.answered, asked.at = True, time.monotonic()
        if not asked.future.done():
            self._count("late")
            asked.future.add_done_callback(lambda done: _release(done.result()[0]))
            return
        asked.leases, asked.sources, absent = asked.future.result()
        for known in absent:
            self._known.pop(known, None)

    def get_load_source(self, key: bytes, req_context: Any) -> Any:
        """The tier that a block came from; of versions of vLLM that ask."""
        from vllm.v1.metrics.cache_hit_source import CacheHitSource
        asked = self._asked.get(req_context.req_id)
        return CacheHitSource.DISK if asked and asked.sources.get(key) == "disk" else CacheHitSource.HOST

    def prepare_load(self, keys: Sequence[bytes], req_context: Any) -> TerraceTransfer:
        self._asked[req_context.req_id].loading = True
        self._count("load_blocks", len(keys))
        return TerraceTransfer(req_context.req_id, [self._key(key, req_context.req_id) for key in keys])

    def complete_load(self, keys: Iterable[bytes], req_context: Any) -> None:
        self._forget(req_context.req_id)

    def _forget(self, req_id: str) -> None:
        asked = self._asked.pop(req_id, None)
        if asked is None:
            return
        if asked.answered:
            self._pool.submit(_release, asked.leases)
        else:
            asked.future.add_done_callback(lambda done: _release(done.result()[0]))

    # ---- stores ----

    def prepare_store(self, keys: Iterable[bytes], req_context: Any) -> PrepareStoreOutput:
        if not self._store.up:
            return PrepareStoreOutput(keys_to_store=[], store_spec=TerraceTransfer(req_context.req_id, []), evicted_keys=[])
        if self._known_of != self._store.generation:
            self._known_of = self._store.generation
            self._known.clear()
        chosen: list[bytes] = []
        transfer: list[Key] = []
        infos: list[tuple[Optional[bytes], int]] = []
        before: dict[int, bytes] = {}
        now = time.monotonic()
        places = getattr(req_context, "_offload_key_positions", None) or dict.fromkeys(keys, 0)
        wanted = set(keys)
        for key, end in places.items():
            mine, group = self._key(key, req_context.req_id)
            if end % self._tokens[group]:
                continue  # a partial tail
            if key in wanted and now - self._known.get((mine, group), -KNOWN_S) >= KNOWN_S:
                chosen.append(key)
                transfer.append((mine, group))
                infos.append((before.get(group), max(end // self._tokens[group] - 1, 0)))
            before[group] = mine
        order = sorted(range(len(chosen)), key=lambda i: transfer[i][1])  # stable: vLLM's order of blocks is group by group
        self._count("store_blocks", len(chosen))
        return PrepareStoreOutput(keys_to_store=[chosen[i] for i in order], evicted_keys=[], store_spec=TerraceTransfer(
            req_context.req_id, [transfer[i] for i in order], [infos[i] for i in order]))

    def complete_store(self, keys: Iterable[bytes], req_context: Any, success: bool = True) -> None:
        if not success or not self._store.up:
            return
        for key in keys:
            known = self._key(key, req_context.req_id)
            self._known.pop(known, None)
            self._known[known] = time.monotonic()
        while len(self._known) > KNOWN_MOST:
            self._known.pop(next(iter(self._known)))
        if self._events is not None:
            self._events.append(OffloadingEvent(keys=list(keys), medium=interface.Medium.CPU, removed=False,
                                                locality=interface.Locality.LOCAL))

    # ---- the rest ----

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        asked = self._asked.get(req_context.req_id)
        if asked is None or not asked.loading:
            self._forget(req_context.req_id)
        # The salt stays for completions that are still to come, as many as vLLM has requests.
        while len(self._salts) > 4096:
            self._salts.pop(next(iter(self._salts)))

    def take_events(self) -> Iterable[OffloadingEvent]:
        events, self._events = self._events, [] if self._events is not None else None
        return events or ()

    def reset_cache(self) -> None:
        """vLLM's weights may have changed (a reinforcement learner's): nothing from before may be found again. The daemon's blocks are of
        every engine of the fingerprint, so this engine leaves them alone and uses keys of its own from now on."""
        for req_id in list(self._asked):
            self._forget(req_id)
        self._known.clear()
        self._generation = os.urandom(16)

    def get_stats(self) -> Any:
        if not self._counts:
            return None
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
        from .spec import METRICS
        stats = OffloadingConnectorStats()
        for name, by in self._counts.items():
            stats.increase_counter(METRICS[name][0], by)
        self._counts = {}
        return stats

    def shutdown(self) -> None:
        for req_id in list(self._asked):
            self._forget(req_id)
        self._pool.shutdown(wait=False)
        self._store.close()


def _release(leases: list[terrace.Lease]) -> None:
    for lease in leases:
        lease.close()


class _Search:
    """One request's lookup and lease, on a thread of the manager's."""

    def __init__(self, store: Store, estimate: Estimate, tokens: dict[int, int], always: bool) -> None:
        self._store, self.estimate, self._tokens, self._always = store, estimate, tokens, always
        self.budget: Optional[float] = None  # seconds, once it is known

    def run(self, wanted: Wanted) -> Found:
        """([leases], {vLLM's key: "host" or "disk"}, [(the daemon's key, group)] that are to be stored again: they were evicted,
        or found to be corrupt). wanted: {group: [(vLLM's key, the daemon's)]}. Never raises."""
        leases: list[terrace.Lease] = []
        sources: dict[bytes, str] = {}
        absent: list[Key] = []
        try:
            seen = {group: self._states(group, keys) for group, keys in wanted.items()}
            stored = {(mine, group) for group, keys in seen.items() for _, mine, _ in keys}
            absent += [(mine, group) for group, keys in wanted.items() for _, mine in keys if (mine, group) not in stored]
            disk_bytes = sum(self._store.block_bytes(group) * sum(source == "disk" for _, _, source in keys)
                             for group, keys in seen.items())
            tokens = max((len(keys) * self._tokens[group] for group, keys in seen.items()), default=0)
            self.budget = self._store.call_s if self._always else self.estimate.budget_s(tokens, disk_bytes)
            if not self.budget:  # the disk is slower than computing: what is in memory before the first block on disk is still loaded
                seen = {group: _before_disk(keys) for group, keys in seen.items()}
                disk_bytes = 0
            began = time.monotonic()
            for group, keys in seen.items():
                absent += self._lease(group, keys, leases, sources)
            if disk_bytes:
                came = sum(self._store.block_bytes(split(key)[1]) for key, source in sources.items() if source == "disk")
                self.estimate.loaded(max(came, 1), time.monotonic() - began)
        except Down:
            pass
        except terrace.Error as e:
            logger.debug("a lookup of Terrace failed: %s", e)
        except Exception:  # nothing of ours may end the engine
            logger.exception("a lookup of Terrace failed")
        return leases, sources, absent

    def _states(self, group: int, keys: list[tuple[bytes, bytes]]) -> list[Seen]:
        """[(vLLM's key, the daemon's, "host" or "disk")] of those of which every worker's part is stored."""
        _, states = self._store.call(group, lambda s: s.lookup([mine for _, mine in keys], states=True, timeout=self._store.call_s))
        there = (terrace.State.HOST, terrace.State.DISK)
        return [(key, mine, "disk" if terrace.State.DISK in parts else "host") for (key, mine), parts in zip(keys, states)
                if all(part in there for part in parts)]

    def _lease(self, group: int, keys: list[Seen], leases: list[terrace.Lease], sources: dict[bytes, str]) -> list[Key]:
        """[(the daemon's key, group)] that could not be leased."""
        if not keys:
            return []
        timeout = max(0.02, min(self._store.call_s, self.budget or 0))
        lease = self._store.call(group, lambda s: s.lease([mine for _, mine, _ in keys], timeout=timeout))
        if lease is not None:
            leases.append(lease)
            sources.update((key, source) for key, _, source in keys[:len(lease)])
        return [(mine, group) for _, mine, _ in keys[0 if lease is None else len(lease):]]


def _before_disk(keys: list[Seen]) -> list[Seen]:
    for i, (_, _, source) in enumerate(keys):
        if source == "disk":
            return keys[:i]
    return keys

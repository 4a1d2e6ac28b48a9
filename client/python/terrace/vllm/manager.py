"""The scheduler's side: which blocks are there, and which are to be stored. Every method runs on vLLM's scheduler
thread and returns within milliseconds; what waits for the daemon or for a disk runs on threads of the manager.

A request's first lookup asks for all of its keys at once, on vLLM's thread where the daemon answers within
FIRST_WAIT_S, for another thread takes longer than most answers. What is to be loaded is then leased, so that what was
reported as a hit stays until vLLM has loaded it, or computes the request without a load. While that runs the answer is RETRY,
and vLLM asks again in its next step, until the time is up that loading is worth (estimate.py): from then on the answer
is MISS, and the engine computes.

vLLM looks a request up when it could compute it. One that waits in vLLM's queue before that is warmed: blocks of full
attention that are on disks begin to come to memory, where the speed of the disks is known and loading is worth it."""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import itertools
import logging
import os
import threading
import time
from typing import AbstractSet, Any, Callable, Container, Iterable, Mapping, Optional, Sequence

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
STEP_WAIT_S = 0.02  # after which no lookup of one of vLLM's steps is waited for,
STEP_MOST_S = 0.04  # and none is begun: of long requests to begin one takes milliseconds
KEEP_MISS_S = 0.5  # for which a request's miss is not asked again
KNOWN_MOST = 1 << 16  # keys that are known to be stored,
KNOWN_S = 30.0  # and for how long: the daemon may evict them
THREADS = 4
ENDED_MOST = 4096  # requests whose stores may still complete
WARM_MOST = 64  # requests that wait to be warmed; more are not
TIERS = frozenset(("host", "disk"))


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
    """A request's lookup, under way or answered. begin: tokens; blocks that end there or before were not asked for.
    generation: the store's."""

    def __init__(self, future: concurrent.futures.Future[Found], deadline: Callable[[], float], begin: int,
                 generation: int) -> None:
        self.future, self.deadline, self.at = future, deadline, time.monotonic()
        self.begin, self.generation = begin, generation
        self.leases: list[terrace.Lease] = []
        self.sources: dict[bytes, str] = {}
        self.answered = False
        self.loading = self.ended = False  # ended: the request, while it loads


class _Chain:
    """Where a request's keys are: {(group, index of the token behind the block): vLLM's key}."""

    def __init__(self) -> None:
        self.ends: dict[tuple[int, int], bytes] = {}
        self._noted = 0

    def note(self, places: dict[bytes, int]) -> None:
        """Takes the keys that vLLM has added to its places since."""
        for key, end in itertools.islice(places.items(), self._noted, None):
            self.ends[split(key)[1], end] = key
        self._noted = len(places)


class TerraceManager(OffloadingManager):
    """vLLM's OffloadingManager over a Store. tokens_per_block: {group: tokens}. prefix_groups: those of full attention,
    in which a block is of use only with all blocks before it. windows: {group: tokens} of other groups, in which those
    last blocks are of use that have any of so many tokens. tokens_per_hash: of vLLM's hashes; 0: of a block."""

    def __init__(self, store: Store, estimate: Estimate, tokens_per_block: dict[int, int], events: bool = False,
                 always_load: bool = False, prefix_groups: AbstractSet[int] = frozenset(),
                 windows: Optional[Mapping[int, int]] = None, tokens_per_hash: int = 0) -> None:
        self._store, self.estimate, self._tokens = store, estimate, tokens_per_block
        self._prefix_groups, self._windows, self._tokens_per_hash = prefix_groups, windows or {}, tokens_per_hash
        self._events: Optional[list[OffloadingEvent]] = [] if events else None
        self._always = always_load
        self._pool = concurrent.futures.ThreadPoolExecutor(THREADS, thread_name_prefix="terrace-lookup")
        self._warmer = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="terrace-warm")
        self._may_warm = threading.Semaphore(WARM_MOST)
        self._newest: tuple[str, frozenset[str]] = "", TIERS  # the request that was queued last, and its tiers
        self._asked: dict[str, _Asked] = {}  # by request
        # The request that vLLM looks up now, and the tokens that its own cache has.
        self._looks: tuple[str, int] = "", 0
        self._spent_s = 0.0  # in this step, by lookups that began and were waited for
        self._chains: dict[str, _Chain] = {}  # by request
        self._salts: dict[str, bytes] = {}  # by request, of those that have one
        self._ended: dict[str, bytes] = {}  # the same of requests that have ended; the oldest first
        self._alone: set[str] = set()  # requests that share with no other
        self._failed: set[str] = set()  # requests of which a load has failed
        # Keys that are stored, as far as is known, and when that was learned, the oldest first.
        self._known: dict[Key, float] = {}
        self._known_of = store.generation
        self._unstored: set[tuple[str, Key]] = set()  # by request, of jobs that are still to complete
        self._generation = b""  # in all keys, once vLLM's cache was reset
        self._counts: dict[str, int] = {}

    def salt(self, req_id: str, salt: bytes) -> None:
        """What is to be mixed into the keys of a request; before on_new_request."""
        self._salts[req_id] = salt

    def leave_alone(self, req_id: str) -> None:
        """Nothing of this request is looked up or stored, for no other request could use it; before on_new_request."""
        self._alone.add(req_id)

    def loads_failed(self, req_ids: Iterable[str]) -> None:
        """A worker could not load what was a hit. These requests are computed, for another load may fail as well."""
        for one in req_ids:
            self._count("failed_loads")
            if one in self._asked and not self._asked[one].ended:
                self._failed.add(one)

    def looks(self, req_id: str, tokens: int) -> None:
        """vLLM is about to look up this request, of which its own cache has so many tokens."""
        self._looks = req_id, tokens

    def scheduled(self, req_ids: Container[str]) -> None:
        """vLLM's step is planned, and computes these requests: they load nothing any more."""
        self._spent_s = 0.0
        for req_id in [one for one, asked in self._asked.items() if not asked.loading and one in req_ids]:
            self._forget(req_id)

    def _key(self, key: bytes, req_id: str) -> Key:
        block_hash, group = split(key)
        return self._name(block_hash, req_id), group

    def _name(self, block_hash: bytes, req_id: str) -> bytes:
        salt = self._salts.get(req_id) or self._ended.get(req_id) or b""
        return salted(block_hash, self._generation + salt)

    def _count(self, name: str, by: int = 1) -> None:
        self._counts[name] = self._counts.get(name, 0) + by

    # ---- lookups ----

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        asked = self._asked.get(req_context.req_id)
        if asked is not None and self._outdated(asked, key, req_context):
            self._forget(req_context.req_id)
            asked = None
        if asked is None:
            tiers = _tiers(req_context)
            not_this = req_context.req_id in self._alone or req_context.req_id in self._failed
            if not self._store.up or not tiers or not_this:
                return LookupResult.MISS
            if self._spent_s >= STEP_MOST_S:
                return LookupResult.RETRY
            began = time.monotonic()
            asked = self._asked[req_context.req_id] = self._ask(key, req_context, tiers)
            self._spent_s += time.monotonic() - began
            self._wait(asked)
        if not asked.answered:
            if not asked.future.done() and time.monotonic() < asked.deadline():
                return LookupResult.RETRY
            self._answer(asked)
        return LookupResult.HIT if key in asked.sources else LookupResult.MISS

    def _wait(self, asked: _Asked) -> None:
        """Most lookups are answered at once. A slow one must not delay the requests that vLLM computes now."""
        longest = min(FIRST_WAIT_S, STEP_WAIT_S - self._spent_s)
        if longest <= 0:
            return
        began = time.monotonic()
        done, _ = concurrent.futures.wait([asked.future], longest)
        self._spent_s += time.monotonic() - began if done else longest

    def _outdated(self, asked: _Asked, key: bytes, req_context: Any) -> bool:
        """Whether a request's lookup says nothing any more."""
        if asked.loading:
            return False
        if not self._store.up or asked.generation != self._store.generation:
            return True
        if asked.answered and not asked.sources and time.monotonic() - asked.at > KEEP_MISS_S:
            return True
        # vLLM's own cache has lost a block since, or begins with a window's last block.
        return bool(self._places(req_context).get(key, asked.begin + 1) <= asked.begin)

    @staticmethod
    def _places(req_context: Any) -> dict[bytes, int]:
        """{vLLM's key: the index of the token behind its block}."""
        return getattr(req_context, "_offload_key_positions", None) or {}

    def _ask(self, first: bytes, req_context: Any, tiers: frozenset[str]) -> _Asked:
        """Begins a request's lookup, for the keys that vLLM's own cache does not have."""
        places = self._places(req_context) or {first: 0}
        begin = places.get(first, 0) - self._tokens[split(first)[1]]
        if self._looks[0] == req_context.req_id:
            begin = self._looks[1]
        wanted: Wanted = {}
        ends: dict[bytes, int] = {}
        for key, end in places.items():
            mine, group = self._key(key, req_context.req_id)
            # What ends inside a block is a partial tail, which is not stored here.
            if end > begin and end % self._tokens[group] == 0:
                wanted.setdefault(group, []).append((key, mine))
                ends[key] = end
        tokens = max((len(keys) * self._tokens[group] for group, keys in wanted.items()), default=0)
        search = self._search()
        began = time.monotonic()
        seen = self._seen(search, wanted)
        if seen is not None and not any(seen.values()):
            absent = [(mine, group) for group, keys in wanted.items() for _, mine in keys]
            return _Asked(_done(([], {}, absent)), time.monotonic, begin, self._store.generation)
        longest = self._store.call_s if self._always else min(self._store.call_s, self.estimate.compute_s(tokens))
        return _Asked(self._pool.submit(search.run, wanted, tiers, ends, seen),
                      lambda: began + max(FIRST_WAIT_S, search.budget or longest), begin, self._store.generation)

    def _seen(self, search: _Search, wanted: Wanted) -> Optional[dict[int, list[Seen]]]:
        """{group: what is there of its keys}. None: it is not known soon enough, and is to be asked on another thread."""
        end = time.monotonic() + min(FIRST_WAIT_S, STEP_WAIT_S - self._spent_s)
        seen: dict[int, list[Seen]] = {}
        for group, keys in wanted.items():
            left = end - time.monotonic()
            if left <= 0:
                return None
            try:
                seen[group] = search.states(group, keys, left)
            except Down:
                return {}
            except terrace.Error as e:
                logger.debug("a lookup of Terrace failed: %s", e)
                return None
        return seen

    def _search(self) -> _Search:
        return _Search(self._store, self.estimate, self._tokens, self._always, self._prefix_groups, self._windows)

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
        # It is not there if the store went down between lookups of two keys. Then the worker's lease may fail.
        empty = _Asked(_done(([], {}, [])), time.monotonic, 0, self._store.generation)
        asked = self._asked.setdefault(req_context.req_id, empty)
        asked.answered = asked.loading = True
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
        req_id = req_context.req_id
        if self._known_of != self._store.generation:
            self._known_of = self._store.generation
            self._known.clear()
        chosen: list[bytes] = []
        transfer: list[Key] = []
        infos: list[tuple[Optional[bytes], int]] = []
        now, places, chain = time.monotonic(), self._places(req_context), self._chains.setdefault(req_id, _Chain())
        chain.note(places)
        # In vLLM's order, in which it gives the worker its blocks.
        for key in keys if self._store.up and req_id not in self._alone else ():
            mine, group = self._key(key, req_id)
            end, tokens = places.get(key, 0), self._tokens[group]
            if end % tokens or now - self._known.get((mine, group), -KNOWN_S) < KNOWN_S:
                continue  # a partial tail, or stored
            parent = chain.ends.get((group, end - tokens))
            chosen.append(key)
            transfer.append((mine, group))
            infos.append((self._key(parent, req_id)[0] if parent else None, max(end - tokens, 0)))
        self._count("store_blocks", len(chosen))
        return PrepareStoreOutput(keys_to_store=chosen, evicted_keys=[],
                                  store_spec=TerraceTransfer(req_id, transfer, infos))

    def stores_failed(self, unstored: Iterable[tuple[str, Key]]) -> None:
        """What workers did not store, by request; before the complete_store() of these keys, which vLLM calls anyway."""
        self._unstored.update(unstored)
        while len(self._unstored) > KNOWN_MOST:  # of jobs that vLLM has forgotten
            self._unstored.pop()

    def complete_store(self, keys: Iterable[bytes], req_context: Any, success: bool = True) -> None:
        stored: list[bytes] = []
        for key in keys:
            known = self._key(key, req_context.req_id)
            if (req_context.req_id, known) in self._unstored:
                self._unstored.discard((req_context.req_id, known))
            elif success and self._store.up:
                self._known.pop(known, None)
                self._known[known] = time.monotonic()
                stored.append(key)
        while len(self._known) > KNOWN_MOST:
            self._known.pop(next(iter(self._known)))
        if self._events is not None and stored:
            self._events.append(OffloadingEvent(keys=stored, medium=interface.Medium.CPU, removed=False,
                                                locality=interface.Locality.LOCAL))

    # ---- the rest ----

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        self._newest = req_context.req_id, _tiers(req_context)
        return RequestOffloadingContext()

    def queued(self, req_id: str, hashes: Sequence[bytes], cached: Callable[[bytes, int], bool]) -> None:
        """A request waits in vLLM's queue; after on_new_request. hashes: vLLM's, of its tokens. cached: whether vLLM's
        own cache has the block of a hash in a group."""
        if not self._store.up or req_id in self._alone or not (self._always or self.estimate.disk_known()):
            return
        if self._newest[0] == req_id and "disk" not in self._newest[1]:
            return
        wanted: Wanted = {}
        for group in self._prefix_groups & self._tokens.keys():
            step = self._tokens[group] // (self._tokens_per_hash or self._tokens[group])
            names = list(itertools.islice(hashes, step - 1, None, step))
            missing = next((n for n, name in enumerate(names) if not cached(name, group)), len(names))
            if missing < len(names):
                wanted[group] = [(name, self._name(name, req_id)) for name in names[missing:]]
        if wanted and self._may_warm.acquire(blocking=False):
            self._warmer.submit(self._search().warm, wanted).add_done_callback(lambda _: self._may_warm.release())

    def on_request_finished(self, req_context: Any) -> None:
        req_id = req_context.req_id
        asked = self._asked.get(req_id)
        if asked is not None and asked.loading:
            asked.ended = True
        else:
            self._forget(req_id)
        self._chains.pop(req_id, None)
        self._alone.discard(req_id)
        self._failed.discard(req_id)
        if req_id in self._salts:  # for completions that are still to come
            self._ended[req_id] = self._salts.pop(req_id)
        while len(self._ended) > ENDED_MOST:
            self._ended.pop(next(iter(self._ended)))

    def take_events(self) -> Iterable[OffloadingEvent]:
        events, self._events = self._events, [] if self._events is not None else None
        return events or ()

    def reset_cache(self) -> None:
        """vLLM's weights may have changed (a reinforcement learner's): nothing from before may be found again. The daemon's blocks are of
        every engine of the fingerprint, so this engine leaves them alone and uses keys of its own from now on."""
        for req_id in list(self._asked):
            self._forget(req_id)
        self._known.clear()
        self._unstored.clear()
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
        self._warmer.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(wait=False)
        self._store.close()


def _done(found: Found) -> concurrent.futures.Future[Found]:
    done: concurrent.futures.Future[Found] = concurrent.futures.Future()
    done.set_result(found)
    return done


def _release(leases: list[terrace.Lease]) -> None:
    for lease in leases:
        lease.close()


def _tiers(req_context: Any) -> frozenset[str]:
    """The tiers that the request may load from: "host" and "disk", or what kv_load_tiers of kv_transfer_params says."""
    chosen, here = getattr(req_context, "load_tier_filter", None), interface.Locality.LOCAL
    tiers = {"host": interface.Medium.CPU, "disk": interface.Medium.STORAGE}
    return TIERS if chosen is None else frozenset(name for name, medium in tiers.items() if chosen.allows(medium, here))


class _Search:
    """One request's lookup and lease, on a thread of the manager's."""

    def __init__(self, store: Store, estimate: Estimate, tokens: dict[int, int], always: bool,
                 prefix_groups: AbstractSet[int], windows: Mapping[int, int]) -> None:
        self._store, self.estimate, self._tokens, self._always = store, estimate, tokens, always
        self._prefix_groups, self._windows = prefix_groups, windows
        self.budget: Optional[float] = None  # seconds, once it is known

    def run(self, wanted: Wanted, tiers: frozenset[str], ends: dict[bytes, int],
            seen: Optional[dict[int, list[Seen]]] = None) -> Found:
        """([leases], {vLLM's key: "host" or "disk"}, [(the daemon's key, group)] that are to be stored again: they were
        evicted, or found to be corrupt). wanted: {group: [(vLLM's key, the daemon's)]}. tiers: from which may be
        loaded. ends: {vLLM's key: the index of the token behind its block}. seen: states() of all groups, if they are
        known. Never raises."""
        leases: list[terrace.Lease] = []
        sources: dict[bytes, str] = {}
        absent: list[Key] = []
        try:
            if seen is None:
                seen = {group: self.states(group, keys) for group, keys in wanted.items()}
            stored = {(mine, group) for group, keys in seen.items() for _, mine, _ in keys}
            absent += [(mine, group) for group, keys in wanted.items() for _, mine in keys
                       if (mine, group) not in stored]
            seen = {group: self._of_use(group, keys, wanted[group], tiers) for group, keys in seen.items()}
            seen = self._in_windows(seen, wanted, ends)
            tokens, disk_bytes = self._sizes(seen)
            self.budget = self._store.call_s if self._always else self.estimate.budget_s(tokens, disk_bytes)
            # If the disk is slower than computing, what is in memory before the first block on disk is still loaded.
            if not self.budget:
                seen = {group: _before_disk(keys) for group, keys in seen.items()}
                disk_bytes = 0
            began = time.monotonic()
            for group, keys in seen.items():
                absent += self._lease(group, keys, leases, sources)
            if disk_bytes:
                came = sum(self._store.block_bytes(split(key)[1]) for key, source in sources.items()
                           if source == "disk")
                self.estimate.loaded(max(came, 1), time.monotonic() - began)
        except Down:
            pass
        except terrace.Error as e:
            logger.debug("a lookup of Terrace failed: %s", e)
        except Exception:  # nothing of ours may end the engine
            logger.exception("a lookup of Terrace failed")
        return leases, sources, absent

    def warm(self, wanted: Wanted) -> None:
        """Has blocks of full attention brought from disks to memory, if loading them is worth it. Never raises."""
        try:
            seen = {group: self._of_use(group, self.states(group, keys), keys, TIERS)
                    for group, keys in wanted.items()}
            tokens, disk_bytes = self._sizes(seen)
            worth = self._always or (self.estimate.disk_known() and self.estimate.budget_s(tokens, disk_bytes) > 0)
            for group, keys in seen.items() if disk_bytes and worth else ():
                for piece in self._store.pieces(group, keys):
                    self._store.call(group, functools.partial(self._warm_of, names=[mine for _, mine, _ in piece]))
        except (Down, terrace.Error) as e:
            logger.debug("a request was not warmed: %s", e)
        except Exception:  # nothing of ours may end the engine
            logger.exception("a request was not warmed")

    def _warm_of(self, session: terrace.Session, names: list[bytes]) -> int:
        return session.warm(names, timeout=self._store.call_s)

    def _sizes(self, seen: dict[int, list[Seen]]) -> tuple[int, int]:
        """(tokens, bytes that are on disks)."""
        disk_bytes = sum(self._store.block_bytes(group) * sum(source == "disk" for _, _, source in keys)
                         for group, keys in seen.items())
        return max((len(keys) * self._tokens[group] for group, keys in seen.items()), default=0), disk_bytes

    def states(self, group: int, keys: list[tuple[bytes, bytes]], brief_s: Optional[float] = None) -> list[Seen]:
        """[(vLLM's key, the daemon's, "host" or "disk")] of those of which every worker's part is stored. brief_s: for
        how long the calls may take in all, if that is less than a call's time; then Deadline."""
        there = (terrace.State.HOST, terrace.State.DISK)
        found: list[Seen] = []
        end = time.monotonic() + (brief_s or 0)
        for piece in self._store.pieces(group, keys):
            timeout = self._store.call_s if brief_s is None else max(end - time.monotonic(), 1e-4)
            states = self._store.call(group, functools.partial(self._states_of, names=[mine for _, mine in piece],
                                                               timeout=timeout), brief_s is not None)
            found += [(key, mine, "disk" if terrace.State.DISK in parts else "host")
                      for (key, mine), parts in zip(piece, states) if all(part in there for part in parts)]
        return found

    def _states_of(self, session: terrace.Session, names: list[bytes], timeout: float) -> list[list[terrace.State]]:
        return session.lookup(names, states=True, timeout=timeout)[1]

    def _of_use(self, group: int, keys: list[Seen], wanted: list[tuple[bytes, bytes]],
                tiers: frozenset[str]) -> list[Seen]:
        """Without those in tiers that the request does not allow; of full attention, without those behind one that is
        not there."""
        allowed = [seen for seen in keys if seen[2] in tiers]
        if group not in self._prefix_groups:
            return allowed
        return [seen for seen, _ in itertools.takewhile(lambda pair: pair[0][0] == pair[1][0], zip(allowed, wanted))]

    def _in_windows(self, seen: dict[int, list[Seen]], wanted: Wanted, ends: dict[bytes, int]) -> dict[int, list[Seen]]:
        """Of windows and states the blocks that vLLM will load behind the hit of full attention, and one more: of a prompt
        of whole blocks that are all stored vLLM computes the last. If one of them is not there, all blocks before the
        hit's end, for vLLM then looks for windows further in front."""
        full = [group for group in wanted if group in self._prefix_groups]
        if not full:
            return seen
        hit = min(max((ends[key] for key, _, _ in seen[group]), default=0) for group in full)
        before, tails, whole = dict(seen), dict(seen), True
        for group in wanted.keys() - set(full):
            tokens = self._tokens[group]
            before[group] = [one for one in seen[group] if ends[one[0]] - tokens < hit]
            begin = hit - max(self._windows.get(group, hit), 1) - tokens  # a state is of the token where it ends
            tails[group] = [one for one in before[group] if ends[one[0]] > begin]
            whole &= len(tails[group]) == sum(begin < ends[key] < hit + tokens for key, _ in wanted[group])
        return tails if whole else before

    def _lease(self, group: int, keys: list[Seen], leases: list[terrace.Lease], sources: dict[bytes, str]) -> list[Key]:
        """[(the daemon's key, group)] that could not be leased."""
        timeout = max(0.02, min(self._store.call_s, self.budget or 0))
        done = 0
        for piece in self._store.pieces(group, keys):
            lease = self._store.call(group, functools.partial(self._lease_of, names=[mine for _, mine, _ in piece],
                                                              timeout=timeout))
            if lease is None:
                break
            leases.append(lease)
            sources.update((key, source) for key, _, source in piece[:len(lease)])
            done += len(lease)
            if len(lease) < len(piece):
                break
        return [(mine, group) for _, mine, _ in keys[done:]]

    def _lease_of(self, session: terrace.Session, names: list[bytes], timeout: float) -> Optional[terrace.Lease]:
        try:
            return session.lease(names, timeout=timeout)
        except terrace.Deadline:
            if timeout >= self._store.call_s:
                raise
            return None  # the disk takes longer than loading is worth; the daemon may be well


def _before_disk(keys: list[Seen]) -> list[Seen]:
    for i, (_, _, source) in enumerate(keys):
        if source == "disk":
            return keys[:i]
    return keys

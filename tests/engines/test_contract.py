#!/usr/bin/python3
"""terrace.vllm without vLLM: `test_contract.py TERRACED LIBTERRACE [TEST]`. Needs no torch.

The interface of vLLM is compared with what was recorded (vllm_interface.json), where a package is installed: in this
Python, or by run.sh under build/engines. What a real vLLM asked of the manager (vllm_calls.jsonl, recorded by
vllm_engine.py) is asked again over a real daemon, with stand-ins for vLLM's classes, and must be answered as it was."""

import glob
import importlib.util
import itertools
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock

TERRACED, LIBRARY = sys.argv[1:3]
os.environ["LIBTERRACE"] = LIBRARY
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "tests", "e2e"), os.path.join(ROOT, "client", "python")]
sys.dont_write_bytecode = True
import stand_in  # noqa: E402
import vllm_interface  # noqa: E402
INSTALLED = importlib.util.find_spec("vllm")
stand_in.install()
import terrace  # noqa: E402
from daemon import Daemon, wait_for  # noqa: E402
from fingerprints import AdaptersTest, Fingerprints  # noqa: E402,F401
from terrace.vllm import compatibility, connector, fingerprint, store  # noqa: E402
from terrace.vllm.estimate import FORGET_S, Estimate, TRIAL_SHARE, UNKNOWN_COMPUTE_S  # noqa: E402
from terrace.vllm.manager import TerraceManager  # noqa: E402
from terrace.vllm.store import Store  # noqa: E402
from terrace.vllm.worker import TerraceWorker  # noqa: E402
from vllm.v1.kv_offload.base import LookupResult  # noqa: E402

logging.getLogger("vllm.terrace").setLevel(logging.ERROR)
BLOCK, TOKENS = 4096, 32


class Interface(unittest.TestCase):
    def test_installed_packages(self):
        with open(os.path.join(HERE, "vllm_interface.json"), encoding="utf-8") as file:
            recorded = json.load(file)
        self.assertEqual(set(recorded), set(compatibility.VERSIONS.values()))
        folders = glob.glob(os.path.join(ROOT, "build", "engines", "vllm-*", "lib", "python3*", "site-packages"))
        if INSTALLED and INSTALLED.submodule_search_locations:
            folders.append(os.path.dirname(INSTALLED.submodule_search_locations[0]))
        for folder in folders:
            version = vllm_interface.version_of(folder)
            if version is None or compatibility.refusal(version):
                continue
            self.assertEqual(vllm_interface.of(folder), recorded[compatibility.VERSIONS[compatibility.minor(version)]], folder)

    def test_versions(self):
        for version in compatibility.VERSIONS.values():
            self.assertIsNone(compatibility.refusal(version))
            self.assertIsNone(compatibility.refusal(version + "+cpu"))
        for version in ("0.21.0", "0.33.0", "1.0.0", "0.3"):
            self.assertRegex(compatibility.refusal(version), "was run with vLLM .*, and not with|and not with %s.*install one of those" % version)


class Estimates(unittest.TestCase):
    def setUp(self):
        self.now = 100.0
        self.estimate = Estimate(lambda: self.now)

    def test_nothing_known(self):
        self.assertEqual(self.estimate.compute_s(1000), UNKNOWN_COMPUTE_S)
        self.assertEqual(self.estimate.budget_s(1000, 0), UNKNOWN_COMPUTE_S)
        self.assertAlmostEqual(self.estimate.budget_s(1000, 1 << 20), TRIAL_SHARE * UNKNOWN_COMPUTE_S)

    def test_slow_and_quick_disks(self):
        self.estimate.computed(1000, .1)
        self.assertAlmostEqual(self.estimate.budget_s(500, 0), .05)
        self.assertAlmostEqual(self.estimate.budget_s(500, 1 << 20), TRIAL_SHARE * .05)
        self.estimate.loaded(1 << 20, .2)  # 1 MiB takes .2 s
        self.assertEqual(self.estimate.budget_s(1000, 1 << 20), 0)
        self.assertAlmostEqual(self.estimate.budget_s(4000, 1 << 20), .4)
        self.now += FORGET_S + 1
        self.assertAlmostEqual(self.estimate.budget_s(1000, 1 << 20), TRIAL_SHARE * .1)

    def test_a_quarter_is_new(self):
        self.estimate.computed(100, 1)
        self.estimate.computed(500, 1)
        self.assertAlmostEqual(self.estimate.compute_s(200), 1)
        self.estimate.computed(0, 1)
        self.estimate.computed(1, 0)
        self.assertAlmostEqual(self.estimate.compute_s(200), 1)


class BytePages:
    """Pages of bytes, in the place of torch's tensors."""

    def __init__(self, blocks):
        self.blocks = [bytearray(BLOCK) for _ in range(blocks)]

    def store(self, block, view):
        view[:] = self.blocks[block]

    def load(self, block, view):
        self.blocks[block][:] = view


class Spec:
    def __init__(self, block_ids):
        self.block_ids = block_ids


class Engine:
    """The part of vLLM's that calls: one group of 32 tokens a block, and one worker, whose number is `rank` of `ranks`."""

    def __init__(self, daemon, groups=(0,), tokens=TOKENS, rank=0, ranks=1, always=True, prefix_groups=frozenset(),
                 windows=None, **more):
        layouts = {g: [terrace.Layout.opaque("contract group %d rank %d" % (g, r), "test/pages/1", BLOCK, block_tokens=tokens)
                       for r in range(ranks)] for g in groups}
        more.setdefault("call_s", 30)  # the machine may be busy
        self.store = Store(layouts, daemon.address, **more)
        self.worker_store = Store({g: of[rank:rank + 1] for g, of in layouts.items()}, daemon.address, **more)
        self.manager = TerraceManager(self.store, Estimate(), dict.fromkeys(groups, tokens), always_load=always,
                                      prefix_groups=prefix_groups, windows=windows)
        self.pages = {g: BytePages(256) for g in groups}
        self.worker = TerraceWorker(self.worker_store, self.pages)
        self.job = 0

    def close(self):
        self.worker.shutdown()
        self.manager.shutdown()

    def context(self, request, keys, tokens=TOKENS):
        context = stand_in.ReqContext(request)
        counts = {}
        for key in keys:
            counts[key[-4:]] = counts.get(key[-4:], 0) + 1
            context._offload_key_positions[key] = counts[key[-4:]] * tokens
        return context

    def run(self, submit, *specs):
        self.job += 1
        self.assert_true(submit(self.job, *specs))
        self.worker.wait({self.job})
        results = []
        while not results:
            results = self.worker.get_finished()
        return results[0]

    @staticmethod
    def assert_true(value):
        assert value

    def put(self, context, keys, content):
        """Stores; the keys that vLLM was told to store."""
        output = self.manager.prepare_store(keys, context)
        if output.keys_to_store:
            blocks = list(range(len(output.keys_to_store)))
            for block, key in zip(blocks, output.keys_to_store):
                self.pages[int.from_bytes(key[-4:], "big")].blocks[block][:] = content(key)
            self.run(self.worker.submit_store, Spec(blocks), output.store_spec)
            self.manager.complete_store(output.keys_to_store, context)
        return output.keys_to_store

    def look(self, context, keys):
        """The answers, none of them RETRY."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            answers = [self.manager.lookup(key, context) for key in keys]
            if LookupResult.RETRY not in answers:
                return answers
            self.manager.scheduled(())  # vLLM's next step
            time.sleep(.001)
        raise AssertionError("RETRY for ever")

    def number(self):
        self.job += 1
        return self.job

    def load_of(self, context, keys):
        """load(), of keys that need not have been looked up."""
        self.look(context, keys)
        return self.load(context, keys)

    def load(self, context, keys):
        """{key: bytes}; None: the load failed, and vLLM would compute."""
        spec = self.manager.prepare_load(keys, context)
        blocks = [128 + n for n in range(len(keys))]
        for n, key in zip(blocks, keys):
            self.pages[int.from_bytes(key[-4:], "big")].blocks[n][:] = bytes(BLOCK)
        self.run(self.worker.submit_load, spec, Spec(blocks))
        failed = self.worker.take_failed()
        self.manager.complete_load(keys, context)
        return None if failed else {key: bytes(self.pages[int.from_bytes(key[-4:], "big")].blocks[n]) for n, key in zip(blocks, keys)}


def content(key):
    return (key * (BLOCK // len(key) + 1))[:BLOCK]


def keys_of(seed, count, group=0, size=32):
    return [(b"%06d%02d" % (seed, n)).ljust(size, b"k") + group.to_bytes(4, "big") for n in range(count)]


class Calls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(TERRACED, "--host-bytes", "32MiB")
        cls.addClassCleanup(cls.daemon.close)

    def engine(self, **more):
        engine = Engine(self.daemon, **more)
        self.addCleanup(engine.close)
        return engine

    def hits(self, engine, request, keys):
        return [a is LookupResult.HIT for a in engine.look(engine.context(request, keys), keys)]

    def test_recorded(self):
        engine, contexts, asked = self.engine(), {}, 0
        with open(os.path.join(HERE, "vllm_calls.jsonl"), encoding="utf-8") as file:
            calls = [json.loads(line) for line in file]
        self.assertTrue({"lookup", "prepare_load", "complete_load", "prepare_store", "complete_store"} <= {call[0] for call in calls})
        for name, request, keys, places, result in calls:
            context = contexts.setdefault(request, stand_in.ReqContext(request))
            context._offload_key_positions = {bytes.fromhex(key): end for key, end in places.items()}
            keys = [bytes.fromhex(key) for key in keys]
            if name == "lookup" and result != "RETRY":
                self.assertEqual(engine.look(context, keys)[0].name, result)
                asked += 1
            elif name == "prepare_store":
                self.assertEqual([key.hex() for key in engine.put(context, keys, content)], result)
            elif name == "prepare_load":
                self.assertEqual(engine.load(context, keys), {key: content(key) for key in keys})
            elif name in ("on_new_request", "on_request_finished"):
                getattr(engine.manager, name)(context)
        self.assertGreater(asked, 0)

    def test_hashes_of_all_sizes(self):
        engine = self.engine()
        for size in (16, 32):
            keys = keys_of(size, 5, size=size)
            self.assertEqual(self.hits(engine, "before %d" % size, keys), [False] * 5)
            self.assertEqual(engine.put(engine.context("put %d" % size, keys), keys[:3], content), keys[:3])
            self.assertEqual(self.hits(engine, "after %d" % size, keys), [True] * 3 + [False] * 2)

    def test_groups_are_apart(self):
        engine = self.engine(groups=(0, 1))
        full, window = keys_of(1, 4, 0), keys_of(1, 4, 1)
        context = engine.context("put", full + window)
        engine.put(context, full + window[3:], content)  # a window's blocks are stored sparsely
        context = engine.context("look", full + window)
        self.assertEqual([a.name for a in engine.look(context, full)], ["HIT"] * 4)
        self.assertEqual([a.name for a in engine.look(context, window)], ["MISS"] * 3 + ["HIT"])
        wanted = full + window[3:]
        self.assertEqual(engine.load(context, wanted), {key: content(key) for key in wanted})

    def test_workers_have_parts(self):
        """A block is there once each of two workers has stored its part, and each gets its own back."""
        engines = [self.engine(rank=rank, ranks=2) for rank in range(2)]
        keys = keys_of(7, 4)
        parts = [lambda key: content(key + b"0"), lambda key: content(key + b"1")]
        engines[0].put(engines[0].context("put", keys), keys, parts[0])
        self.assertEqual(self.hits(engines[1], "half", keys), [False] * 4)
        engines[1].put(engines[1].context("put", keys[:3]), keys[:3], parts[1])
        for rank, engine in enumerate(engines):
            context = engine.context("look", keys)
            self.assertEqual([a.name for a in engine.look(context, keys)], ["HIT"] * 3 + ["MISS"])
            self.assertEqual(engine.load(context, keys[:3]), {key: parts[rank](key) for key in keys[:3]})

    def test_partial_tails_are_not_stored(self):
        engine = self.engine()
        keys = keys_of(2, 3)
        context = engine.context("tail", keys)
        context._offload_key_positions[keys[2]] = 2 * TOKENS + 7
        self.assertEqual(engine.put(context, keys, content), keys[:2])
        self.assertEqual([a.name for a in engine.look(context, keys)], ["HIT", "HIT", "MISS"])

    def test_salts_of_adapters(self):
        engine = self.engine()
        keys = keys_of(3, 2)
        engine.manager.salt("one", b"1" * 32)
        engine.put(engine.context("one", keys), keys, content)
        engine.manager.salt("same", b"1" * 32)
        engine.manager.salt("other", b"2" * 32)
        self.assertEqual(self.hits(engine, "same", keys), [True] * 2)
        self.assertEqual(self.hits(engine, "other", keys), [False] * 2)
        self.assertEqual(self.hits(engine, "none", keys), [False] * 2)

    def test_reset_finds_nothing_again(self):
        engine, other = self.engine(), self.engine()
        keys = keys_of(4, 2)
        engine.put(engine.context("put", keys), keys, content)
        engine.manager.reset_cache()
        self.assertEqual(self.hits(engine, "after", keys), [False] * 2)
        self.assertEqual(self.hits(other, "other", keys), [True] * 2)

    def test_what_is_a_hit_stays(self):
        """It is leased: other blocks do not evict it before vLLM has loaded it."""
        engine, other = self.engine(), self.engine()
        keys = keys_of(5, 8)
        engine.put(engine.context("put", keys), keys, content)
        context = engine.context("look", keys)
        self.assertEqual({a.name for a in engine.look(context, keys)}, {"HIT"})
        for n in range(100):  # 100 x 128 blocks of 4 KiB and more are more than 32 MiB
            more = keys_of(1000 + n, 128)[:99]
            other.put(other.context("more %d" % n, more), more, content)
        self.assertEqual(engine.load(context, keys), {key: content(key) for key in keys})

    def test_what_was_evicted_is_stored_again(self):
        engine, other = self.engine(), self.engine()
        keys = keys_of(8, 4)
        self.assertEqual(engine.put(engine.context("put", keys), keys, content), keys)
        self.assertEqual(engine.put(engine.context("again", keys), keys, content), [])  # they are known to be there
        numbers = itertools.count()

        def evicted():
            for _ in range(20):
                more = keys_of(3000 + next(numbers), 128)[:99]
                other.put(other.context("more", more), more, content)
            return engine.store.call(0, lambda session: session.lookup([key[:-4] for key in keys[:1]])) == 0
        wait_for(evicted, 60, "the first block is evicted")
        self.assertFalse(self.hits(engine, "look", keys)[0])
        self.assertIn(keys[0], engine.put(engine.context("after", keys), keys, content))

    def leases(self):
        return sum(value for name, value in self.daemon.stats().items() if name.split("{")[0] == "terrace_leases")

    def leased(self, engine, seed):
        """A request whose blocks are leased, and no other: (its context, keys)."""
        keys = keys_of(seed, 8)
        engine.put(engine.context("put", keys), keys, content)
        wait_for(lambda: self.leases() == 0, 30, "nothing is leased")
        context = engine.context("look", keys)
        engine.look(context, keys)
        self.assertGreater(self.leases(), 0)
        return context, keys

    def test_requests_that_end_give_back(self):
        engine = self.engine()
        context, _ = self.leased(engine, 6)
        engine.manager.on_request_finished(context)
        wait_for(lambda: self.leases() == 0, 30, "what the request had leased is given back")

    def test_requests_that_are_computed_give_back(self):
        """vLLM need not load what was a hit: a window's blocks may be missing. Then it computes the request, for
        minutes perhaps."""
        engine = self.engine()
        joined = connected(engine)
        context, keys = self.leased(engine, 9)
        joined.build_connector_meta(types.SimpleNamespace(num_scheduled_tokens={"another": 1}))
        self.assertEqual({a.name for a in engine.look(context, keys)}, {"HIT"})
        self.assertGreater(self.leases(), 0)
        joined.build_connector_meta(types.SimpleNamespace(num_scheduled_tokens={"look": 256}))
        wait_for(lambda: self.leases() == 0, 30, "what the request had leased is given back")
        self.assertEqual({a.name for a in engine.look(context, keys)}, {"HIT"})  # it was preempted

    def test_goes_down_between_two_keys(self):
        """vLLM loads what was a hit before."""
        engine = self.engine()
        keys = keys_of(28, 2)
        engine.put(engine.context("put", keys), keys, content)
        context = engine.context("look", keys)
        self.assertEqual(engine.look(context, keys[:1])[0].name, "HIT")
        sessions, engine.store._sessions = engine.store._sessions, None
        self.assertEqual(engine.look(context, keys[1:])[0].name, "MISS")
        engine.store._sessions = sessions
        self.assertEqual(engine.load(context, keys[:1]), {keys[0]: content(keys[0])})
        self.assertEqual(engine.manager._asked, {})

    def test_loads_that_fail_are_not_tried_again(self):
        """A worker that cannot reach the daemon fails each load of what the scheduler finds, and a request that is
        looked up again after each would wait for ever."""
        engine = self.engine()
        keys = keys_of(24, 4)
        engine.put(engine.context("put", keys), keys, content)
        context, joined = engine.context("r", keys), connected(engine)
        self.assertEqual({a.name for a in engine.look(context, keys)}, {"HIT"})
        engine.worker_store.close()

        def fails(context):
            """vLLM tells the connector of failed requests, which then tells the manager of loads that have ended."""
            engine.run(engine.worker.submit_load, engine.manager.prepare_load(keys, context), Spec(range(4)))
            failed = engine.worker.take_failed()
            joined.update_connector_output(types.SimpleNamespace(kv_connector_worker_meta=None, failed_recving=failed))
            engine.manager.complete_load(keys, context)
            return failed
        self.assertEqual(fails(context), {"r"})
        self.assertEqual(engine.manager._counts["failed_loads"], 1)
        self.assertEqual({a.name for a in engine.look(context, keys)}, {"MISS"})
        self.assertEqual({a.name for a in engine.look(engine.context("another", keys), keys)}, {"HIT"})
        engine.manager.on_request_finished(context)
        self.assertEqual({a.name for a in engine.look(context, keys)}, {"HIT"})
        engine.manager.prepare_load(keys, context)
        engine.manager.on_request_finished(context)  # aborted while it loads
        self.assertEqual(fails(context), {"r"})
        self.assertEqual(engine.manager._failed, set())

    def test_more_keys_than_a_call_takes(self):
        engine = self.engine()
        keys = keys_of(10, 10) + [b"%032d" % n + bytes(4) for n in range(store.KEYS_MOST)]
        engine.put(engine.context("put", keys[:10]), keys[:10], content)
        self.assertEqual(self.hits(engine, "look", keys), [True] * 10 + [False] * (len(keys) - 10))
        with unittest.mock.patch.object(store, "KEYS_MOST", 3):
            keys = keys_of(11, 10)
            context = engine.context("few", keys)
            self.assertEqual(engine.put(context, keys, content), keys)
            self.assertEqual({a.name for a in engine.look(context, keys)}, {"HIT"})
            self.assertEqual(engine.load(context, keys), {key: content(key) for key in keys})
            self.assertIsNone(engine.load_of(context, keys + keys_of(12, 1)))

    def test_places(self):
        """A block's parent, and the index of its first token."""
        engine = self.engine()
        keys = keys_of(13, 5)
        context = engine.context("put", keys)
        spec = engine.manager.prepare_store(keys[1:4], context).store_spec
        self.assertEqual(spec.infos, [(keys[n - 1][:-4], n * TOKENS) for n in (1, 2, 3)])
        spec = engine.manager.prepare_store([keys[4], keys[0]], context).store_spec
        self.assertEqual(spec.infos, [(keys[3][:-4], 4 * TOKENS), (None, 0)])
        self.assertEqual(spec.keys, [(keys[4][:-4], 0), (keys[0][:-4], 0)])  # vLLM's order, in which it gives blocks

    def test_vllm_forgets(self):
        """A request that waits is looked up anew where vLLM's own cache has lost blocks that it had."""
        engine = self.engine()
        keys = keys_of(14, 6)
        engine.put(engine.context("put", keys), keys, content)
        context = engine.context("look", keys)
        self.assertEqual([a.name for a in engine.look(context, keys[4:])], ["HIT"] * 2)
        self.assertEqual([a.name for a in engine.look(context, keys)], ["HIT"] * 6)
        self.assertEqual(engine.load(context, keys), {key: content(key) for key in keys})

    def test_windows_are_looked_up_from_their_end(self):
        engine = self.engine()
        keys = keys_of(15, 6)
        engine.put(engine.context("put", keys), keys[2:], content)
        context = engine.context("look", keys)
        self.assertEqual([a.name for a in engine.look(context, keys[::-1])], ["HIT"] * 4 + ["MISS"] * 2)
        joined, calls = connected(engine), []
        context = engine.context("told", keys)
        joined.connector_scheduler.look = lambda request, computed: calls.append(engine.look(context, keys[:2:-1]))
        with unittest.mock.patch.object(engine.manager, "_ask", wraps=engine.manager._ask) as asked:
            joined.get_num_new_matched_tokens(types.SimpleNamespace(request_id="told"), 3 * TOKENS)
        self.assertEqual([a.name for a in calls[0]], ["HIT"] * 3)
        self.assertEqual(asked.call_count, 1)
        self.assertEqual(len(engine.manager._asked["told"].leases[0]), 3)  # what vLLM has itself is not asked for

    def test_what_is_behind_a_gap_is_not_leased(self):
        """A group of full attention needs all blocks before."""
        for prefix_groups, count in ((frozenset(), 7), (frozenset((0,)), 3)):
            engine = self.engine(prefix_groups=prefix_groups)
            keys = keys_of(16, 8)
            engine.put(engine.context("put", keys), keys[:3] + keys[4:], content)
            context = engine.context("look", keys)
            self.assertEqual([a.name for a in engine.look(context, keys)[:4]], ["HIT"] * 3 + ["MISS"])
            self.assertEqual(sum(map(len, engine.manager._asked["look"].leases)), count)

    def test_of_a_window_its_end_is_leased(self):
        """Behind a hit in full attention, of a window of two blocks: with one more, which vLLM may load as well."""
        engine = self.engine(groups=(0, 1), prefix_groups=frozenset((0,)), windows={1: 2 * TOKENS})
        full, window = keys_of(25, 12, 0), keys_of(25, 12, 1)

        def answers(request):
            context = engine.context(request, full + window)
            engine.look(context, full[:1])
            found = [engine.look(context, keys) for keys in (full, window)]
            return ["".join(a.name[0] for a in of) for of in found]
        engine.put(engine.context("put", full + window), full[:10] + window[:9] + window[10:], content)
        self.assertEqual(answers("a gap in the window"), ["H" * 10 + "MM", "H" * 9 + "MMM"])
        engine.put(engine.context("put", full + window), window[9:10], content)
        self.assertEqual(answers("whole"), ["H" * 10 + "MM", "M" * 7 + "HHH" + "MM"])
        self.assertEqual(answers("whole"), ["H" * 10 + "MM", "M" * 7 + "HHH" + "MM"])
        full, window = keys_of(26, 4, 0), keys_of(26, 4, 1)
        engine.put(engine.context("put", full + window), full[1:] + window, content)
        self.assertEqual(answers("nothing in full attention"), ["MMMM", "MMMM"])

    def test_of_states_the_last_and_the_one_before_are_leased(self):
        """vLLM computes a prompt's last token at least: of one of whole blocks that is wholly stored it loads all but
        the last block, and the state before that."""
        engine = self.engine(groups=(0, 1), prefix_groups=frozenset((0,)), windows={1: 0})
        full, states = keys_of(29, 6, 0), keys_of(29, 6, 1)
        context = engine.context("look", full + states)
        engine.put(engine.context("put", full + states), full + states, content)
        found = [engine.look(context, keys) for keys in (full, states)]
        self.assertEqual(["".join(a.name[0] for a in of) for of in found], ["HHHHHH", "MMMMHH"])

    def test_two_windows(self):
        """The hit ends where both windows are there."""
        engine = self.engine(groups=(0, 1, 2), prefix_groups=frozenset((0,)), windows={1: 2 * TOKENS, 2: TOKENS})
        keys = [keys_of(27, 12, group) for group in range(3)]
        context = engine.context("put", sum(keys, []))
        engine.put(context, keys[0] + keys[1] + keys[2][:6], content)
        context = engine.context("look", sum(keys, []))
        found = [engine.look(context, of) for of in keys]
        self.assertEqual(["".join(a.name[0] for a in of) for of in found], ["H" * 12, "H" * 12, "H" * 6 + "M" * 6])

    def test_windows_of_groups(self):
        class Full(stand_in.FullAttentionSpec):
            sliding_window = 128
        specs = [Full(), types.SimpleNamespace(sliding_window=128, extra_retained_tokens=3),
                 types.SimpleNamespace(attention_chunk_size=512), types.SimpleNamespace(mamba_cache_mode="align"),
                 types.SimpleNamespace()]
        self.assertEqual([connector.window_of(spec) for spec in specs], [None, 131, 512, 0, None])

    def test_tiers_that_a_request_allows(self):
        engine = self.engine()
        keys = keys_of(17, 2)
        engine.put(engine.context("put", keys), keys, content)
        media = stand_in_base().Medium
        for allowed, answer in (((media.CPU, media.STORAGE), "HIT"), ((media.CPU,), "HIT"), ((media.STORAGE,), "MISS"),
                                ((), "MISS")):
            context = engine.context("look %s" % (allowed,), keys)
            context.load_tier_filter = stand_in.Matchers(*allowed)
            self.assertEqual({a.name for a in engine.look(context, keys)}, {answer}, allowed)

    def test_many_requests_of_an_adapter(self):
        engine = self.engine()
        key = keys_of(18, 1)[0]
        for n in range(5000):
            engine.manager.salt("r%d" % n, b"1" * 32)
        engine.manager.on_request_finished(stand_in.ReqContext("r4999"))
        made = {engine.manager._key(key, "r%d" % n) for n in range(5000)}
        self.assertEqual(len(made), 1)
        self.assertNotIn(engine.manager._key(key, "none"), made)
        for n in range(4999):
            engine.manager.on_request_finished(stand_in.ReqContext("r%d" % n))
        self.assertLess(len(engine.manager._salts) + len(engine.manager._ended), 5000)

    def test_an_adapter_that_cannot_be_read(self):
        """Nothing of its requests is stored, for nothing could be found again."""
        engine = self.engine()
        keys, folder = keys_of(19, 2), tempfile.mkdtemp(prefix="terrace-contract-")
        self.addCleanup(shutil.rmtree, folder)
        for name in ("adapter_config.json", "adapter_model.tensors"):  # weights of a kind that is not known
            with open(os.path.join(folder, name), "wb") as file:
                file.write(b"{}")
        for path in ("/absent/adapter", folder):
            connected(engine).on_new_request(types.SimpleNamespace(
                request_id="r", lora_request=types.SimpleNamespace(lora_path=path), block_hashes=[],
                skip_reading_prefix_cache=False))
            context = engine.context("r", keys)
            self.assertEqual(engine.put(context, keys, content), [], path)
            self.assertEqual({a.name for a in engine.look(context, keys)}, {"MISS"})
            engine.manager.on_request_finished(context)
        self.assertEqual(engine.put(engine.context("r", keys), keys, content), keys)

    def test_a_slow_disk_is_not_an_absent_daemon(self):
        """A lease that takes longer than loading is worth ends the load, and no more."""
        engine = self.engine(always=False)
        keys = keys_of(20, 4)
        engine.put(engine.context("put", keys), keys, content)
        engine.manager.estimate.computed(1000, .01)
        slow = terrace.Deadline(terrace.Status.DEADLINE, "the disk is slow")
        with unittest.mock.patch.object(terrace.Session, "lease", side_effect=slow):
            self.assertEqual(self.hits(engine, "slow", keys), [False] * 4)
        self.assertTrue(engine.store.up)
        self.assertEqual(self.hits(engine, "quick", keys), [True] * 4)

    def test_engine_waits_for_no_queue(self):
        """vLLM waits in its step for stores of blocks that it wants to reuse: what has not begun is dropped."""
        engine = self.engine(call_s=2)
        going_on, begun = threading.Event(), threading.Event()
        self.addCleanup(going_on.set)
        keys = keys_of(21, 3)
        specs = [engine.manager.prepare_store([key], engine.context("put", keys)).store_spec for key in keys]
        store_page = engine.pages[0].store

        def slow(block, view):
            begun.set()
            going_on.wait(60)
            store_page(block, view)
        engine.pages[0].store = slow
        engine.worker.submit_store(100, Spec([0]), specs[0])
        self.assertTrue(begun.wait(30))
        for n in (1, 2):  # jobs that wait together begin together
            engine.worker.submit_store(100 + n, Spec([n]), specs[n])
        waiting = threading.Thread(target=engine.worker.wait, args=[{101, 102}], daemon=True)
        waiting.start()
        waiting.join(30)
        self.assertFalse(waiting.is_alive(), "the engine waits for a store that has not begun")
        self.assertEqual({result.job_id for result in engine.worker.get_finished()}, {101, 102})
        going_on.set()
        engine.worker.wait({100})
        self.assertEqual([result.job_id for result in engine.worker.get_finished()], [100])

    def test_stores_that_fail_are_not_known(self):
        """vLLM takes each job for one that was done: the workers name what it did not store."""
        engine = self.engine()
        engine.manager._events = []
        scheduler, worker = connected(engine), connected(engine, "WORKER")
        keys, full = keys_of(30, 3), terrace.Exhausted(terrace.Status.EXHAUSTED, "no room")
        real = engine.pages[0].store

        def no_room(block, view):
            if block == 1:
                raise full
            real(block, view)

        def reported(request, run):
            """Stores `keys` by run(spec), and returns those of which vLLM is told."""
            context = engine.context(request, keys)
            output = engine.manager.prepare_store(keys, context)
            run(output.store_spec)
            plain = connector.StepMetadata({}, [], -1)  # another worker's
            meta = worker.build_connector_worker_meta()
            for one in (meta.aggregate(plain), plain.aggregate(meta)) if meta else ():
                scheduler.update_connector_output(
                    types.SimpleNamespace(kv_connector_worker_meta=one, failed_recving=set()))
            self.assertIsNone(worker.build_connector_worker_meta())
            engine.manager.complete_store(output.keys_to_store, context)
            return [key for event in engine.manager.take_events() for key in event.keys]

        def run(spec):
            engine.run(engine.worker.submit_store, Spec(range(len(spec.keys))), spec)

        def dropped(spec):
            future = engine.worker._stores.submit(begun.wait, 60)
            engine.worker._store.call_s = .01
            run(spec)
            begun.set()
            future.result(60)
            engine.worker._store.call_s = 30
        begun = threading.Event()
        self.addCleanup(begun.set)
        with unittest.mock.patch.object(terrace.Session, "reserve", side_effect=full):
            self.assertEqual(reported("refused", run), [])
        self.assertEqual(reported("dropped", dropped), [])
        with unittest.mock.patch.object(store, "KEYS_MOST", 1), \
                unittest.mock.patch.object(engine.pages[0], "store", no_room):
            self.assertEqual(reported("partly", run), keys[:1])
        self.assertEqual(reported("whole", run), keys[1:])
        self.assertEqual(engine.manager._unstored, set())

    def test_device_has_done_its_work(self):
        """Before a page is read, and before one is written: the device may still write the zeros of a new block."""
        engine = self.engine()
        keys, waits = keys_of(22, 2), []
        engine.worker._before_copy = lambda: waits.append(len(waits))
        context = engine.context("r", keys)
        engine.put(context, keys, content)
        self.assertEqual(len(waits), 1)
        engine.look(context, keys)
        self.assertEqual(engine.load(context, keys), {key: content(key) for key in keys})
        self.assertEqual(len(waits), 2)

    def test_waiting_in_a_step(self):
        """Lookups that are slow delay a step of the scheduler's once, not once a request."""
        engine = self.engine()
        joined = connected(engine)
        going_on = threading.Event()
        self.addCleanup(going_on.set)

        def slow(*_, timeout, **__):
            if timeout < 1:  # on vLLM's thread
                brief.append(timeout)
                time.sleep(timeout)
                raise terrace.Deadline(terrace.Status.DEADLINE, "")
            going_on.wait(60)
            return 0, []
        brief = []
        with unittest.mock.patch.object(terrace.Session, "lookup", side_effect=slow), \
                unittest.mock.patch("concurrent.futures.wait", return_value=(set(), set())) as waits:
            for _ in range(2):
                seconds = 0
                for _ in range(100):
                    key = keys_of(23, 1)[0]
                    context = engine.context("r%d" % engine.number(), [key])
                    engine.manager.lookup(key, context)
                    seconds += sum(call.args[1] for call in waits.call_args_list)
                    waits.reset_mock()
                self.assertLessEqual(seconds + sum(brief), .1)
                self.assertGreater(sum(brief), 0)
                brief.clear()
                joined.build_connector_meta(types.SimpleNamespace(num_scheduled_tokens={}))
            # To begin one takes time as well, 3 ms here.
            now, begun, ask = [100.0], [], engine.manager._ask

            def begin(*args):
                begun.append(args)
                now[0] += .003
                return ask(*args)
            contexts = [engine.context("long %d" % n, [key]) for n in range(100)]
            with unittest.mock.patch.object(engine.manager, "_ask", begin), \
                    unittest.mock.patch("time.monotonic", lambda: now[0]):
                for step in range(1, 3):
                    self.assertEqual({engine.manager.lookup(key, one).name for one in contexts}, {"RETRY"})
                    self.assertTrue(8 * step <= len(begun) <= 16 * step, len(begun))
                    joined.build_connector_meta(types.SimpleNamespace(num_scheduled_tokens={}))
            going_on.set()


def stand_in_base():
    return sys.modules["vllm.v1.kv_offload.base"]


def connected(engine, role="SCHEDULER"):
    """A TerraceConnector over the engine's manager and worker."""
    config = types.SimpleNamespace(
        model_config=types.SimpleNamespace(model="some/model"),
        parallel_config=types.SimpleNamespace(world_size=1, tensor_parallel_size=1, decode_context_parallel_size=1),
        kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={}),
        cache_config=types.SimpleNamespace(prefix_caching_hash_algo="sha256"),
        scheduler_side=types.SimpleNamespace(manager=engine.manager),
        worker_side=types.SimpleNamespace(worker=engine.worker))
    cache = types.SimpleNamespace(kv_cache_groups=[])
    with unittest.mock.patch.object(compatibility, "check"), \
            unittest.mock.patch.object(fingerprint, "text_of", return_value="text"):
        return connector.TerraceConnector(config, connector.KVConnectorRole[role], cache)


class Options(unittest.TestCase):
    def test_parallel(self):
        for world, tensor, decode in ((2, 2, 1), (1, 1, 1)):
            connector.check_parallel(types.SimpleNamespace(
                world_size=world, tensor_parallel_size=tensor, decode_context_parallel_size=decode))
        for world, tensor, decode in ((4, 2, 1), (2, 2, 2)):
            with self.assertRaisesRegex(ValueError, "pipeline and context parallel"):
                connector.check_parallel(types.SimpleNamespace(
                    world_size=world, tensor_parallel_size=tensor, decode_context_parallel_size=decode))

    def test_weights_that_are_sampled(self):
        """The scheduler's process says it once, not each worker's."""
        engine = types.SimpleNamespace(manager=None, worker=None)
        with unittest.mock.patch.object(fingerprint, "sampled", return_value=True), \
                self.assertLogs("vllm.terrace", "INFO") as logs:
            for role in ("SCHEDULER", "WORKER"):
                connected(engine, role)
        said = [line for line in logs.output if "some/model is larger than 2 GiB" in line]
        self.assertEqual(len(said), 1)
        self.assertIn("times of its files", said[0])

    def test_mistakes(self):
        connector.check_options({"terrace.address": "unix:/x", "terrace.load": "always", "terrace.call_ms": 9, "else": 1})
        for options, words in (({"terrace.lod": "always"}, "terrace.lod.*is no option.*terrace.load"),
                               ({"terrace.load": "never"}, "terrace.load.*never.*estimate"),
                               ({"terrace.call_ms": 0}, "terrace.call_ms.*0.*milliseconds"),
                               ({"terrace.call_ms": "soon"}, "terrace.call_ms.*soon.*milliseconds"),
                               ({"terrace.share": "always"}, "terrace.share.*always.*restarts")):
            with self.assertRaisesRegex(ValueError, words):
                connector.check_options(options)


class Steps(unittest.TestCase):
    """How quickly tokens are computed, which vLLM tells by its steps. It plans a step while the one before runs."""

    def setUp(self):
        self.now, self.computed = 100.0, []
        manager = types.SimpleNamespace(estimate=types.SimpleNamespace(computed=lambda *a: self.computed.append(a)),
                                        scheduled=lambda requests: None, loads_failed=lambda requests: None,
                                        stores_failed=lambda parts: None)
        engine = types.SimpleNamespace(manager=manager, worker=None)
        self.scheduler, self.worker = connected(engine), connected(engine, "WORKER")
        clock = unittest.mock.patch("time.monotonic", lambda: self.now)
        clock.start()
        self.addCleanup(clock.stop)

    def plan(self, tokens):
        return self.scheduler.build_connector_meta(types.SimpleNamespace(num_scheduled_tokens={"r": tokens}))

    def run_step(self, meta, seconds):
        self.now += seconds
        self.worker._connector_metadata = meta
        out = self.worker.build_connector_worker_meta()
        self.scheduler.update_connector_output(
            types.SimpleNamespace(kv_connector_worker_meta=out, failed_recving=set()))

    def test_one_after_the_other(self):
        for tokens in (1, 1000, 2):
            self.run_step(self.plan(tokens), .5)
        self.assertEqual(self.computed, [(1000, .5)])

    def test_ahead(self):
        """A large step between small ones, each planned before the one before it has ended."""
        first = self.plan(1)
        large = self.plan(1000)
        self.run_step(first, .01)
        self.assertEqual(self.computed, [])
        last = self.plan(1)
        self.run_step(large, 2.0)
        self.run_step(last, .01)
        self.assertEqual([tokens for tokens, _ in self.computed], [1000])
        self.assertAlmostEqual(self.computed[0][1], 2.0)

    def test_several_workers(self):
        meta = self.plan(500)
        self.now += 1
        self.worker._connector_metadata = meta
        out = self.worker.build_connector_worker_meta().aggregate(self.worker.build_connector_worker_meta())
        self.scheduler.update_connector_output(
            types.SimpleNamespace(kv_connector_worker_meta=out, failed_recving=set()))
        self.assertEqual(self.computed, [(500, 1.0)])
        self.worker._connector_metadata = None
        self.assertIsNone(self.worker.build_connector_worker_meta())


class Reopened(unittest.TestCase):
    """A store over a daemon that answers when it is tried, and not when it is used."""

    def setUp(self):
        self.delays, self.open_fails, self.open_refuses = [], 0, []
        patch = unittest.mock.patch.object(Store, "_open", self.open)
        patch.start()
        self.addCleanup(patch.stop)
        logging.getLogger("vllm.terrace").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("vllm.terrace").setLevel, logging.ERROR)

    def open(self, timeout):
        if self.open_refuses:
            raise self.open_refuses.pop()
        if self.open_fails:
            self.open_fails -= 1
            raise ValueError("what no call raises")
        return {0: types.SimpleNamespace(lookup=lambda *a, **b: 0)}

    def store(self):
        made = Store({0: []})
        made._closed.wait = lambda delay: self.delays.append(delay)
        self.addCleanup(made._closed.set)
        return made

    def fails(self, made):
        def late(session):
            raise terrace.Deadline(terrace.Status.DEADLINE, "late")
        with self.assertRaises(store.Down):
            made.call(0, late)
        wait_for(lambda: made.up, 30, "the store is up again")

    def test_pauses_grow(self):
        """Each failure is two lines of the log, and a new session at the daemon."""
        made = self.store()
        for _ in range(10):
            self.fails(made)
        self.assertEqual(self.delays[:3], [store.RETRY_S, 2 * store.RETRY_S, 4 * store.RETRY_S])
        self.assertGreaterEqual(self.delays[-1], 4)
        self.assertLessEqual(self.delays[-1], 30)
        with unittest.mock.patch("time.monotonic", lambda now=time.monotonic() + 3600: now):
            self.fails(made)
        self.assertEqual(self.delays[-1], store.RETRY_S)

    def test_refusals(self):
        """The daemon answers, and the next attempt mostly says the same."""
        denied = [kind(status, "the tenant %d" % n) for n, (kind, status) in enumerate((
            (terrace.Denied, terrace.Status.DENIED), (terrace.Invalid, terrace.Status.INVALID),
            (terrace.Unsupported, terrace.Status.UNSUPPORTED)))]
        for error in denied:
            self.delays.clear()
            self.open_refuses = [error] * 9
            with self.assertLogs("vllm.terrace", "WARNING") as logs:
                made = self.store()
                wait_for(lambda: made.up, 30, "the store is up")
            said = [line for line in logs.output if str(error) in line]
            self.assertEqual(len(said), 1)
            self.assertRegex(said[0], "Terrace refuses this engine")
            self.assertNotRegex(said[0], "does not answer")
            self.assertEqual(self.delays[-1], store.REFUSED_MOST_S)
            self.assertTrue(all(a <= b for a, b in zip(self.delays, self.delays[1:])))
        with self.assertLogs("vllm.terrace", "WARNING") as logs:
            self.open_refuses = [denied[0], terrace.Unavailable(terrace.Status.UNAVAILABLE, "not there yet")]
            made = self.store()
            wait_for(lambda: made.up, 30, "the store is up")
        self.assertEqual([line.split(" (")[0].split(":")[-1] for line in logs.output],
                         ["Terrace does not answer", "Terrace refuses this engine", "Terrace answers again"])

    def test_what_no_call_raises(self):
        made = self.store()
        self.open_fails = 2
        self.fails(made)


class Queued(unittest.TestCase):
    """Requests whose blocks are on a disk alone."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="terrace-contract-")
        self.addCleanup(shutil.rmtree, self.folder)
        daemon = Daemon(TERRACED, "--host-bytes", "32MiB", "--disks", self.folder + ":64MiB")
        self.addCleanup(daemon.close)
        self.keys = keys_of(1, 8)
        with_blocks = Engine(daemon)
        with_blocks.put(with_blocks.context("put", self.keys), self.keys, content)
        with_blocks.close()
        daemon.stop()
        daemon.start()
        wait_for(lambda: daemon.stats()["terrace_restored"] == 1, 60, "the disk is taken up")
        self.engine = Engine(daemon, always=False, prefix_groups=frozenset((0,)))
        self.addCleanup(self.engine.close)
        self.joined = connected(self.engine)

    def states(self):
        return self.engine.store.call(0, lambda s: s.lookup([key[:-4] for key in self.keys], states=True))[1]

    def queue(self, **more):
        """The keys that the daemon was asked to bring to memory. A lookup lets it begin to by itself."""
        real = terrace.Session.warm
        with unittest.mock.patch.object(terrace.Session, "warm", side_effect=real, autospec=True) as warm:
            self.joined.on_new_request(types.SimpleNamespace(**{
                "request_id": "r", "lora_request": None, "skip_reading_prefix_cache": False,
                "block_hashes": [key[:-4] for key in self.keys], **more}))
            self.engine.manager._warmer.submit(lambda: None).result(60)
            return [name for call in warm.call_args_list for name in call.args[1]]

    def test_comes_to_memory(self):
        self.engine.manager.estimate.computed(100, 1.0)
        self.assertEqual(self.queue(), [])  # nothing is known of the disk
        self.engine.manager.estimate.loaded(1 << 20, .01)
        self.assertEqual(self.queue(), [key[:-4] for key in self.keys])
        wait_for(lambda: self.states() == [[terrace.State.HOST]] * 8, 60, "the blocks are in memory")
        self.assertEqual(self.queue(), [])

    def test_not_worth_it(self):
        self.engine.manager.estimate.computed(100000, .001)
        self.engine.manager.estimate.loaded(4096, 1.0)
        self.assertEqual(self.queue(), [])

    def test_not_wanted(self):
        self.engine.manager._always = True
        self.assertEqual(self.queue(skip_reading_prefix_cache=True), [])
        allowed = stand_in.ReqContext("r")
        allowed.load_tier_filter = stand_in.Matchers(stand_in_base().Medium.CPU)
        self.engine.manager.on_new_request(allowed)
        self.assertEqual(self.queue(), [])
        own = [key[:-4] for key in self.keys[:3]]
        self.joined._kv_cache_manager = types.SimpleNamespace(block_pool=types.SimpleNamespace(
            get_cached_block=lambda name, groups: [0] if name in own else None))
        self.assertEqual(self.queue(request_id="other"), [key[:-4] for key in self.keys[3:]])

    def test_hashes_of_parts_of_a_block(self):
        self.engine.manager._always, self.engine.manager._tokens_per_hash = True, TOKENS // 2
        hashes = [name for key in self.keys for name in (bytes(32), key[:-4])]
        self.assertEqual(self.queue(block_hashes=hashes), [key[:-4] for key in self.keys])


class Absent(unittest.TestCase):
    """Daemons that are not there, die, or stop."""

    def setUp(self):
        self.numbers = itertools.count()
        self.daemon = Daemon(TERRACED, "--host-bytes", "32MiB", start=False)
        self.addCleanup(self.daemon.close)

    def miss(self, engine, request, keys):
        return {a.name for a in engine.look(engine.context(request, keys), keys)} == {"MISS"}

    def wait_for_hit(self, engine, keys):
        def there():
            request = "wait %d" % next(self.numbers)
            engine.put(engine.context(request, keys), keys, content)
            context = engine.context(request, keys)
            answers = {a.name for a in engine.look(context, keys)}
            engine.manager.on_request_finished(context)
            return answers == {"HIT"}
        wait_for(there, 60, "the engine has found the daemon")

    def test_absent_then_there_then_killed(self):
        with unittest.mock.patch("terrace.vllm.store.FIRST_S", .2):
            engine = Engine(self.daemon)
        self.addCleanup(engine.close)
        keys = keys_of(1, 4)
        self.assertTrue(self.miss(engine, "a", keys))
        self.assertEqual(engine.put(engine.context("b", keys), keys, content), [])
        self.daemon.start()
        self.wait_for_hit(engine, keys)
        context = engine.context("late", keys)
        engine.look(context, keys)
        kept = engine.context("kept", keys)
        self.assertEqual({a.name for a in engine.look(kept, keys)}, {"HIT"})
        self.daemon.kill()
        loaded = engine.load(context, keys)  # it was a hit: now it fails, or has its bytes
        self.assertIn(loaded, (None, {key: content(key) for key in keys}))
        self.assertTrue(self.miss(engine, "c", keys_of(2, 4)))
        self.assertEqual({a.name for a in engine.look(kept, keys)}, {"MISS"})  # and not a load that is known to fail
        self.daemon.start()
        self.wait_for_hit(engine, keys)

    def test_stopped(self):
        self.daemon.start()
        engine = Engine(self.daemon, call_s=.1)
        self.addCleanup(engine.close)
        keys = keys_of(1, 4)
        self.wait_for_hit(engine, keys)
        self.daemon.process.send_signal(signal.SIGSTOP)
        going_on = threading.Timer(30, self.daemon.process.send_signal, [signal.SIGCONT])
        going_on.start()
        try:
            more = keys_of(2, 4)
            self.assertTrue(self.miss(engine, "a", more))
            engine.put(engine.context("b", more), more, content)
            self.assertTrue(going_on.is_alive(), "the engine waited for the daemon")
        finally:
            going_on.cancel()
            self.daemon.process.send_signal(signal.SIGCONT)
        self.wait_for_hit(engine, keys)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])

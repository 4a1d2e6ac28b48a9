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
from terrace.vllm import compatibility, fingerprint  # noqa: E402
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


class Fingerprints(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="terrace-contract-")
        self.addCleanup(shutil.rmtree, self.folder)

    def model(self, name, weights, config=b"{}"):
        path = os.path.join(self.folder, name, "model")
        os.makedirs(path)
        for file, data in (("model.safetensors", weights), ("config.json", config), ("README.md", os.urandom(8))):
            with open(os.path.join(path, file), "wb") as out:
                out.write(data)
        return path

    def test_weights(self):
        same = [fingerprint.weights_of(self.model(name, b"w" * 1000), None, None) for name in ("a", "b")]
        self.assertEqual(same[0], same[1])
        self.assertNotEqual(same[0], fingerprint.weights_of(self.model("c", b"w" * 999 + b"x"), None, None))
        self.assertNotEqual(same[0], fingerprint.weights_of(self.model("d", b"w" * 1000, b"{1}"), None, None))
        with unittest.mock.patch.object(fingerprint, "FULL_BYTES", 100):
            large = fingerprint.weights_of(self.model("e", b"w" * 1000), None, None)
            other = self.model("f", b"w" * 1000)
            os.utime(os.path.join(other, "model.safetensors"), ns=(1, 1))
            self.assertNotEqual(large, fingerprint.weights_of(other, None, None))

    def test_groups(self):
        """Scheduler and worker have one layout, also where the scheduler's configuration has one form of several."""
        def form(size, **more):
            return types.SimpleNamespace(page_size_bytes=size, **more)

        def group(spec, *layers):
            return types.SimpleNamespace(kv_cache_spec=spec, layer_names=list(layers))
        forms = {"a": form(64), "b": form(32)}
        worker, scheduler = group(types.SimpleNamespace(kv_cache_specs=forms), "a", "b"), group(forms["a"], "a", "b")
        self.assertEqual(fingerprint.group_text(0, worker), fingerprint.group_text(0, scheduler))
        self.assertIsNone(fingerprint.group_bytes(worker))
        self.assertEqual(fingerprint.group_bytes(group(form(64, unpadded_page_size_bytes=48), "a", "b")), 96)
        for other in (group(form(32), "a", "b"), group(forms["a"], "a"), group(form(64, window=128), "a", "b")):
            self.assertNotEqual(fingerprint.group_text(0, other), fingerprint.group_text(0, scheduler))
        self.assertNotEqual(fingerprint.group_text(1, scheduler), fingerprint.group_text(0, scheduler))

    def test_rope_that_depends_on_length(self):
        for rope, matters in (({"rope_type": "llama3"}, False), ({"rope_type": "yarn"}, False), ({"rope_type": "dynamic"}, True),
                              ({"type": "longrope"}, True), ({"rope_type": "default"}, False)):
            text = fingerprint.model_config_text(types.SimpleNamespace(to_dict=lambda rope=rope: {"rope_scaling": rope}))
            self.assertEqual(bool(fingerprint._LENGTH_MATTERS.search(text)), matters, rope)

    def test_commits(self):
        commit = "0123456789abcdef0123456789abcdef01234567"
        self.assertEqual(fingerprint.weights_of("some/model", None, commit), "commit " + commit)
        self.assertEqual(fingerprint.weights_of("some/model", commit, None), "commit " + commit)
        snapshot = os.path.join(self.folder, "snapshots", commit)
        os.makedirs(snapshot)
        self.assertEqual(fingerprint.weights_of(snapshot, "main", None), "commit " + commit)
        for revision in (None, "main"):
            with self.assertRaisesRegex(ValueError, "which revision of 'some/model'.*full commit hash"):
                fingerprint.weights_of("some/model", revision, None)


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

    def __init__(self, daemon, groups=(0,), tokens=TOKENS, rank=0, ranks=1, **more):
        layouts = {g: [terrace.Layout.opaque("contract group %d rank %d" % (g, r), "test/pages/1", BLOCK, block_tokens=tokens)
                       for r in range(ranks)] for g in groups}
        self.store = Store(layouts, daemon.address, **more)
        self.worker_store = Store({g: of[rank:rank + 1] for g, of in layouts.items()}, daemon.address, **more)
        self.manager = TerraceManager(self.store, Estimate(), dict.fromkeys(groups, tokens), always_load=True)
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
            time.sleep(.001)
        raise AssertionError("RETRY for ever")

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

    def test_requests_that_end_give_back(self):
        engine = self.engine()
        keys = keys_of(6, 8)
        engine.put(engine.context("put", keys), keys, content)

        def leases():
            return sum(value for name, value in self.daemon.stats().items() if name.split("{")[0] == "terrace_leases")
        wait_for(lambda: leases() == 0, 30, "nothing is leased")
        context = engine.context("look", keys)
        engine.look(context, keys)
        self.assertGreater(leases(), 0)
        engine.manager.on_request_finished(context)
        wait_for(lambda: leases() == 0, 30, "what the request had leased is given back")


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
            engine = Engine(self.daemon, call_s=.1)
        self.addCleanup(engine.close)
        keys = keys_of(1, 4)
        self.assertTrue(self.miss(engine, "a", keys))
        self.assertEqual(engine.put(engine.context("b", keys), keys, content), [])
        self.daemon.start()
        self.wait_for_hit(engine, keys)
        context = engine.context("late", keys)
        engine.look(context, keys)
        self.daemon.kill()
        loaded = engine.load(context, keys)  # it was a hit: now it fails, or has its bytes
        self.assertIn(loaded, (None, {key: content(key) for key in keys}))
        self.assertTrue(self.miss(engine, "c", keys_of(2, 4)))
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

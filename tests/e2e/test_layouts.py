#!/usr/bin/python3
"""Layouts that share memory, between real processes: no model that has filled memory keeps another one out.

    test_layouts.py TERRACED LIBTERRACE            at 64 and 256 MiB
    test_layouts.py TERRACED LIBTERRACE --long     what a newcomer gets of 8 GiB, where the machine has so much to spare
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import CALL_S, pb, running, wait_for  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
HEADER = 4096       # of a block, in memory
WASTE_MAX = 9.0     # % over 64 layouts
FIRST_PUT_S = 1.0  # within which a newcomer's first put succeeds, by its own deadline


def model(name, layers=2, **over):
    """A layout's options for the engine: 2 heads of 64 in fp8, 16 tokens a block, so 4 KiB a layer."""
    options = dict(model=name, layers=layers, heads=2, head_dim=64, k_format="fp8", block_tokens=16)
    options.update(over)
    return options


def span_bytes(stride, granule):
    """The rule of store/arena/arena.h: the fewest granules, at most 16 unless one slot needs more, of which the tail wastes
    no more than 1/32; else those that waste the least."""
    one = -(-stride // granule)
    counts = range(one, max(one, 16) + 1)
    fits = [n for n in counts if n * granule % stride * 32 <= n * granule]
    return (fits[0] if fits else min(counts, key=lambda n: (n * granule % stride / n, n))) * granule


def waste_parts(daemon, budget):
    """Where all bytes of host memory are, and how many classes there are. A layout is in the class of the least stride
    that has room for its block."""
    rows, stats = daemon.admin.Layouts(pb.LayoutsRequest(), timeout=CALL_S).rows, daemon.stats()
    classes = [k for k in stats if k.startswith("terrace_spans{tier=host")]
    spans = {int(k.split("class=")[1].rstrip("}")): stats[k] for k in classes}
    size = {stride: span_bytes(stride, budget // 1024) for stride in spans}
    blocks = dict.fromkeys(spans, 0)
    parts = dict.fromkeys(("blocks", "headers", "slots larger than blocks", "ends of spans", "free slots"), 0)
    for r in rows:
        stride = min(s for s in spans if s >= r.block_bytes + HEADER)
        blocks[stride] += r.host_blocks
        parts["blocks"] += r.host_blocks * r.block_bytes
        parts["headers"] += r.host_blocks * HEADER
        parts["slots larger than blocks"] += r.host_blocks * (stride - r.block_bytes - HEADER)
    for stride, n in spans.items():
        parts["ends of spans"] += n * (size[stride] % stride)
        parts["free slots"] += (n * (size[stride] // stride) - blocks[stride]) * stride
    free = stats["terrace_free_bytes{tier=host}"]
    parts["reserve"] = min(budget // 64, free)
    parts["between spans"] = free - parts["reserve"]
    parts["emptied for a class"] = budget - sum(n * size[stride] for stride, n in spans.items()) - free
    return parts, len(spans)


class Engine:
    """A process of its own (engine.py)."""

    def __init__(self, test, daemon):
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "engine.py"), daemon.address], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env={**os.environ, "LIBTERRACE": LIBRARY})
        test.addCleanup(self.kill)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def __call__(self, *command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the engine has ended"
        return json.loads(answer)

    def pause(self):
        """As a debugger would: it makes no call, and reads nothing that the daemon sends."""
        self.process.send_signal(signal.SIGSTOP)

    def fill(self, name, bytes_wanted, block_bytes, at_a_time=32):
        """Puts keys 0, 1, ... of so many bytes; how many keys that were."""
        count = int(bytes_wanted // block_bytes) + 1
        for first in range(0, count, at_a_time):
            self("put", name, first, min(at_a_time, count - first))
        return count


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as info:
        return next(int(line.split()[1]) * 1024 for line in info if line.startswith("MemAvailable"))


class Layouts(unittest.TestCase):
    def filled(self, daemon, host_bytes, options, name="a"):
        """An engine whose model has put half as much again as memory holds, and the keys."""
        a = Engine(self, daemon)
        block_bytes = a("open", name, [options])[0]
        return a, a.fill(name, 1.5 * host_bytes, block_bytes, max(1, min(64, 4 * MIB // block_bytes)))

    def newcomer(self, daemon, options, keys=8):
        """Another engine's model, whose first put has FIRST_PUT_S, and none of its others is refused either. It may have had to give some of its own up,
        before it was worth a span of another's."""
        b = Engine(self, daemon)
        b("open", "b", [options])
        began = time.monotonic()
        self.assertEqual(b("put", "b", 0, 1, FIRST_PUT_S), ["OK"], "the first put, after %.3f s" % (time.monotonic() - began))
        self.assertEqual(b("put", "b", 1, keys - 1, CALL_S), ["OK"] * (keys - 1))
        right, _, wrong = b("get", "b", 0, keys)
        self.assertGreaterEqual(right, keys // 2)
        self.assertEqual(wrong, 0)
        return b


class Short(Layouts):
    def test_64_models(self):
        """64 models of 64 block sizes, 4 KiB to 256 KiB, with memory full before them: each put is stored at the first try."""
        with running(TERRACED, "--host-bytes", "256MiB") as daemon:
            a, _ = self.filled(daemon, 256 * MIB, model("first", 3))
            for i in range(64):
                a("open", "m%d" % i, [model("m%d" % i, i + 1)])
            for first in (0, 4, 8):
                for i in range(64):
                    self.assertEqual(a("put", "m%d" % i, first, 4), ["OK"] * 4, "model %d, key %d" % (i, first))
            for i in range(64):
                right, missing, wrong = a("get", "m%d" % i, 8, 4)
                self.assertEqual((missing + right, wrong), (4, 0))

    def test_waste_of_64_random_models(self):
        """What of the spans' bytes is no block's: slots larger than their blocks, ends of spans, free slots. Beside it
        what of all memory is none: the reserve, granules between spans, and what was emptied for a class that has not
        cut it yet. Headers are the blocks' own."""
        rng, budget = random.Random(23), 256 * MIB
        models = [model("m%d" % i, rng.randint(1, 48), heads=rng.randint(1, 4), head_dim=rng.choice((64, 128))) for i in range(64)]
        with running(TERRACED, "--host-bytes", str(budget)) as daemon:
            a, first = Engine(self, daemon), [0] * len(models)
            sizes = [a("open", m["model"], [m])[0] for m in models]
            for _ in range(3):  # each as many bytes as the others, one and a half times what there is of memory
                for i, m in enumerate(models):
                    count = max(1, 2 * MIB // sizes[i])
                    a("put", m["model"], first[i], count)
                    first[i] += count
            parts, classes = waste_parts(daemon, budget)
            shares = {k: round(100 * v / budget, 2) for k, v in parts.items()}
            print(json.dumps({"waste of 64 random models in 256 MiB, % of memory": shares, "classes": classes,
                              "block_bytes": [min(sizes), max(sizes)]}), flush=True)
            in_spans = budget - parts["reserve"] - parts["between spans"] - parts["emptied for a class"]
            self.assertGreater(in_spans, budget / 2)
            wasted = sum(parts[k] for k in ("slots larger than blocks", "ends of spans", "free slots"))
            self.assertLessEqual(100 * wasted / in_spans, WASTE_MAX)
            self.assertAlmostEqual(sum(parts.values()), budget)
            wait_for(lambda: waste_parts(daemon, budget)[0]["emptied for a class"] == 0, 60, "what was emptied is free")

    def test_64_groups(self):
        """A hybrid of 64 KV groups of 64 sizes: a key has a block in each."""
        with running(TERRACED, "--host-bytes", "256MiB") as daemon:
            a, _ = self.filled(daemon, 256 * MIB, model("first", 3))
            a("open", "hybrid", [model("hybrid", i + 1, first_layer=100 * i) for i in range(64)])
            for n in range(16):
                self.assertEqual(a("put", "hybrid", n, 1), ["OK"], "key %d" % n)

    def test_groups_beyond_extents(self):
        """Hybrids of 9 and 12 groups in 64 MiB with default options, in a new daemon each."""
        for groups in (9, 12):
            with self.subTest(groups=groups), running(TERRACED, "--host-bytes", "64MiB") as daemon:
                a = Engine(self, daemon)
                a("open", "hybrid", [model("hybrid", i + 1, first_layer=100 * i) for i in range(groups)])
                for n in range(200):
                    self.assertEqual(a("put", "hybrid", n, 1), ["OK"], "key %d" % n)

    def test_two_hybrids_in_turns(self):
        """Two hybrids of 8 groups each put in turns: neither is refused, and neither has kept a tenth more than the other."""
        with running(TERRACED, "--host-bytes", "64MiB") as daemon:
            a, b = Engine(self, daemon), Engine(self, daemon)
            for engine, name in ((a, "a"), (b, "b")):
                engine("open", name, [model(name, i + 1, first_layer=100 * i) for i in range(8)])
            stored, kept, rounds, refused = {"a": 0, "b": 0}, {"a": 0, "b": 0}, 800, []
            for n in range(rounds):
                for engine, name in ((a, "a"), (b, "b")):
                    status = engine("put", name, n, 1)[0]
                    stored[name] += status == "OK"
                    if status != "OK":
                        refused.append((name, n, status))
            for engine, name in ((a, "a"), (b, "b")):
                kept[name] = sum(engine("lookup", name, n, 1) for n in range(rounds))
            print(json.dumps({"two hybrids of 8 groups": {"stored": stored, "kept": kept, "refused": refused[:8]}}), flush=True)
            self.assertEqual(stored, {"a": rounds, "b": rounds})
            self.assertLessEqual(abs(kept["a"] - kept["b"]), max(kept.values()) / 10)

    def test_one_leased_block_in_each_span(self):
        """Every eighth block of a full memory is leased, so no span can be emptied whole."""
        with running(TERRACED, "--host-bytes", "64MiB") as daemon:
            a, count = self.filled(daemon, 64 * MIB, model("a", 9))
            leased = [n for n in range(0, count, 8) if a("lease", "a", n, 1)]
            self.assertGreater(len(leased), count // 16)
            self.newcomer(daemon, model("b", 2))
            self.newcomer(daemon, model("c", 17))
            for n in leased:
                self.assertEqual(a("lookup", "a", n, 1), 1)

    def test_a_stopped_engine(self):
        """An engine with leases all over memory, up to the cap, is stopped: SIGSTOP. Others' puts go on beside it."""
        with running(TERRACED, "--host-bytes", "64MiB") as daemon:
            a, count = self.filled(daemon, 64 * MIB, model("a", 9))
            there = [n for n in range(count) if a("lookup", "a", n, 1)]
            for n in (n for step in range(5) for n in there[step::5]):  # not one after the other
                a("lease", "a", n, 1)
            pinned = daemon.stats()["terrace_pinned_bytes{tier=host}"]
            self.assertGreater(pinned, 32 * MIB)
            a.pause()
            b = self.newcomer(daemon, model("b", 2))
            for first in range(8, 200, 8):
                self.assertEqual(b("put", "b", first, 8), ["OK"] * 8, "key %d" % first)
            self.newcomer(daemon, model("c", 17))
            self.assertEqual(daemon.stats()["terrace_pinned_bytes{tier=host}"], pinned)

    def test_newcomer_whatever_fills_memory(self):
        """Memory is full of one model's blocks: the first put of another is stored within its deadline. The first one is idle, only reads, puts by
        stream, has its blocks on a disk or on none; its blocks are smaller than the newcomer's, or larger."""
        for mine, other in ((2, 16), (16, 2), (64, 1), (1, 64)):
            for disk in (False, True):
                with self.subTest(layers=mine, other=other, disk=disk), running(TERRACED, start=False) as daemon:
                    daemon.flags = ["--host-bytes", "64MiB"]
                    if disk:
                        daemon.flags += ["--disks", "%s/disk:256MiB" % daemon.folder]
                    daemon.start()
                    a, count = self.filled(daemon, 64 * MIB, model("a", mine))
                    self.newcomer(daemon, model("b", other))
                    self.assertGreater(a("get", "a", count - 16, 16)[0], 0)
                    self.newcomer(daemon, model("c", other + 1))
                    a("stream", "a", 10 ** 6, 200)
                    self.newcomer(daemon, model("d", other + 2))

    def test_no_block_goes_for_nothing(self):
        """A newcomer that stores little leaves what an idle model has, but for some spans."""
        with running(TERRACED, "--host-bytes", "64MiB") as daemon:
            a, count = self.filled(daemon, 64 * MIB, model("a", 9))
            before = daemon.stats()["terrace_blocks{tier=host}"]
            self.newcomer(daemon, model("b", 2))
            time.sleep(2)  # what is given up later is given up for nothing, too
            after = daemon.stats()["terrace_blocks{tier=host}"]
            self.assertGreaterEqual(after, before * 0.9)
            self.assertEqual(a("get", "a", count - 16, 16), [16, 0, 0])


class Long(Layouts):
    HOST = 8 << 30

    def test_newcomer_at_8_gib(self):
        if available_bytes() < 1.5 * self.HOST:
            self.skipTest("the machine has not 12 GiB to spare")
        for mine, other in ((256, 3), (3, 256)):
            with self.subTest(layers=mine, other=other), running(TERRACED, "--host-bytes", str(self.HOST)) as daemon:
                a = Engine(self, daemon)
                block_bytes = a("open", "a", [model("a", mine)])[0]
                a.fill("a", 1.05 * self.HOST, block_bytes, max(1, 16 * MIB // block_bytes))
                wait_for(lambda: daemon.stats()["terrace_blocks{tier=host}"] * (block_bytes + HEADER) > .8 * self.HOST, CALL_S, "memory is full")
                self.newcomer(daemon, model("b", other))


if __name__ == "__main__":
    TERRACED, LIBRARY = sys.argv[1:3]
    rest = sys.argv[3:]
    kind = "Long" if rest[:1] == ["--long"] else "Short"
    only = [kind + "." + name for name in rest if name != "--long"]
    unittest.main(argv=[sys.argv[0], *(only or [kind])], verbosity=2)

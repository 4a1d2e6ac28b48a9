#!/usr/bin/python3
"""A public trace through a real daemon: sessions of a real engine, host memory and a disk, and what a replay says of the same.

    test_trace.py TERRACED TRACE_ENGINE                       a tenth of the trace, several daemons at a time
    test_trace.py TERRACED TRACE_ENGINE --long [SPEED]        all of it, host memory of 1, 5 and 10 % of its blocks, four times as much disk
    test_trace.py TERRACED TRACE_ENGINE --row SPEED FROM TO LEAD_MS PREFETCH POLICY HOST DISK    one row, without a verdict

The trace's time passes SPEED times as fast, for the replay too: the policy goes by seconds that have passed. Each row is a JSON object.

A disk that is too slow for the trace loses what it has no time to write, and that is no verdict on policies. So the tenth has its disks in
memory, where there is room and TMPDIR does not say otherwise: 6,000 blocks a second are put there.
"""

import concurrent.futures
import json
import math
import os
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import ROOT, running  # noqa: E402

TRACE = os.path.join(ROOT, "tests", "data", "traces", "mooncake_conversation.jsonl.xz")
SLOT = 8192
REQUESTS = 12031
SESSIONS = 4
MEMORY = "/dev/shm"
LEAD_MS = 20
MORE = 8  # runs, of what is off by chance or not


def engine(*arguments):
    done = subprocess.run([ENGINE, *map(str, arguments)], stdout=subprocess.PIPE, timeout=7200, check=True)
    return json.loads(done.stdout)


def replayed(policy, blocks, speed, first, last):
    return engine("replay", TRACE, speed, first, last, policy, blocks)["hit"]


def flags(policy, host, disk, folder, prefetch):
    """The smallest blocks there are; slabs an eighth of the disk."""
    disk_bytes = (disk // 8 + 1) * 8 * SLOT
    return ["--host-bytes", str((host * SLOT + 2**20 - 1) // 2**20 * 2**20), "--extent-bytes", str(2**20), "--policy", policy,
            "--disks", "%s:%d" % (folder, disk_bytes), "--disk-policy", policy, "--slab-bytes", str(disk_bytes // 8),
            "--disk-slow", "60s", "--prefetch-bytes", prefetch, "--log-level", "warn"]


class Held:
    """Samples how many blocks the two tiers have together, each once, and memory."""

    def __init__(self, daemon):
        self.daemon, self.both, self.host, self.end = daemon, [], [], threading.Event()
        self.thread = threading.Thread(target=self.sample)

    def sample(self):
        while not self.end.wait(0.5):
            s = self.daemon.stats()
            self.both.append(s["terrace_blocks{tier=disk}"] + s["terrace_dirty_blocks{tier=host}"])
            self.host.append(s["terrace_blocks{tier=host}"])

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()


def mean_of_second_half(samples):
    half = samples[len(samples) // 2:]
    return round(sum(half) / len(half))


def share(part, whole):
    return round(100.0 * part / whole, 1) if whole else 0.0


def row(policy, host, disk, speed, first, last, lead_ms, prefetch, parent=None):
    """One run."""
    with running(TERRACED, start=False, parent=parent) as daemon:
        disk_folder = os.path.join(daemon.folder, "disk")
        os.mkdir(disk_folder)
        daemon.flags = flags(policy, host, disk, disk_folder, prefetch)
        daemon.start()
        with Held(daemon) as h:
            out = engine("run", daemon.address, TRACE, speed, first, last, SESSIONS, lead_ms * 1000)
        stats = daemon.stats()
    held, memory = mean_of_second_half(h.both), mean_of_second_half(h.host)
    loaded, wasted = (stats["terrace_prefetch_bytes_total{result=%s}" % r] for r in ("loaded", "wasted"))
    return {
        "bench": "trace through a daemon", "policy": policy, "host_blocks": host, "disk_blocks": disk, "requests": out["requests"],
        "speed": speed, "sessions": SESSIONS, "lead_ms": lead_ms, "prefetch": prefetch, "hit": out["hit"],
        "replay_hit": replayed(policy, held, speed, first, last), "held": held, "host_hit": out["host_hit"],
        "replay_host_hit": replayed(policy, memory, speed, first, last), "continuing": out["continuing"],
        "waits": out["waits"], "wait_blocks": out["wait_blocks"], "lease_waits": out["lease_waits"],
        "lease_wait_blocks": out["lease_wait_blocks"], "loaded_blocks": loaded / SLOT, "wasted_share": share(wasted, loaded),
        "shed": stats["terrace_evictions_total{tier=host,reason=shed}"], "seconds": out["seconds"], "late_s": out["late_s"],
    }


def in_memory(disk_bytes):
    """A folder in memory with room for twice that, or None."""
    if "TMPDIR" in os.environ or not os.path.isdir(MEMORY):
        return None
    room = os.statvfs(MEMORY)
    return MEMORY if room.f_bavail * room.f_frsize > 2 * disk_bytes and os.access(MEMORY, os.W_OK) else None


def show(r):
    print(json.dumps(r), flush=True)
    return r


def mean(rows, name):
    return sum(r[name] for r in rows) / len(rows)


def off(rows):
    """By how much the runs hit more than their replays, in the mean."""
    return {hit: mean(rows, hit) - mean(rows, "replay_" + hit) for hit in ("hit", "host_hit")}


class Trace(unittest.TestCase):
    def as_replayed(self, *rows, above=1.0):
        for hit, points in off(rows).items():
            self.assertGreaterEqual(points, -1.0, hit)
            self.assertLessEqual(points, above, hit)

    def reads_ahead(self, *rows):
        self.assertLessEqual(mean(rows, "wasted_share"), 30.0)
        if rows[0]["lead_ms"]:
            self.assertLessEqual(mean(rows, "lease_waits"), mean(rows, "waits") / 2)


class Short(Trace):
    def begin(self, pool, policy, host, runs, parent):
        return [pool.submit(row, policy, host, 4 * host, 20, 0, 1200, LEAD_MS, "64MiB", parent) for _ in range(runs)]

    def more(self, policy, host):
        parent = in_memory(4 * host * MORE * SLOT)
        with concurrent.futures.ThreadPoolExecutor(MORE) as pool:
            return [show(run.result()) for run in self.begin(pool, policy, host, MORE, parent)]

    def check(self, policy, host, rows):
        self.reads_ahead(*rows)
        if host > 1024:
            self.as_replayed(*rows, above=1.0 if policy == "lru" else math.inf)

    def test_as_replayed(self):
        """By the clock, and most of it is waiting: all rows at a time."""
        # What is read ahead has the least room in the smallest memory. There the order of four sessions moves what `graph` learns, and a
        # slow disk what is dropped for want of a spill, so much that hits differ by a point from run to run: those are of twice as much.
        # There, too, a run of `graph` may be a point below its replay (24 runs: .27 below in the mean, a deviation of .54), so four are
        # judged together: of 1,000 such means three are a point below. What does not hold of few runs, by that chance or since a busy
        # machine kept one daemon from reading ahead, is judged by eight more with them. For `graph` to hit more is no fault: it is not
        # bounded above. `lru` has nothing to learn.
        sizes = {("lru", 1024): 1, ("lru", 2048): 1, ("graph", 1024): 1, ("graph", 2048): 4}
        parent = in_memory(sum(4 * host * runs for (_, host), runs in sizes.items()) * SLOT)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            begun = {(policy, host): self.begin(pool, policy, host, runs, parent) for (policy, host), runs in sizes.items()}
        for (policy, host), runs in begun.items():
            with self.subTest(policy=policy, host=host):
                rows = [show(run.result()) for run in runs]
                try:
                    self.check(policy, host, rows)
                except AssertionError as few:
                    print("of %d, %s host=%d: %s" % (len(rows), policy, host, few), flush=True)
                    self.check(policy, host, rows + self.more(policy, host))


class Long(Trace):
    def test_as_replayed(self):
        for policy in ("lru", "graph"):
            for per_cent in (1, 5, 10):
                host = 182790 * per_cent // 100
                for lead_ms, prefetch in ((0, "0"), (LEAD_MS, "64MiB")):
                    with self.subTest(policy=policy, host=host, lead_ms=lead_ms):
                        r = show(row(policy, host, 4 * host, SPEED, 0, REQUESTS, lead_ms, prefetch))
                        self.reads_ahead(r)
                        self.as_replayed(r)


if __name__ == "__main__":
    TERRACED, ENGINE = sys.argv[1:3]
    SPEED = 10.0
    kind, rest = "Short", sys.argv[3:]
    if rest and rest[0] == "--row":
        speed, first, last, lead, prefetch, policy, host, disk = rest[1:]
        show(row(policy, int(host), int(disk), float(speed), int(first), int(last), int(lead), prefetch))
        sys.exit(0)
    if rest and rest[0] == "--long":
        kind = "Long"
        SPEED = float(rest[1]) if len(rest) > 1 else SPEED
    unittest.main(argv=[sys.argv[0], kind], verbosity=2)

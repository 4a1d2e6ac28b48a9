"""Mixed load at three times the memory for long: `test_endurance.py TERRACED STORM SECONDS [without-memory]`.

Blocks move between memory and a disk all the time. No byte may be wrong, the daemon's memory must not grow, and it must not gather
descriptors. In an hour at least a million blocks are checked.

Memory is watched when nothing has to grow any more: a weaver has filled the graph, and the catalog has been told all of it.
"""

import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from daemon import CALL_S, pb, running, wait_for  # noqa: E402

WORKERS = 3
CHECKED_AN_HOUR, LOADED_A_SECOND = 1e6, 10
CHECKED_SANITIZED = 2000
WARM_UP = 0.25       # of the time, before memory is watched
EDGES_A_NODE = 15    # of 16 that there may be, in a graph that is full
QUIET_S = 5
GROWTH_AN_HOUR = 0.01
NOISE = 0.02         # of memory, that a short run cannot tell from growth


def resident(pid):
    """Anonymous memory alone: the host tier's own pages are shared ones, and all there from the start."""
    for line in open("/proc/%d/status" % pid):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def descriptors(pid):
    return len(os.listdir("/proc/%d/fd" % pid))


def slope(samples):
    """Of a straight line through (seconds, bytes): bytes a second."""
    n = len(samples)
    mean_t = sum(t for t, _ in samples) / n
    mean_b = sum(b for _, b in samples) / n
    above = sum((t - mean_t) * (b - mean_b) for t, b in samples)
    below = sum((t - mean_t) ** 2 for t, _ in samples)
    return above / below


def watch(pid, seconds, workers):
    begin, memory, files = time.monotonic(), [], []
    while time.monotonic() - begin < seconds:
        time.sleep(min(1.0, seconds / 40))
        for worker in workers:
            assert worker.poll() is None, "a worker saw a wrong byte or failed"
        if time.monotonic() - begin > seconds * WARM_UP:
            memory.append((time.monotonic() - begin, resident(pid)))
            files.append(descriptors(pid))
    return memory, files


class Catalog:
    """Whether the catalog has grown of late."""

    def __init__(self):
        self.most, self.since = 0, time.monotonic()

    def quiet(self, stats):
        if stats["terrace_catalog_used_bytes"] > self.most:
            self.most, self.since = stats["terrace_catalog_used_bytes"], time.monotonic()
        return time.monotonic() - self.since > QUIET_S


def weave(storm, daemon):
    """Fills the graph, whose edges the workers alone take minutes to find, and waits until the catalog has all of it."""
    weaver = subprocess.Popen([storm, "weaver", daemon.address, "99"])
    edges = lambda stats: EDGES_A_NODE * stats["terrace_graph_nodes"]
    full = lambda stats: stats["terrace_graph_edges"] >= edges(stats) > 0
    wait_for(lambda: full(daemon.stats()), 300, "the graph is full")
    kept, catalog = daemon.stats()["terrace_graph_kept_total"], Catalog()

    def settled():
        stats = daemon.stats()
        return catalog.quiet(stats) and stats["terrace_graph_kept_total"] - kept >= edges(stats)

    wait_for(settled, 300, "the catalog knows the graph")
    weaver.terminate()
    assert weaver.wait(timeout=60) == 0


def main():
    terraced, storm, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    memory_counts = len(sys.argv) <= 4
    with tempfile.TemporaryDirectory(prefix="terrace-endurance-") as folder:
        # 512 blocks of 37 KiB: 18 MiB. All else is the daemon's default, the graph too: its tables are taken at the start, or filled before
        # memory is watched.
        with running(terraced, "--host-bytes", "6MiB", "--extent-bytes", "1MiB", "--disks",
                     "%s/a:10MiB,%s/b:10MiB" % (folder, folder), "--slab-bytes", "2MiB") as daemon:
            began = time.monotonic()
            workers = [subprocess.Popen([storm, "worker", daemon.address, str(n)], stdout=subprocess.PIPE, text=True)
                       for n in range(WORKERS)]
            for worker in workers:
                assert worker.stdout.readline() == "ready\n"
            if memory_counts:
                weave(storm, daemon)
            memory, files = watch(daemon.process.pid, seconds, workers)
            checked, worked = 0, time.monotonic() - began
            for worker in workers:
                worker.terminate()
                checked += int(worker.stdout.read())
                assert worker.wait(timeout=60) == 0
            stats = daemon.stats()
            assert daemon.admin.Verify(pb.VerifyRequest(), timeout=CALL_S).corrupt == 0
        loads = stats["terrace_loads_total{status=ok}"]
        mean = sum(b for _, b in memory) / len(memory)
        grown = slope(memory) * (memory[-1][0] - memory[0][0]) / mean
        print("%.0f s: %d blocks checked, %d loaded from disk, %d spilled; %.1f MB, %+.2f %% in the time watched; %d to %d "
              "descriptors" % (seconds, checked, loads, stats["terrace_spills_total{status=ok}"], mean / 1e6, 100 * grown,
                               min(files), max(files)))
        allowed = max(NOISE, 0) if seconds < 1800 else GROWTH_AN_HOUR * seconds / 3600
        # A sanitizer keeps freed memory for a while: there it is bytes and descriptors that count.
        assert grown < allowed or not memory_counts, "memory grows"
        assert max(files) - min(files) <= 4, "descriptors are gathered"
        assert loads > LOADED_A_SECOND * worked, "too few loads to mean anything"
        assert checked > (CHECKED_AN_HOUR * worked / 3600 if memory_counts else CHECKED_SANITIZED), "too few checks"


main()

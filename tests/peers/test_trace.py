#!/usr/bin/python3
"""Four daemons of one cluster serve a public trace: what they hit together, beside the same four without a directory,
and beside the replay of both.

    test_trace.py TERRACED TERRACECTL TRACE_NODES            1,500 requests, each session on one node
    test_trace.py TERRACED TERRACECTL TRACE_NODES --long     3,000 requests, also with each request on a node of its own

Each node has memory for a quarter of 5 % of the trace's blocks. The trace's time passes SPEED times as fast, for the
replay too: so the 10 s after which members are told of a block are as long for both. What takes the daemons time does
not shrink with it, as a change that waits up to 1.25 s before it is told: they hit somewhat less than the replay. Without
a directory nothing depends on time, and requests follow each other at once.
"""

import json
import os
import subprocess
import sys
import unittest

from cluster import ROOT, Cluster, enter_network, refused_namespaces

TRACE = os.path.join(ROOT, "tests", "data", "traces", "mooncake_conversation.jsonl.xz")
NODES = 4
BLOCKS = 170900 * 5 // 100 // NODES  # the trace has so many full blocks
SLOT = 8192      # of the smallest block
THREADS = 1      # a node's requests come one after the other, as in the replay
EVERY = 16       # members are told of each 16th block
AT_ONCE = 10000
POINTS = 1.0     # that daemons may hit less than the replay
COUNTED = ("asks", "loans", "lent_blocks", "fetched_blocks", "fetched_bytes", "failed_blocks")


def engines(*arguments):
    done = subprocess.run([TRACE_NODES, *map(str, arguments)], stdout=subprocess.PIPE, timeout=7200, check=True)
    return json.loads(done.stdout)


def run(directory, speed, requests, spread):
    """One run of all four from empty."""
    cluster = Cluster(TERRACED, CTL, NODES, "--directory", directory, host_mib=-(-BLOCKS * SLOT // 2**20))
    try:
        out = engines("run", TRACE, speed, requests, spread, THREADS, *(n.address for n in cluster.nodes))
        stats = [n.stats() for n in cluster.nodes]
    finally:
        cluster.close()
    out["held"] = sum(s["terrace_blocks{tier=host}"] for s in stats)
    for name in COUNTED:
        out[name] = sum(s.get("terrace_peer_%s_total" % name, 0) for s in stats)
    return out


class Trace(unittest.TestCase):
    def beside_the_replay(self, speed, requests, spread):
        off, on = run("off", AT_ONCE, requests, spread), run("on", speed, requests, spread)
        # A class of slots does not fill its extents to the last byte: the replay has what the daemons held.
        held = round(off["held"] / NODES)
        said = engines("replay", TRACE, speed, requests, spread, NODES, held, EVERY)
        print(json.dumps({"bench": "trace through four daemons", "spread": spread, "requests": on["requests"], "speed": speed,
                          "blocks_a_node": held, "off": off, "on": on, "replay": said}), flush=True)
        self.assertEqual(off["fetched_blocks"], 0)
        self.assertEqual(on["failed_blocks"], 0)
        self.assertGreater(on["fetched_blocks"], 0)
        self.assertGreater(on["hit"], off["hit"])
        self.assertAlmostEqual(off["hit"], said["lone"], delta=POINTS)
        self.assertGreater(on["hit"], said["hit"] - POINTS)


class Short(Trace):
    def test_sessions(self):
        self.beside_the_replay(25, 1500, "session")


class Long(Trace):
    def test_sessions(self):
        self.beside_the_replay(10, 3000, "session")

    def test_requests(self):
        self.beside_the_replay(10, 3000, "request")


if __name__ == "__main__":
    why = refused_namespaces()
    if why:
        print("not run: " + why)
        sys.exit(77)
    TERRACED, CTL, TRACE_NODES = sys.argv[1:4]
    enter_network()
    unittest.main(argv=[sys.argv[0], "Long" if "--long" in sys.argv else "Short"], verbosity=2)

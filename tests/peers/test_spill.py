#!/usr/bin/python3
"""Blocks that one node's memory would drop go to other members, and come back, the same bytes; what a member
has no room for, or dies with, is a miss and nothing else.

    test_spill.py TERRACED TERRACECTL LIBTERRACE
"""

import itertools
import json
import os
import signal
import sys
import unittest

terraced, ctl, os.environ["LIBTERRACE"] = sys.argv[1:4]
from cluster import CALL_S, Cluster, enter_network, refused_namespaces, wait_for  # noqa: E402
from test_fetch import Reader, keys  # noqa: E402

HOST_MIB = 8
CHAIN = 64
CHAINS = 15                             # half as much again as one memory
OWN = 8                                 # less than one memory, and more than what is free of it
LAST = (CHAINS - 1) * 1000
TAKEN = "terrace_peer_spill_taken_blocks_total"
HELD = "terrace_peer_held_bytes"
WITHDRAWN = "terrace_peer_offers_withdrawn_total"
AT_PEER = "terrace_evictions_total{tier=host,reason=peer}"
NO_ROOM = "terrace_peer_spill_offers_total{result=no_room}"
FAILED = "terrace_peer_spill_offers_total{result=failed}"
DROPPED = "terrace_evictions_total{tier=host,reason=full}"


class Spill(unittest.TestCase):
    """Node 0 spills to the others. Each test begins with empty memories."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(terraced, ctl, 3, "--peer-room", "1", "--spill-share", "0.5", host_mib=HOST_MIB,
                              first=("--peer-spill", "on"))
        cls.nodes = cls.cluster.nodes
        cls.fresh = True

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def setUp(self):
        for n in () if Spill.fresh else self.nodes:
            n.kill()
        for n in () if Spill.fresh else self.nodes:
            n.start()
        Spill.fresh = False
        self.cluster.wait_members()
        self.engines = [Reader(n) for n in self.nodes]

    def tearDown(self):
        self.engines.clear()

    def stat(self, name, node=0):
        return self.nodes[node].stats().get(name, 0)

    def offered_all(self):
        """Offers have come to an end: what is to have a copy elsewhere has one, or nobody takes it."""
        now = self.nodes[0].stats()
        seen = {k: v for k, v in now.items() if k.startswith("terrace_peer_spill_")}
        quiet = seen == getattr(self, "seen", None) and not now["terrace_quota_held{thing=loaned_bytes}"]
        self.quiet = self.quiet + 1 if quiet else 0
        self.seen = seen
        return self.quiet >= 20

    def settle(self):
        self.quiet, self.seen = 0, None
        wait_for(self.offered_all, CALL_S, "offers end")

    def fill(self, engine, chains=CHAINS, first=0, settle=True):
        """Stores so many chains: CHAINS of them are more than one node's memory."""
        for i in range(chains):
            engine.store(first + i * 1000, CHAIN)
            if settle and i % 3 == 2:
                self.settle()

    def found(self, engine, chains=CHAINS, first=0):
        """How many of the chains are found whole, each right."""
        whole = 0
        for i in range(chains):
            n = engine.bring(first + i * 1000, CHAIN)
            if n == CHAIN:
                self.assertIs(engine.right(first + i * 1000, CHAIN), True)
            whole += n == CHAIN
        return whole

    def cold(self):
        """The key of a block that is in memory and at a member."""
        for i in range(CHAINS):
            for n in reversed(range(CHAIN)):
                word = keys(i * 1000 + n, 1)[0].hex()
                if self.engines[0].lookup("s", i * 1000 + n, 1):
                    if json.loads(self.cluster.run_ctl(self.nodes[0], "explain", word))["blocks"][0].get("peer"):
                        return word
        return None

    def test_more_than_one_memory_is_found_whole(self):
        a = self.engines[0]
        self.fill(a)
        self.assertGreater(self.stat(AT_PEER), 100)
        self.assertEqual(self.stat(DROPPED), 0)
        self.assertLess(a.lookup("s", 0, CHAIN), CHAIN)
        self.assertGreater(self.stat(HELD, 1) + self.stat(HELD, 2), 0)
        for i in range(CHAINS):
            self.assertEqual(a.bring(i * 1000, CHAIN), CHAIN, i)
            self.assertIs(a.right(i * 1000, CHAIN), True)
            if i % 3 == 2:
                self.settle()
        wait_for(lambda: self.engines[1].bring(0, CHAIN) == CHAIN, CALL_S, "another member finds it, too")
        self.assertIs(self.engines[1].right(0, CHAIN), True)

    def test_a_drain_hands_on(self):
        a, b, c = self.engines
        self.fill(a, chains=3, settle=False)
        said = json.loads(self.cluster.run_ctl(self.nodes[0], "drain", "--wait", "30"))
        self.assertTrue(said["drained"], said)
        taken = self.stat(TAKEN)
        self.assertEqual(taken, 3 * CHAIN)
        self.nodes[0].kill()  # its blocks are gone: what others find is theirs
        for engine in (b, c):  # once the directory has been told
            wait_for(lambda e=engine: self.found(e, chains=3) == 3, CALL_S, "all that was handed on")

    def test_a_drain_that_nobody_takes_from_ends(self):
        a = self.engines[0]
        for node in self.nodes[1:]:
            node.kill()
        self.fill(a, chains=3, settle=False)
        self.assertTrue(json.loads(self.cluster.run_ctl(self.nodes[0], "drain", "--wait", "60"))["drained"])
        self.cluster.run_ctl(self.nodes[0], "drain", "--undo")
        self.assertEqual(a.bring(0, CHAIN), CHAIN)
        for node in self.nodes[1:]:
            node.start()
        self.cluster.wait_members()

    def test_members_without_room_refuse_and_lose_nothing(self):
        own = (self.engines[1], 200000), (self.engines[2], 300000)
        for engine, first in own:
            self.fill(engine, first=first, settle=False)
        before = [e.lookup("s", f + LAST, CHAIN) for e, f in own]
        stored = [n.stats()[DROPPED] for n in self.nodes[1:]]
        self.fill(self.engines[0])
        wait_for(lambda: self.stat(NO_ROOM) > 0, CALL_S, "refused")
        self.assertEqual([n.stats()[DROPPED] for n in self.nodes[1:]], stored)
        self.assertEqual(before, [e.lookup("s", f + LAST, CHAIN) for e, f in own])
        self.assertEqual(self.stat(HELD, 1) + self.stat(HELD, 2), 0)
        self.assertEqual(self.engines[0].bring(LAST, CHAIN), CHAIN)

    def test_what_is_held_goes_before_the_members_own(self):
        a, b, c = self.engines
        self.fill(a)
        for engine in (b, c):
            self.fill(engine, chains=OWN, first=400000, settle=False)
        for node, engine in ((1, b), (2, c)):
            self.assertEqual(self.stat(DROPPED, node), 0)
            self.assertEqual([engine.lookup("s", 400000 + i * 1000, CHAIN) for i in range(OWN)], [CHAIN] * OWN)

    def test_a_deleted_block_does_not_come_back(self):
        a = self.engines[0]
        self.fill(a)
        explained = json.loads(self.cluster.run_ctl(self.nodes[0], "explain", keys(0, 1)[0].hex()))["blocks"][0]
        self.assertEqual(explained["left_reason"], "peer")
        self.assertIn(explained["peer"], ("n1", "n2"))
        edges = json.loads(self.cluster.run_ctl(self.nodes[0], "graph", self.cold()))["edges"]
        self.assertIn("peer", [e["tier"] for e in edges if e["type"] == "spill_link"])
        a.session.delete(keys(0, CHAIN), timeout=20)
        for engine in self.engines:
            self.assertEqual(engine.bring(0, CHAIN), 0)
        self.assertEqual(a.bring(1000, CHAIN), CHAIN)

    def test_a_holder_that_dies(self):
        a, b, _ = self.engines
        self.fill(a, settle=False)
        self.nodes[0].kill()
        # What was taken is found at the members; what was under way is gone, and its slots are free again.
        whole = self.found(b)
        self.fill(b, first=500000, settle=False)
        self.nodes[0].start()
        self.cluster.wait_members()
        self.engines[0] = Reader(self.nodes[0])
        self.assertLessEqual(whole, CHAINS)
        self.fill(self.engines[0], first=600000)
        self.assertEqual(self.engines[0].bring(600000 + LAST, CHAIN), CHAIN)

    def test_members_that_die(self):
        a = self.engines[0]
        self.fill(a, chains=4, settle=False)
        for node in self.nodes[1:]:
            node.kill()
        self.fill(a, first=700000, settle=False)
        self.assertEqual(a.bring(700000 + LAST, CHAIN), CHAIN)
        self.assertIs(a.right(700000 + LAST, CHAIN), True)
        for node in self.nodes[1:]:
            node.start()
        self.cluster.wait_members()

    def test_memory_pressure_withdraws(self):
        a = self.engines[0]
        for node in self.nodes[1:]:
            os.kill(node.process.pid, signal.SIGSTOP)
        try:
            # Offers are not answered; what is stored meanwhile does not wait for them.
            self.fill(a, settle=False)
            more = itertools.count(800000, 10000)
            wait_for(lambda: self.stat(WITHDRAWN) > 0 or self.fill(a, chains=3, first=next(more), settle=False), CALL_S,
                     "withdrawn")
        finally:
            for node in self.nodes[1:]:
                os.kill(node.process.pid, signal.SIGCONT)


if __name__ == "__main__":
    why = refused_namespaces()
    if why:
        print("not run: " + why)
        sys.exit(77)
    enter_network()
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)

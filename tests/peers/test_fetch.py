#!/usr/bin/python3
"""Blocks that come from other members: what one node has stored is leased on another, the same bytes; a chain may come from several;
what a member loses, sends late or sends wrong is a miss.

    test_fetch.py TERRACED TERRACECTL LIBTERRACE
"""

import os
import signal
import sys
import time
import unittest

terraced, ctl, os.environ["LIBTERRACE"] = sys.argv[1:4]
from cluster import CALL_S, Cluster, enter_network, pb, refused_namespaces, terrace_pb2_grpc, wait_for  # noqa: E402
from engine import Engine, content, key  # noqa: E402
import terrace  # noqa: E402

LAYOUT = {"model": "fetch", "layers": 2, "heads": 2, "head_dim": 64, "k_format": "tq4", "v_format": "tq4", "block_tokens": 16}
CHAIN = 96
SLOT_HEADER = 4096


def keys(first, count):
    return [key(n) for n in range(first, first + count)]


class Reader(Engine):
    """An engine of one node."""

    def __init__(self, node, layout=None):
        super().__init__(node.address)
        self.node = node
        self.open("s", [dict(layout or LAYOUT)])
        self.session = self.sessions["s"]
        self.layout_id = node.cache.Attach(pb.AttachRequest(token=self.session.token), timeout=CALL_S).layouts[0].layout_id

    def another(self, **options):
        """The session of another kind of engine."""
        self.session = self.client.session(self.layouts["s"], engine="other", **options)

    def handle(self):
        return self.node.cache.Attach(pb.AttachRequest(token=self.session.token), timeout=CALL_S).session

    def asked(self, first, count):
        """Prefix, and whether others are asked."""
        reply = self.node.cache.Lookup(pb.LookupRequest(session=self.handle(), keys=pb.Keys(key_bytes=16, keys=b"".join(keys(first, count)))),
                                       timeout=CALL_S)
        return reply.prefix, reply.asked

    def store(self, first, count, position=0):
        """Stores a chain in one call, and uses it, so that other members are told of it at once."""
        size = self.layouts["s"][0].block_bytes
        with self.session.reserve(keys(first, count), first_position=position) as r:
            for i in range(count):
                block = r.block(i, 0)
                block[:] = content(first + i, 0, size)
                del block
            assert {s.name for s in r.commit()} == {"OK"}
        with self.session.lease(keys(first, count), all=True, first_position=position):
            pass

    def bring(self, first, count, timeout=20, **more):
        """How many of the chain's blocks a lease gets."""
        lease = self.session.lease(keys(first, count), timeout=timeout, **more)
        if lease is None:
            return 0
        with lease:
            return len(lease)

    def right(self, first, count):
        found = self.get("s", first, count)
        return found == [count, 0, 0] or found


class Fetch(unittest.TestCase):
    base, envs = 0, ()

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(terraced, ctl, 3, host_mib=64, envs=cls.envs)
        cls.nodes = cls.cluster.nodes
        cls.engines = [Reader(n) for n in cls.nodes]

    @classmethod
    def tearDownClass(cls):
        cls.engines.clear()
        cls.cluster.close()

    def setUp(self):
        Fetch.base += 100000
        self.first = Fetch.base

    def store_told(self, engine, first, count, position=0):
        """Stores a chain, of which `position` keys stand before it, and waits until the other members can find it."""
        engine.store(first, count, position)
        words = [k.hex() for k in keys(first - position, position + count)]
        last = (position + count) // 16 * 16 - 1
        for node in self.nodes:
            if node is not engine.node:
                wait_for(lambda node=node: engine.node.name in self.holders(node, engine, words).get(last, []), CALL_S,
                         "found from " + node.name)

    def brings(self, engine, count, expected):
        """A member that did not answer in time on a busy machine is left out for a while: then again."""
        wait_for(lambda: engine.bring(self.first, count) >= expected, 2 * CALL_S, "blocks of the other member")
        self.assertEqual(engine.bring(self.first, count), expected)

    def holders(self, node, engine, words):
        found = self.cluster.locate(node, "--layout", "%016x" % engine.layout_id, *words)
        return {b["index"]: b["members"] for b in found["blocks"]}

    def test_what_one_has_another_leases(self):
        a, b, c = self.engines
        self.store_told(a, self.first, CHAIN)
        for other in (b, c):
            self.assertEqual(other.lookup("s", self.first, CHAIN), 0)
            self.brings(other, CHAIN, CHAIN)
            self.assertEqual(other.lookup("s", self.first, CHAIN), CHAIN)
            self.assertIs(other.right(self.first, CHAIN), True)
        self.assertEqual(b.node.stats()["terrace_peer_failed_blocks_total"], 0)

    def test_a_chain_comes_from_several(self):
        a, b, c = self.engines
        self.store_told(a, self.first, 64)
        self.store_told(b, self.first + 64, 64, position=64)
        self.brings(c, 128, 128)
        self.assertIs(c.right(self.first, 128), True)

    def test_a_lookup_says_that_others_are_asked(self):
        a, b, _ = self.engines
        self.store_told(a, self.first, CHAIN)
        self.assertEqual(b.asked(self.first, CHAIN), (0, True))
        wait_for(lambda: b.node.stats()["terrace_peer_lent_blocks_total"] >= CHAIN, CALL_S, "lent")
        self.assertEqual(b.asked(self.first, CHAIN), (0, True))
        self.assertEqual(b.session.warm(keys(self.first, CHAIN), wait=True, timeout=20), CHAIN)
        self.assertEqual(b.asked(self.first, CHAIN), (CHAIN, False))
        # What no member has: asked once, and then known.
        wait_for(lambda: b.asked(self.first + 50000, CHAIN) == (0, False), CALL_S, "known to be nowhere")

    def test_a_warm_that_does_not_wait_brings(self):
        a, b, _ = self.engines
        self.store_told(a, self.first, CHAIN)
        b.session.warm(keys(self.first, CHAIN))
        wait_for(lambda: b.lookup("s", self.first, CHAIN) == CHAIN, CALL_S, "the chain")
        self.assertIs(b.right(self.first, CHAIN), True)

    def test_pieces_of_a_stream(self):
        """A slot is sent as its header and its block, in messages of the size that was asked for."""
        a = self.engines[0]
        a.store(self.first, 4)
        size = a.layouts["s"][0].block_bytes
        pair = self.cluster.ca.issue("pieces", "DNS:node.cluster")
        with self.cluster.channel(a.node, pair) as channel:
            peer = terrace_pb2_grpc.PeerStub(channel)
            wants = [pb.LayoutKeys(layout_id=a.layout_id, key_bytes=16, keys=b"".join(keys(self.first, 5)))]
            loan = peer.Lend(pb.LendRequest(tenant="default", wants=wants), timeout=CALL_S)
            self.assertEqual(loan.lent, b"\x0f")
            for chunk in 0, 4096, 5000, 1 << 20:
                ask = pb.FetchRequest(tenant="default", loan=loan.loan, index=[2, 0], chunk_bytes=chunk)
                headers, slots = [], []
                for m in peer.Fetch(ask, timeout=CALL_S):
                    self.assertLessEqual(len(m.data), max(chunk or 1 << 20, SLOT_HEADER + 1))
                    if m.HasField("header"):
                        headers.append(m.header)
                        slots.append(b"")
                    slots[-1] += m.data
                self.assertEqual([(h.index, h.status, h.block_bytes) for h in headers], [(n, pb.OK, SLOT_HEADER + size) for n in range(2)])
                self.assertEqual([s[SLOT_HEADER:] for s in slots], [bytes(content(self.first + n, 0, size)) for n in (2, 0)])
            peer.EndLoan(pb.EndLoanRequest(tenant="default", loan=loan.loan), timeout=CALL_S)

    def test_what_an_engine_does_not_want(self):
        a = self.engines[0]
        self.store_told(a, self.first, CHAIN)
        for options, blocks in ({"local_only": True}, 0), ({"tokens_per_second": 1 << 31}, 0), ({"tokens_per_second": 100}, CHAIN):
            other = Reader(self.nodes[1])
            other.another(**options)
            self.assertEqual(other.bring(self.first, CHAIN), blocks, options)
        del other

    def test_what_has_gone_is_a_miss(self):
        a, b, _ = self.engines
        self.store_told(a, self.first, CHAIN)
        a.session.delete(keys(self.first + 40, 1))
        self.brings(b, CHAIN, 40)
        self.assertIs(b.right(self.first, 40), True)

    def test_a_delete_reaches_all(self):
        a, b, c = self.engines
        self.store_told(a, self.first, CHAIN)
        self.brings(b, CHAIN, CHAIN)
        self.assertEqual({s.name for s in c.session.delete(keys(self.first + 32, CHAIN - 32), timeout=20)}, {"MISS"})
        for e in self.engines:
            self.assertEqual(e.bring(self.first, CHAIN), 32)
        # It is stored again, and found again.
        with b.session.reserve(keys(self.first + 32, 1), first_position=32) as r:
            r.block(0, 0)[:] = content(self.first + 32, 0, b.layouts["s"][0].block_bytes)
            r.commit()
        self.assertEqual(b.lookup("s", self.first, CHAIN), 33)

    def test_a_delete_says_who_has_not_confirmed(self):
        a, b, _ = self.engines
        self.store_told(a, self.first, CHAIN)
        said = None
        while not said:  # on a busy machine its lease may end before it is stopped: then it is no member, and nothing is missing
            self.cluster.wait_members()
            os.kill(a.node.process.pid, signal.SIGSTOP)
            try:
                was_member = "n0" in b.node.members()
                b.session.delete(keys(self.first, 16), timeout=3)
                self.assertFalse(was_member and "n0" in b.node.members(), "a delete is confirmed that a member has not heard of")
            except terrace.Deadline as e:
                said = str(e)
            finally:
                os.kill(a.node.process.pid, signal.SIGCONT)
        self.assertIn("n0", said)
        # What was deleted here does not come back, though the holder has it still, or again.
        self.cluster.wait_members()
        self.assertEqual(b.bring(self.first, CHAIN), 0)
        wait_for(lambda: self.deletes(b, 16), CALL_S, "the delete is confirmed")
        wait_for(lambda: a.lookup("s", self.first, CHAIN) == 0, CALL_S, "deleted at the holder")

    def deletes(self, engine, count):
        try:
            engine.session.delete(keys(self.first, count), timeout=5)
        except terrace.Deadline:
            return False
        return True

    def test_a_stopped_holder_is_a_miss_in_time(self):
        a, b, _ = self.engines
        self.store_told(a, self.first, CHAIN)
        os.kill(a.node.process.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            self.assertEqual(b.bring(self.first, CHAIN, timeout=3), 0)
            self.assertLess(time.monotonic() - began, CALL_S)
        finally:
            os.kill(a.node.process.pid, signal.SIGCONT)
        wait_for(lambda: b.bring(self.first, CHAIN) == CHAIN, CALL_S, "the holder goes on")
        self.assertIs(b.right(self.first, CHAIN), True)

    def test_a_killed_holder_is_a_miss(self):
        a, b, _ = self.engines
        self.store_told(a, self.first, CHAIN)
        a.node.kill()
        self.assertEqual(b.bring(self.first, CHAIN, timeout=20), 0)
        a.node.start()
        self.cluster.wait_members()
        self.assertEqual(b.bring(self.first, CHAIN), 0)
        self.engines[0] = Reader(a.node)
        self.store_told(self.engines[0], self.first, CHAIN)
        wait_for(lambda: b.bring(self.first, CHAIN) == CHAIN, CALL_S, "the chain, stored anew")
        self.assertIs(b.right(self.first, CHAIN), True)


if __name__ == "__main__":
    why = refused_namespaces()
    if why:
        print("not run: " + why)
        sys.exit(77)
    enter_network()
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)

"""The cluster's directory: blocks of one daemon are located from others, and stay so while members, etcd and the network fail.
usage: test_peers.py TERRACED TERRACECTL [TEST]...
"""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cluster as net  # noqa: E402

REFUSED = net.refused_namespaces()
if not REFUSED:
    net.enter_network()  # before gRPC has threads

import grpc  # noqa: E402
from daemon import CALL_S, key, layout, pb, terrace_pb2_grpc, wait_for  # noqa: E402

TERRACED, CTL = sys.argv[1], sys.argv[2]
BLOCKS, HEAL_S = 130, 10
LAYOUT = "%016x"
PROTOCOL = 2  # PEERS_PROTOCOL


class Peers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = net.Cluster(TERRACED, CTL, 3)
        cls.addClassCleanup(cls.cluster.close)
        cls.nodes, cls.number = cls.cluster.nodes, 0

    def chain(self, node, blocks=BLOCKS, tenant=None):
        """Stores a chain of new keys on that node, and returns the keys as words. Others are told of it some ten seconds later."""
        type(self).number += 1
        first = self.number * 10000
        cache = node.cache if tenant is None else tenant
        opened = cache.OpenSession(pb.OpenSessionRequest(layouts=[layout()], engine="e2e"), timeout=CALL_S)
        data = bytes(opened.layouts[0].block_bytes)

        def chunks():
            for i in range(blocks):
                info = pb.BlockInfo(tokens=16, position=16 * i, parent=key(first + i - 1) if i else b"")
                yield pb.PutChunk(header=pb.PutHeader(session=opened.session, key=key(first + i), info=info), data=data)
        self.assertEqual(set(cache.Put(chunks(), timeout=CALL_S).status), {pb.OK})
        self.layout_id = opened.layouts[0].layout_id
        self.session = opened.session
        return [key(first + i).hex() for i in range(blocks)]

    @staticmethod
    def keys_of(words):
        return pb.Keys(key_bytes=16, keys=bytes.fromhex("".join(words)))

    def held(self, node, words, *more):
        """Index -> names of the members that have it, without the node that is asked."""
        found = self.cluster.locate(node, "--layout", LAYOUT % self.layout_id, *more, *words)
        return {b["index"]: [m for m in b["members"] if m != node.name] for b in found["blocks"]}

    def wait_held(self, node, words, by, seconds=CALL_S):
        def is_so():
            self.last = self.held(node, words)
            return len(self.last) >= len(words) // 16 and all(m == by for m in self.last.values())
        try:
            wait_for(is_so, seconds, "")
        except AssertionError as e:
            raise AssertionError("%s: not held by %s within %g s, but %s" % (node.name, by, seconds, self.last)) from e

    def wait_gone(self, node, words, seconds=CALL_S):
        wait_for(lambda: not any(self.held(node, words).values()), seconds, "nothing is located from " + node.name)

    def deleted(self, node, session, words):
        """Whether a Delete has reached every member: one that is slow, or was a moment ago, is told the next time."""
        try:
            node.cache.Delete(pb.DeleteRequest(session=session, keys=self.keys_of(words)), timeout=10)
        except grpc.RpcError as e:
            self.assertEqual(e.code(), grpc.StatusCode.DEADLINE_EXCEEDED, e.details())
            return False
        return True

    def remote(self, node, pair):
        """A channel to the node over TLS, with that certificate."""
        channel = self.cluster.channel(node, pair)
        self.addCleanup(channel.close)
        return channel

    def refused(self, code, call, request):
        """The words of a call that ends with that code."""
        with self.assertRaises(grpc.RpcError) as caught:
            call(request, timeout=CALL_S)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception.details()

    def test_located_deleted_evicted(self):
        """Every 16th block of a chain is located from each other member, until it is deleted or has to give way."""
        a, b, c = self.nodes
        words, others = self.chain(a), self.chain(a)
        for n in (b, c):
            self.wait_held(n, words, [a.name])
            self.wait_held(n, others, [a.name])
        self.assertEqual(set(self.held(b, words)), set(range(15, BLOCKS, 16)))
        self.assertEqual(self.held(b, words[:16]), {15: [a.name]})
        self.assertEqual(self.held(b, words[70:90], "--first-position", "70", "--segment", words[64]), {9: [a.name]})
        self.assertEqual(self.cluster.locate(a, words[15])["blocks"][0]["members"], [a.name])
        wait_for(lambda: self.deleted(a, self.session, words), 2 * CALL_S, "deleted everywhere")
        for n in (b, c):
            self.wait_gone(n, words)
            self.assertTrue(self.held(n, others))
        while a.cache.Lookup(pb.LookupRequest(session=self.session, keys=self.keys_of(others)), timeout=CALL_S).prefix:
            self.chain(a, 500)
        for n in (b, c):
            self.wait_gone(n, others[:16])

    def test_two_tenants(self):
        """The same keys of two tenants, on two members: each has its own entries."""
        a, b, c = self.nodes
        channel = self.remote(b, self.cluster.ca.issue("beta", "DNS:beta.example"))
        words = self.chain(a)
        type(self).number -= 1
        self.assertEqual(self.chain(b, tenant=terrace_pb2_grpc.CacheStub(channel)), words)
        self.wait_held(c, words, [a.name])
        wait_for(lambda: set(map(tuple, self.held(c, words, "--tenant", "beta").values())) == {(b.name,)}, CALL_S, "beta's")
        self.wait_held(c, words, [a.name])
        stub = terrace_pb2_grpc.AdminStub(channel)
        ask = pb.LocateRequest(layout=self.layout_id, keys=self.keys_of(words), wait_ms=1000)
        self.assertEqual({(h.member, h.self) for h in stub.Locate(ask, timeout=CALL_S).holders}, {(b.name, True)})
        ask.tenant = "default"
        self.refused(grpc.StatusCode.PERMISSION_DENIED, stub.Locate, ask)

    def test_rights(self):
        """Only another daemon's certificate calls Peer, and only for its tenants; such a certificate calls nothing else."""
        a = self.nodes[0]
        find = pb.FindRequest(protocol=1, tenant="beta", groups=[pb.FindGroup(names=bytes(16))])
        engine = self.remote(a, self.cluster.ca.issue("engine", "DNS:beta.example"))
        daemon = self.remote(a, self.cluster.ca.issue("daemon", "DNS:node.cluster"))
        peer, denied = terrace_pb2_grpc.PeerStub(daemon), grpc.StatusCode.PERMISSION_DENIED
        self.assertIn("other daemons", self.refused(denied, terrace_pb2_grpc.PeerStub(engine).Find, find))
        for call, ask in ((terrace_pb2_grpc.PeerStub(engine).Find, find), (a.peer.Find, find),
                          (terrace_pb2_grpc.PeerStub(engine).Publish, pb.PublishRequest())):
            self.refused(denied, call, ask)
        self.assertEqual(list(peer.Find(find, timeout=CALL_S).name), [])
        for tenant in ("gamma", "nobody", ""):
            find.tenant = tenant
            self.assertIn("tenant", self.refused(denied, peer.Find, find))
        self.refused(denied, terrace_pb2_grpc.AdminStub(daemon).Peers, pb.PeersRequest())
        self.refused(denied, terrace_pb2_grpc.CacheStub(daemon).OpenSession, pb.OpenSessionRequest(layouts=[layout()], engine="e"))

    def test_protocol(self):
        """A member of another version: what it does not say and what is not known here; and messages that make no sense."""
        a = self.nodes[0]
        peer = terrace_pb2_grpc.PeerStub(self.remote(a, self.cluster.ca.issue("other", "DNS:node.cluster")))
        run = dict(protocol=PROTOCOL, node=b"n" * 16, epoch=7, sequence=1)
        name = bytes(range(16))

        def find(**over):
            return pb.FindRequest(**{**dict(protocol=PROTOCOL, tenant="beta", groups=[pb.FindGroup(segment=3, names=name)]), **over})

        def told(**over):
            return pb.PublishRequest(**{**run, "tenants": ["beta"], "groups": [pb.PublishGroup(segment=3, names=name)], "told": 1, **over})
        self.assertEqual(peer.Publish(told(), timeout=CALL_S).result, pb.PUBLISH_UNKNOWN)
        later = pb.FindRequest.FromString(find(protocol=9).SerializeToString() + b"\xfa\x7f\x03abc")  # a field that is not known
        self.assertEqual(peer.Find(later, timeout=CALL_S).protocol, PROTOCOL)
        for bad in (find(protocol=0), find(groups=[]), find(groups=[pb.FindGroup(names=name[:15])]),
                    find(groups=[pb.FindGroup(names=name)] * 4097), find(groups=[pb.FindGroup(names=name * 4097)])):
            self.refused(grpc.StatusCode.INVALID_ARGUMENT, peer.Find, bad)
        group = pb.PublishGroup(names=name)
        for bad in (told(protocol=0), told(node=b"n"), told(epoch=0), told(sequence=0), told(tenants=["beta"] * 257),
                    told(groups=[pb.PublishGroup(tenant=1, names=name)]), told(groups=[pb.PublishGroup(names=b"")]),
                    told(groups=[group] * 4097), told(groups=[pb.PublishGroup(names=name * 4097)]),
                    told(kind=pb.PUBLISH_DIGEST), told(kind=pb.PUBLISH_DIGEST, buckets=3, sums=[1] * 3, counts=[1] * 3),
                    told(kind=pb.PUBLISH_DIGEST, buckets=2048, sums=[1] * 2048, counts=[1] * 2048),
                    told(kind=pb.PUBLISH_CONTENT), told(kind=pb.PUBLISH_CONTENT, buckets=64, set=[1, 2])):
            self.refused(grpc.StatusCode.INVALID_ARGUMENT, peer.Publish, bad)
        self.refused(grpc.StatusCode.PERMISSION_DENIED, peer.Publish, told(tenants=["gamma"]))

    def test_directory_off(self):
        """A member without the directory is in the list, lends nothing, and refuses each method of Peer in words."""
        off = net.Node(self.cluster, len(self.nodes), "--directory", "off")
        self.addCleanup(self.cluster.wait_members)
        self.addCleanup(off.close)
        off.start()
        peer = terrace_pb2_grpc.PeerStub(self.remote(off, self.cluster.ca.issue("of-it", "DNS:node.cluster")))
        keys, name = pb.Keys(key_bytes=16, keys=key(1)), [pb.FindGroup(segment=1, names=b"n" * 16)]
        for call, ask in ((peer.Find, pb.FindRequest(protocol=1, tenant="default", groups=name)),
                          (peer.Lend, pb.LendRequest(tenant="default", wants=[pb.LayoutKeys(layout_id=1, key_bytes=16, keys=key(1))])),
                          (peer.Forget, pb.ForgetRequest(tenant="default", layouts=[1], keys=keys))):
            self.assertIn("directory_off", self.refused(grpc.StatusCode.UNIMPLEMENTED, call, ask))
        told = self.refused(grpc.StatusCode.NOT_FOUND, off.admin.Locate, pb.LocateRequest(keys=keys))
        self.assertIn("no layout", told)  # it has had no session yet
        self.chain(off)
        self.assertEqual([], list(off.admin.Locate(pb.LocateRequest(keys=pb.Keys(key_bytes=16, keys=key(1))), timeout=CALL_S).holders))
        wait_for(lambda: off.name in self.nodes[0].members(), CALL_S, "a member")

    def test_a_holder_tells(self):
        """A holder of another make: its messages in order, out of order and twice, a digest, buckets, and its end."""
        a, b, c = self.nodes
        peer = {n: terrace_pb2_grpc.PeerStub(self.remote(n, self.cluster.ca.issue("holder-" + n.name, "DNS:node.cluster"))) for n in (a, b, c)}
        epoch = a.epoch() + 1
        self.cluster.member_put("x", epoch)
        wait_for(lambda: all("x" in n.members() for n in self.nodes), CALL_S, "the member")
        names = [bytes([i]) * 16 for i in range(1, 5)]

        def tell(sequence, adds=(), removes=(), told=0, node=a, tenants=("beta",)):
            groups = [pb.PublishGroup(segment=5, names=b"".join(n), remove=r) for n, r in ((removes, True), (adds, False)) if n]
            return peer[node].Publish(pb.PublishRequest(protocol=1, node=net.FAKE_NODE, epoch=epoch, sequence=sequence, tenants=tenants,
                                                        groups=groups, told=told), timeout=CALL_S)

        def found(node=a):
            reply = peer[node].Find(pb.FindRequest(protocol=1, tenant="beta", groups=[pb.FindGroup(segment=5, names=b"".join(names))]),
                                    timeout=CALL_S)
            self.assertTrue(all((reply.members[m].node, reply.members[m].epoch) == (net.FAKE_NODE, epoch) for m in reply.member))
            return list(reply.name)
        wait_for(lambda: tell(1, names[:2], told=2).result == pb.PUBLISH_TAKEN, CALL_S, "the run is known")
        self.assertEqual(found(), [0, 1])
        self.assertEqual(tell(1, names[2:], told=4).result, pb.PUBLISH_STALE)
        reply = tell(3, names[3:], names[:1], told=3)
        self.assertEqual((reply.result, reply.digest_wanted, found()), (pb.PUBLISH_TAKEN, True, [1, 3]))
        digest = pb.PublishRequest(protocol=1, node=net.FAKE_NODE, epoch=epoch, sequence=4, kind=pb.PUBLISH_DIGEST, buckets=1, sums=[0], counts=[3])
        self.assertEqual(list(peer[a].Publish(digest, timeout=CALL_S).set), [1])
        content = pb.PublishRequest(protocol=1, node=net.FAKE_NODE, epoch=epoch, sequence=5, kind=pb.PUBLISH_CONTENT, buckets=1, set=[1],
                                    tenants=["beta"], groups=[pb.PublishGroup(segment=5, names=b"".join(names[1:]))])
        self.assertEqual(peer[a].Publish(content, timeout=CALL_S).result, pb.PUBLISH_TAKEN)
        self.assertEqual(found(), [1, 2, 3])
        reply = tell(6, [names[0]], told=4)
        self.assertEqual((reply.digest_wanted, list(reply.refused), found()), (False, [], [0, 1, 2, 3]))
        self.cluster.member_delete("x")
        wait_for(lambda: not found(), CALL_S, "entries of a member that has left")

    def test_owners_fail(self):
        """Members are killed one after the other: what lives on is located within ten seconds, what is gone is not."""
        a, b, c = self.nodes
        words, own = self.chain(a), self.chain(b)
        self.wait_held(b, words, [a.name])
        self.wait_held(a, own, [b.name])
        c.kill()
        self.wait_held(b, words, [a.name], HEAL_S)
        self.wait_held(a, own, [b.name], HEAL_S)
        c.start()
        self.cluster.wait_members()
        self.wait_held(c, words, [a.name], HEAL_S)
        before = b.epoch()
        b.kill()
        b.start()
        self.cluster.wait_members()
        self.assertNotEqual(b.epoch(), before)
        for n in (a, c):
            self.assertEqual([m for m in self.held(n, own).values() if m], [])
        self.wait_held(b, words, [a.name])  # both owners of some segments may be new: they are told again

    def test_a_member_for_a_while_none(self):
        """A member's key is lost and comes back: the others have dropped its entries, and get them again without its restart."""
        a, b, c = self.nodes
        words, epoch = self.chain(a), a.epoch()
        for n in (b, c):
            self.wait_held(n, words, [a.name])
        left = [n.stats()["terrace_membership_changes_total{change=left}"] for n in (b, c)]
        self.cluster.member_delete(a.name)
        wait_for(lambda: [n.stats()["terrace_membership_changes_total{change=left}"] for n in (b, c)] > left, CALL_S, "it has left")
        self.cluster.wait_members()
        self.assertEqual(a.epoch(), epoch)
        for n in (b, c):
            self.wait_held(n, words, [a.name], 2 * HEAL_S)

    def test_etcd_gone(self):
        """Without etcd members tell each other as before."""
        a, b, c = self.nodes
        self.cluster.etcd_kill()
        wait_for(lambda: all(n.admin.Peers(pb.PeersRequest(), timeout=CALL_S).state == "lost" for n in self.nodes), CALL_S, "lost")
        words = self.chain(a)
        for n in (b, c):
            self.wait_held(n, words, [a.name])
        self.cluster.etcd_start()
        wait_for(lambda: all(n.admin.Peers(pb.PeersRequest(), timeout=CALL_S).state == "joined" for n in self.nodes), CALL_S, "joined")

    def test_partition(self):
        """Two members do not hear each other, and etcd hears both: what one does meanwhile, the other finds after the healing."""
        a, b, c = self.nodes
        words, later_gone = self.chain(a), self.chain(a)
        session = self.session
        for n in (b, c):
            self.wait_held(n, words, [a.name])
            self.wait_held(n, later_gone, [a.name])
        for one, other in ((a, b), (b, a)):
            self.addCleanup(one.deaf_to, other, False)
            one.deaf_to(other)
        fresh = self.chain(a)
        self.assertFalse(self.deleted(a, session, later_gone))  # gone here, and not known to be gone there
        wait_for(lambda: a.members()[b.name].avoided, 2 * CALL_S, "avoided")
        for one, other in ((a, b), (b, a)):
            one.deaf_to(other, False)
        self.wait_held(b, fresh, [a.name], 2 * CALL_S)
        self.wait_gone(b, later_gone, 2 * CALL_S)
        self.wait_held(b, words, [a.name], 2 * CALL_S)

    def test_seen(self):
        """Operators see connections and counts."""
        a, b, _ = self.nodes
        words = self.chain(a)
        self.wait_held(b, words, [a.name])
        rows = {r["name"]: r for r in json.loads(self.cluster.run_ctl(b, "peers"))["members"]}
        self.assertEqual(rows[b.name]["link"], "")
        self.assertIn("connected", {r["link"] for r in rows.values()})
        stats = [n.stats() for n in self.nodes]
        self.assertGreater(stats[0]["terrace_peers_published"], 0)
        self.assertGreater(sum(s["terrace_directory_entries"] for s in stats), 0)
        self.assertGreater(stats[1]["terrace_peers_names_found_total"], 0)


if __name__ == "__main__":
    if REFUSED:
        print(REFUSED)
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])

#!/usr/bin/python3
"""Members of other versions, as there are while a cluster is upgraded: stubs that speak the Peer service as the version
before did, and as a later one may.

What a stub lends is of a real daemon behind it, which is in no cluster with the others: the stub hands the calls on.

    test_upgrade.py TERRACED TERRACECTL LIBTERRACE
"""

import collections
import os
import sys
import unittest
from concurrent import futures

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from test_fetch import CALL_S, Reader, ctl, keys, terraced  # noqa: E402
import cluster as net  # noqa: E402
from cluster import Cluster, Node, enter_network, pb, refused_namespaces, wait_for  # noqa: E402
import grpc  # noqa: E402
import terrace  # noqa: E402
from daemon import terrace_pb2_grpc  # noqa: E402

CHAIN, SEGMENT, TOLD, SLOT_HEADER = 128, 64, 16, 4096
OLD = {"Publish", "Find"}  # the directory came before the blocks
ALL = OLD | {"Lend", "EndLoan", "Forget", "Fetch"}
# A field of number 2015, once in each wire type: a varint, 8 bytes, bytes, 4 bytes.
EXTRA = b"\xf8\x7d\x05" + b"\xf9\x7d" + bytes(8) + b"\xfa\x7d\x03abc" + b"\xfd\x7d" + bytes(4)
LATER_ENUM = 99


def later(message):
    """The message as a later version may send it: with a field that is not known, and so in all messages inside."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inside in value if field.label == field.LABEL_REPEATED else [value]:
                later(inside)
    message.MergeFromString(EXTRA)
    return message


def same(message):
    return message


class Stub(grpc.GenericRpcHandler):
    """A member that is no daemon: it owns segments, and lends what the daemon behind it has."""

    PORT = 7071

    def __init__(self, cluster, name, back, protocol=1, methods=ALL, change=same, result=pb.PUBLISH_TAKEN):
        self.cluster, self.name, self.protocol = cluster, name, protocol
        self.methods, self.change, self.result = methods, change, result
        self.node, self.epoch, self.sequence = name.encode().ljust(16, b"."), 1, 0
        self.calls, self.held = collections.Counter(), {}
        cert, self.key = cluster.ca.issue(name, "IP:%s.1,DNS:node.cluster" % net.NET)
        with open(cert, "rb") as chain, open(self.key, "rb") as private, open(cluster.ca.cert, "rb") as ca:
            self.pem, self.private, self.ca = chain.read(), private.read(), ca.read()
        self.channels = {}
        self.back = self.peer(back)
        self.server = grpc.server(futures.ThreadPoolExecutor(8), [self])
        mutual = grpc.ssl_server_credentials([(self.private, self.pem)], self.ca, require_client_auth=True)
        self.server.add_secure_port("%s.1:%d" % (net.NET, self.PORT), mutual)
        self.server.start()
        self.register()

    def register(self):
        record = pb.Member(name=self.name, node=self.node, epoch=self.epoch, address="%s.1:%d" % (net.NET, self.PORT),
                           version="0.0.9", peer_protocol=self.protocol)
        value = self.change(record).SerializeToString()
        put = net.etcd_pb.PutRequest(key=net.MEMBERS + self.name.encode(), value=value)
        self.cluster.etcd_ask(net.etcd_pb.RequestOp(request_put=put))
        for n in self.cluster.nodes:
            wait_for(lambda n=n: self.epoch in epochs(n, self.name),
                     CALL_S, "a member of " + n.name)

    def upgrade(self):
        """Starts again, with all methods."""
        self.methods, self.epoch, self.sequence, self.held = ALL, self.epoch + 1, 0, {}
        self.calls.clear()
        self.register()

    def close(self):
        self.cluster.member_delete(self.name)
        for channel in self.channels.values():
            channel.close()
        self.server.stop(None).wait()
        for n in self.cluster.nodes:
            wait_for(lambda n=n: self.name not in n.members(), CALL_S, "no member of " + n.name)

    # ---- calls of others

    def service(self, details):
        name = details.method.rpartition("/")[2]
        self.calls[name] += 1
        if name not in self.methods:
            return None
        make = grpc.unary_stream_rpc_method_handler if name == "Fetch" else grpc.unary_unary_rpc_method_handler
        return make(getattr(self, name), getattr(pb, name + "Request").FromString,
                    lambda m: self.change(m).SerializeToString())

    def Publish(self, request, _context):
        run = (request.node, request.epoch)
        for group in request.groups:
            for i in range(0, len(group.names), 16):
                held = self.held.setdefault(group.names[i:i + 16], [])
                held[:] = [r for r in held if r != run] + ([] if group.remove else [run])
        return pb.PublishReply(protocol=self.protocol, result=self.result)

    def Find(self, request, _context):
        reply, number = pb.FindReply(protocol=self.protocol), 0
        for group in request.groups:
            for i in range(0, len(group.names), 16):
                for node, epoch in self.held.get(group.names[i:i + 16], [])[-4:]:
                    reply.name.append(number)
                    reply.member.append(len(reply.members))
                    reply.members.append(pb.FindMember(node=node, epoch=epoch))
                number += 1
        return reply

    def Lend(self, request, _context):
        return self.back.Lend(self.change(request), timeout=CALL_S)

    def EndLoan(self, request, _context):
        return self.back.EndLoan(self.change(request), timeout=CALL_S)

    def Forget(self, request, _context):
        return self.back.Forget(self.change(request), timeout=CALL_S)

    def Fetch(self, request, _context):
        yield from self.back.Fetch(self.change(request), timeout=CALL_S)

    # ---- calls to others

    def channel(self, node):
        if node.name not in self.channels:
            credentials = grpc.ssl_channel_credentials(self.ca, self.private, self.pem)
            self.channels[node.name] = grpc.secure_channel("%s:%d" % (node.host, net.PORT), credentials,
                                                           [("grpc.use_local_subchannel_pool", 1)])
        return self.channels[node.name]

    def peer(self, node):
        return terrace_pb2_grpc.PeerStub(self.channel(node))

    def tell(self, node, groups, kind=pb.PUBLISH_CHANGES):
        self.sequence += 1
        ask = pb.PublishRequest(protocol=self.protocol, node=self.node, epoch=self.epoch, sequence=self.sequence,
                                kind=kind, tenants=["default"], groups=groups, told=self.sequence)
        return self.peer(node).Publish(self.change(ask), timeout=CALL_S).result == pb.PUBLISH_TAKEN

    def claim(self, engine, first, begin, end, **more):
        """Tells all owners that this member has a chain's keys from a segment's `begin` on. The engine's daemon has
        them."""
        groups = []
        for at in range(begin, end, SEGMENT):
            names = [public_name(engine, first + i) for i in range(at + TOLD - 1, min(at + SEGMENT, end), TOLD)]
            segment = int.from_bytes(public_name(engine, first + at)[:8], "little")
            groups.append(pb.PublishGroup(segment=segment, names=b"".join(names)))
        for n in self.cluster.nodes:
            wait_for(lambda n=n: self.tell(n, groups, **more), CALL_S, n.name + " knows this run")
        for group in groups:
            for i in range(0, len(group.names), 16):
                self.held.setdefault(group.names[i:i + 16], []).append((self.node, self.epoch))


def epochs(node, name):
    return [row.member.epoch for row in node.members().values() if row.member.name == name]


def public_name(engine, number):
    reply = engine.node.admin.Explain(pb.ExplainRequest(key=keys(number, 1)[0]), timeout=CALL_S)
    return reply.blocks[0].public_name


class Upgrade(unittest.TestCase):
    base = 0

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(terraced, ctl, 2, host_mib=64)
        cls.addClassCleanup(cls.cluster.close)
        cls.nodes = cls.cluster.nodes
        back = Node(cls.cluster, len(cls.nodes), cluster_name="c2")
        cls.addClassCleanup(back.close)
        back.start()
        cls.engines = [Reader(n) for n in (*cls.nodes, back)]
        cls.addClassCleanup(cls.engines.clear)

    def stub(self, name, **more):
        stub = Stub(self.cluster, name, self.engines[2].node, **more)
        self.addCleanup(stub.close)
        return stub

    def chain(self, stub, at_first=0, **more):
        """A chain of which the first node has the first keys, and the stub says that it has those behind. Returns the
        first key's number."""
        Upgrade.base += 100000
        a, b, back = self.engines
        first, last = Upgrade.base, (at_first or CHAIN) - 1
        words = [k.hex() for k in keys(first, CHAIN)]
        back.store(first, CHAIN)
        if at_first:
            a.store(first, at_first)
        stub.claim(back, first, at_first, CHAIN, **more)
        wanted = {CHAIN - 1: [stub.name], last: [a.node.name if at_first else stub.name]}

        def located():
            found = self.cluster.locate(b.node, "--layout", "%016x" % b.layout_id, *words)
            self.last = {r["index"]: r["members"] for r in found["blocks"]}
            return all(self.last.get(i) == m for i, m in wanted.items())
        wait_for(located, CALL_S, "located from %s: %s" % (b.node.name, wanted))
        return first

    def refused(self, engine, first, count):
        """The words of a delete that not all members have confirmed."""
        with self.assertRaises(terrace.Deadline) as caught:
            engine.session.delete(keys(first, count), timeout=20)
        return str(caught.exception)

    def deletes(self, engine, first, count):
        try:
            engine.session.delete(keys(first, count), timeout=10)
        except terrace.Deadline:
            return False
        return True

    def row(self, engine, stub):
        return engine.node.members()[stub.name]

    def test_an_older_member(self):
        """It has the directory alone. It is asked once for each method that it lacks, is not avoided, and what others
        have comes from them."""
        a, b, _ = self.engines
        old = self.stub("old", methods=OLD)
        chains = [self.chain(old, at_first=SEGMENT) for _ in range(3)]
        for first in chains:  # the old member says that it has the deepest keys, so that it would be asked first
            wait_for(lambda first=first: b.bring(first, CHAIN) == SEGMENT, CALL_S, "what the other one has")
            self.assertIs(b.right(first, SEGMENT), True)
            self.assertFalse(self.row(b, old).avoided)
        self.assertEqual(old.calls["Lend"], 1)
        self.assertEqual(b.node.log().count("event=member_older"), 1)
        self.assertRegex(b.node.log(), "event=member_older reason=.*old at .*/Lend")

        def told():
            """A new chain's segments may be others' alone."""
            before = old.calls["Publish"]
            Upgrade.base += 100000
            a.store(Upgrade.base, TOLD)
            wait_for(lambda: a.node.stats()["terrace_peers_publish_waiting"] == 0, CALL_S, "owners are told")
            return old.calls["Publish"] > before
        wait_for(told, CALL_S, "the old member is told as an owner")
        for _ in range(2):
            words = self.refused(b, chains[0], SEGMENT)
            self.assertIn("old: its version", words)
            self.assertIn("upgrade", words)
        self.assertEqual(a.lookup("s", chains[0], SEGMENT), 0)
        self.assertEqual(old.calls["Forget"], 1)
        self.assertFalse(self.row(b, old).avoided)
        self.assertNotIn("event=peer_not_told", a.node.log() + b.node.log())
        # Its daemon is upgraded, and asked for everything.
        old.upgrade()
        first = self.chain(old)
        wait_for(lambda: b.bring(first, CHAIN) == CHAIN, CALL_S, "what the upgraded member has")
        self.assertIs(b.right(first, CHAIN), True)
        wait_for(lambda: self.deletes(b, chains[0], SEGMENT), CALL_S, "the delete is confirmed")
        self.assertEqual(b.node.log().count("event=member_older"), 2)

    def test_a_newer_member(self):
        """Protocol 3, a field that is not known in every message, a value of an enum that is not known: all works."""
        a, b, back = self.engines
        new = self.stub("new", protocol=3, change=later, result=LATER_ENUM)
        older = b.node.log().count("event=member_older")
        first = self.chain(new, kind=LATER_ENUM)
        wait_for(lambda: b.bring(first, CHAIN) == CHAIN, CALL_S, "what the newer member has")
        self.assertIs(b.right(first, CHAIN), True)
        wait_for(lambda: new.calls["EndLoan"], CALL_S, "the loan is given back")

        def told():
            """What it has answered with a result that is not known is taken as told."""
            Upgrade.base += 100000
            a.store(Upgrade.base, TOLD)
            wait_for(lambda: a.node.stats()["terrace_peers_publish_waiting"] == 0, CALL_S, "owners are told")
            return new.calls["Publish"]
        wait_for(told, CALL_S, "the newer member is told as an owner")
        self.asks(new, b.node, first)
        wait_for(lambda: self.deletes(b, first, CHAIN), CALL_S, "the delete is confirmed")
        self.assertEqual(back.lookup("s", first, CHAIN), 0)
        self.assertFalse(self.row(b, new).avoided)
        self.assertEqual(b.node.log().count("event=member_older"), older)

    def asks(self, new, node, first):
        """The newer member calls all methods of this version, and one that it does not have."""
        peer, layout = new.peer(node), self.engines[1].layout_id
        wants = [pb.LayoutKeys(layout_id=layout, key_bytes=16, keys=b"".join(keys(first, 2)))]
        group = pb.FindGroup(segment=1, names=public_name(self.engines[1], first + TOLD - 1))
        find = pb.FindRequest(protocol=3, tenant="default", groups=[group])
        self.assertEqual(peer.Find(later(find), timeout=CALL_S).protocol, 2)
        loan = peer.Lend(later(pb.LendRequest(tenant="default", wants=wants)), timeout=CALL_S)
        self.assertEqual(loan.lent, b"\x03")
        fetch = pb.FetchRequest(tenant="default", loan=loan.loan, index=[0, 1])
        chunks = list(peer.Fetch(later(fetch), timeout=CALL_S))
        size = SLOT_HEADER + self.engines[1].layouts["s"][0].block_bytes
        self.assertEqual([c.header.block_bytes for c in chunks if c.HasField("header")], [size] * 2)
        self.assertEqual(sum(len(c.data) for c in chunks), 2 * size)
        peer.EndLoan(later(pb.EndLoanRequest(tenant="default", loan=loan.loan)), timeout=CALL_S)
        absent = pb.Keys(key_bytes=16, keys=b"".join(keys(first + 50000, 1)))
        forget = pb.ForgetRequest(tenant="default", layouts=[layout], keys=absent)
        self.assertEqual(peer.Forget(later(forget), timeout=CALL_S).blocks, 0)
        with self.assertRaises(grpc.RpcError) as caught:
            new.channel(node).unary_unary("/terrace.v1.Peer/Later")(EXTRA, timeout=CALL_S)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)


if __name__ == "__main__":
    why = refused_namespaces()
    if why:
        print("not run: " + why)
        sys.exit(77)
    enter_network()
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)

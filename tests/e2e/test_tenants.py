"""Tenants: what one stores, another cannot see, count, touch or take the room of. usage: test_tenants.py TERRACED [--long]

Every method of the services, and every packet of the descriptor socket, is asked by tenant beta twice: with what is alpha's, and with what is
nobody's. The answers must be the same. A method that has no case here fails the test.
"""

import contextlib
import json
import mmap
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

import grpc

from certificates import Authority
from daemon import CALL_S, Daemon, health_pb2, health_pb2_grpc, key, keys, layout, pb, terrace_pb2_grpc, wait_for

UID = 41002
SMALL = ("--host-bytes", "16MiB", "--extent-bytes", "1MiB", "--socket-mode", "0666")
TABLE = """
tenant = alpha
uids = %d
engines = dns:alpha.example
tenant = beta
uids = %d
engines = dns:beta.example, uri:spiffe://example/beta
host_bytes = 4MiB
tenant = gamma
engines = dns:gamma.example
host_bytes_max = 2MiB
admins = dns:ops.example
""" % (os.geteuid(), UID)
HEAD, VERSION, HELLO = 0x46445254, 3, 1


def packet_types(kind="type"):
    """Of an enum of proto/fdsock.h, the types of packets or the methods of CALL: name -> number."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "proto", "fdsock.h")
    with open(path, encoding="utf-8") as f:
        body = re.search(r"enum fdsock_%s \{(.*?)FDSOCK_%sS_END" % (kind, kind.upper()), f.read(), re.S).group(1)
    return {name: int(n) for name, n in re.findall(r"FDSOCK_([A-Z_]+) = (\d+)", body)}


def answer(call, request):
    """Everything that a caller sees of an answer."""
    try:
        reply = call(request, timeout=CALL_S)
        if hasattr(reply, "SerializeToString"):
            return "OK", reply.SerializeToString(deterministic=True)
        return "OK", [m.SerializeToString(deterministic=True) for m in reply]
    except grpc.RpcError as e:
        return e.code().name, e.details()


class Cases:
    """What beta asks: each method with a session, a lease, keys and a token."""

    def __init__(self, cache, admin):
        self.cache, self.admin = cache, admin

    def requests(self, session, own, lease, k, token):
        """Method -> a list of (call, request)."""
        c, a, ks = self.cache, self.admin, keys(*k)
        put = [pb.PutChunk(header=pb.PutHeader(session=session, key=key(k[0]), info=pb.BlockInfo(tokens=16)), data=b"x")]
        return {
            "OpenSession": [(c.OpenSession, pb.OpenSessionRequest(layouts=[layout()], tenant="alpha", engine="e"))],
            "Attach": [(c.Attach, pb.AttachRequest(token=token))],
            "CloseSession": [(c.CloseSession, pb.CloseSessionRequest(session=session))],
            "Lookup": [(c.Lookup, pb.LookupRequest(session=s, keys=ks)) for s in (session, own)],
            "Lease": [(c.Lease, pb.LeaseRequest(session=s, keys=ks)) for s in (session, own)],
            "Release": [(c.Release, pb.ReleaseRequest(session=s, leases=[lease])) for s in (session, own)],
            "Reserve": [(c.Reserve, pb.ReserveRequest(session=session, keys=ks))],
            "Commit": [(c.Commit, pb.CommitRequest(session=s)) for s in (session, own)],
            "Abort": [(c.Abort, pb.AbortRequest(session=s, reservations=[lease])) for s in (session, own)],
            "Put": [(lambda q, timeout: c.Put(iter(q), timeout=timeout), put)],
            "Get": [(c.Get, pb.GetRequest(session=s, keys=ks)) for s in (session, own)],
            "Touch": [(c.Touch, pb.TouchRequest(session=s, keys=ks)) for s in (session, own)],
            "Report": [(c.Report, pb.ReportRequest(session=session))],
            "Delete": [(c.Delete, pb.DeleteRequest(session=s, keys=ks)) for s in (session, own)],
            "Warm": [(c.Warm, pb.WarmRequest(session=s, keys=ks)) for s in (session, own)],
            "Flush": [(c.Flush, pb.FlushRequest(session=s, keys=ks)) for s in (session, own)],
            "Watch": [(lambda q, timeout: self.watched(q), pb.WatchRequest(session=session))],
            "Stats": [(self.rows, pb.StatsRequest())],
            "Inspect": [(a.Inspect, pb.InspectRequest(key=key(k[0])))],
            "Explain": [(a.Explain, pb.ExplainRequest(session=s, key=key(k[0]))) for s in (session, own)] +
                       [(a.Explain, pb.ExplainRequest(session=own, key=key(k[0]), tenant="alpha"))],
            "Graph": [(a.Graph, pb.GraphRequest(key=key(k[0])))],
            "TraceStart": [(a.TraceStart, pb.TraceStartRequest(name="t"))],
            "TraceStop": [(a.TraceStop, pb.TraceStopRequest())],
            "Verify": [(lambda q, timeout: list(a.Verify(q, timeout=timeout)), pb.VerifyRequest())],
            "Compact": [(a.Compact, pb.CompactRequest())],
            "Layouts": [(a.Layouts, pb.LayoutsRequest())],
            "Drain": [(a.Drain, pb.DrainRequest(undo=True))],
            "Config": [(a.Config, pb.ConfigRequest())],
            "Peers": [(a.Peers, pb.PeersRequest())],
            "Locate": [(a.Locate, pb.LocateRequest(keys=ks, tenant=t, layout=i)) for t in ("", "alpha") for i in (0, 7)],
        }

    def watched(self, q):
        """The end of a watch of an unknown session; of a known one it would not come."""
        return list(self.cache.Watch(q, timeout=CALL_S))

    def rows(self, q, timeout):
        reply = self.admin.Stats(q, timeout=timeout)
        return pb.StatsReply(stats=reply.stats, faults=reply.faults)


class Tenants(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="terrace-tenants-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.ca = Authority(cls.folder, "ca")
        cls.node = cls.ca.issue("node")
        names = {"alpha": "DNS:alpha.example", "beta": "URI:spiffe://example/beta", "gamma": "DNS:gamma.example",
                 "none": "DNS:nobody.example", "two": "DNS:alpha.example,DNS:beta.example", "ops": "DNS:ops.example"}
        cls.pairs = {n: cls.ca.issue(n, sans) for n, sans in names.items()}
        cls.table = os.path.join(cls.folder, "tenants")
        with open(cls.table, "w", encoding="ascii") as f:
            f.write(TABLE)

    def daemon(self, *flags, table=None):
        d = Daemon(TERRACED, *SMALL, "--listen", "127.0.0.1:0", "--listen-cert", self.node[0], "--listen-key", self.node[1],
                   "--listen-ca", self.ca.cert, "--tenants", table or self.table, *flags, start=False)
        self.addCleanup(d.close)
        os.chmod(d.folder, 0o755)
        d.start()
        return d

    def channel(self, d, name):
        def bytes_of(path):
            with open(path, "rb") as f:
                return f.read()
        wait_for(lambda: d.log().count("event=ready") > d.readied, CALL_S, "ready")
        port = re.findall(r"event=ready .* port=(\d+)", d.log())[-1]
        cert, private = self.pairs[name]
        c = grpc.secure_channel("127.0.0.1:" + port, grpc.ssl_channel_credentials(bytes_of(self.ca.cert), bytes_of(private), bytes_of(cert)),
                                options=[("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(c.close)
        return c

    @contextlib.contextmanager
    def acting(self, d, name):
        """The daemon as one tenant sees it over TLS; the default is this test's own user."""
        cache, admin = d.cache, d.admin
        channel = self.channel(d, name)
        d.cache, d.admin = terrace_pb2_grpc.CacheStub(channel), terrace_pb2_grpc.AdminStub(channel)
        try:
            yield d
        finally:
            d.cache, d.admin = cache, admin

    def store(self, d, name, numbers, fill, **over):
        with self.acting(d, name):
            opened = d.open(layout(**over))
            size = opened.layouts[0].block_bytes
            self.assertEqual(d.put(opened.session, [(key(n), bytes([fill]) * size) for n in numbers], chunk=1 << 20), [pb.OK] * len(numbers))
            return opened

    def fill(self, d, opened, bytes_in_all):
        """Blocks of one content, as many as that, whatever becomes of those before."""
        size = opened.layouts[0].block_bytes
        for n in range(100, 100 + bytes_in_all // size, 32):
            d.put(opened.session, [(key(i), b"F" * size) for i in range(n, n + 32)], chunk=1 << 20)

    def contents(self, d, session, numbers):
        got = d.get(session, keys(*numbers))
        return [got[i][1][:1] if got.get(i, (0,))[0] == pb.OK else None for i in range(len(numbers))]

    # ---- the paired test ----

    def test_every_method_says_the_same(self):
        d = self.daemon()
        numbers = range(1, 5)
        alphas = self.store(d, "alpha", numbers, 65)
        lease = self.leased(d, alphas)
        with self.acting(d, "beta"):
            own = d.open(layout())
            cases = Cases(d.cache, d.admin)
            asked = {m.name for s in pb.DESCRIPTOR.services_by_name.values() if s.name != "Peer" for m in s.methods}  # Peer: tests/peers
            unknown = random.getrandbits(63) | 1
            foreign = cases.requests(alphas.session, own.session, lease, list(numbers), alphas.token)
            absent = cases.requests(unknown, own.session, random.getrandbits(63) | 1, [n + 9000 for n in numbers], os.urandom(16))
            self.assertEqual(set(foreign), asked, "a method without a case, or a case without a method")
            for name in sorted(asked):
                for (call, q), (same, nobodys) in zip(foreign[name], absent[name]):
                    self.assertEqual(answer(call, q), answer(same, nobodys), name)
        with self.acting(d, "alpha"):  # and nothing has been changed by it
            self.assertEqual(self.contents(d, alphas.session, numbers), [b"A"] * 4)

    def leased(self, d, opened):
        """A lease of alpha's, by its Unix socket: this test's own user is alpha's too."""
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(s.close)
        s.connect(opened.fd_socket)
        s.send(struct.pack("<IHH", HEAD, VERSION, HELLO) + opened.token)
        attachment = struct.unpack("<IHHIIQQQ", s.recv(4096))[7]
        leased = d.cache.Lease(pb.LeaseRequest(session=opened.session, keys=keys(1), attachment=attachment), timeout=CALL_S)
        self.assertEqual(leased.status, pb.OK)
        return leased.lease

    def test_keys_are_each_tenants_own(self):
        d = self.daemon()
        a, b = self.store(d, "alpha", [1, 2], 65), self.store(d, "beta", [2, 3], 66)
        with self.acting(d, "alpha"):
            self.assertEqual(self.contents(d, a.session, [1, 2, 3]), [b"A", b"A", None])
        with self.acting(d, "beta"):
            self.assertEqual(self.contents(d, b.session, [1, 2, 3]), [None, b"B", b"B"])
            rows = {s.name: s.value for s in d.admin.Stats(pb.StatsRequest(), timeout=CALL_S).stats}
            self.assertEqual(rows["terrace_tenant_blocks"], 2)
            self.assertTrue(all(n.startswith("terrace_tenant_") for n in rows))
            self.assertEqual(list(d.cache.Delete(pb.DeleteRequest(session=b.session, keys=keys(1, 2)), timeout=CALL_S).status),
                             [pb.MISS, pb.OK])
        with self.acting(d, "alpha"):
            self.assertEqual(self.contents(d, a.session, [1, 2, 3]), [b"A", b"A", None])

    def test_a_session_is_explained_by_its_own_tenants_blocks(self):
        d = self.daemon()
        opened = [self.store(d, "alpha", [1, 2], 65), self.store(d, "beta", [2, 3], 66)]  # of one layout
        for o, own in zip(opened, ([1, 2], [2, 3])):  # this test's own user administers
            for n in range(1, 4):
                reply = d.admin.Explain(pb.ExplainRequest(number=o.number, key=key(n)), timeout=CALL_S)
                self.assertEqual([b.tier for b in reply.blocks], ["host"] if n in own else [], (o.number, n))
        with self.assertRaises(grpc.RpcError) as e:
            d.admin.Explain(pb.ExplainRequest(number=opened[1].number, key=key(2), tenant="alpha"), timeout=CALL_S)
        self.assertEqual(e.exception.code(), grpc.StatusCode.PERMISSION_DENIED)

    @unittest.skipIf(os.geteuid() != 0, "another user's process wants root")
    def test_packets_say_the_same(self):
        d = self.daemon()
        alphas = self.store(d, "alpha", [1], 65)
        lease = self.leased(d, alphas)
        p = subprocess.run([sys.executable, os.path.abspath(__file__), "--child", d.address, alphas.fd_socket, alphas.token.hex(),
                            str(alphas.session), str(lease), key(1).hex()], stdout=subprocess.PIPE, timeout=4 * CALL_S, check=True)
        said = json.loads(p.stdout)
        self.assertEqual(said["tenant"], "OK")  # the kernel says that this user is beta's
        for name in ("HELLO", "CALLER", "MAP", "RELEASE", "CALL"):
            self.assertEqual(said["foreign"][name], said["absent"][name], name)
        self.assertEqual(set(said["foreign"]["CALL"]), set(packet_types("method")), "a local call without a case")
        self.assertNotIn(1, said["offered"])  # alpha's extent
        answers = {"WELCOME", "EXTENT", "REPLY", "OFFER", "RETIRE"}
        nameless = {"UNMAPPED", "PREMAP", "LISTEN"}  # of the attachment
        self.assertEqual(set(packet_types()), answers | nameless | set(said["foreign"]), "a packet without a case")
        with self.acting(d, "alpha"):
            self.assertEqual(self.contents(d, alphas.session, [1]), [b"A"])

    def test_times_tell_nothing(self):
        d = self.daemon()
        self.store(d, "alpha", range(1, 65), 65)
        with self.acting(d, "beta"):
            own = d.open(layout())
            order = [True, False] * (5000 if LONG else 1000)
            random.shuffle(order)
            ready = {True: [pb.LookupRequest(session=own.session, keys=keys(n)) for n in range(1, 65)],
                     False: [pb.LookupRequest(session=own.session, keys=keys(n)) for n in range(9001, 9065)]}
            times = []
            for i, present in enumerate(order):
                q = ready[present][i % 64]
                begin = time.perf_counter_ns()
                d.cache.Lookup(q, timeout=CALL_S)
                times.append(((time.perf_counter_ns() - begin) // 1000, present))
        # Mann and Whitney's test, at 1 us; the order is random, so that a busy machine is as busy for both.
        times.sort()
        rank_sum, i = 0.0, 0
        while i < len(times):
            j = i
            while j < len(times) and times[j][0] == times[i][0]:
                j += 1
            rank_sum += (i + j + 1) / 2 * sum(present for _, present in times[i:j])
            i = j
        n = len(times) // 2
        z = (rank_sum - n * (2 * n + 1) / 2) / (n * n * (2 * n + 1) / 12) ** 0.5
        self.assertLess(abs(z), 5, "foreign keys that are there are told by time: z = %g" % z)

    # ---- who is who ----

    def test_who_is_of_no_tenant(self):
        d = self.daemon()
        for name in ("none", "two"):
            with self.assertRaises(grpc.RpcError) as e, self.acting(d, name):
                d.open(layout())
            self.assertEqual(e.exception.code(), grpc.StatusCode.UNAVAILABLE)
        wait_for(lambda: "in the table of tenants" in d.log(), CALL_S, "the log says why")
        with self.acting(d, "ops"):
            self.assertTrue(d.admin.Layouts(pb.LayoutsRequest(), timeout=CALL_S))
        with self.acting(d, "beta"), self.assertRaises(grpc.RpcError) as e:
            d.open(layout(), tenant="alpha")
        self.assertEqual(e.exception.code(), grpc.StatusCode.PERMISSION_DENIED)
        if os.geteuid() == 0:
            os.seteuid(UID + 7)
            try:
                with grpc.insecure_channel(d.address, options=[("grpc.use_local_subchannel_pool", 1)]) as c:
                    with self.assertRaises(grpc.RpcError) as e:
                        terrace_pb2_grpc.CacheStub(c).OpenSession(pb.OpenSessionRequest(layouts=[layout()], engine="e"), timeout=CALL_S)
                    self.assertEqual(health_pb2_grpc.HealthStub(c).Check(health_pb2.HealthCheckRequest(), timeout=CALL_S).status, 1)
            finally:
                os.seteuid(0)
            self.assertEqual(e.exception.code(), grpc.StatusCode.PERMISSION_DENIED)
            self.assertIn("uid %d" % (UID + 7), e.exception.details())
            self.assertIn("of no tenant", e.exception.details())

    def test_tables_that_are_wrong(self):
        def check(text, *flags):
            path = os.path.join(self.folder, "wrong")
            with open(path, "w", encoding="ascii") as f:
                f.write(text)
            p = subprocess.run([TERRACED, "--check-config", "--data-dir", os.path.join(self.folder, "data"), "--socket",
                                os.path.join(self.folder, "s.sock"), "--host-bytes", "16MiB", "--tenants", path, *flags],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=CALL_S, check=False)
            return p.stderr.decode() if p.returncode else "ok"
        self.assertEqual(check("tenant = a\nuids = 1, 2\ntenant = b\nuids = 3\n"), "ok")
        for text, words in (("uids = 1\n", "no tenant has begun"), ("tenant = a\nuids = 1\ntenant = b\nuids = 1\n", "already"),
                            ("tenant = a\ntenant = a\n", "begun before"), ("tenant = a\ncolour = red\n", "no such name"),
                            ("tenant = a\nengines = example.com\n", "dns:HOST"), ("tenant = a\nengines = dns:*.x\n", "no *"),
                            ("tenant = a\nuids = no-such-user-here\n", "no user of that name"), ("tenant = a b\n", "letters"),
                            ("tenant = a\nuids = 1\nuids = 2\n", "set twice"), ("tenant = a\nhost_bytes = 32MiB\n", "together are more"),
                            ("tenant = a\nhost_bytes = 8MiB\nhost_bytes_max = 4MiB\n", "less than"), ("tenant = a\nuids = 1,,2\n", "empty")):
            self.assertIn(words, check(text), text)
        disk = ("--disks", os.path.join(self.folder, "share-disk") + ":64MiB")
        os.mkdir(os.path.join(self.folder, "share-disk"))
        shares = "tenant = a\ndisk_bytes = 40MiB\ntenant = b\ndisk_bytes = %dMiB\n"
        self.assertEqual(check(shares % 24, *disk), "ok")
        self.assertIn("disk_bytes together are %d bytes, and `disks` has %d" % (65 << 20, 64 << 20), check(shares % 25, *disk))
        self.assertIn("`disks` has 0", check(shares % 24))
        self.assertIn("none could use the GPUs", check("tenant = a\n", "--gpus", "0"))
        self.assertEqual(check("tenant = a\ngpu_bytes_max = 64MiB\n", "--gpus", "0"), "ok")
        gpus = "tenant = a\ngpu_bytes = 40MiB\ntenant = b\ngpu_bytes = %dMiB\n"
        self.assertEqual(check(gpus % 24, "--gpus", "0", "--gpu-bytes", "64MiB"), "ok")
        self.assertIn("gpu_bytes together are more", check(gpus % 25, "--gpus", "0", "--gpu-bytes", "64MiB"))
        self.assertIn("gpu_bytes_max is less", check("tenant = a\ngpu_bytes = 8MiB\ngpu_bytes_max = 4MiB\n"))
        self.assertIn("knows no tenant", check("tenant = a\n", "--listen", "127.0.0.1:0"))

    # ---- room ----

    def test_each_gets_its_share(self):
        d = self.daemon()
        a = self.store(d, "alpha", range(1, 3), 65, block_tokens=256)
        with self.acting(d, "alpha"):
            size = a.layouts[0].block_bytes
            self.fill(d, a, 3 * (16 << 20))  # three times what there is
            taken = {s.name: s.value for s in d.admin.Stats(pb.StatsRequest(), timeout=CALL_S).stats}["terrace_tenant_extent_bytes"]
            self.assertLessEqual(taken, 12 << 20)
            self.assertGreater(taken, 8 << 20)
        count = (2 << 20) // (size + 8192)
        b = self.store(d, "beta", range(1, count), 66, block_tokens=256)
        with self.acting(d, "beta"):
            self.assertEqual(self.contents(d, b.session, range(1, count)), [b"B"] * (count - 1))
        # gamma has a cap and no share: what alpha has borrowed goes to it, and nothing of beta's.
        with self.acting(d, "gamma"):
            g = d.open(layout(block_tokens=256))
            wait_for(lambda: d.put(g.session, [(key(1), b"G" * size)], chunk=1 << 20) in ([pb.OK], [pb.EXISTS]), CALL_S, "gamma gets some")
            self.fill(d, g, 8 << 20)
            self.assertLessEqual(self.tenant_row(d, "terrace_tenant_extent_bytes"), 2 << 20)
        with self.acting(d, "beta"):
            self.assertEqual(self.contents(d, b.session, range(1, count)), [b"B"] * (count - 1))

    def test_a_stopped_engine_takes_no_share(self):
        # An engine of alpha has all that alpha may take mapped, some of it pinned, and is stopped: beta gets its own bytes all the same.
        d = self.daemon()
        p = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--engine", d.address], stdout=subprocess.PIPE)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.wait, CALL_S)
        self.addCleanup(p.kill)
        held = json.loads(p.stdout.readline())
        self.assertGreater(held["mapped_bytes"], 8 << 20)
        self.assertGreater(held["pinned"], 0)
        os.kill(p.pid, signal.SIGSTOP)
        count = (2 << 20) // (held["slot_bytes"] + 8192)  # of 4 MiB, some of which spans leave unused
        b = self.store(d, "beta", range(1, count), 66, block_tokens=256)
        with self.acting(d, "beta"):
            self.assertEqual(self.contents(d, b.session, range(1, count)), [b"B"] * (count - 1))
            self.fill(d, b, 8 << 20)
            self.assertGreaterEqual(self.tenant_row(d, "terrace_tenant_extent_bytes"), 4 << 20)
        with self.acting(d, "alpha"):
            self.assertGreater(self.tenant_row(d, "terrace_tenant_pinned_bytes"), 0)
            self.assertLessEqual(self.tenant_row(d, "terrace_tenant_extent_bytes"), 12 << 20)
        os.kill(p.pid, signal.SIGKILL)
        with self.acting(d, "alpha"):  # what a dead engine held is alpha's again, and its blocks are there
            wait_for(lambda: self.tenant_row(d, "terrace_tenant_pinned_bytes") == 0, CALL_S, "the leases of the dead engine end")
            self.assertGreater(self.tenant_row(d, "terrace_tenant_blocks"), 0)

    def tenant_row(self, d, name):
        return {s.name: s.value for s in d.admin.Stats(pb.StatsRequest(), timeout=CALL_S).stats}[name]

    def test_calls_are_bounded(self):
        table = os.path.join(self.folder, "calls")
        with open(table, "w", encoding="ascii") as f:
            f.write(TABLE.replace("tenant = beta\n", "tenant = beta\ncalls_max = 2\n"))
        d = self.daemon(table=table)
        with self.acting(d, "beta"):
            b = d.open(layout())
            q = pb.WatchRequest(session=b.session)
            watches = [d.cache.Watch(q) for _ in range(2)]
            for w in watches:
                self.addCleanup(w.cancel)
            wait_for(lambda: "tenant beta holds all 2" in self.looks_up(d, b), CALL_S, "a third call is refused")
            with self.acting(d, "alpha"):
                self.store(d, "alpha", [1], 65)  # another tenant goes on
            watches[0].cancel()
            wait_for(lambda: self.looks_up(d, b) == "OK", CALL_S, "a call in the place of the watch that has ended")

    def looks_up(self, d, opened):
        code, words = answer(d.cache.Lookup, pb.LookupRequest(session=opened.session, keys=keys(1)))
        return code if code == "OK" else "%s: %s" % (code, words)

    def test_a_cap_holds(self):
        d = self.daemon()
        g = self.store(d, "gamma", range(1, 3), 71, block_tokens=256)
        with self.acting(d, "gamma"):
            self.fill(d, g, 8 << 20)
            rows = {s.name: s.value for s in d.admin.Stats(pb.StatsRequest(), timeout=CALL_S).stats}
            self.assertLessEqual(rows["terrace_tenant_extent_bytes"], 2 << 20)
            self.assertGreater(rows["terrace_tenant_blocks"], 0)

    def test_rows_of_the_first_tenants(self):
        def named(d):
            return {s.labels for s in d.admin.Stats(pb.StatsRequest(), timeout=CALL_S).stats if s.name.startswith("terrace_tenant_")}
        d = self.daemon()
        with self.acting(d, "ops"):
            self.assertEqual(named(d), set())  # off by default
        d = self.daemon("--tenant-metrics", "2", "--metrics-address", "127.0.0.1:0")
        self.store(d, "alpha", [1, 2], 65)
        self.store(d, "beta", [1], 66)
        with self.acting(d, "ops"):
            self.assertEqual(named(d), {"tenant=default", "tenant=alpha"})
        port = re.search(r"event=ready .*metrics_port=(\d+)", d.log()).group(1)
        with urllib.request.urlopen("http://127.0.0.1:%s/metrics" % port, timeout=CALL_S) as reply:
            text = reply.read().decode()
        self.assertIn('terrace_tenant_blocks{tenant="alpha"} 2\n', text)
        self.assertIn("terrace_tenants_without_rows 2\n", text)
        self.assertNotIn('tenant="beta"', text)

    def disk_daemon(self, name, *lines):
        """With one disk of 32 MiB; lines: (tenant, what the table says of it besides)."""
        text = TABLE
        for tenant, line in lines:
            text = text.replace("tenant = %s\n" % tenant, "tenant = %s\n%s\n" % (tenant, line), 1)
        table, disk = os.path.join(self.folder, name + "-table"), os.path.join(self.folder, name + "-disk")
        with open(table, "w", encoding="ascii") as f:
            f.write(text)
        os.mkdir(disk)
        return self.daemon("--disks", disk + ":32MiB", "--slab-bytes", "1MiB", "--policy", "lru", "--disk-policy", "lru", table=table)

    def put_flushed(self, d, name, over, numbers, fill, step=8):
        """Puts and flushes, a few at a time; returns how many were flushed, and the most that the tenant had on the disk."""
        done = most = 0
        with self.acting(d, name):
            o = d.open(layout(**over))
            for i in range(0, len(numbers), step):
                d.put(o.session, [(key(n), fill * o.layouts[0].block_bytes) for n in numbers[i:i + step]], chunk=1 << 20)
                done += self.flushed(d, o, numbers[i:i + step])
                most = max(most, self.tenant_row(d, "terrace_tenant_disk_bytes"))
        return done, most

    def disk_row(self, d, name):
        with self.acting(d, name):
            return self.tenant_row(d, "terrace_tenant_disk_bytes")

    def again(self, d):
        """What is on the disk is in no memory from now on."""
        d.stop()
        d.start()
        wait_for(lambda: d.stats()["terrace_restored"] == 1, CALL_S, "the disk is taken up")

    def there(self, d, name, over, numbers, fill):
        with self.acting(d, name):
            o = d.open(layout(**over))
            return self.contents(d, o.session, numbers).count(fill)

    def test_a_share_of_disks_outlasts_a_flood(self):
        over, slot = {"block_tokens": 256}, 80 << 10
        flood, share = list(range(1, 2 * (32 << 20) // slot)), list(range(1, (8 << 20) // slot))
        d = self.disk_daemon("flood", ("beta", "disk_bytes = 10MiB"), ("alpha", "host_bytes = 4MiB"))
        done, taken = self.put_flushed(d, "alpha", over, flood, b"A")
        self.assertEqual(done, len(flood), "a tenant displaces its own blocks")
        self.assertEqual(self.put_flushed(d, "beta", over, share, b"B")[0], len(share), "what is kept for a tenant is there")
        had = self.disk_row(d, "beta")
        self.assertGreater(had, 6 << 20)
        self.again(d)
        self.assertEqual(self.put_flushed(d, "alpha", over, [n + 5000 for n in flood], b"A")[0], len(flood))
        self.assertEqual(self.disk_row(d, "beta"), had)
        self.assertEqual(self.there(d, "beta", over, share, b"B"), len(share))
        self.assertLessEqual(taken, 22 << 20)  # of the 32 MiB of the disk
        self.assertGreater(taken, 12 << 20)

    def test_a_cap_of_disks_holds(self):
        d, small, large = self.disk_daemon("cap", ("gamma", "disk_bytes_max = 3MiB")), {"block_tokens": 256}, {"block_tokens": 256, "layers": 4}
        numbers = list(range(100, 250))
        done, most = self.put_flushed(d, "gamma", small, numbers, b"G")
        self.assertEqual(done, len(numbers), "at its cap a tenant displaces its own blocks")
        self.assertLessEqual(most, 3 << 20)
        self.assertGreater(most, (3 << 20) - (128 << 10))
        self.again(d)
        self.assertLessEqual(self.disk_row(d, "gamma"), 3 << 20)
        self.assertEqual(self.there(d, "gamma", small, numbers[-10:], b"G"), 10)  # the others stay idle, and go first
        # Blocks of another size take the place of these, and another tenant is not held back by the cap.
        done, most = self.put_flushed(d, "gamma", large, numbers[:8], b"L", 1)
        self.assertEqual(done, 8)
        self.assertLessEqual(most, 3 << 20)
        done, most = self.put_flushed(d, "alpha", small, numbers, b"A")
        self.assertEqual(done, len(numbers))
        self.assertGreater(most, 6 << 20)
        self.again(d)
        self.assertEqual(self.there(d, "gamma", large, numbers[:8], b"L"), 8)

    def flushed(self, d, opened, numbers):
        """How many of them a Flush has put on a disk."""
        status = d.cache.Flush(pb.FlushRequest(session=opened.session, keys=keys(*numbers)), timeout=CALL_S).status
        return list(status).count(pb.OK)

    # ---- restarts ----

    def test_blocks_stay_with_their_tenant(self):
        disks = os.path.join(self.folder, "disk")
        os.mkdir(disks)
        d = self.daemon("--disks", disks + ":64MiB")
        opened = {n: self.store(d, n, [1, 2, 3], ord(n[0])) for n in ("alpha", "beta")}
        for n, o in opened.items():
            with self.acting(d, n):
                self.assertEqual(list(d.cache.Flush(pb.FlushRequest(session=o.session, keys=keys(1, 2)), timeout=CALL_S).status), [pb.OK] * 2)
                d.cache.Delete(pb.DeleteRequest(session=o.session, keys=keys(3)), timeout=CALL_S)
        with self.acting(d, "beta"):
            d.cache.Delete(pb.DeleteRequest(session=opened["beta"].session, keys=keys(2)), timeout=CALL_S)
        for rebuilt in (False, True):  # by the catalog, and by the slots' headers
            d.kill()
            d.flags = tuple(f for f in d.flags if f not in ("--catalog", "rebuild")) + (("--catalog", "rebuild") if rebuilt else ())
            d.start()
            for n, there in (("alpha", [b"a", b"a", None]), ("beta", [b"b", None, None]), ("gamma", [None] * 3)):
                with self.acting(d, n):
                    o = d.open(layout())
                    wait_for(lambda o=o, there=there: self.contents(d, o.session, [1, 2, 3]) == there, CALL_S, "%s has its blocks" % n)

    def test_a_disk_without_tenants_is_the_defaults(self):
        disks = os.path.join(self.folder, "old")
        os.mkdir(disks)
        d = Daemon(TERRACED, *SMALL, "--disks", disks + ":64MiB")
        self.addCleanup(d.close)
        opened = d.open(layout())
        d.put(opened.session, [(key(1), b"o" * opened.layouts[0].block_bytes)])
        d.cache.Flush(pb.FlushRequest(session=opened.session, keys=keys(1)), timeout=CALL_S)
        d.stop()
        table = os.path.join(self.folder, "other")
        with open(table, "w", encoding="ascii") as f:
            f.write("tenant = alpha\nuids = %d\n" % UID)
        d.flags += ("--tenants", table)
        d.start()
        opened = d.open(layout())  # the daemon's own user, which the table does not name: `default`
        wait_for(lambda: self.contents(d, opened.session, [1]) == [b"o"], CALL_S, "the old block")
        if os.geteuid() == 0:
            os.chmod(d.folder, 0o755)
            os.seteuid(UID)
            try:
                with grpc.insecure_channel(d.address, options=[("grpc.use_local_subchannel_pool", 1)]) as c:
                    d.cache = terrace_pb2_grpc.CacheStub(c)
                    self.assertEqual(self.contents(d, d.open(layout()).session, [1]), [None])
            finally:
                os.seteuid(0)

    @unittest.skipIf(os.geteuid() != 0, "other users' connections want root")
    def test_a_hundred(self):
        table = os.path.join(self.folder, "hundred")
        with open(table, "w", encoding="ascii") as f:
            for i in range(100):
                f.write("tenant = t%d\nuids = %d\nhost_bytes = 1MiB\n" % (i, UID + i))
        d = Daemon(TERRACED, "--host-bytes", "128MiB", "--extent-bytes", "1MiB", "--socket-mode", "0666", "--tenants", table, start=False)
        self.addCleanup(d.close)
        os.chmod(d.folder, 0o755)
        d.start()
        ends = []
        for i in range(100):
            os.seteuid(UID + i)
            try:
                c = grpc.insecure_channel(d.address, options=[("grpc.use_local_subchannel_pool", 1)])
                self.addCleanup(c.close)
                d.cache = terrace_pb2_grpc.CacheStub(c)
                opened = d.open(layout())
            finally:
                os.seteuid(0)
            self.assertEqual(d.put(opened.session, [(key(1), bytes([i]) * opened.layouts[0].block_bytes)]), [pb.OK])
            ends.append((d.cache, opened.session))
        for i, (cache, session) in enumerate(ends):
            d.cache = cache
            self.assertEqual(self.contents(d, session, [1]), [bytes([i])])


def local_requests(session, attachment, lease, k):
    """Method of CALL -> a request of it with a session, a lease (or reservation) and a key."""
    one = pb.Keys(keys=k, key_bytes=len(k))
    return {
        "LOOKUP": pb.LookupRequest(session=session, keys=one, states=True), "LEASE": pb.LeaseRequest(session=session, keys=one, attachment=attachment),
        "GIVE_BACK": pb.ReleaseRequest(session=session, leases=[lease]), "RESERVE": pb.ReserveRequest(session=session, keys=one, attachment=attachment),
        "COMMIT": pb.CommitRequest(session=session, items=[pb.CommitItem(reservation=lease)]),
        "ABORT": pb.AbortRequest(session=session, reservations=[lease]), "TOUCH": pb.TouchRequest(session=session, keys=one),
        "REPORT": pb.ReportRequest(session=session), "WARM": pb.WarmRequest(session=session, keys=one),
    }


def child(address, fd_socket, token, session, lease, k):
    """A process of beta's user at the descriptor socket, with what is alpha's and what is nobody's."""
    n, methods = packet_types(), packet_types("method")
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    said = {"foreign": {}, "absent": {}, "tenant": "", "offered": []}
    with grpc.insecure_channel(address) as c:
        def connected():
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.settimeout(CALL_S)
            s.connect(fd_socket)
            return s

        def first(kind, t):
            with connected() as s:
                s.send(struct.pack("<IHH", HEAD, VERSION, n[kind]) + t)
                head = struct.unpack("<IHHII", s.recv(4096)[:16])
                return head[:4]
        def called(own, attachment, session, l, k):
            """What each local call says, with that session and with the caller's own, of which a reservation is given back."""
            with connected() as s:
                s.send(struct.pack("<IHH", HEAD, VERSION, n["CALLER"]) + own.token)
                s.recv(4096)
                out = {}
                for use in (session, own.session):
                    for name, q in local_requests(use, attachment, l, k).items():
                        s.send(struct.pack("<IHHIIQ", HEAD, VERSION, n["CALL"], methods[name], 0, 0) + q.SerializeToString())
                        reply = s.recv(192 * 1024)
                        status, body = struct.unpack("<I", reply[8:12])[0], reply[16:].hex()
                        if name == "RESERVE" and status == 0:  # its handles are new ones each time
                            granted = pb.ReserveReply.FromString(reply[16:])
                            body = list(granted.status)
                            q = pb.AbortRequest(session=own.session, reservations=granted.reservation)
                            s.send(struct.pack("<IHHIIQ", HEAD, VERSION, n["CALL"], methods["ABORT"], 0, 0) + q.SerializeToString())
                            s.recv(192 * 1024)
                        out.setdefault(name, []).append([status, body])
                return out
        for name, t, extent, l, h, wanted in (("foreign", bytes.fromhex(token), 1, int(lease), int(session), bytes.fromhex(k)),
                                              ("absent", os.urandom(16), 9999, 77, 78, key(9001))):
            own = terrace_pb2_grpc.CacheStub(c).OpenSession(pb.OpenSessionRequest(layouts=[layout()], tenant="beta", engine="e"),
                                                            timeout=CALL_S)  # which ends with its last process
            said["tenant"] = "OK"
            said[name]["HELLO"], said[name]["CALLER"] = first("HELLO", t), first("CALLER", t)
            with connected() as s:
                s.send(struct.pack("<IHH", HEAD, VERSION, n["HELLO"]) + own.token)
                attachment = struct.unpack("<IHHIIQQQ", s.recv(4096))[7]
                said[name]["CALL"] = called(own, attachment, h, l, wanted)
                s.send(struct.pack("<IHHII", HEAD, VERSION, n["MAP"], extent, 0))
                data, fds, _, _ = socket.recv_fds(s, 4096, 4)
                said[name]["MAP"] = [struct.unpack("<I", data[8:12])[0], len(fds)]
                s.send(struct.pack("<IHHIIQ", HEAD, VERSION, n["RELEASE"], 1, 0, l))
                said[name]["RELEASE"] = ""
                if name == "absent":
                    s.send(struct.pack("<IHHII", HEAD, VERSION, n["PREMAP"], 0xffffffff, 0))
                    head = s.recv(4096)
                    count = struct.unpack("<I", head[16:20])[0]
                    said["offered"] = list(struct.unpack("<%dI" % count, head[24:24 + 4 * count]))
    print(json.dumps(said))


def engine(address):
    """A process of alpha's user: fills what it may take, leases what it can, maps all of it, says so, and waits."""
    n = packet_types()
    with grpc.insecure_channel(address) as c:
        cache = terrace_pb2_grpc.CacheStub(c)
        opened = cache.OpenSession(pb.OpenSessionRequest(layouts=[layout(block_tokens=256)], engine="stopped"), timeout=CALL_S)
        size, count = opened.layouts[0].block_bytes, 300
        def chunks():
            for i in range(1, count + 1):
                yield pb.PutChunk(header=pb.PutHeader(session=opened.session, key=key(i), info=pb.BlockInfo(tokens=256)), data=b"A" * size)
        cache.Put(chunks(), timeout=4 * CALL_S)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.settimeout(CALL_S)
            s.connect(opened.fd_socket)
            s.send(struct.pack("<IHH", HEAD, VERSION, n["HELLO"]) + opened.token)
            attachment = struct.unpack("<IHHIIQQQ", s.recv(4096))[7]
            pinned, extents, kept = 0, set(), []
            for i in range(1, count + 1):
                r = cache.Lease(pb.LeaseRequest(session=opened.session, keys=keys(i), attachment=attachment), timeout=CALL_S)
                if r.status == pb.OK:
                    pinned += 1
                    extents |= set(r.places.extent)
            for extent in sorted(extents):
                s.send(struct.pack("<IHHII", HEAD, VERSION, n["MAP"], extent, 0))
                data, fds, _, _ = socket.recv_fds(s, 4096, 4)
                kept.append(mmap.mmap(fds[0], struct.unpack("<Q", data[24:32])[0], mmap.MAP_SHARED, mmap.PROT_READ))
            print(json.dumps({"pinned": pinned, "mapped_bytes": sum(len(m) for m in kept), "slot_bytes": size + 4096}), flush=True)
            time.sleep(40 * CALL_S)


if __name__ == "__main__":
    if sys.argv[1] == "--engine":
        engine(*sys.argv[2:])
    elif sys.argv[1] == "--child":
        child(*sys.argv[2:])
    else:
        TERRACED, LONG = sys.argv[1], "--long" in sys.argv
        unittest.main(argv=sys.argv[:1] + [a for a in sys.argv[2:] if a != "--long"], verbosity=2)

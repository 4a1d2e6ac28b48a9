"""Quotas under storms: clients of one tenant put, lease and flood without pause, and what another tenant is guaranteed holds. usage:
test_storms.py TERRACED LIBTERRACE [--long]
"""

import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import grpc

from daemon import CALL_S, ROOT, Daemon, key, layout, pb, terrace_pb2_grpc, wait_for

UID_ALPHA, UID_BETA = 41001, 41002
MIB = 1 << 20
TABLE = """
tenant = alpha
uids = %d
pinned_bytes_max = 6MiB
tenant = beta
uids = %d
host_bytes = 10MiB
pinned_bytes_max = 2MiB
calls_max = 16
""" % (UID_ALPHA, UID_BETA)
BLOCKS, LEASED, CALLS = 100, 24, 16  # of beta: stored; leased at a time, within its pinned bytes; calls at a time
STORMS = ("put", "borrow", "lease", "calls", "connections")


@unittest.skipIf(os.geteuid() != 0, "other users' processes want root")
class Storms(unittest.TestCase):
    def test_a_storm_of_another_tenant(self):
        seconds = 240 if LONG else 5  # an idle connection, as of this test, is closed after 300
        folder = tempfile.mkdtemp(prefix="terrace-storms-")
        self.addCleanup(shutil.rmtree, folder, True)
        table = os.path.join(folder, "tenants")
        with open(table, "w", encoding="ascii") as f:
            f.write(TABLE)
        d = Daemon(TERRACED, "--host-bytes", "24MiB", "--extent-bytes", "1MiB", "--socket-mode", "0666", "--tenants", table, "--tenant-metrics", "8",
                   "--calls-max", "256", start=False)
        self.addCleanup(d.close)
        os.chmod(d.folder, 0o755)
        d.start()
        storm = [self.process(d, kind, UID_ALPHA) for kind in STORMS]
        for p in storm:
            self.assertEqual(p.stdout.readline(), '"raging"\n')
        victim = self.process(d, "victim", UID_BETA, str(seconds))
        said = json.loads(victim.stdout.readline() or "{}")
        self.assertEqual(said.get("failed"), [], said)
        for kind in ("gets", "leases", "puts", "lookups", "crowds"):
            self.assertGreater(said[kind], 0, said)
        stats = d.admin.Stats(pb.StatsRequest(), timeout=CALL_S, wait_for_ready=True).stats  # it may have to connect anew, as beta may
        rows = {n: {r.name: r.value for r in stats if r.labels == "tenant=" + n} for n in ("alpha", "beta")}
        self.assertGreaterEqual(rows["beta"]["terrace_tenant_blocks"], BLOCKS)
        self.assertLessEqual(rows["alpha"]["terrace_tenant_extent_bytes"], 14 * MIB)
        self.assertLessEqual(rows["alpha"]["terrace_tenant_pinned_bytes"], 6 * MIB)
        for p in storm:
            self.assertIsNone(p.poll(), "a storm has ended")
            p.terminate()
        told = {p.args[3]: json.loads(p.stdout.readline()) for p in storm}
        print(json.dumps({"beta": said, "alpha": told}), file=sys.stderr)
        for kind in ("put", "borrow", "lease"):
            self.assertGreater(told[kind]["done"], 0, told)
        for kind in ("lease", "calls", "connections"):  # each has met a bound
            self.assertGreater(told[kind]["refused"], 0, told)

    def process(self, d, *words):
        kind, uid, *more = words
        p = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--as", kind, LIBTERRACE, d.address, str(uid), *more], stdout=subprocess.PIPE, text=True)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.wait, CALL_S)
        self.addCleanup(p.kill)
        return p


# ---- processes of tenants ----


def shape_of_all():
    return terrace.Layout("storms", layers=4, heads=2, head_dim=64, block_tokens=64)


class Storm:
    """Goes on until SIGTERM. A refusal (a share, a bound, no room) is what a storm is for; any other failure ends it."""

    def __init__(self, session, size):
        self.session, self.size, self.done, self.refused = session, size, 0, 0

    def put(self, n):
        self.session.put(key(n), b"A" * self.size)

    def borrow(self, n):
        with self.session.reserve([key(n * 8 + i) for i in range(8)]) as slots:
            for i, status in enumerate(slots.statuses):
                if status.name == "OK":
                    slots.block(i)[:8] = b"A" * 8
            if any(s.name == "OK" for s in slots.statuses):
                slots.commit()
            else:
                self.refused += 1

    def lease(self, n, held=[]):  # pylint: disable=dangerous-default-value
        """Holds what it can get; once that is refused, it gives half of it back."""
        name = key(1 << 32 | n % 512)
        try:
            self.session.put(name, b"L" * self.size)
            lease = self.session.lease([name])
            if lease is None:  # put out again already
                raise terrace.Miss(terrace.Status.MISS, "evicted")
            held.append(lease)
        except terrace.Exhausted:
            for one in held[::2]:
                one.close()
            del held[::2]
            raise


def rage(step):
    """Calls step(n) for ever; True: the terminal signal has come."""
    print(json.dumps("raging"), flush=True)
    counts = {"done": 0, "refused": 0}

    def end(*_):
        print(json.dumps(counts), flush=True)
        os._exit(0)
    signal.signal(signal.SIGTERM, end)
    for n in itertools.count():
        counts["done" if step(n) else "refused"] += 1


def with_library(kind, address):
    shape = shape_of_all()
    with terrace.connect(address, timeout=CALL_S) as client, client.session([shape], engine=kind) as session:
        storm = Storm(session, shape.block_bytes)

        def step(n):
            before = storm.refused
            try:
                getattr(storm, kind)(n)
            except (terrace.Exhausted, terrace.Busy, terrace.Exists, terrace.Miss):
                return False
            return storm.refused == before
        rage(step)


def flood_calls(address):
    """More calls at a time than one user gets: watches that stay, and lookups on top of them. A connection that goes on like this is cut;
    then there is another one.
    """
    keys = pb.Keys(key_bytes=16, keys=b"".join(key(n) for n in range(256)))
    held = []

    def begin():
        for one in held:
            one.close()
        held[:] = [grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])]
        cache = terrace_pb2_grpc.CacheStub(held[0])
        session = cache.OpenSession(pb.OpenSessionRequest(layouts=[layout()], engine="calls"), timeout=CALL_S).session
        return cache, session, [cache.Watch(pb.WatchRequest(session=session)) for _ in range(400)]

    def step(_, state=[None]):  # pylint: disable=dangerous-default-value
        try:
            state[0] = state[0] or begin()
            cache, session, watches = state[0]
            calls = [cache.Lookup.future(pb.LookupRequest(session=session, keys=keys), timeout=CALL_S) for _ in range(64)]
            codes = [c.code() for c in calls]
        except grpc.RpcError as e:
            watches, codes = (), [e.code()]
        for code in codes:
            assert code in (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE), code
        if grpc.StatusCode.UNAVAILABLE in codes:
            state[0] = None
        return set(codes) == {grpc.StatusCode.OK} and not any(w.done() for w in watches)
    rage(step)


def flood_connections(address):
    """Connections to both sockets, which are held, and opened again when they are closed."""
    paths, held = [address[len("unix:"):]], []
    with grpc.insecure_channel(address) as channel:
        opened = terrace_pb2_grpc.CacheStub(channel).OpenSession(pb.OpenSessionRequest(layouts=[layout()], engine="connections"), timeout=CALL_S)
        paths.append(opened.fd_socket)

    def step(n):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET if n % 2 else socket.SOCK_STREAM)
        s.settimeout(CALL_S)
        try:
            s.connect(paths[n % 2])
            s.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        except OSError:
            s.close()
            return False
        held.append(s)
        if len(held) < 512:
            return True
        held.pop(random.randrange(512)).close()
        return False
    rage(step)


class Victim:
    """Beta: each of its calls must succeed, and each of its blocks stay what it is."""

    def __init__(self, address, session, size):
        self.session, self.size, self.failed = session, size, []
        self.admin = terrace_pb2_grpc.AdminStub(grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]))
        self.counts = dict.fromkeys(("gets", "leases", "puts", "lookups", "crowds"), 0)

    def content(self, n):
        return bytes([n]) * self.size

    def expect(self, what, right, wrong=""):
        if not right:
            self.failed.append("%s %s" % (what, wrong))

    def store(self):
        for n in range(BLOCKS):
            self.expect("first put", self.session.put(key(n), self.content(n)))

    def gets(self):
        n = random.randrange(BLOCKS)
        got = self.session.get(key(n))
        self.expect("get of block %d" % n, got and bytes(got[0]) == self.content(n), "a miss" if got is None else "other bytes")

    def pinned(self):
        """Of its tenant, in the daemon's accounts. The kernel's queue of connections to be accepted is shared: a connect may have to be
        repeated, as libterrace does, too.
        """
        rows = self.admin.Stats(pb.StatsRequest(), timeout=CALL_S, wait_for_ready=True).stats
        return {r.name: r.value for r in rows}["terrace_tenant_pinned_bytes"]

    def leases(self):
        wait_for(lambda: self.pinned() == 0, CALL_S, "what was released is free")  # a release is not answered
        numbers = random.sample(range(BLOCKS), LEASED)
        leases = [self.session.lease([key(n)]) for n in numbers]
        for n, lease in zip(numbers, leases):
            self.expect("lease of block %d" % n, lease and bytes(lease.block(0)) == self.content(n), "other bytes" if lease else "a miss")
            if lease:
                lease.close()

    def puts(self):
        self.expect("put", self.session.put(key(200), self.content(200)))
        self.expect("delete", self.session.delete([key(200)])[0].name == "OK")

    def lookups(self):
        prefix = self.session.lookup([key(n) for n in range(BLOCKS)])
        self.expect("lookup", prefix == BLOCKS, prefix)

    def crowds(self):
        """As many calls at a time as it may have."""
        operations = [self.session.get_async(key(n)) for n in range(CALLS)]
        for n, o in enumerate(operations):
            got = o.finish()
            self.expect("get of block %d of a crowd" % n, got and bytes(got[0]) == self.content(n))

    def run(self, seconds):
        end = time.monotonic() + seconds
        self.store()
        while time.monotonic() < end and not self.failed:
            for kind in self.counts:
                try:
                    getattr(self, kind)()
                except terrace.Error as e:
                    self.failed.append("%s: %s: %s" % (kind, e.status.name, e))
                self.counts[kind] += 1
        return {**self.counts, "failed": self.failed}


def victim(address, seconds):
    shape = shape_of_all()
    with terrace.connect(address, timeout=CALL_S) as client, client.session([shape], engine="victim") as session:
        print(json.dumps(Victim(address, session, shape.block_bytes).run(float(seconds))), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--as":
        kind_named, os.environ["LIBTERRACE"], where, user = sys.argv[2:6]
        sys.path.insert(0, os.path.join(ROOT, "client", "python"))
        sys.dont_write_bytecode = True
        import terrace
        terrace.version()  # loads the library, which another user may not read
        os.setgroups([])
        os.setresgid(int(user), int(user), int(user))
        os.setresuid(int(user), int(user), int(user))
        {"victim": victim, "calls": flood_calls, "connections": flood_connections}.get(kind_named, lambda a: with_library(kind_named, a))(where, *sys.argv[6:])
    else:
        TERRACED, LIBTERRACE, LONG = sys.argv[1], sys.argv[2], "--long" in sys.argv
        unittest.main(argv=sys.argv[:1] + [a for a in sys.argv[3:] if a != "--long"], verbosity=2)

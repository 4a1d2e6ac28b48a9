"""Secrets of tenants, the public names of blocks that are made with them, and the role of other daemons' certificates. usage: test_secrets.py
TERRACED TERRACECTL [CLASS...]

Names are compared with those of this page's own HMAC and SipHash.
"""

import hashlib
import hmac
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import grpc

from certificates import Authority
from daemon import CALL_S, Daemon, health_pb2, health_pb2_grpc, key, keys, layout, pb, terrace_pb2_grpc, wait_for

TERRACED, TERRACECTL = sys.argv[1], sys.argv[2]
SMALL = ("--host-bytes", "16MiB", "--extent-bytes", "1MiB")
MASK = (1 << 64) - 1


def siphash_128(secret_key, data):
    """SipHash-2-4 with 128 bits, by its paper and the authors' 128-bit variant."""
    k0, k1 = struct.unpack("<QQ", secret_key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def turn(x, n):
        return (x << n | x >> (64 - n)) & MASK

    def rounds(n):
        a, b, c, d = v
        for _ in range(n):
            a = (a + b) & MASK
            c = (c + d) & MASK
            b, d, a = turn(b, 13) ^ a, turn(d, 16) ^ c, turn(a, 32)
            c = (c + b) & MASK
            a = (a + d) & MASK
            b, d, c = turn(b, 17) ^ c, turn(d, 21) ^ a, turn(c, 32)
        v[:] = a, b, c, d

    whole = len(data) // 8 * 8
    for word in struct.unpack("<%dQ" % (whole // 8), data[:whole]) + (int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56,):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    out = struct.pack("<Q", v[0] ^ v[1] ^ v[2] ^ v[3])
    v[1] ^= 0xDD
    rounds(4)
    return out + struct.pack("<Q", v[0] ^ v[1] ^ v[2] ^ v[3])


def derived(secret, label, tenant):
    return hmac.new(secret, ("terrace 1 %s\0%s" % (label, tenant)).encode(), hashlib.sha256).digest()


def name_of(secret, layout_id, k, tenant="default"):
    return siphash_128(derived(secret, "public names", tenant)[:16], struct.pack("<Q", layout_id) + k + bytes([len(k)]))


def fingerprint_of(secret, tenant="default"):
    return int.from_bytes(derived(secret, "fingerprint of a secret", tenant)[:4], "big")


A, B, C = (hashlib.sha256(t).hexdigest().encode() for t in (b"a", b"b", b"c"))


class Rig(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="terrace-secrets-")
        self.addCleanup(shutil.rmtree, self.folder, True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, data, mode=0o400):
        """A whole file, renamed over the one before."""
        path = self.path(name)
        with open(path + ".new", "wb", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(data)
            os.fchmod(f.fileno(), mode)
        os.rename(path + ".new", path)
        return path

    def daemon(self, *flags, env=None):
        d = Daemon(TERRACED, *SMALL, *flags, env=env, start=False)
        self.addCleanup(d.close)
        d.start()
        return d

    def refused(self, *words, flags, env=None):
        p = subprocess.run([TERRACED, "--check-config", "--data-dir", self.path("data"), "--socket", self.path("s.sock"), *flags],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=CALL_S, check=False, env={**os.environ, **(env or {})})
        said = (p.stdout + p.stderr).decode()
        self.assertEqual(p.returncode, 2, said)
        for word in words:
            self.assertIn(word, said)
        for secret in (A, B, C):
            self.assertNotIn(secret.decode(), said)

    def secrets(self, d):
        return {s.tenant: s for s in d.admin.Stats(pb.StatsRequest(), timeout=CALL_S).secrets}

    def names(self, d, number=1):
        """The public names of a block that was put: of the current and of the old secret."""
        block, = d.admin.Explain(pb.ExplainRequest(key=key(number)), timeout=CALL_S).blocks
        self.assertEqual(block.tenant, "default")
        return block.public_name, block.old_public_name, block.layout_id

    def put(self, d, number=1):
        opened = d.open()
        self.assertEqual(d.put(opened.session, [(key(number), bytes(opened.layouts[0].block_bytes))]), [pb.OK])
        return opened

    def wait_fingerprints(self, d, current, old=None):
        def are():
            s = self.secrets(d)["default"]
            return (s.fingerprint, s.has_old, s.old_fingerprint) == (fingerprint_of(current), old is not None, fingerprint_of(old) if old else 0)
        wait_for(are, CALL_S, "the secret is taken")


class Secrets(Rig):
    def test_names_while_secrets_change(self):
        """The steps of a rotation, without a restart, while calls run: no call fails, and old names are made until the old secret is dropped."""
        secret, old = self.write("secret", A), self.path("old")
        d = self.daemon("--secret", secret, "--old-secret", old)
        opened = self.put(d)
        first, none, layout_id = self.names(d)
        self.assertEqual((first, none), (name_of(A, layout_id, key(1)), b""))
        over, failures, calls = threading.Event(), [], [0]

        def call():
            while not over.is_set():
                try:
                    assert d.get(opened.session, keys(1))[0][0] == pb.OK
                    assert self.names(d)[0] in (name_of(A, layout_id, key(1)), name_of(B, layout_id, key(1)), name_of(C, layout_id, key(1)))
                    calls[0] += 1
                except Exception as e:  # pylint: disable=broad-except
                    failures.append(e)
                    return
        threads = [threading.Thread(target=call) for _ in range(2)]
        for t in threads:
            t.start()
        try:
            for before, after in ((A, B), (B, C)):
                self.write("old", after + b"\n")  # first, so that names which other daemons make with it are found
                self.wait_fingerprints(d, before, after)
                self.write("old", before)
                self.write("secret", after)
                self.wait_fingerprints(d, after, before)
                self.assertEqual(self.names(d), (name_of(after, layout_id, key(1)), name_of(before, layout_id, key(1)), layout_id))
                os.unlink(old)
                self.wait_fingerprints(d, after)
                self.assertEqual(self.names(d), (name_of(after, layout_id, key(1)), b"", layout_id))
            seen = calls[0]
            wait_for(lambda: calls[0] > seen or failures, CALL_S, "calls")
        finally:
            over.set()
            for t in threads:
                t.join()
        self.assertEqual(failures, [])
        self.assertGreaterEqual(d.stats()["terrace_secret_reloads_total{result=done}"], 4)
        self.assertEqual(d.stats()["terrace_secret_reloads_total{result=failed}"], 0)
        self.assertIn("event=secret_reloaded tenant=default fingerprint=%08x" % fingerprint_of(C), d.log())
        out = subprocess.run([TERRACECTL, "--address", d.address, "--json", "status"], stdout=subprocess.PIPE, check=True, timeout=2 * CALL_S).stdout
        self.assertEqual(json.loads(out)["secrets"], [{"tenant": "default", "fingerprint": "%08x" % fingerprint_of(C), "old_fingerprint": "", "problem": ""}])
        out = subprocess.run([TERRACECTL, "--address", d.address, "explain", key(1).hex()], stdout=subprocess.PIPE, check=True, timeout=2 * CALL_S).stdout
        self.assertIn(name_of(C, layout_id, key(1)).hex(), out.decode())

    def test_bad_files_leave_the_secret_before(self):
        secret = self.write("secret", A)
        d = self.daemon("--secret", secret)
        self.put(d)
        before = self.names(d)
        bad = [(lambda: self.write("secret", B[:20]), "20 bytes"), (lambda: self.write("secret", B, 0o444), "mode 0444"),
               (lambda: self.write("secret", bytes(64)), "damaged"), (lambda: os.unlink(secret), "No such file"),
               (lambda: os.mkdir(secret), "no regular file")]
        for n, (how, word) in enumerate(bad, 1):
            how()
            wait_for(lambda word=word: word in self.secrets(d)["default"].problem, CALL_S, word)
            self.assertIn(secret, self.secrets(d)["default"].problem)
            self.assertEqual(self.names(d), before)
            self.assertEqual(d.stats()["terrace_secrets_stale"], 1)
            self.assertEqual(d.stats()["terrace_secret_reloads_total{result=failed}"], n)
        self.assertIn("event=secret_reload_failed tenant=default", d.log())
        os.rmdir(secret)
        self.write("secret", B)
        self.wait_fingerprints(d, B)
        wait_for(lambda: not self.secrets(d)["default"].problem and not d.stats()["terrace_secrets_stale"], CALL_S, "it is well again")
        # one whose mode alone is mended
        self.write("secret", C, 0o444)
        wait_for(lambda: "mode 0444" in self.secrets(d)["default"].problem, CALL_S, "the mode")
        os.chmod(secret, 0o400)
        self.wait_fingerprints(d, C)

    def test_what_is_refused_at_the_start(self):
        good = self.write("secret", A)
        self.refused("secret of tenant default", "mode 0404", "others may reach it", flags=("--secret", self.write("open", B, 0o404)))
        self.refused("its group may write it", flags=("--secret", self.write("group", B, 0o460)))
        self.refused("31 bytes", "32 to 4096", flags=("--secret", self.write("short", B[:31])))
        self.refused("No such file", "make the secret there", flags=("--secret", self.path("none")))
        self.refused("old_secret of tenant default", "31 bytes", flags=("--secret", good, "--old-secret", self.path("short")))
        self.refused("LoadCredential", flags=("--secret", "credential:x"), env={"CREDENTIALS_DIRECTORY": ""})
        self.refused("No such file", flags=("--secret", "credential:x"), env={"CREDENTIALS_DIRECTORY": self.folder})
        table = self.write("tenants", ("tenant = a\nsecret = %s\ntenant = b\nsecret = %s\n" % (good, self.write("same", A + b"\n"))).encode())
        self.refused("secret of tenant b", "tenant a has the same secret", flags=("--tenants", table))
        table = self.write("tenants", ("tenant = a\nsecret = %s\ntenant = b\nsecret = %s\nold_secret = %s\n" % (good, self.write("b", B), good)).encode())
        self.refused("old_secret of tenant b", "tenant a has the same secret", flags=("--tenants", table))
        table = self.write("tenants", b"tenant = a\nuids = 4711\n")
        self.refused("none has a secret", flags=("--tenants", table, "--cluster", "c", "--peer-address", "a:1", "--etcd-endpoints", "a:2"))

    def test_credentials_of_systemd(self):
        self.write("cache-secret", A)
        d = self.daemon("--secret", "credential:cache-secret", "--old-secret", "credential:none", env={"CREDENTIALS_DIRECTORY": self.folder})
        self.assertEqual(self.secrets(d)["default"].fingerprint, fingerprint_of(A))
        config = {r.name: r.value for r in d.admin.Config(pb.ConfigRequest(), timeout=CALL_S).rows}
        self.assertEqual(config["secret"], "credential:cache-secret")

    def test_kill_and_restart(self):
        """The name is of the secret alone: after a crash, and on another daemon, it is the same."""
        secret = self.write("secret", A)
        d, other = self.daemon("--secret", secret), self.daemon("--secret", self.write("same", A + b"\n"))
        third = self.daemon("--secret", self.write("third", B))
        for one in (d, other, third):
            self.put(one)
        before = self.names(d)
        self.assertEqual(self.names(other), before)
        self.assertNotEqual(self.names(third)[0], before[0])
        d.kill()
        d.start()
        self.put(d)
        self.assertEqual(self.names(d), before)
        self.write("secret", B)
        d.kill()
        d.start()
        self.put(d)
        self.assertEqual(self.names(d), self.names(third))

    def test_tenants_have_their_own(self):
        table = self.write("tenants", ("tenant = a\nuids = 4711\nsecret = %s\ntenant = default\nsecret = %s\ntenant = c\nuids = 4712\n" %
                                       (self.write("a", A), self.write("b", B))).encode())
        d = self.daemon("--tenants", table)
        self.assertEqual({t: s.fingerprint for t, s in self.secrets(d).items()}, {"a": fingerprint_of(A, "a"), "default": fingerprint_of(B)})
        self.put(d)
        self.assertEqual(self.names(d)[0], name_of(B, self.names(d)[2], key(1)))
        # each may not take what is the other's
        self.write("a", B)
        wait_for(lambda: "tenant default has the same secret" in self.secrets(d)["a"].problem, CALL_S, "a double")
        self.assertEqual(self.secrets(d)["a"].fingerprint, fingerprint_of(A, "a"))
        self.write("a", C)
        wait_for(lambda: self.secrets(d)["a"].fingerprint == fingerprint_of(C, "a"), CALL_S, "its own")


class Memory(Rig):
    """Of a plain build: sanitizers keep copies of their own."""

    def test_it_is_nowhere_to_be_read(self):
        """Neither the secret nor the key of names is in the memory that a core dump has, and the secret is in none."""
        d = self.daemon("--secret", self.write("secret", A), "--old-secret", self.write("old", B))
        self.put(d)
        self.names(d)
        self.write("secret", C)
        self.wait_fingerprints(d, C, B)
        told = d.log() + str(d.admin.Stats(pb.StatsRequest(), timeout=CALL_S)) + str(d.admin.Config(pb.ConfigRequest(), timeout=CALL_S))
        derived_keys = [derived(s, "public names", "default")[:16] for s in (A, B, C)]
        for s in (A, B, C):
            self.assertNotIn(s.decode(), told)
        os.kill(d.process.pid, signal.SIGSTOP)
        try:
            dumped, kept = self.memory(d.process.pid)
        finally:
            os.kill(d.process.pid, signal.SIGCONT)
        for s in (A, B, C):
            self.assertFalse(s in dumped or s in kept)
        self.assertEqual([k in dumped for k in derived_keys], [False] * 3)
        self.assertEqual([k in kept for k in derived_keys], [False, True, True])  # A has been overwritten

    @staticmethod
    def memory(pid):
        """What may be written, and is private: that of which a core dump has a copy, and the rest."""
        parts = {True: bytearray(), False: bytearray()}
        with open("/proc/%d/smaps" % pid, encoding="ascii") as f, open("/proc/%d/mem" % pid, "rb") as memory:
            span = None
            for line in f:
                head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line)
                if head:
                    span = (int(head[1], 16), int(head[2], 16)) if head[3].startswith("rw-p") else None
                elif span and line.startswith("Rss:") and line.split()[1] == "0":
                    span = None
                elif span and line.startswith("VmFlags:"):
                    memory.seek(span[0])
                    try:
                        parts[" dd" in line] += memory.read(span[1] - span[0])
                    except OSError:
                        pass  # such as [vvar]
        return parts[False], parts[True]


class Peers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="terrace-peers-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.ca = Authority(cls.folder, "ca")
        cls.node = cls.ca.issue("node", "DNS:localhost,IP:127.0.0.1,URI:spiffe://example/terraced")
        cls.engine = cls.ca.issue("engine", "DNS:engine.example")

    def start(self, *flags):
        d = Daemon(TERRACED, *SMALL, "--listen", "127.0.0.1:0", "--listen-cert", self.node[0], "--listen-key", self.node[1], "--listen-ca", self.ca.cert,
                   *flags, start=False)
        self.addCleanup(d.close)
        d.start()
        wait_for(lambda: "event=ready" in d.log(), CALL_S, "ready")
        return d

    def channel(self, d, pair):
        def bytes_of(path):
            with open(path, "rb") as f:
                return f.read()
        port = re.search(r"event=ready .* port=(\d+)", d.log()).group(1)
        c = grpc.secure_channel("127.0.0.1:" + port, grpc.ssl_channel_credentials(bytes_of(self.ca.cert), bytes_of(pair[1]), bytes_of(pair[0])),
                                options=[("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(c.close)
        return c

    def all_refused(self, d, tenants):
        """Every method of both services, by the descriptor: a peer may call none, whatever it asks for."""
        c = self.channel(d, self.node)
        seen = 0
        for service in ("Cache", "Admin"):
            for method in pb.DESCRIPTOR.services_by_name[service].methods:
                path = "/terrace.v1.%s/%s" % (service, method.name)
                with self.assertRaises(grpc.RpcError, msg=path) as e:
                    if method.name in ("Get", "Watch"):
                        list(c.unary_stream(path)(b"", timeout=CALL_S))
                    elif method.name == "Put":
                        c.stream_unary(path)(iter([b""]), timeout=CALL_S)
                    else:
                        c.unary_unary(path)(b"", timeout=CALL_S)
                self.assertEqual(e.exception.code(), grpc.StatusCode.PERMISSION_DENIED, (path, e.exception.details()))
                self.assertIn("not for peers", e.exception.details())
                self.assertIn("of tenants: " + tenants, e.exception.details())
                seen += 1
        self.assertGreaterEqual(seen, 29)
        status = health_pb2_grpc.HealthStub(c).Check(health_pb2.HealthCheckRequest(), timeout=CALL_S).status
        self.assertEqual(status, health_pb2.HealthCheckResponse.SERVING)

    def test_without_a_table(self):
        secret = os.path.join(self.folder, "secret")
        with open(secret, "wb", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(A)
        d = self.start("--peers", "dns:other.example, uri:spiffe://example/terraced", "--secret", secret)
        self.all_refused(d, "all")
        # an engine has its session, and learns nothing of names and secrets, though it may ask for figures and explanations
        channel = self.channel(d, self.engine)
        engine, admin = terrace_pb2_grpc.CacheStub(channel), terrace_pb2_grpc.AdminStub(channel)
        opened = engine.OpenSession(pb.OpenSessionRequest(layouts=[layout()], engine="e"), timeout=CALL_S)
        own = d.open()
        self.assertEqual(d.put(own.session, [(key(1), bytes(own.layouts[0].block_bytes))]), [pb.OK])
        self.assertFalse(admin.Stats(pb.StatsRequest(), timeout=CALL_S).secrets)
        block, = admin.Explain(pb.ExplainRequest(key=key(1), session=opened.session), timeout=CALL_S).blocks
        self.assertEqual((block.tenant, block.public_name, block.old_public_name), ("", b"", b""))
        block, = d.admin.Explain(pb.ExplainRequest(key=key(1)), timeout=CALL_S).blocks
        self.assertEqual(block.public_name, name_of(A, block.layout_id, key(1)))

    def test_without_the_option_it_is_an_engine(self):
        d = self.start()
        engine = terrace_pb2_grpc.CacheStub(self.channel(d, self.node))
        self.assertTrue(engine.OpenSession(pb.OpenSessionRequest(layouts=[layout()], engine="e"), timeout=CALL_S).session)

    def test_with_a_table(self):
        table = os.path.join(self.folder, "tenants")
        with open(table, "w", encoding="ascii") as f:
            f.write("tenant = a\npeers = uri:spiffe://example/terraced\ntenant = b\nengines = dns:engine.example\n"
                    "tenant = c\npeers = uri:spiffe://example/terraced\n")
        d = self.start("--tenants", table)
        self.all_refused(d, "a, c")
        engine = terrace_pb2_grpc.CacheStub(self.channel(d, self.engine))
        self.assertTrue(engine.OpenSession(pb.OpenSessionRequest(layouts=[layout()], engine="e"), timeout=CALL_S).session)
        self.all_refused(self.start("--tenants", table, "--peers", "uri:spiffe://example/terraced"), "all")
        p = subprocess.run([TERRACED, "--check-config", "--tenants", table, "--listen", "127.0.0.1:0", "--listen-cert", self.node[0], "--listen-key",
                            self.node[1], "--listen-ca", self.ca.cert, "--peers", "dns:engine.example"], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, timeout=CALL_S, check=False)
        self.assertEqual(p.returncode, 2, p.stdout)
        self.assertIn(b"tenant b: dns:engine.example is a peer's by the option peers", p.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)

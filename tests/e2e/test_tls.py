"""TLS of TCP connections: a real daemon, libterrace through its Python module, terracectl and a stock grpcio client, with certificates of a throw-away
CA. usage: test_tls.py TERRACED TERRACECTL LIBTERRACE
"""

import concurrent.futures
import contextlib
import json
import os
import random
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import grpc

from certificates import Authority
from daemon import CALL_S, ROOT, Daemon, held_folder, key, keys, layout, pb, terrace_pb2_grpc, wait_for

HANDSHAKES_MAX = 256  # RPC_TLS_HANDSHAKES_MAX
SMALL = ("--host-bytes", "16MiB", "--extent-bytes", "1MiB")


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="terrace-tls-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.ca = Authority(cls.folder, "ours")
        cls.other = Authority(cls.folder, "theirs")
        cls.node = cls.ca.issue("node", "DNS:localhost,DNS:node1.example,IP:127.0.0.1")
        cls.engine = cls.ca.issue("engine", "DNS:engine.example")

    def start(self, node=None, ca=None, address="127.0.0.1:0", flags=(), memory=SMALL):
        cert, private = node or self.node
        d = Daemon(TERRACED, *memory, "--listen", address, "--listen-cert", cert, "--listen-key", private,
                   "--listen-ca", ca or self.ca.cert, *flags, start=False)
        self.addCleanup(d.close)
        d.start()
        wait_for(lambda: "event=ready" in d.log(), CALL_S, "ready")
        self.port = int(re.search(r"event=ready .* port=(\d+)", d.log()).group(1))
        self.address = "127.0.0.1:%d" % self.port
        return d

    def connect(self, pair=None, ca=None, name=None, address=None):
        cert, private = pair or self.engine
        return terrace.connect(address or self.address, timeout=CALL_S, tls_cert=cert, tls_key=private, tls_ca=ca or self.ca.cert, tls_name=name)

    def refused(self, *words, status="DENIED", **how):
        with self.assertRaises(terrace.Error) as e:
            self.connect(**how)
        self.assertEqual(e.exception.status.name, status, str(e.exception))
        for word in words:
            self.assertIn(word, str(e.exception))

    def said(self, d, *words):
        wait_for(lambda: all(w in d.log() for w in words), CALL_S, "%s in the log" % (words,))

    def ctl(self, *words, expect=0, env=None):
        p = subprocess.run([TERRACECTL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=2 * CALL_S, check=False,
                           env={**os.environ, **(env or {})})
        self.assertEqual(p.returncode, expect, (words, p.stdout, p.stderr))
        return p.stdout.decode(), p.stderr.decode()

    def stock(self, pair=None, ca=None, name=None):
        cert, private = pair or self.engine

        def bytes_of(path):
            with open(path, "rb") as f:
                return f.read()
        creds = grpc.ssl_channel_credentials(bytes_of(ca or self.ca.cert), bytes_of(private), bytes_of(cert))
        channel = grpc.secure_channel(self.address, creds, options=[("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(channel.close)
        return channel

    # ---- it works ----

    def test_blocks_go_both_ways(self):
        d = self.start(address="0.0.0.0:0")
        with self.connect() as client:
            with client.session([LAYOUT], engine="far") as session:
                blocks = {key(i): bytes([i]) * LAYOUT.block_bytes for i in range(1, 40)}
                for name, block in blocks.items():
                    self.assertTrue(session.put(name, block))
                for name, block in blocks.items():
                    self.assertEqual(session.get(name)[0], block)
        self.assertEqual(d.stats()["terrace_tls_handshakes_total{result=refused}"], 0)
        # the same blocks, by the Unix socket
        with terrace.connect(d.address) as client, client.session([LAYOUT]) as session:
            self.assertEqual(session.get(key(7))[0], blocks[key(7)])
        far = terrace_pb2_grpc.CacheStub(self.stock())
        opened = far.OpenSession(pb.OpenSessionRequest(layouts=[layout()], engine="stock"), timeout=CALL_S)
        self.assertEqual(list(far.Delete(pb.DeleteRequest(session=opened.session, keys=keys(1)), timeout=CALL_S).status), [pb.MISS])

    def test_a_certificate_is_an_engine_and_no_administrator(self):
        self.start()
        admin = terrace_pb2_grpc.AdminStub(self.stock())
        self.assertTrue(admin.Stats(pb.StatsRequest(), timeout=CALL_S).stats)
        for name in ("Layouts", "Drain", "Config", "Verify"):
            with self.assertRaises(grpc.RpcError) as e:
                getattr(admin, name)(getattr(pb, name + "Request")(), timeout=CALL_S)
            self.assertEqual(e.exception.code(), grpc.StatusCode.PERMISSION_DENIED)
            self.assertIn("engine's certificate", e.exception.details())

    def test_terracectl(self):
        self.start()
        files = ("--tls-cert", self.engine[0], "--tls-key", self.engine[1], "--tls-ca", self.ca.cert)
        out, _ = self.ctl("--address", self.address, *files, "status")
        self.assertIn("serving", out)
        env = {"TERRACE_TLS_CERT": self.engine[0], "TERRACE_TLS_KEY": self.engine[1], "TERRACE_TLS_CA": self.ca.cert, "TERRACE_ADDRESS": self.address}
        self.assertIn("serving", self.ctl("status", env=env)[0])
        self.assertIn("node1.example", self.ctl("status", "--tls-name", "elsewhere.example", env=env, expect=5)[1])
        self.assertIn("serving", self.ctl("status", "--tls-name", "node1.example", env=env)[0])
        self.assertIn("key is missing", self.ctl("status", "--address", self.address, "--tls-cert", self.engine[0], "--tls-ca", self.ca.cert, expect=2)[1])

    def test_terracectl_opens_sessions(self):
        d = self.start()
        files = ("--address", self.address, "--tls-cert", self.engine[0], "--tls-key", self.engine[1], "--tls-ca", self.ca.cert)
        with self.connect() as client, client.session([LAYOUT], engine="far") as session:
            session.put(key(1), bytes(LAYOUT.block_bytes))
        layouts = os.path.join(self.folder, "layouts.json")
        with open(layouts, "w", encoding="ascii") as f:
            f.write(self.ctl("--address", d.address, "--json", "layouts")[0])
        for command in ("lookup", "warm"):
            self.ctl(*files, command, "--layouts", layouts, key(1).hex())
            self.assertIn("elsewhere.example", self.ctl(*files, "--tls-name", "elsewhere.example", command, "--layouts", layouts, key(1).hex(), expect=1)[1])

    def test_terracectl_opens_one_session_a_layout(self):
        # The daemon's list of layouts has a row for each tenant; terracectl's sessions are of its own tenant.
        table = os.path.join(self.folder, "tenants")
        with open(table, "w", encoding="ascii") as f:
            f.write("tenant = far\nengines = dns:engine.example\n")
        d = self.start(flags=("--tenants", table))
        with self.connect() as client, client.session([LAYOUT], engine="far") as session:
            session.put(key(1), bytes(LAYOUT.block_bytes))
            session.put(key(2), bytes(LAYOUT.block_bytes))
        with terrace.connect(d.address) as client, client.session([LAYOUT]) as session:
            session.put(key(1), bytes(LAYOUT.block_bytes))
        warmed = json.loads(self.ctl("--address", d.address, "--json", "warm", key(1).hex())[0])
        self.assertEqual([(row["stored"], row["in_memory"]) for row in warmed["layouts"]], [(1, 1)])
        self.assertEqual(json.loads(self.ctl("--address", d.address, "--json", "warm", key(1).hex(), key(2).hex(), expect=3)[0])["stored"], 1)

    # ---- what is refused, and the words on both sides ----

    def test_words_for_the_clients_certificate(self):
        d = self.start()
        self.refused("certificate expired at", "clock says", pair=self.ca.issue("old", end=-0.5, begin=-3))
        self.refused("valid only from", "clock says", pair=self.ca.issue("early", begin=2))
        self.refused("does not know the CA", pair=self.other.issue("stranger"))
        self.said(d, "event=tls_refused", "of an unknown CA", self.ca.cert)
        self.refused("extendedKeyUsage", "clientAuth", pair=self.ca.issue("wrong-use", usage="serverAuth"))
        with self.assertRaises(terrace.Error) as e:
            terrace.connect(self.address, timeout=1)
        self.assertEqual(e.exception.status.name, "DENIED")
        self.assertIn("speaks TLS alone", str(e.exception))
        self.assertGreaterEqual(d.stats()["terrace_tls_handshakes_total{result=refused}"], 3)

    def test_no_certificate(self):
        d = self.start()
        context = ssl.create_default_context(cafile=self.ca.cert)
        context.set_alpn_protocols(["h2"])
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            with context.wrap_socket(s, server_hostname="localhost") as t:
                with self.assertRaisesRegex(ssl.SSLError, "CERTIFICATE_REQUIRED"):
                    t.recv(1)
        self.said(d, "event=tls_refused", "no certificate was shown by the client")
        self.assertEqual(d.stats().get("terrace_rpc_connections"), 1)

    def test_the_daemon_sees_an_expired_certificate(self):
        d = self.start()
        cert, private = self.ca.issue("late", end=-0.5, begin=-3)
        context = ssl.create_default_context(cafile=self.ca.cert)
        context.load_cert_chain(cert, private)
        context.set_alpn_protocols(["h2"])
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            with context.wrap_socket(s, server_hostname="localhost") as t:
                with self.assertRaisesRegex(ssl.SSLError, "EXPIRED"):
                    t.recv(1)
        self.said(d, "event=tls_refused", "CN=late", "expired at", "clock says")

    def test_words_for_the_daemons_certificate(self):
        self.start(node=self.ca.issue("expired", end=-0.5, begin=-3))
        self.refused("CN=expired", "expired at", "clock says")
        self.start(node=self.ca.issue("soon", begin=2))
        self.refused("valid only from", "clock that is off")
        self.start(node=self.other.issue("foreign"))
        self.refused("CN=theirs", "unknown CA", self.ca.cert)
        self.start(node=self.ca.issue("elsewhere", "DNS:other.example"))
        self.refused("not for 127.0.0.1", "dns:other.example", "subjectAltName")
        self.connect(name="other.example").close()
        self.refused("not for far.example", name="far.example")

    def test_connections_that_just_end(self):
        """They are no problem of certificates: a daemon that starts, or is full, does so; the client tries again."""
        self.start()
        left, lock = [4], threading.Lock()

        def serve(s):
            with lock:
                left[0] -= 1
                ends = left[0] >= 0
            with s:
                if ends:
                    if left[0] % 2:  # a reset, else an end
                        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                with socket.create_connection(("127.0.0.1", self.port)) as daemon:
                    def carry(a, b):
                        with contextlib.suppress(OSError):
                            while data := a.recv(65536):
                                b.sendall(data)
                        with contextlib.suppress(OSError):
                            b.shutdown(socket.SHUT_WR)
                    back = threading.Thread(target=carry, args=(daemon, s))
                    back.start()
                    carry(s, daemon)
                    back.join()

        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
        threading.Thread(target=accept, daemon=True).start()
        with self.connect(address="127.0.0.1:%d" % listener.getsockname()[1]) as client:
            client.session([LAYOUT]).close()
        self.assertLess(left[0], 0)

    def test_plain_meets_tls(self):
        plain = Daemon(TERRACED, *SMALL, "--listen", "127.0.0.1:0", start=False)
        self.addCleanup(plain.close)
        plain.start()
        wait_for(lambda: "event=ready" in plain.log(), CALL_S, "ready")
        self.address = "127.0.0.1:" + re.search(r"event=ready .* port=(\d+)", plain.log()).group(1)
        self.refused("does not speak TLS")
        self.assertEqual(self.ctl("--address", self.address, "status")[1], "")

    # ---- files ----

    def test_files_that_are_wrong(self):
        self.refused("none.pem", "No such file", status="INVALID", pair=(os.path.join(self.folder, "none.pem"), self.engine[1]), address="127.0.0.1:1")
        self.refused("not the key of", status="INVALID", pair=(self.engine[0], self.node[1]), address="127.0.0.1:1")
        self.refused("no private key", status="INVALID", pair=(self.engine[0], self.engine[0]), address="127.0.0.1:1")
        with self.assertRaisesRegex(terrace.Unsupported, "TERRACE_TLS_CERT"):
            terrace.connect("192.0.2.1:7421")
        p = self.check("--listen", "127.0.0.1:0", "--listen-cert", self.node[0], "--listen-key", self.engine[1], "--listen-ca", self.ca.cert)
        self.assertIn("not the key of", p)
        self.assertIn("all three", self.check("--listen", "127.0.0.1:0", "--listen-cert", self.node[0]))
        self.assertIn("no loopback address", self.check("--listen", "0.0.0.0:0"))
        self.assertIn("no `listen`", self.check("--listen-cert", self.node[0], "--listen-key", self.node[1], "--listen-ca", self.ca.cert))
        old = self.ca.issue("old-node", end=-0.5, begin=-3)
        self.assertIn("expired at", self.check("--listen", "0.0.0.0:0", "--listen-cert", old[0], "--listen-key", old[1], "--listen-ca", self.ca.cert))
        self.assertEqual(self.check("--listen", "0.0.0.0:0", "--listen-cert", self.node[0], "--listen-key", self.node[1], "--listen-ca", self.ca.cert, expect=0), "")

    def check(self, *flags, expect=2):
        p = subprocess.run([TERRACED, "--check-config", "--data-dir", os.path.join(self.folder, "data"), "--socket", os.path.join(self.folder, "s.sock"), *flags],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=CALL_S, check=False)
        self.assertEqual(p.returncode, expect, p.stderr)
        return p.stderr.decode()

    def test_certs_check(self):
        out, _ = self.ctl("certs", "check", *self.node, self.ca.cert)
        for word in ("node1.example", "CN=ours", "key", "daemon, client, peer"):
            self.assertIn(word, out)

        def wrong(*files):
            out, _ = self.ctl("--json", "certs", "check", *files, expect=3)
            return " ".join(r["problem"] for r in json.loads(out)["certificates"])
        self.assertIn("expired at", wrong(*self.ca.issue("c-old", end=-0.5, begin=-3), self.ca.cert))
        self.assertIn("valid only from", wrong(*self.ca.issue("c-early", begin=2), self.ca.cert))
        self.assertIn("none of these files", wrong(*self.node, self.other.cert))
        self.assertIn("has no name", wrong(*self.ca.issue("c-nameless", sans=None), self.ca.cert))
        self.assertIn("key of none", wrong(self.node[0], self.engine[1], self.ca.cert))
        self.assertIn("cannot be read", wrong(os.path.join(self.folder, "none.pem")))

        def made(name, *parts):
            path = os.path.join(self.folder, name)
            with open(path, "w", encoding="ascii") as f:
                f.write("".join(parts))
            return path

        def text(path):
            with open(path, encoding="ascii") as f:
                return f.read()
        pipe = os.path.join(self.folder, "c-pipe")
        os.mkfifo(pipe)
        self.assertIn("no regular file", wrong(pipe))
        ca = text(self.ca.cert)
        for i, damaged in enumerate((ca.replace("\nM", "\n*", 1), ca.replace("\nM", "\nA", 1), ca[:len(ca) // 2])):
            self.assertIn("is damaged", wrong(*self.node, made("c-damaged%d" % i, ca, damaged)))
        locked = os.path.join(self.folder, "c-locked")
        subprocess.run(["openssl", "pkey", "-in", self.node[1], "-aes256", "-passout", "pass:word", "-out", locked],
                       timeout=CALL_S, check=True)
        self.assertIn("passphrase", wrong(made("c-both", text(self.node[0]), text(locked)), self.ca.cert))
        many = wrong(*self.node, made("c-many", ca * 300), *self.engine)
        self.assertTrue(many.startswith("with it there are more than 256"), many)
        self.assertIn("neither a certificate", wrong(self.ca.config))
        self.assertIn("neither end", wrong(*self.ca.issue("c-mail", usage="emailProtection"), self.ca.cert))
        soon, _ = self.ctl("certs", "check", *self.ca.issue("c-soon", end=3), self.ca.cert)
        self.assertIn("expires soon", soon)
        loose = self.ca.issue("c-loose")
        os.chmod(loose[1], 0o644)
        self.assertIn("chmod 0600", wrong(*loose, self.ca.cert))
        self.ctl("certs", "look", self.node[0], expect=2)

    # ---- rotation ----

    def test_certificates_change_while_calls_run(self):
        folder, hold = held_folder()
        self.addCleanup(os.close, hold)
        self.addCleanup(shutil.rmtree, folder, True)
        paths = [os.path.join(folder, n) for n in ("node.pem", "node.key", "ca.pem", "engine.pem", "engine.key", "trust.pem")]

        def place(*sources):
            for source, path in zip(sources, paths):
                shutil.copy(source, path + ".new")
                os.rename(path + ".new", path)
        both = os.path.join(folder, "both")
        with open(both, "w", encoding="ascii") as f:
            for ca in (self.ca, self.other):
                with open(ca.cert, encoding="ascii") as one:
                    f.write(one.read())
        place(*self.node, self.ca.cert, *self.engine, self.ca.cert)
        d = self.start(node=paths[:2], ca=paths[2])
        client = terrace.connect(self.address, timeout=CALL_S, tls_cert=paths[3], tls_key=paths[4], tls_ca=paths[5])
        self.addCleanup(client.close)
        session = client.session([LAYOUT], engine="long")
        session.put(key(1), b"1" * LAYOUT.block_bytes)
        failures, calls, stop = [], [0], threading.Event()

        def call():
            while not stop.is_set():
                try:
                    if session.get(key(1))[0][:1] != b"1":
                        failures.append("other bytes")
                    calls[0] += 1
                except terrace.Error as e:
                    failures.append(str(e))
        caller = threading.Thread(target=call)
        caller.start()
        try:
            # First both trust both CAs, then both show new certificates, then the old CA goes: nothing is ever refused.
            for step, sources in enumerate(((*self.node, both, *self.engine, both),
                                            (*self.other.issue("node2"), both, *self.other.issue("engine2"), both),
                                            (*self.other.issue("node3"), self.other.cert, *self.other.issue("engine3"), self.other.cert))):
                before = calls[0]
                place(*sources)

                def used(step=step, sources=sources):
                    with self.connect(pair=sources[3:5], ca=sources[5]):
                        return d.stats()["terrace_tls_reloads_total{result=done}"] >= step + 1
                wait_for(used, CALL_S, "the daemon uses certificates of step %d" % step)
                wait_for(lambda before=before: calls[0] > before + 10 or failures, CALL_S, "calls go on")
        finally:
            stop.set()
            caller.join()
        self.assertEqual(failures, [])
        # The old client connects anew with its new files: neither side trusts the old ones any more.
        d.stop()
        d.flags = tuple(self.address if f == "127.0.0.1:0" else f for f in d.flags)
        d.start()

        def reopened():
            try:
                session.reopen()
                return True
            except terrace.Unavailable:
                return False
        wait_for(reopened, CALL_S, "the client is connected again")
        self.refused("unknown CA")  # what was good before
        # A half-made change leaves what there is in use, and says so.
        shutil.copy(self.node[1], paths[1] + ".new")
        os.rename(paths[1] + ".new", paths[1])

        def told():
            with self.connect(pair=paths[3:5], ca=paths[5]):
                return "event=tls_reload_failed" in d.log()
        wait_for(told, CALL_S, "the failed reload is told")

    # ---- a slow way ----

    def slow_way(self):
        """An address that carries bytes to the daemon and back by few and odd ones, through small buffers."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def carry(a, b):
            with contextlib.suppress(OSError):
                while data := a.recv(7919):
                    b.sendall(data)
            with contextlib.suppress(OSError):
                b.shutdown(socket.SHUT_WR)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    near = listener.accept()[0]
                    far = socket.socket()
                    for s in (near, far):
                        self.addCleanup(s.close)
                        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                            s.setsockopt(socket.SOL_SOCKET, option, 32768)
                    far.connect(("127.0.0.1", self.port))
                    for ends in ((near, far), (far, near)):
                        threading.Thread(target=carry, args=ends, daemon=True).start()
        threading.Thread(target=accept, daemon=True).start()
        return "127.0.0.1:%d" % listener.getsockname()[1]

    def test_large_blocks_by_a_slow_way(self):
        """Records wait in the daemon for a socket that takes little, and blocks have several chunks."""
        large = terrace.Layout("test_tls large", layers=16, heads=8, head_dim=128)
        self.start(memory=("--host-bytes", "64MiB", "--extent-bytes", "4MiB"))
        with self.connect(address=self.slow_way()) as client, client.session([large], engine="slow") as session:
            blocks = {key(i): random.Random(i).randbytes(large.block_bytes) for i in range(1, 4)}
            for name, block in blocks.items():
                self.assertTrue(session.put(name, block))
            with concurrent.futures.ThreadPoolExecutor(len(blocks)) as at_once:
                for name, got in zip(blocks, at_once.map(session.get, blocks)):
                    self.assertTrue(got[0] == blocks[name], "other bytes came")

    # ---- hostile ----

    def raw(self):
        """A TLS connection without gRPC, whose client takes little before it reads."""
        context = ssl.create_default_context(cafile=self.ca.cert)
        context.load_cert_chain(*self.engine)
        context.set_alpn_protocols(["h2"])
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(CALL_S)
        plain.connect(("127.0.0.1", self.port))
        return context.wrap_socket(plain, server_hostname="localhost")

    def test_a_client_that_does_not_read(self):
        """It is cut like any other (RPC_STALL_US), and its connection ends, though it never closes it."""
        d = self.start()

        def frame(kind, flags, stream, payload=b""):
            return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

        def text(s):
            return bytes([len(s)]) + s
        path = b"/terrace.v1.Admin/Stats"
        headers = (b"\x83\x87\x04" + text(path) + b"\x01" + text(b"localhost") + b"\x0f\x10" + text(b"application/grpc") +
                   b"\x00" + text(b"te") + text(b"trailers"))
        with self.raw() as s:
            s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"\0\4\x7f\xff\xff\xff") +
                      frame(8, 0, 0, b"\x7f\xff\0\0"))
            for stream in range(1, 340, 2):  # of some 30 KB each: more than the kernel keeps for a client
                s.sendall(frame(1, 4, stream, headers) + frame(0, 1, stream, b"\0\0\0\0\0"))
            wait_for(lambda: d.stats()["terrace_tls_connections"] == 1, CALL_S, "the connection is up")
            wait_for(lambda: d.stats()["terrace_tls_connections"] == 0, CALL_S, "it has ended")
        with self.connect() as client:
            client.session([LAYOUT]).close()

    def late(self, d):
        return d.stats()["terrace_tls_handshakes_total{result=late}"]

    def test_garbage_and_silence(self):
        """More clients begin a handshake, and go no further, than there may be: the oldest make room for others."""
        d = self.start()
        held = []

        def closed(s):
            s.setblocking(False)
            try:
                return s.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True
        for i in range(HANDSHAKES_MAX + 64):
            s = socket.create_connection(("127.0.0.1", self.port))
            self.addCleanup(s.close)
            s.sendall(b"\x16\x03\x01\x02\x00")
            held.append(s)
            if i == HANDSHAKES_MAX // 2:  # so that the first ones are under way before the last ones come
                wait_for(lambda: d.stats()["terrace_tls_handshakes"] > HANDSHAKES_MAX // 2 or self.late(d), CALL_S,
                         "handshakes are under way")
        wait_for(lambda: self.late(d) >= 64, CALL_S, "some were given up")
        wait_for(lambda: closed(held[0]), 5, "the oldest was given up")
        with self.connect() as client:
            client.session([LAYOUT]).close()
        for _ in range(8):
            with socket.create_connection(("127.0.0.1", self.port)) as s:
                s.sendall(b"GET / HTTP/1.1\r\n\r\n")
                s.settimeout(CALL_S)
                with contextlib.suppress(ConnectionError):
                    while s.recv(100):
                        pass
        self.said(d, "event=tls_refused", "does not speak TLS")
        for s in held:
            s.close()
        wait_for(lambda: d.stats()["terrace_tls_handshakes"] == 0, CALL_S, "handshakes of clients that left have ended")
        wait_for(lambda: d.stats()["terrace_tls_connections"] == 0, CALL_S, "connections have ended")


if __name__ == "__main__":
    TERRACED, TERRACECTL, os.environ["LIBTERRACE"] = sys.argv[1:4]
    sys.path.insert(0, os.path.join(ROOT, "client", "python"))
    sys.dont_write_bytecode = True
    import terrace
    LAYOUT = terrace.Layout("test_tls", layers=2, heads=2, head_dim=64)
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)

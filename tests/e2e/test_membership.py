"""Daemons of one cluster, and a real etcd: `test_membership.py TERRACED TERRACECTL [--long]`.

A small fake etcd stands in where an answer has to be wrong or missing.
"""

import atexit
import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent import futures

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import daemon as e2e  # noqa: E402
from daemon import CALL_S, ROOT, held_folder, pb, running, wait_for  # noqa: E402
from grpc_tools import protoc  # noqa: E402

if protoc.main(["protoc", "--proto_path=" + os.path.join(ROOT, "proto"), "--python_out=" + e2e._generated,
                "--grpc_python_out=" + e2e._generated, "etcd.proto"]) != 0:
    sys.exit("protoc failed")
import etcd_pb2 as rpc  # noqa: E402
import etcd_pb2_grpc as etcd_grpc  # noqa: E402

TERRACED, CTL = sys.argv[1], sys.argv[2]
LONG = "--long" in sys.argv
TTL_S = 2


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Etcd:
    """A real etcd in a temporary folder, always at the same port."""

    def __init__(self, *flags, tls=None):
        self.folder, self.hold = held_folder()
        self.flags, self.tls = flags, tls
        self.port, self.peer = free_port(), free_port()
        self.address = "127.0.0.1:%d" % self.port
        self.process = None
        self.start()

    def start(self):
        url, peer = ("https://" if self.tls else "http://") + self.address, "http://127.0.0.1:%d" % self.peer
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(
                ["etcd", "--name", "n", "--data-dir", os.path.join(self.folder, "data"), "--listen-client-urls", url,
                 "--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", "n=" + peer, "--unsafe-no-fsync", "--heartbeat-interval", "50",
                 "--election-timeout", "250", *self.flags],
                stdout=log, stderr=log, pass_fds=(self.hold,))
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 50),
                   ("grpc.max_reconnect_backoff_ms", 100)]
        self.channel = (grpc.secure_channel(self.address, self.tls, options) if self.tls else
                        grpc.insecure_channel(self.address, options))
        self.kv = etcd_grpc.KVStub(self.channel)
        self.kv.Range(rpc.RangeRequest(key=b"a"), timeout=CALL_S, wait_for_ready=True)

    def kill(self):
        self.channel.close()
        self.process.kill()
        self.process.wait()

    def forget(self):
        shutil.rmtree(os.path.join(self.folder, "data"))

    def call(self, path, ask=b""):
        """A method that our .proto does not have: bytes in, bytes out."""
        return self.channel.unary_unary("/etcdserverpb." + path)(ask, timeout=CALL_S)

    def put(self, key, value):
        op = rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value))
        return self.kv.Txn(rpc.TxnRequest(success=[op]), timeout=CALL_S).header.revision

    def close(self):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self.hold)


def text(*fields):
    """A message of strings: (number, text)..."""
    return b"".join(bytes([n << 3 | 2, len(t)]) + t for n, t in fields)


SECRETS = tempfile.mkdtemp(prefix="terrace-secrets-")
atexit.register(shutil.rmtree, SECRETS, True)


def secret(name, text=None):
    """A file with a secret, made once; with a text: that is renamed over the one before."""
    path = os.path.join(SECRETS, name)
    if os.path.exists(path) and not text:
        return path
    with open(path + ".new", "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write((text or name).ljust(40, "."))
    os.rename(path + ".new", path)
    return path


def flags(name, endpoints, *more, ttl_s=TTL_S):
    if "--secret" not in more and "--tenants" not in more:
        more = ("--secret", secret("common"), *more)
    return ("--host-bytes", "16MiB", "--extent-bytes", "4MiB", "--cluster", "c1", "--node-name", name,
            "--peer-address", "127.0.0.1:7070", "--etcd-endpoints", endpoints, "--member-ttl", "%ds" % ttl_s, *more)


def peers(d):
    return d.admin.Peers(pb.PeersRequest(), timeout=CALL_S)


def names(d, absent=False):
    return [r.member.name for r in peers(d).rows if absent or not r.absent]


def wait_names(d, *wanted, state="joined"):
    def is_so():
        now = peers(d)  # of one moment: the state may change between two answers, and the list with it
        return [r.member.name for r in now.rows if not r.absent] == sorted(wanted) and now.state == state
    try:
        wait_for(is_so, CALL_S, "")
    except AssertionError:
        raise AssertionError("not %s in %s, but:\n%s" % (wanted, state, peers(d)))


class Membership(unittest.TestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)

    def etcd(self):
        etcd = Etcd()
        self.stack.callback(etcd.close)
        return etcd

    def daemon(self, name, endpoints, *more, **times):
        return self.stack.enter_context(running(TERRACED, *flags(name, endpoints, *more, **times)))

    def ctl(self, d, *words, code=0):
        done = subprocess.run([CTL, "--address", d.address, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, check=False, timeout=2 * CALL_S)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_life(self):
        """Two daemons see each other; one is killed, is started again, is stopped; a wrong endpoint stands first."""
        etcd = self.etcd()
        endpoints = "127.0.0.1:%d,%s" % (free_port(), etcd.address)
        a, b = self.daemon("a", endpoints), self.daemon("b", endpoints)
        wait_names(a, "a", "b")
        wait_names(b, "a", "b")
        rows = json.loads(self.ctl(a, "--json", "peers"))
        self.assertEqual([(r["name"], r["self"], r["state"]) for r in rows["members"]],
                         [("a", True, "serving"), ("b", False, "serving")])
        self.assertEqual((rows["cluster"], rows["state"], rows["etcd"]), ("c1", "joined", etcd.address))
        self.assertIn("127.0.0.1:7070", self.ctl(a, "peers"))
        self.assertEqual(a.stats()["terrace_peers"], 1)
        self.assertEqual(a.stats()["terrace_membership_info{state=joined}"], 1)
        epoch = {r.member.name: r.member.epoch for r in peers(a).rows}["b"]
        b.kill()
        wait_names(a, "a")
        b.start()
        wait_names(a, "a", "b")
        b.kill()
        b.start()  # its lease of before has not ended: the same folder takes the key over
        wait_names(b, "a", "b")
        wait_for(lambda: a.log().count("event=member_restarted") + a.log().count("event=member_joined") >= 3, CALL_S, "news")
        self.assertNotEqual(epoch, {r.member.name: r.member.epoch for r in peers(a).rows}["b"])
        a.admin.Drain(pb.DrainRequest(), timeout=CALL_S)
        wait_for(lambda: [r.member.draining for r in peers(b).rows if r.member.name == "a"] == [True], CALL_S, "draining")
        b.stop()
        wait_names(a, "a")

    def test_secrets_are_compared(self):
        """A member with another secret is named, in the list, in the log and in a figure, until its secret is one of this daemon's."""
        etcd = self.etcd()
        mine, old = secret("mine", "first"), os.path.join(SECRETS, "old")
        its = secret("its", "first")
        a = self.daemon("a", etcd.address, "--secret", mine, "--old-secret", old)
        b = self.daemon("b", etcd.address, "--secret", its)
        wait_names(a, "a", "b")
        wait_names(b, "a", "b")

        def others(d):
            return [(r.member.name, list(r.other_secret_tenants)) for r in peers(d).rows if r.other_secret_tenants]
        self.assertEqual(others(a) + others(b), [])
        secret("its", "second")
        for d, name in ((a, "b"), (b, "a")):
            wait_for(lambda d=d, name=name: others(d) == [(name, ["default"])], CALL_S, "another secret of " + name)
            self.assertEqual(d.stats()["terrace_peers_other_secret"], 1)
            wait_for(lambda d=d, name=name: re.search(r"event=member_other_secret name=%s tenants=default" % name, d.log()), CALL_S, "the log")
        rows = json.loads(self.ctl(a, "--json", "peers"))["members"]
        self.assertEqual([r["other_secret"] for r in rows], ["", "default"])
        secret("old", "second")  # one of a's two: it finds what b has; b does not find what a has
        wait_for(lambda: others(a) == [], CALL_S, "the secret of b is a's old one")
        self.assertEqual(others(b), [("a", ["default"])])
        secret("mine", "second")
        wait_for(lambda: others(b) == [], CALL_S, "one secret")
        self.assertEqual(others(a), [])
        self.assertEqual(a.stats()["terrace_peers_other_secret"], 0)

    def test_a_stop_ends_the_lease(self):
        """The others see at once that a daemon was stopped: they need not wait for its lease to end."""
        etcd = self.etcd()
        a, b = (self.daemon(name, etcd.address, ttl_s=9 * CALL_S) for name in "ab")
        wait_names(a, "a", "b")
        wait_names(b, "a", "b")
        b.stop()
        wait_names(a, "a")

    def test_etcd_restarts(self):
        """With its data, without it, stopped: the members stay, and are confirmed again."""
        etcd = self.etcd()
        ttl_s = 5 * TTL_S  # a daemon that gets no processor for that long is rightly absent
        a, b = (self.daemon(name, etcd.address, ttl_s=ttl_s) for name in "ab")
        wait_names(a, "a", "b")
        wait_names(b, "a", "b")
        for how in ("data", "none", "stopped"):
            if how == "stopped":
                etcd.process.send_signal(signal.SIGSTOP)
            else:
                etcd.kill()
            wait_names(a, "a", "b", state="lost")
            wait_names(b, "a", "b", state="lost")
            self.assertIn("etcd at", peers(a).reason)
            self.assertEqual(a.stats()["terrace_membership_info{state=lost}"], 1)
            self.assertEqual(json.loads(self.ctl(a, "--json", "peers", code=3))["state"], "lost")
            opened = a.open(e2e.layout(fingerprint=how.encode().ljust(32, b"x")))
            self.assertEqual(a.put(opened.session, [(e2e.key(1), bytes(opened.layouts[0].block_bytes))]), [pb.OK])
            if how == "stopped":
                time.sleep(ttl_s + 1)  # every lease ends while nothing can renew it
                etcd.process.send_signal(signal.SIGCONT)
            else:
                if how == "none":
                    etcd.forget()
                etcd.start()
            wait_names(a, "a", "b")
            wait_names(b, "a", "b")
        self.assertNotIn("event=member_left", a.log() + b.log())

    def test_one_name(self):
        """The second daemon of a name is refused, serves all the same, and has the name once it is free."""
        etcd = self.etcd()
        a, twin = self.daemon("a", etcd.address), None
        wait_names(a, "a")
        twin = self.daemon("a", etcd.address)
        wait_for(lambda: peers(twin).state == "refused", CALL_S, "refused")
        self.assertIn("node_name", peers(twin).reason)
        self.assertEqual(twin.log().count("event=membership_refused"), 1)
        self.assertFalse([r for r in peers(twin).rows if r.self])
        a.stop()
        wait_names(twin, "a")
        self.assertTrue(peers(twin).rows[0].self)

    def test_foreign_keys(self):
        """Nonsense under the prefix is ignored and logged once; a key that something deleted is written again."""
        etcd = self.etcd()
        prefix = b"/terrace/c1/members/"
        for name, value in ((b"x", b"nonsense"), (b"y", b""), (b"z", random.Random(1).randbytes(9000)), (b"\xff/../", b"")):
            etcd.put(prefix + name, value)
        a = self.daemon("a", etcd.address)
        wait_names(a, "a")
        etcd.put(prefix + b"late", b"\x0a\x05other")
        wait_for(lambda: a.stats()["terrace_membership_ignored_total"] == 5, CALL_S, "all are counted")
        self.assertEqual(a.log().count("event=membership_foreign_key"), 1)
        before = a.stats()["terrace_membership_registrations_total"]
        etcd.call("KV/DeleteRange", text((1, prefix + b"a")))
        wait_for(lambda: a.stats()["terrace_membership_registrations_total"] == before + 1, CALL_S, "written again")
        wait_names(a, "a")

    def test_user(self):
        """With Auth: a wrong password is said, the right one joins; an invalid token is replaced."""
        etcd = self.etcd()
        etcd.call("Auth/UserAdd", text((1, b"root"), (2, b"r")))
        etcd.call("Auth/UserGrantRole", text((1, b"root"), (2, b"root")))
        etcd.call("Auth/UserAdd", text((1, b"terrace"), (2, b"secret")))
        etcd.call("Auth/RoleAdd", text((1, b"members")))
        key, end = b"/terrace/c1/", b"/terrace/c10"
        permission = bytes([1 << 3, 2]) + text((2, key), (3, end))
        etcd.call("Auth/RoleGrantPermission", text((1, b"members"), (2, permission)))
        etcd.call("Auth/UserGrantRole", text((1, b"terrace"), (2, b"members")))
        etcd.call("Auth/AuthEnable")
        password = os.path.join(etcd.folder, "password")
        with open(password, "w", encoding="ascii") as f:
            f.write("wrong\n")
        a = self.daemon("a", etcd.address, "--etcd-user", "terrace", "--etcd-password-file", password)
        wait_for(lambda: "Authenticate" in peers(a).reason, CALL_S, "the reason")
        self.assertEqual(peers(a).state, "joining")
        with open(password, "w", encoding="ascii") as f:
            f.write("secret\n")
        wait_names(a, "a")
        self.assertNotIn("secret", a.log())
        etcd.kill()  # the tokens go with it
        with contextlib.suppress(grpc.RpcError):
            etcd.start()  # its first question is refused: no token
        wait_names(a, "a")

    def test_tls(self):
        """etcd asks for a certificate: with one the daemon joins, without one, or with another CA, it says why not."""
        folder, hold = held_folder()
        self.addCleanup(lambda: (shutil.rmtree(folder), os.close(hold)))
        at = lambda name: os.path.join(folder, name)
        for name, issuer in (("ca", None), ("other", None), ("etcd", "ca"), ("terraced", "ca")):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                            "-days", "2", "-subj", "/CN=" + name, "-keyout", at(name + ".key"), "-out", at(name + ".pem"),
                            "-addext", "subjectAltName=IP:127.0.0.1"] +
                           (["-CA", at(issuer + ".pem"), "-CAkey", at(issuer + ".key"), "-addext",
                             "basicConstraints=critical,CA:FALSE"] if issuer else []),
                           check=True, stderr=subprocess.PIPE, timeout=CALL_S)
        read = lambda name: pathlib.Path(at(name)).read_bytes()
        etcd = Etcd("--cert-file", at("etcd.pem"), "--key-file", at("etcd.key"), "--trusted-ca-file", at("ca.pem"),
                    "--client-cert-auth", tls=grpc.ssl_channel_credentials(read("ca.pem"), read("terraced.key"),
                                                                           read("terraced.pem")))
        self.stack.callback(etcd.close)
        pair = ("--etcd-cert", at("terraced.pem"), "--etcd-key", at("terraced.key"))
        a = self.daemon("a", etcd.address, "--etcd-ca", at("ca.pem"), *pair)
        wait_names(a, "a")
        # Without a certificate, or without TLS, etcd just closes the connection: the remedy names the options.
        for more, words in ((("--etcd-ca", at("ca.pem")), "failed to connect"),
                            (("--etcd-ca", at("other.pem"), *pair), "certificate verify failed"),
                            ((), "failed to connect")):
            b = self.daemon("b", etcd.address, *more)
            wait_for(lambda: etcd.address in peers(b).reason and words in peers(b).reason, CALL_S, words)
            wait_for(lambda: "event=membership_lost" in b.log(), CALL_S, "the log")
            self.assertRegex(b.log(), "event=membership_lost .*etcd_ca, etcd_cert and etcd_key are right")
            self.assertEqual(peers(b).state, "joining")
        self.assertEqual(names(a), ["a"])

    @unittest.skipUnless(LONG, "long")
    def test_storm(self):
        """Daemons and etcd are killed and stopped at random; afterwards all is as it should be."""
        etcd, chance = self.etcd(), random.Random(30)
        daemons = [self.daemon(n, etcd.address) for n in "abcd"]
        for _ in range(60):
            what = chance.randrange(4)
            if what == 0:
                etcd.kill()
                if chance.randrange(3) == 0:
                    etcd.forget()
                etcd.start()
            elif what == 1:
                etcd.process.send_signal(signal.SIGSTOP)
                time.sleep(chance.random() * 2 * TTL_S)
                etcd.process.send_signal(signal.SIGCONT)
            else:
                d = chance.choice(daemons)
                d.kill()
                time.sleep(chance.random() * 2 * TTL_S)
                d.start()
        for d in daemons:
            wait_names(d, *"abcd")


class Fake(etcd_grpc.KVServicer, etcd_grpc.LeaseServicer, etcd_grpc.WatchServicer):
    """As much of etcd as one daemon asks for, with faults by switch."""

    def __init__(self):
        self.compactions, self.ended, self.watches, self.puts = 0, 0, 0, 0
        self.expire, self.contended = False, False
        self.page, self.ttl_s = None, None
        self.server = grpc.server(futures.ThreadPoolExecutor(8))
        for add in (etcd_grpc.add_KVServicer_to_server, etcd_grpc.add_LeaseServicer_to_server,
                    etcd_grpc.add_WatchServicer_to_server):
            add(self, self.server)
        self.address = "127.0.0.1:%d" % self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.kvs, self.revision, self.lease = {}, 1, 0

    def header(self):
        return rpc.ResponseHeader(revision=self.revision)

    def Range(self, request, context):
        return rpc.RangeResponse(header=self.header(), **(self.page() if self.page else {"kvs": self.kvs.values()}))

    def Txn(self, request, context):
        self.revision += 1
        put, compare = request.success[0].request_put, request.compare[0]
        now = self.kvs[put.key].mod_revision if put.key in self.kvs else 0
        done = compare.mod_revision == now and not self.contended
        if done:
            self.puts += 1
            self.kvs[put.key] = rpc.KeyValue(key=put.key, value=put.value, lease=put.lease, mod_revision=self.revision)
        return rpc.TxnResponse(header=self.header(), succeeded=done)

    def LeaseGrant(self, request, context):
        self.lease += 1
        return rpc.LeaseGrantResponse(header=self.header(), ID=self.lease, TTL=self.ttl_s or request.TTL)

    def LeaseRevoke(self, request, context):
        return rpc.LeaseRevokeResponse(header=self.header())

    def LeaseKeepAlive(self, requests, context):
        for r in requests:
            ttl = 0 if self.expire else TTL_S
            if self.expire:
                self.kvs, self.expire = {}, False
            yield rpc.LeaseKeepAliveResponse(header=self.header(), ID=r.ID, TTL=ttl)

    def Watch(self, requests, context):
        next(requests)
        self.watches += 1
        yield rpc.WatchResponse(header=self.header(), created=True)
        if self.compactions:
            self.compactions -= 1
            yield rpc.WatchResponse(header=self.header(), canceled=True, compact_revision=self.revision)
            return
        if self.ended:
            self.ended -= 1
            return
        while context.is_active():
            time.sleep(0.05)


class Faults(unittest.TestCase):
    def setUp(self):
        self.fake = Fake()
        self.addCleanup(lambda: self.fake.server.stop(0).wait())

    def says(self, *words):
        """The daemon does not join, says why not, and joins once the answers are sound."""
        with running(TERRACED, *flags("a", self.fake.address)) as a:
            wait_for(lambda: all(w in peers(a).reason for w in words), CALL_S, words)
            self.assertNotEqual(peers(a).state, "joined")
            self.fake.contended, self.fake.page, self.fake.ttl_s = False, None, None
            wait_names(a, "a")

    def test_pages_that_do_not_advance(self):
        kv = rpc.KeyValue(key=b"/terrace/c1/members/x", value=b"", mod_revision=1)
        self.fake.page = lambda: {"kvs": [kv], "more": True}
        self.says("Range", "not in order")

    def test_pages_without_end(self):
        numbers = itertools.count(1)
        key = b"/terrace/c1/members/%08d"
        self.fake.page = lambda: {"kvs": [rpc.KeyValue(key=key % next(numbers), mod_revision=1)], "more": True}
        self.says("Range", "more pages than")

    def test_an_answer_that_is_too_large(self):
        kv = rpc.KeyValue(key=b"/terrace/c1/members/x", value=bytes(5 << 20), mod_revision=1)
        self.fake.page = lambda: {"kvs": [kv]}
        self.says("Range", "larger than max")

    def test_a_life_that_makes_no_sense(self):
        self.fake.ttl_s = 1 << 62
        self.says("LeaseGrant", str(1 << 62))

    def test_writes_that_never_succeed(self):
        self.fake.contended = True
        self.says("key", "other writes")

    def test_compacted_expired_ended(self):
        self.fake.compactions, self.fake.ended = 2, 1
        with running(TERRACED, *flags("a", self.fake.address)) as a:
            wait_for(lambda: self.fake.watches >= 4, CALL_S, "a watch after each end")
            wait_names(a, "a")
            self.assertEqual(self.fake.puts, 1)
            self.fake.expire = True
            wait_for(lambda: self.fake.puts == 2, CALL_S, "registered under another lease")
            wait_names(a, "a")
            self.assertEqual(a.log().count("event=member_lease_expired"), 1)
            # Another write of this name with this daemon's node: a copied data folder. It is not fought over.
            member = pb.Member.FromString(self.fake.kvs[b"/terrace/c1/members/a"].value)
            member.epoch += 1
            self.fake.revision += 1
            self.fake.kvs[b"/terrace/c1/members/a"] = rpc.KeyValue(
                key=b"/terrace/c1/members/a", value=member.SerializeToString(), lease=99, mod_revision=self.fake.revision)
            a.admin.Drain(pb.DrainRequest(), timeout=CALL_S)  # it wants to write its key, and finds the other
            wait_for(lambda: peers(a).state == "refused", CALL_S, "refused")
            self.assertEqual(self.fake.puts, 2)


if __name__ == "__main__":
    if not shutil.which("etcd"):
        print("skipped: there is no etcd (Debian's etcd-server)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + [w for w in sys.argv[3:] if w != "--long"])

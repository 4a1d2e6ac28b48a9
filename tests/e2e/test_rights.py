"""Who may administer: real processes of other users and groups at a real daemon. usage: test_rights.py TERRACED TERRACECTL

Each client is a process that takes on its user and groups before it connects, as those need not be able to read the test's own files. For
other users than its own the test must run as root.
"""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import unittest

import grpc

from daemon import CALL_S, Daemon, health_pb2, health_pb2_grpc, key, keys, layout, pb, terrace_pb2_grpc

DAEMON_UID, ENGINE_UID, GROUP = 41234, 41001, 44242
SMALL = ("--host-bytes", "16MiB", "--extent-bytes", "1MiB")
# What each is asked; a method of the .proto that is missing here fails the test.
REQUESTS = {
    "Stats": {}, "Inspect": {"key": key(1).hex()}, "Explain": {"key": key(1).hex()}, "Graph": {"key": key(1).hex()}, "TraceStart": {"name": "t"},
    "TraceStop": {}, "Verify": {"max_ms": 1}, "Compact": {}, "Layouts": {}, "Drain": {"undo": True}, "Config": {}, "Peers": {},
    "Locate": {"keys": keys(1)},
}
FOR_ENGINES = {"Stats", "Locate"}


def make(name, fields):
    fields = {k: bytes.fromhex(v) if k == "key" else v for k, v in fields.items()}
    return getattr(pb, name + "Request")(**fields)


def answer(call, request):
    try:
        call(request, timeout=CALL_S)
        return "OK", ""
    except grpc.RpcError as e:
        return e.code().name, e.details()


def client(address, uid, gid, *groups):
    """The child: prints what each method of Admin answered, and what an engine's calls did, as JSON."""
    if uid >= 0:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    with grpc.insecure_channel(address) as channel:
        admin, cache = terrace_pb2_grpc.AdminStub(channel), terrace_pb2_grpc.CacheStub(channel)
        said = {n: answer(getattr(admin, n), make(n, f)) for n, f in REQUESTS.items()}
        opened = cache.OpenSession(pb.OpenSessionRequest(layouts=[layout()], engine="client"), timeout=CALL_S)
        said["Cache"] = answer(cache.Lookup, pb.LookupRequest(session=opened.session, keys=keys(1)))
        said["Health"] = answer(health_pb2_grpc.HealthStub(channel).Check, health_pb2.HealthCheckRequest())
        said["number"] = answer(admin.Explain, pb.ExplainRequest(key=key(1), number=opened.number))
        said["both"] = answer(admin.Explain, pb.ExplainRequest(key=key(1), number=opened.number, session=opened.session))
        said["foreign"] = answer(admin.Explain, pb.ExplainRequest(key=key(1), session=opened.session ^ 1))
        said["named"] = [s.labels for s in admin.Stats(pb.StatsRequest(), timeout=CALL_S).stats if "session=" in s.labels]
        own = admin.Explain(pb.ExplainRequest(key=key(1), session=opened.session), timeout=CALL_S).blocks
        said["own"] = [[b.tier, b.rival.hex(), [t.rival.hex() for t in b.tiers]] for b in own]
        cache.CloseSession(pb.CloseSessionRequest(session=opened.session), timeout=CALL_S)
    print(json.dumps(said))


class Rights(unittest.TestCase):
    def start(self, *flags, uid=None):
        d = Daemon(TERRACED, *SMALL, "--socket-mode", "0666", *flags, start=False)
        self.addCleanup(d.close)
        os.chmod(d.folder, 0o755)
        if uid is not None:
            os.chown(d.folder, uid, uid)
            d.terraced = shutil.copy(TERRACED, d.folder)  # where that user may read it
            os.close(os.open(d.log_path, os.O_CREAT, 0o644))

            def become():
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            d.before = become
        d.start()
        self.hold_something(d)
        return d

    def hold_something(self, d):
        """Two blocks, one of them leased, so that a session has a row of its own and a block a rival."""
        opened = d.open()
        size = opened.layouts[0].block_bytes
        self.assertEqual(d.put(opened.session, [(key(2), b"2" * size), (key(1), b"1" * size)]), [pb.OK, pb.OK])
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(s.close)
        s.connect(opened.fd_socket)
        s.send(struct.pack("<IHH", 0x46445254, 3, 1) + opened.token)
        attachment = struct.unpack("<IHHIIQQQ", s.recv(4096))[7]
        leased = d.cache.Lease(pb.LeaseRequest(session=opened.session, keys=keys(1), attachment=attachment), timeout=CALL_S)
        self.assertEqual(leased.status, pb.OK)
        self.opened = opened

    def ask(self, address, uid=-1, gid=-1, groups=()):
        p = subprocess.run([sys.executable, os.path.abspath(__file__), "--client", address, *map(str, (uid, gid, *groups))],
                           stdout=subprocess.PIPE, timeout=4 * CALL_S, check=True)
        return json.loads(p.stdout)

    def may(self, said):
        for name in REQUESTS:
            self.assertNotEqual(said[name][0], "PERMISSION_DENIED", (name, said[name]))
        self.assertEqual(said["Layouts"][0], "OK")
        self.assertEqual(said["number"][0], "OK")
        self.assertEqual(said["both"][0], "INVALID_ARGUMENT")
        self.assertEqual(len(said["named"]), 1)
        self.assertIn("session=%d,engine=e2e," % self.opened.number, said["named"][0])
        self.assertEqual(said["own"][0][1], key(2).hex())
        self.everybody(said)

    def may_not(self, said, *words):
        for name in REQUESTS:
            if name in FOR_ENGINES:
                self.assertEqual(said[name][0], "OK", (name, said[name]))
                continue
            self.assertEqual(said[name][0], "PERMISSION_DENIED", (name, said[name]))
            for word in (name, "admin_group", *words):
                self.assertIn(word, said[name][1])
        self.assertEqual(said["number"][0], "PERMISSION_DENIED")
        self.assertEqual(said["named"], [])
        self.assertEqual(said["own"][0][1:], ["", [""]])
        self.everybody(said)

    def everybody(self, said):
        self.assertEqual(said["Cache"][0], "OK")
        self.assertEqual(said["Health"][0], "OK")
        self.assertEqual(said["foreign"][0], "NOT_FOUND")
        self.assertEqual([b[0] for b in said["own"]], ["host"])

    def nothing_was_done(self, d):
        self.assertEqual(d.admin.Stats(pb.StatsRequest(), timeout=CALL_S).state, "serving")
        self.assertEqual([n for n in os.listdir(os.path.join(d.folder, "data")) if "trace" in n or n == "t"], [])

    def test_every_method_is_asked(self):
        self.assertEqual(sorted(m.name for m in pb.DESCRIPTOR.services_by_name["Admin"].methods), sorted(REQUESTS))

    def test_the_daemons_own_user_and_tcp(self):
        d = self.start("--listen", "127.0.0.1:0")
        port = d.log().split(" port=")[1].split()[0]
        self.may_not(self.ask("127.0.0.1:" + port), "TCP", "Unix socket")
        self.nothing_was_done(d)
        self.may(self.ask(d.address))

    @unittest.skipIf(os.geteuid(), "to be other users the test must run as root")
    def test_a_daemon_of_root(self):
        d = self.start("--admin-group", str(GROUP))
        self.may_not(self.ask(d.address, ENGINE_UID, ENGINE_UID), "uid %d" % ENGINE_UID, "(%d)" % GROUP)
        self.may_not(self.ask(d.address, ENGINE_UID, ENGINE_UID, range(GROUP + 1, GROUP + 200)), "uid %d" % ENGINE_UID)
        self.nothing_was_done(d)
        self.assertIn("event=rpc_denied", d.log())
        denied = [v for k, v in d.stats().items() if k.startswith("terrace_rpc_calls_total") and "Admin.Drain,status=DENIED" in k]
        self.assertEqual(denied, [2])
        self.may(self.ask(d.address, ENGINE_UID, ENGINE_UID, (7, GROUP)))
        self.may(self.ask(d.address, ENGINE_UID, ENGINE_UID, [*range(1, 200), GROUP]))
        self.may(self.ask(d.address, ENGINE_UID, GROUP))
        self.may(self.ask(d.address, 0, 0))

    @unittest.skipIf(os.geteuid(), "to be other users the test must run as root")
    def test_a_daemon_of_another_user(self):
        d = self.start(uid=DAEMON_UID)
        self.may_not(self.ask(d.address, ENGINE_UID, ENGINE_UID), "uid %d, process" % ENGINE_UID, "uid %d (the daemon's)" % DAEMON_UID, "(off)")
        self.may_not(self.ask(d.address, ENGINE_UID, DAEMON_UID, (DAEMON_UID, 0)), "uid %d" % ENGINE_UID)
        self.nothing_was_done(d)
        self.may(self.ask(d.address, DAEMON_UID, ENGINE_UID))
        self.may(self.ask(d.address, 0, 0))

    @unittest.skipIf(os.geteuid(), "to be another user the test must run as root")
    def test_the_tool_says_what_to_do(self):
        d = self.start()
        ctl = shutil.copy(TERRACECTL, d.folder)
        run = lambda uid, *words: subprocess.run([ctl, "--address", d.address, *words], user=uid, group=uid, extra_groups=[],
                                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=CALL_S)
        for words in ("layouts",), ("drain",), ("config",), ("verify",), ("inspect", key(1).hex()), ("explain", key(1).hex()), ("trace", "stop"):
            p = run(ENGINE_UID, *words)
            self.assertEqual(p.returncode, 1, (words, p))
            self.assertIn("uid %d" % ENGINE_UID, p.stderr)
            self.assertIn("call as one of them, or set admin_group", p.stderr)
        self.assertEqual(run(ENGINE_UID, "status").returncode, 0)
        self.assertIn("session=%d" % self.opened.number, run(0, "stat", "session").stdout)
        self.assertNotIn("session=", run(ENGINE_UID, "stat", "session").stdout)
        self.assertEqual(run(0, "explain", "--session", str(self.opened.number), key(1).hex()).returncode, 0)
        p = run(0, "explain", "--session", "77", key(1).hex())
        self.assertIn("number: no open session has it", p.stderr)

    def test_a_group_that_is_not_there(self):
        p = subprocess.run([TERRACED, "--check-config", "--admin-group", "no such group"], stderr=subprocess.PIPE, text=True, timeout=CALL_S)
        self.assertEqual(p.returncode, 2)
        self.assertIn('admin_group: "no such group": this machine has no group of that name', p.stderr)


if __name__ == "__main__":
    if sys.argv[1] == "--client":
        client(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        TERRACED, TERRACECTL = sys.argv[1:3]
        del sys.argv[1:3]
        unittest.main(verbosity=2)

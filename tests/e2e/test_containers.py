"""Engines and daemons in PID and user namespaces of their own, as containers have them. usage: test_containers.py TERRACED LIBTERRACE

Who an engine is comes from the kernel, as the daemon's own namespaces see it. An engine whose number the daemon cannot see is
attached, and its end is seen, like any other.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import grpc

from daemon import CALL_S, ROOT, Daemon, key, pb, terrace_pb2_grpc, wait_for

UID = 41002
SMALL = ("--host-bytes", "16MiB", "--extent-bytes", "1MiB", "--socket-mode", "0666")
TABLE = "tenant = alpha\nuids = 0\ntenant = beta\nuids = %d\n" % UID
UNMAPPED = 65534
CLONE_NEWUSER, CLONE_NEWPID, PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 0x10000000, 0x20000000, 1, 4
libc = ctypes.CDLL(None, use_errno=True)


def refused_namespaces():
    """Why this machine makes no namespaces; empty: it does."""
    if os.geteuid() != 0:
        return "namespaces and other users' processes want root"
    p = subprocess.run(["unshare", "--user", "--map-root-user", "--pid", "--fork", "true"], stderr=subprocess.PIPE, check=False)
    return "the kernel makes no user and PID namespaces here: %s" % p.stderr.decode().strip() if p.returncode else ""


class Inside(Daemon):
    """A daemon that `unshare` with these options starts."""

    def __init__(self, *flags, options):
        self.options = options
        super().__init__(TERRACED, *flags, start=False)
        os.chmod(self.folder, 0o755)

    def command(self):
        return ["unshare", *self.options, "--fork", "--kill-child", *super().command()]

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.kill()  # of unshare; the daemon dies with it
        super().close()


@unittest.skipIf(refused_namespaces(), refused_namespaces())
class Containers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="terrace-containers-")
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.table = os.path.join(self.folder, "tenants")
        with open(self.table, "w", encoding="ascii") as f:
            f.write(TABLE)

    def daemon(self, *flags, options=None):
        d = Inside(*SMALL, *flags, options=options) if options else Daemon(TERRACED, *SMALL, *flags, start=False)
        self.addCleanup(d.close)
        os.chmod(d.folder, 0o755)
        d.start()
        return d

    def engine(self, d, uid, inside, *more):
        """An engine process of that user, `inside` that user of its own namespaces (-1: of none). Returns it and what it says."""
        p = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--engine", LIBTERRACE, d.address, str(uid), str(inside), *more],
                             stdout=subprocess.PIPE, text=True)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.wait, CALL_S)
        self.addCleanup(p.kill)
        said = {}
        for line in p.stdout:
            said.update(json.loads(line))
            if "end" in said:
                break
        return p, said

    def end(self, d, said, pinned):
        """The engine is killed: the daemon sees it, and what it had leased is free."""
        self.assertGreater(pinned(d), 0)
        os.kill(said["pid_outside"], signal.SIGKILL)
        wait_for(lambda: pinned(d) == 0, CALL_S, "the lease of the killed engine has ended")
        wait_for(lambda: "event=detached" in d.log(), CALL_S, "the daemon says so")

    def pinned(self, d, tenant=None):
        stats = d.stats()
        return stats["terrace_tenant_pinned_bytes{tenant=%s}" % tenant] if tenant else stats["terrace_pinned_bytes{tier=host}"]

    # ---- engines in containers ----

    def test_an_engine_is_who_it_is_outside(self):
        for inside in (0, 1000):
            with self.subTest(inside=inside):
                d = self.daemon("--tenants", self.table, "--tenant-metrics", "8")
                _, said = self.engine(d, UID, inside)
                self.assertEqual((said["uid"], said["pid"], said["borrows"]), (inside, 1, True), said)
                self.assertIn("event=attached pid=%d " % said["pid_outside"], d.log())
                self.assertEqual(said["admin"][0], "PERMISSION_DENIED")  # though it is root in its own eyes
                self.assertIn("uid %d" % UID, said["admin"][1])
                self.assertEqual(self.pinned(d, "alpha"), 0)
                self.end(d, said, lambda d: self.pinned(d, "beta"))
                self.assertGreater(d.stats()["terrace_tenant_blocks{tenant=beta}"], 0)

    def test_a_user_of_no_tenant(self):
        d = self.daemon("--tenants", self.table)
        _, said = self.engine(d, UID + 1, 0)
        self.assertEqual(said["error"][0], "DENIED")
        self.assertIn("uid %d" % (UID + 1), said["error"][1])
        self.assertIn("of no tenant", said["error"][1])

    # ---- daemons in containers ----

    def test_a_daemon_that_sees_no_pid(self):
        d = self.daemon(options=["--pid"])
        ends = []
        for _ in range(2):  # which have the same number, 0
            ends.append(self.engine(d, 0, -1))
            self.assertTrue(ends[-1][1].get("borrows"), ends[-1][1])
        self.assertIn("event=attached pid=0 ", d.log())
        one = self.pinned(d) / 2
        os.kill(ends[0][1]["pid_outside"], signal.SIGKILL)
        wait_for(lambda: self.pinned(d) == one, CALL_S, "the lease of the killed engine has ended, and the other's has not")
        self.end(d, ends[1][1], self.pinned)

    def test_unmapped_users_are_of_no_tenant(self):
        d = self.daemon("--tenants", self.table, options=["--user", "--map-root-user", "--pid"])
        _, said = self.engine(d, UID, -1)
        self.assertEqual(said["error"][0], "DENIED")
        self.assertIn("uid %d" % UNMAPPED, said["error"][1])
        self.assertIn("user namespace", said["error"][1])
        _, said = self.engine(d, 0, -1)  # which is mapped
        self.assertTrue(said.get("borrows"), said)

    def test_unmapped_users_are_no_administrators(self):
        """Also of a daemon that has the number by which the kernel shows them."""
        d = self.daemon(options=["--user", "--map-user=%d" % UNMAPPED])
        _, said = self.engine(d, UID, -1)
        self.assertTrue(said.get("borrows"), said)  # there is no table: each user that may open the socket is an engine
        self.assertEqual(said["admin"][0], "PERMISSION_DENIED", said)
        self.assertIn("user namespace", said["admin"][1])

    def test_no_group_of_unmapped_users_administers(self):
        p = subprocess.run([TERRACED, "--check-config", "--data-dir", os.path.join(self.folder, "data"), "--socket",
                            os.path.join(self.folder, "s.sock"), "--admin-group", str(UNMAPPED)],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=CALL_S, check=False)
        self.assertEqual(p.returncode, 2, p.stderr)
        self.assertIn("cannot map", p.stderr.decode())


# ---- an engine ----


def call(what, *arguments):
    if what(*arguments):
        raise OSError(ctypes.get_errno(), "%s: %s" % (what.__name__, os.strerror(ctypes.get_errno())))


def write(path, text):
    with open(path, "w", encoding="ascii") as f:
        f.write(text)


def go_inside(uid, inside):
    """Becomes that user, `inside` that one in namespaces of its own. Returns in a child of number 1."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if inside < 0:
        print(json.dumps({"pid_outside": os.getpid()}), flush=True)
        return
    call(libc.prctl, PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self is root's now
    call(libc.unshare, CLONE_NEWUSER | CLONE_NEWPID)
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", "%d %d 1" % (inside, uid))
    write("/proc/self/gid_map", "%d %d 1" % (inside, uid))
    child = os.fork()
    if child:
        print(json.dumps({"pid_outside": child}), flush=True)
        os.waitpid(child, 0)
        os._exit(0)
    call(libc.prctl, PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def administers(address):
    with grpc.insecure_channel(address) as c:
        try:
            terrace_pb2_grpc.AdminStub(c).Layouts(pb.LayoutsRequest(), timeout=CALL_S)
            return "OK", ""
        except grpc.RpcError as e:
            return e.code().name, e.details()


def engine(library, address, uid, inside):
    """Stores a block in place, leases it, says what it is, and waits to be killed."""
    os.environ["LIBTERRACE"] = library
    sys.path.insert(0, os.path.join(ROOT, "client", "python"))
    import terrace  # pylint: disable=import-outside-toplevel
    terrace.version()  # loads the library, which another user may not read
    go_inside(int(uid), int(inside))
    said = {"uid": os.getuid(), "pid": os.getpid()}
    with contextlib.ExitStack() as stack:
        try:
            client = stack.enter_context(terrace.connect(address, timeout=CALL_S))
            session = stack.enter_context(client.session([terrace.Layout("containers", layers=2, heads=2, head_dim=64)], engine="inside"))
            name = key(os.getpid())
            with session.reserve([name]) as slots:
                slots.block(0)[:] = b"c" * len(slots.block(0))
                slots.commit()
            lease = stack.enter_context(session.lease([name]))
            said.update(borrows=session.borrows, leased=bytes(lease.block(0)[:1]) == b"c", admin=administers(address))
        except terrace.Error as e:
            said["error"] = e.status.name, str(e)
        print(json.dumps({**said, "end": True}), flush=True)
        signal.pause()


if __name__ == "__main__":
    if sys.argv[1] == "--engine":
        engine(*sys.argv[2:])
    else:
        TERRACED, LIBTERRACE = sys.argv[1:3]
        unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)

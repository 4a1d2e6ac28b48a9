"""A real terraced that is short of something: `test_limits.py TERRACED [--long]`.

The file system of its data folder is full, files may not grow, threads may not be started, signals come that mean no end, a backup of the catalog
is killed, another daemon takes over its sockets. It lives and serves, or does not start; and it says why, and what to do.
"""

import ctypes
import glob
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import CALL_S, Daemon, key, keys, layout, pb, running, wait_for  # noqa: E402

TERRACED = os.environ.get("TERRACED", "terraced")
SMALL = ("--host-bytes", "16MiB", "--extent-bytes", "4MiB", "--slab-bytes", "4MiB")
LAYOUT = layout()
LONG = False


def block(number, size):
    return bytes((number * 7 + i) % 251 for i in range(256)) * (size // 256 + 1)


def sanitized():
    """Sanitizers live on address space."""
    with open(TERRACED, "rb") as f:
        program = f.read()
    return b"__asan_init" in program or b"__tsan_init" in program


class Limits(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="terrace-limits-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def disk(self, size="64MiB"):
        return ("--disks", "%s:%s" % (os.path.join(self.folder, "disk"), size))

    def tmpfs(self, size):
        """A small file system; skips the test where none may be mounted."""
        at = os.path.join(self.folder, "small")
        os.mkdir(at)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%d" % size, "none", at], stderr=subprocess.DEVNULL, check=False).returncode:
            self.skipTest("a tmpfs cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", at], check=False)
        return at

    @staticmethod
    def fill(folder):
        """Takes all room that there is: the file that has it."""
        name = os.path.join(folder, "ballast")
        with open(name, "wb", buffering=0) as f:
            for step in (1 << 16, 1 << 12, 1):
                try:
                    while f.write(b"b" * step):
                        pass
                except OSError:
                    pass
        return name

    def put(self, daemon, session, numbers):
        size = session.layouts[0].block_bytes
        some = [(key(n), block(n, size)[:size]) for n in numbers]
        self.assertEqual(daemon.put(session.session, some, chunk=1 << 19), [pb.OK] * len(some))

    def right(self, daemon, session, numbers):
        """How many are there, with the right bytes; wrong bytes fail."""
        size, there = session.layouts[0].block_bytes, 0
        for index, (status, data) in daemon.get(session.session, keys(*numbers)).items():
            self.assertIn(status, (pb.OK, pb.MISS))
            if status == pb.OK:
                self.assertEqual(data, block(list(numbers)[index], size)[:size])
                there += 1
        return there

    @staticmethod
    def flush(daemon, session, *numbers):
        return daemon.cache.Flush(pb.FlushRequest(session=session.session, keys=keys(*numbers)), timeout=CALL_S)

    def refused(self, *flags, before=None, data=None):
        """Starts a daemon that must not come up: its exit status and its words."""
        done = subprocess.run([TERRACED, "--data-dir", data or os.path.join(self.folder, "data"), "--socket", os.path.join(self.folder, "r.sock"),
                               *SMALL, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=before,
                              timeout=CALL_S, check=False)
        return done.returncode, done.stdout

    # ---- a full data folder ----

    def trace(self, daemon, session):
        """Its file can be made, or not; nothing can be written to it."""
        with self.assertRaises(grpc.RpcError) as traced:
            daemon.admin.TraceStart(pb.TraceStartRequest(name="t"), timeout=CALL_S)
            daemon.cache.Lookup(pb.LookupRequest(session=session.session, keys=keys(1, 2, 3)), timeout=CALL_S)
            wait_for(lambda: "event=trace_failing" in daemon.log(), CALL_S, "the log says so")
            daemon.admin.TraceStop(pb.TraceStopRequest(), timeout=CALL_S)
        self.assertEqual(traced.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("data/traces", traced.exception.details())
        self.assertIn("the file system is full (No space left on device): free room there", traced.exception.details())

    def test_the_data_folder_is_full(self):
        small = self.tmpfs(4 << 20)
        daemon = Daemon(TERRACED, *SMALL, *self.disk(), start=False)
        self.addCleanup(daemon.close)
        os.symlink(os.path.join(small, "data"), os.path.join(daemon.folder, "data"))
        os.mkdir(os.path.join(small, "data"))
        daemon.start()
        session = daemon.open(LAYOUT)
        self.put(daemon, session, range(8))
        self.assertEqual(list(self.flush(daemon, session, *range(8)).status), [pb.OK] * 8)
        ballast, number = self.fill(small), 8
        while True:
            self.put(daemon, session, [number])
            reply = self.flush(daemon, session, number)
            number += 1
            if list(reply.status) != [pb.OK]:
                break
            self.assertLess(number, 2000, "the catalog still finds room")
        self.assertEqual(list(reply.status), [pb.EXHAUSTED])
        self.assertIn("data/catalog cannot be written: the file system is full (No space left on device): free room there", reply.reason)
        self.assertEqual(daemon.stats()["terrace_catalog_full"], 1)
        wait_for(lambda: "event=catalog_failing" in daemon.log(), CALL_S, "the log says so")
        self.assertIn("the file system is full", daemon.log())
        self.assertNotIn("Input/output error", daemon.log())
        self.trace(daemon, session)
        with self.assertRaises(grpc.RpcError) as deleted:
            daemon.cache.Delete(pb.DeleteRequest(session=session.session, keys=keys(0)), timeout=CALL_S)
        self.assertIn("a restart may bring them back: the catalog in ", deleted.exception.details())
        self.assertEqual(self.right(daemon, session, range(1, number)), number - 1)  # it serves on
        self.put(daemon, session, range(number, number + 8))
        os.unlink(ballast)
        wait_for(lambda: list(self.flush(daemon, session, *range(1, number + 8)).status) == [pb.OK] * (number + 7), CALL_S,
                 "flushes work again, without a restart")
        self.assertEqual(daemon.stats()["terrace_catalog_full"], 0)
        daemon.kill()
        daemon.start()
        wait_for(lambda: daemon.stats()["terrace_restored"] == 1, CALL_S, "the catalog is taken up")
        session = daemon.open(LAYOUT)
        self.assertEqual(self.right(daemon, session, range(1, number + 8)), number + 7)

    def test_a_stop_while_the_data_folder_is_full(self):
        small = self.tmpfs(4 << 20)
        daemon = Daemon(TERRACED, *SMALL, *self.disk(), start=False)
        self.addCleanup(daemon.close)
        os.symlink(os.path.join(small, "data"), os.path.join(daemon.folder, "data"))
        os.mkdir(os.path.join(small, "data"))
        daemon.start()
        session = daemon.open(LAYOUT)
        ballast, number = self.fill(small), 0
        while True:
            self.put(daemon, session, [number])
            number += 1
            if list(self.flush(daemon, session, number - 1).status) != [pb.OK]:
                break
        daemon.stop()
        self.assertIn("event=catalog_not_written", daemon.log())
        os.unlink(ballast)
        daemon.start()  # by the headers
        wait_for(lambda: daemon.stats()["terrace_restored"] == 1, CALL_S, "the disk is taken up")
        self.assertEqual(self.right(daemon, daemon.open(LAYOUT), range(number)), number)

    def test_a_start_on_a_full_file_system(self):
        """Whatever there is no room for is told of; nothing ends the process (LMDB writes to a mapped file, which would be SIGBUS)."""
        small = self.tmpfs(1 << 20)
        data = os.path.join(small, "data")
        ballast = self.fill(small)
        for room in (0, 1, 3, 4, 5, 8, 12):  # pages: with four the catalog could be made, and its lock file not
            shutil.rmtree(data, ignore_errors=True)
            with open(ballast, "ab") as f:
                f.truncate((1 << 20) - (room << 12))
            code, words = self.refused(*self.disk(), data=data)
            self.assertEqual(code, 1, words)
            self.assertIn("the file system is full (No space left on device): free room there", words)
            self.assertIn(data, words)

    # ---- files that may not grow ----

    def test_files_may_not_be_as_large_as_slabs(self):
        flags = [*SMALL[:4], *self.disk("16GiB")]  # slabs of 16 MiB
        daemon = Daemon(TERRACED, *flags, start=False)
        self.addCleanup(daemon.close)
        daemon.before = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
        daemon.start()
        session = daemon.open(LAYOUT)
        self.put(daemon, session, range(20))
        reply = self.flush(daemon, session, *range(20))
        self.assertEqual(set(reply.status), {pb.EXHAUSTED})
        self.assertIn("a file may not be that large (File too large): raise the limit on file sizes (ulimit -f, LimitFSIZE)", reply.reason)
        self.assertEqual(self.right(daemon, session, range(20)), 20)
        self.assertIn("event=file_size", daemon.log())
        daemon.stop()
        daemon.before = None  # without the limit
        daemon.start()
        session = daemon.open(LAYOUT)
        self.put(daemon, session, range(20))
        self.assertEqual(set(self.flush(daemon, session, *range(20)).status), {pb.OK})

    def test_files_may_not_be_as_large_as_memory(self):
        code, words = self.refused(before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
        self.assertEqual(code, 1, words)
        self.assertIn("ulimit -f", words)

    # ---- descriptors, address space ----

    def test_too_few_of_either(self):
        """With as few as gRPC ends the process for, or hangs with, among others."""
        for what, bounds, words in ((resource.RLIMIT_NOFILE, (10, 24, 26, 40), "more files, and wants"),
                                    (resource.RLIMIT_AS, (400 << 20, 700 << 20), "more of address space, host_bytes among them")):
            if what == resource.RLIMIT_AS and sanitized():
                continue
            for most in bounds:
                code, said = self.refused(*self.disk(), before=lambda of=what, most=most: resource.setrlimit(of, (most, most)))
                self.assertEqual(code, 1, said)
                self.assertIn(words, said)
                self.assertIn("ulimit -", said)

    # ---- threads ----

    @staticmethod
    def removed(group):
        try:
            os.rmdir(group)
        except OSError:
            return False
        return True

    def test_threads_may_not_be_started(self):
        """With none to spare, with some, and with as many as gRPC would hang or die with."""
        group = None
        try:
            group = tempfile.mkdtemp(prefix="terrace-limits-", dir="/sys/fs/cgroup/pids")
        except OSError:
            if os.geteuid() == 0:
                self.skipTest("no pids controller that can be written, and no other limit holds for root")

        def bounded(most):
            def before():
                if group is None:
                    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
                    return
                with open(group + "/pids.max", "w", encoding="ascii") as f:
                    f.write(str(most))
                with open(group + "/cgroup.procs", "w", encoding="ascii") as f:
                    f.write(str(os.getpid()))
            return before

        try:
            for most in (1, 6, 13, 14, 16, 18):
                code, words = self.refused("--disks", "off", before=bounded(most))
                self.assertEqual(code, 1, words)
                self.assertIn("more threads, and wants", words)
                self.assertIn("ulimit -u, TasksMax, pids.max", words)
        finally:
            if group:
                    wait_for(lambda: self.removed(group), CALL_S, "the group is empty")

    # ---- signals ----

    def test_signals_that_mean_no_end(self):
        with running(TERRACED, *SMALL) as daemon:
            for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGIO, signal.SIGPIPE, signal.SIGXFSZ):
                daemon.process.send_signal(signum)
            session = daemon.open(LAYOUT)
            self.put(daemon, session, range(4))
            wait_for(lambda: daemon.log().count("event=signal_ignored") == 4 and "event=hangup_ignored" in daemon.log(), CALL_S, "they are told of")
            self.assertIsNone(daemon.process.poll())

    def test_signals_that_end_it_in_order(self):
        for signum, word in ((signal.SIGXCPU, "ulimit -t"), (signal.SIGPWR, "the power is going"), (signal.SIGINT, "event=draining")):
            with running(TERRACED, *SMALL) as daemon:
                daemon.open(LAYOUT)
                daemon.stop(signum=signum)
                self.assertIn(word, daemon.log())
                self.assertIn("event=stopped", daemon.log())

    # ---- one daemon after another ----

    def test_sockets_are_handed_over(self):
        """Daemons of two data folders with one path: the daemon that is ready has the sockets, however closely it follows the one that stops."""
        path, files = os.path.join(self.folder, "s.sock"), ("s.sock", "s.fd", "m")
        flags = ["--socket", path, "--metrics-address", "unix:" + os.path.join(self.folder, "m"), *SMALL]
        logs = [os.path.join(self.folder, "log%d" % i) for i in range(2)]

        def start(i):
            log = open(logs[i], "wb")  # noqa: SIM115: the child's
            with log:
                return subprocess.Popen([TERRACED, "--data-dir", os.path.join(self.folder, "data%d" % i), *flags], stdout=log, stderr=log)

        def ready(i):
            with open(logs[i], encoding="utf-8") as f:
                return "event=ready" in f.read()

        def answered(name):
            for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
                with socket.socket(socket.AF_UNIX, kind) as s:
                    if s.connect_ex(os.path.join(self.folder, name)) == 0:
                        return True
            return False

        now, which = start(0), 0
        try:
            wait_for(lambda: ready(0), CALL_S, "the first is ready")
            for _ in range(5):
                which = 1 - which
                now.send_signal(signal.SIGTERM)
                following = start(which)
                end = time.monotonic() + CALL_S
                while not ready(which) and time.monotonic() < end:
                    if following.poll() is not None:  # the other one still had a path
                        following = start(which)
                    time.sleep(.005)
                self.assertEqual(now.wait(CALL_S), 0)
                now = following
                self.assertTrue(ready(which))
                self.assertEqual([name for name in files if not answered(name)], [], "lost to the one that stopped")
            now.send_signal(signal.SIGTERM)
            self.assertEqual(now.wait(CALL_S), 0)
            self.assertEqual([name for name in files if os.path.exists(os.path.join(self.folder, name))], [])
            self.assertEqual(glob.glob(os.path.join(self.folder, "*.lock")), [])
        finally:
            if now.poll() is None:
                now.kill()
                now.wait()

    # ---- readers of the catalog ----

    def test_a_backup_that_was_killed(self):
        """It takes the minute after which the daemon looks."""
        if not LONG:
            self.skipTest("with --long")
        with running(TERRACED, *SMALL, *self.disk()) as daemon:
            session = daemon.open(LAYOUT)
            self.put(daemon, session, range(8))
            self.assertEqual(set(self.flush(daemon, session, *range(8)).status), {pb.OK})
            catalog = os.path.join(daemon.folder, "data", "catalog")
            ours, theirs = os.pipe()
            reader = os.fork()
            if not reader:
                lmdb, env, txn = ctypes.CDLL("liblmdb.so.0"), ctypes.c_void_p(), ctypes.c_void_p()
                bad = lmdb.mdb_env_create(ctypes.byref(env)) or lmdb.mdb_env_open(env, catalog.encode(), 0x20000, 0o600) or \
                    lmdb.mdb_txn_begin(env, None, 0x20000, ctypes.byref(txn))
                os.write(theirs, b"x" if bad else b"r")
                signal.pause()
            self.assertEqual(os.read(ours, 1), b"r")
            self.assertEqual(daemon.stats()["terrace_catalog_readers_cleared_total"], 0)
            os.kill(reader, signal.SIGKILL)
            os.waitpid(reader, 0)
            wait_for(lambda: daemon.stats()["terrace_catalog_readers_cleared_total"] == 1, 10 * 60, "it is forgotten")
            wait_for(lambda: "event=catalog_readers_cleared readers=1" in daemon.log(), CALL_S, "the log says so")


if __name__ == "__main__":
    TERRACED = sys.argv[1]
    LONG = "--long" in sys.argv
    unittest.main(argv=sys.argv[:1] + (["Limits.test_a_backup_that_was_killed"] if LONG else []), verbosity=2)

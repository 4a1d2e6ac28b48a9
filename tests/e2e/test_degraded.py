"""A real terraced that starts without parts of its configuration: `test_degraded.py TERRACED TERRACECTL`.

Disks that cannot be used, GPUs that are not there, slab files that are gone. The daemon serves with what is left, and says in its status, its
metrics and its log what is missing, why, and what to do. What is deleted meanwhile stays deleted. What --check-config says of folders.
"""

import contextlib
import ctypes
import glob
import http.client
import json
import os
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
from daemon import CALL_S, key, keys, layout, pb, running, wait_for  # noqa: E402

TERRACED, TERRACECTL = os.environ.get("TERRACED", "terraced"), os.environ.get("TERRACECTL", "terracectl")
SMALL = ("--host-bytes", "16MiB", "--extent-bytes", "1MiB", "--slab-bytes", "1MiB")

libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 0x20000, 1, 32, 0x1000, 0x4000, 1 << 18, 24, 1


def must(result):
    if result:
        raise OSError(ctypes.get_errno(), "a call of the test's own failed")


def read_only(folder):
    """To be run in a child: the folder is mounted read-only for it alone."""
    path = folder.encode()
    must(libc.unshare(CLONE_NEWNS))
    must(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    must(libc.mount(path, path, None, MS_BIND, None))
    must(libc.mount(None, path, None, MS_BIND | MS_REMOUNT | MS_RDONLY, None))


def obeys_modes():
    """To be run in a child: root may read and write what the file's mode lets it."""
    if os.geteuid() == 0:
        must(libc.prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0))


def may_mount(folder):
    child = os.fork()
    if child == 0:
        try:
            read_only(folder)
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


class UnixHTTP(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=CALL_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def block(number, size):
    return (b"%08d" % number) * (size // 8)


class Degraded(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="terrace-degraded-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.metrics = os.path.join(self.folder, "metrics.sock")

    def flags(self, *more):
        """With two disks of their own."""
        self.place = tempfile.mkdtemp(dir=self.folder)
        os.mkdir(os.path.join(self.place, "mount"))
        self.a, self.b = os.path.join(self.place, "a"), os.path.join(self.place, "mount", "b")
        return (*SMALL, "--metrics-address", "unix:" + self.metrics, "--disks", "%s:32MiB,%s:32MiB" % (self.a, self.b), *more)

    def page(self, path):
        http_to = UnixHTTP(self.metrics)
        http_to.request("GET", path)
        reply = http_to.getresponse()
        return reply.status, reply.read().decode()

    def ctl(self, daemon, *words):
        return subprocess.run([TERRACECTL, "--address", daemon.address, *words], capture_output=True, text=True, timeout=CALL_S, check=False)

    def open(self, daemon):
        opened = daemon.open(layout(layers=4))
        self.size = opened.layouts[0].block_bytes
        return opened.session

    def restored(self, daemon):
        wait_for(lambda: daemon.stats()["terrace_restored"] == 1, CALL_S, "the disks are taken up")

    def store(self, daemon, session, numbers):
        items = [(key(n), block(n, self.size)) for n in numbers]
        self.assertEqual(daemon.put(session, items), [pb.OK] * len(items))
        reply = daemon.cache.Flush(pb.FlushRequest(session=session, keys=keys(*numbers)), timeout=CALL_S)
        self.assertEqual(list(reply.status), [pb.OK] * len(items))

    def there(self, daemon, session, numbers):
        numbers, found = list(numbers), set()
        for index, (status, data) in daemon.get(session, keys(*numbers)).items():
            self.assertIn(status, (pb.OK, pb.MISS))
            if status == pb.OK:
                self.assertEqual(data, block(numbers[index], self.size))
                found.add(numbers[index])
        return found

    def delete(self, daemon, session, numbers):
        reply = daemon.cache.Delete(pb.DeleteRequest(session=session, keys=keys(*numbers)), timeout=CALL_S)
        self.assertEqual(len(reply.status), len(numbers))

    def says(self, daemon, part, why, remedy, event):
        """Everywhere: status, the metrics page, /healthz, the log."""
        told = json.loads(self.ctl(daemon, "--json", "status").stdout)
        self.assertEqual((told["health"], told["state"]), ("SERVING", "degraded"))
        self.assertEqual(len(told["degraded"]), 1)
        self.assertIn(part, told["degraded"][0]["reason"])
        self.assertIn(why, told["degraded"][0]["reason"])
        self.assertIn(why, self.ctl(daemon, "status").stdout)
        self.assertEqual(list(daemon.admin.Stats(pb.StatsRequest(), timeout=CALL_S).faults), [told["degraded"][0]["reason"]])
        self.assertEqual(self.page("/healthz"), (200, "degraded\n"))
        self.assertRegex(self.page("/metrics")[1], r"(?m)^terrace_degraded 1$")
        line = [text for text in daemon.log().splitlines() if "event=" + event in text][-1]
        self.assertIn("level=error", line)
        self.assertIn(why, line)
        self.assertIn(remedy, line)

    # ---- disks ----

    @contextlib.contextmanager
    def broken(self, kind, daemon):
        """Disk 1 is so, within; then it is as it was."""
        away, disk_id = os.path.join(self.place, "away"), os.path.join(self.b, "disk.id")
        if kind == "parent":
            os.rename(os.path.dirname(self.b), away)
            yield self.b, "is missing", "mount it"
            os.rename(away, os.path.dirname(self.b))
        elif kind == "mount":
            os.rename(self.b, away)
            yield "%s: is missing" % self.b, "not mounted", "mount it"
            self.assertFalse(os.path.exists(self.b), "no new disk was made at the mount point")
            os.rename(away, self.b)
        elif kind == "damaged":
            shutil.copy(disk_id, away)
            os.truncate(disk_id, 5)
            yield disk_id, "is too short", "restore disk.id"
            shutil.copy(away, disk_id)
        elif kind == "read-only" and may_mount(self.b):
            daemon.before = lambda: read_only(self.b)
            yield disk_id, "Read-only file system", "mend the reason"
            daemon.before = None
        else:
            os.chmod(disk_id, 0o400)
            os.chmod(self.b, 0o500)
            daemon.before = obeys_modes
            yield disk_id, "Permission denied", "mend the reason"
            daemon.before = None
            os.chmod(self.b, 0o700)
            os.chmod(disk_id, 0o600)

    def filled(self, daemon):
        """self.count blocks, ten at least on each of two disks; then the daemon is stopped."""
        session, self.count = self.open(daemon), 0
        while min(daemon.stats()["terrace_disk_blocks{disk=%d}" % disk] for disk in (0, 1)) < 10:
            self.assertLess(self.count, 1000)
            self.store(daemon, session, range(self.count, self.count + 10))
            self.count += 10
        daemon.stop()

    def test_one_disk_of_two(self):
        for kind in ("parent", "mount", "damaged", "read-only", "permission"):
            with self.subTest(kind), running(TERRACED, *self.flags()) as daemon:
                self.filled(daemon)
                with self.broken(kind, daemon) as (part, why, remedy):
                    daemon.start()
                    self.says(daemon, part, why, remedy, "disk_unusable disk=1")
                    self.restored(daemon)
                    stats = daemon.stats()
                    self.assertEqual(stats["terrace_disk_health_info{disk=1,health=unusable}"], 1)
                    self.assertEqual(stats["terrace_disk_health_info{disk=0,health=healthy}"], 1)
                    session = self.open(daemon)
                    self.assertEqual(len(self.there(daemon, session, range(self.count))), stats["terrace_disk_blocks{disk=0}"])
                    self.store(daemon, session, range(2000, 2010))
                    self.assertEqual([d["disk"] for d in json.loads(self.ctl(daemon, "--json", "compact").stdout)["disks"]], [0])
                    self.assertIn(why, self.ctl(daemon, "compact", "--disk", "1").stderr)
                    self.assertRegex(self.ctl(daemon, "stat").stdout, r"(?m)^ *1 +unusable ")
                    self.assertNotIn("disk_left_out", daemon.log())
                    daemon.stop()
                daemon.start()
                self.restored(daemon)
                session = self.open(daemon)
                self.assertEqual(self.there(daemon, session, range(self.count)), set(range(self.count)), "nothing was deleted, so nothing is lost")
                self.assertEqual(json.loads(self.ctl(daemon, "--json", "status").stdout)["state"], "serving")

    def test_what_is_deleted_without_a_disk(self):
        """Stays deleted, whether the run without it is stopped or killed; and a run that is killed may have deleted something."""
        for end in ("stop", "kill", "kill alone"):
            with self.subTest(end), running(TERRACED, *self.flags()) as daemon:
                self.filled(daemon)
                with self.broken("mount", daemon):
                    daemon.start()
                    self.restored(daemon)
                    session = self.open(daemon)
                    if end == "kill alone":
                        self.store(daemon, session, [2000])
                    else:
                        self.delete(daemon, session, range(self.count))
                    daemon.stop() if end == "stop" else daemon.kill()
                daemon.start()
                self.restored(daemon)
                session = self.open(daemon)
                found = self.there(daemon, session, range(self.count))
                self.assertIn("event=disk_wiped disk=1", daemon.log())
                self.assertNotIn("event=disk_wiped disk=0", daemon.log())
                self.assertTrue(found if end == "kill alone" else not found)

    def test_a_disk_is_out_after_a_run_without_disks(self):
        """What that run deleted stays deleted on both, though one could not be wiped at once."""
        flags = self.flags()
        with running(TERRACED, *flags) as daemon:
            self.filled(daemon)
            daemon.flags = SMALL
            daemon.start()
            self.delete(daemon, self.open(daemon), range(self.count))
            daemon.stop()
            daemon.flags = flags
            with self.broken("damaged", daemon):
                daemon.start()
                self.restored(daemon)
                daemon.stop()
            daemon.start()
            self.restored(daemon)
            self.assertEqual(self.there(daemon, self.open(daemon), range(self.count)), set())

    def test_no_disk(self):
        """Memory alone, and a flush says why."""
        with running(TERRACED, *self.flags()) as daemon:
            self.filled(daemon)
            for name in ("a", "mount"):
                os.rename(os.path.join(self.place, name), os.path.join(self.place, name + ".away"))
            daemon.start()
            session = self.open(daemon)
            self.assertEqual(daemon.put(session, [(key(1), block(1, self.size))]), [pb.OK])
            self.assertEqual(self.there(daemon, session, [1]), {1})
            for wanted in ({}, {"keys": keys(1)}):
                reply = daemon.cache.Flush(pb.FlushRequest(session=session, **wanted), timeout=CALL_S)
                self.assertEqual(list(reply.status), [pb.UNAVAILABLE])
                self.assertIn("%s: is missing" % self.a, reply.reason)
            done = self.ctl(daemon, "flush")
            self.assertEqual(done.returncode, 1)
            self.assertIn(self.a, done.stderr)
            self.assertEqual(len(json.loads(self.ctl(daemon, "--json", "status").stdout)["degraded"]), 2)
            self.assertEqual(self.ctl(daemon, "compact").returncode, 0)
            self.delete(daemon, session, [1])
            self.assertEqual(self.there(daemon, session, [1]), set())

    def test_disks_that_are_required(self):
        for required, broken, starts in (("all", ["a"], False), ("one", ["a"], True), ("one", ["a", "mount"], False), ("none", ["a", "mount"], True)):
            with self.subTest("%s %s" % (required, broken)), running(TERRACED, *self.flags("--require-disks", required)) as daemon:
                daemon.stop()
                for name in broken:
                    os.rename(os.path.join(self.place, name), os.path.join(self.place, name + ".away"))
                if starts:
                    daemon.start()
                    daemon.stop()
                else:
                    done = subprocess.run(daemon.command(), capture_output=True, text=True, timeout=CALL_S, check=False)
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertRegex(done.stderr, "require_disks is %s: .* cannot be used: disk 0: %s" % (required, self.a))
                for name in broken:
                    os.rename(os.path.join(self.place, name + ".away"), os.path.join(self.place, name))

    def test_a_missing_slab(self):
        with running(TERRACED, *self.flags()) as daemon:
            self.filled(daemon)
            os.unlink(sorted(glob.glob(self.b + "/slab-*.trc"))[0])
            daemon.start()
            wait_for(lambda: "event=slab_lost" in daemon.log(), CALL_S, "the log tells of it")
            lost = int(daemon.stats()["terrace_disk_lost_blocks{disk=1}"])
            self.assertGreater(lost, 0)
            self.assertEqual(daemon.stats()["terrace_disk_lost_slabs{disk=1}"], 1)
            self.assertRegex(daemon.log(), r"level=warn event=slab_lost disk=1 folder=%s file=slab-000001.trc blocks=%d reason=\"is missing\"" % (self.b, lost))
            self.assertEqual(len(self.there(daemon, self.open(daemon), range(self.count))), self.count - lost)

    # ---- GPUs ----

    def test_a_gpu_that_is_not_there(self):
        """Whether there is no library to reach it, or the library knows no such GPU."""
        for flags in (("--cuda-plugin", "/nowhere/libterrace_cuda.so.0"), ()):
            with self.subTest(str(flags)), running(TERRACED, *self.flags("--gpus", "250", *flags)) as daemon:
                self.says(daemon, "GPU 250", "", "left out of gpus", "gpu_lost gpu=0")
                session = self.open(daemon)
                self.store(daemon, session, range(8))
                end = time.monotonic() + 3
                while time.monotonic() < end:
                    self.assertIsNone(daemon.process.poll())
                    self.refused(daemon, session)
                    self.assertEqual(daemon.stats()["terrace_gpu_lost{gpu=0}"], 1)
                    self.assertEqual(self.ctl(daemon, "explain", key(1).hex()).returncode, 0)
                    time.sleep(0.1)
                self.assertEqual(self.there(daemon, session, range(8)), set(range(8)))
                daemon.stop()
                self.assertEqual(daemon.process.returncode, 0)

    def refused(self, daemon, session):
        with self.assertRaises(grpc.RpcError) as caught:
            daemon.cache.Warm(pb.WarmRequest(session=session, keys=keys(*range(8)), wait=True, gpu=1), timeout=CALL_S)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)
        self.assertIn("GPU is lost", caught.exception.details())

    # ---- --check-config ----

    def check(self, *flags, before=None):
        done = subprocess.run([TERRACED, "--check-config", "--data-dir", os.path.join(self.folder, "data"), *flags], capture_output=True, text=True,
                              timeout=CALL_S, check=False, preexec_fn=before)
        return done.returncode, done.stdout + done.stderr

    def disks(self, *folders):
        return "--disks", ",".join("%s/%s:32MiB" % (self.folder, name) for name in folders)

    def test_no_rdma_device(self):
        """Without a library, or without a device: the daemon says so, and serves. On a machine that has one it is in use."""
        with running(TERRACED, *SMALL) as daemon:
            self.assertNotIn("rdma", json.loads(self.ctl(daemon, "--json", "status").stdout))
        with running(TERRACED, *SMALL, "--rdma", "on") as daemon:
            wait_for(lambda: json.loads(self.ctl(daemon, "--json", "status").stdout)["rdma"] != "starting", CALL_S, "devices are looked at")
            told = json.loads(self.ctl(daemon, "--json", "status").stdout)
            self.assertEqual((told["health"], told["state"]), ("SERVING", "serving"))
            if not os.path.isdir("/sys/class/infiniband") or not os.listdir("/sys/class/infiniband"):
                self.assertEqual(told["rdma"], "unavailable")
                self.assertIn("rdma = off", told["rdma_reason"])
                self.assertIn(told["rdma_reason"], daemon.log())
            self.assertEqual(daemon.stats().get('terrace_rdma_device_losses_total'), 0)
            session = self.open(daemon)
            daemon.put(session, [(key(1), block(1, self.size))])
            self.assertEqual(self.there(daemon, session, [1]), {1})

    def test_folders_that_overlap(self):
        """Are refused by the check, and by the start with the same words."""
        for name in ("x/in/deep", "y", "data"):
            os.makedirs(os.path.join(self.folder, name))
        os.symlink("x", os.path.join(self.folder, "link"))
        cases = [(("x", "x/"), "the same folder twice"), (("x", "./x//"), "the same folder twice"), (("x", "y/../x"), "same folder as"), (("x", "link"), "same folder as"),
                 (("new", "y/../new"), "same folder as"), (("new", "gone/../new"), "same folder as"), (("x", "x/in"), "is inside"), (("x/in", "x"), "is inside"),
                 (("x", "link/in/deep/new"), "is inside"), (("new", "new/in"), "is inside"), (("data",), "same folder as data_dir"),
                 (("data/disk",), "is inside data_dir"), (("",), "is inside disks: disk 0"), (("y", "data/../data/in"), "is inside data_dir")]
        for folders, wanted in cases:
            with self.subTest(str(folders)):
                code, said = self.check(*self.disks(*folders))
                self.assertEqual(code, 2, said)
                self.assertIn(wanted, said)
                self.assertRegex(said, "disks|data_dir")
                done = subprocess.run([TERRACED, "--data-dir", os.path.join(self.folder, "data"), "--socket", os.path.join(self.folder, "s"), *SMALL,
                                       *self.disks(*folders)], capture_output=True, text=True, timeout=CALL_S, check=False)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(wanted, done.stderr)
        self.assertEqual(os.listdir(os.path.join(self.folder, "data")), [])
        for folders in (("x", "y"), ("x", "xx"), ("x/in", "x/on"), ("new",), ("data.disk", "dat")):
            self.assertEqual(self.check(*self.disks(*folders)), (0, "ok\n"), folders)

    def test_folders_that_cannot_be_used(self):
        open(os.path.join(self.folder, "file"), "wb").close()
        os.mkdir(os.path.join(self.folder, "shut"), 0o500)
        os.mkdir(os.path.join(self.folder, "ro"))
        for folder, wanted in (("gone/x", "the folder above it is not there: mount the disk"), ("file", "is not a folder"), ("file/x", "is not a folder"),
                               ("shut", "may not write there"), ("shut/x", "may not write there")):
            code, said = self.check(*self.disks(folder), before=obeys_modes)
            self.assertEqual(code, 2, said)
            self.assertRegex(said, "disks: disk 0: %s/%s: .*%s.*without this disk, degraded" % (self.folder, folder, wanted))
        if may_mount(os.path.join(self.folder, "ro")):
            code, said = self.check(*self.disks("ro"), before=lambda: read_only(os.path.join(self.folder, "ro")))
            self.assertEqual(code, 2, said)
            self.assertIn("is mounted read-only", said)
        code, said = self.check("--data-dir=%s/shut/data" % self.folder, before=obeys_modes)
        self.assertEqual(code, 2, said)

    def test_disks_larger_than_their_file_system(self):
        size = os.statvfs(self.folder)
        mib = size.f_blocks * size.f_frsize >> 20
        code, said = self.check("--disks", "%s/x:%dMiB" % (self.folder, mib + 1024))
        self.assertEqual(code, 2, said)
        self.assertRegex(said, "disks: disk 0: .* more than its file system has, %d MiB: give a smaller size" % mib)
        code, said = self.check("--disks", "%s/x:%dMiB,%s/y:%dMiB" % (self.folder, mib // 2 + 512, self.folder, mib // 2 + 512))
        self.assertEqual(code, 2, said)
        self.assertEqual(said.count("\n"), 1, said)
        self.assertRegex(said, "disks: disk 0: .* with 1 more disks on its file system")
        with running(TERRACED, *SMALL, "--disks", "%s/x:%dMiB" % (self.folder, mib + 1024)) as daemon:
            wait_for(lambda: "event=disk_small" in daemon.log(), CALL_S, "the log warns")
            self.store(daemon, self.open(daemon), range(4))

    def test_a_connection_that_is_not_answered_at_once(self):
        """A call has its own time, and a machine that has no processor for the daemon for some seconds takes none of it away."""
        with running(TERRACED, *SMALL) as daemon:
            daemon.process.send_signal(signal.SIGSTOP)
            asked = subprocess.Popen([TERRACECTL, "--address", daemon.address, "--timeout", str(CALL_S), "stat"],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            time.sleep(2.5)
            daemon.process.send_signal(signal.SIGCONT)
            out, said = asked.communicate(timeout=2 * CALL_S)
            self.assertEqual(asked.returncode, 0, said)
            self.assertIn("terrace_uptime_seconds", out)


if __name__ == "__main__":
    TERRACED, TERRACECTL = sys.argv[1], sys.argv[2]
    unittest.main(argv=sys.argv[:1], verbosity=2)

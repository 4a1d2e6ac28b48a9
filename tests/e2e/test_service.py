"""terraced as a service of systemd: `test_service.py TERRACED CMAKE BUILD_FOLDER`.

What systemd would do is done here: the unit is installed and read, its options are checked by systemd-analyze, the test listens to what the daemon
notifies, and starts it as a user without privileges, under the unit's filter of system calls and its limits. Its mounts and devices want a systemd.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import CALL_S, Daemon, key, keys, layout, pb, running, wait_for  # noqa: E402
from test_metrics import borrow, port_of, scrape  # noqa: E402

TERRACED, CMAKE, BUILD = "", "", ""
SMALL = ("--host-bytes", "64MiB", "--extent-bytes", "4MiB")
NOBODY = 65534
FAMILIES = {"AF_UNIX": socket.AF_UNIX, "AF_INET": socket.AF_INET, "AF_INET6": socket.AF_INET6}


def seconds(text):
    units = {"": 1, "ms": .001, "s": 1, "m": 60, "min": 60, "h": 3600}
    parts = re.findall(r"(\d+)\s*([a-z]*)", text)
    return sum(int(n) * units[unit] for n, unit in parts)


class Unit:
    """The installed one: {name: [value]} of its [Service]."""

    def __init__(self):
        self.prefix = tempfile.mkdtemp(prefix="terrace-installed-")
        subprocess.run([CMAKE, "--install", BUILD, "--component", "service", "--prefix", self.prefix], check=True, stdout=subprocess.DEVNULL)
        self.path = os.path.join(self.prefix, "lib/systemd/system/terraced.service")
        os.mkdir(os.path.join(self.prefix, "sbin"))
        os.symlink(TERRACED, os.path.join(self.prefix, "sbin/terraced"))
        with open(self.path, encoding="utf-8") as f:
            service = f.read().split("[Service]")[1].split("[Install]")[0]
        self.options = {}
        for name, value in re.findall(r"^(\w+)=(.*)$", service, re.M):
            self.options.setdefault(name, []).append(value)

    def __getitem__(self, name):
        (value,) = self.options[name]
        return value


class Listener:
    """What systemd hears at NOTIFY_SOCKET, of a daemon that is not started yet."""

    def __init__(self, test, daemon):
        self.path = os.path.join(daemon.folder, "notify")
        daemon.env = {"NOTIFY_SOCKET": self.path}
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        test.addCleanup(self.socket.close)
        self.socket.bind(self.path)
        self.socket.settimeout(CALL_S)

    def hear(self):
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())

    def silent(self):
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            raise AssertionError("heard %r" % self.socket.recv(4096))
        return True


class Service(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.unit = Unit()
        cls.addClassCleanup(shutil.rmtree, cls.unit.prefix)

    def test_verify(self):
        told = subprocess.run(["systemd-analyze", "verify", "--man=no", self.unit.path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertEqual((told.returncode, told.stdout.decode()), (0, ""))
        told = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", self.unit.path], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        self.assertEqual(told.returncode, 0, told.stdout.decode())

    def test_user(self):
        path = os.path.join(self.unit.prefix, "lib/sysusers.d/terrace.conf")
        told = subprocess.run(["systemd-sysusers", "--root", self.unit.prefix, "--dry-run", path], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        self.assertEqual(told.returncode, 0, told.stdout.decode())
        self.assertIn("user 'terrace'", told.stdout.decode())
        self.assertEqual((self.unit["User"], self.unit["Group"]), ("terrace", "terrace"))

    def test_paths_and_times(self):
        self.assertEqual(self.unit["ExecStart"], os.path.join(self.unit.prefix, "sbin/terraced"))
        sample = subprocess.run([TERRACED, "--print-config"], stdout=subprocess.PIPE, check=True).stdout.decode()
        standard = dict(re.findall(r"^# (\w+) = (.*)$", sample, re.M))
        self.assertEqual(standard["data_dir"], "/var/lib/" + self.unit["StateDirectory"])
        self.assertEqual(os.path.dirname(standard["socket"]), "/run/" + self.unit["RuntimeDirectory"])
        drain, stop = seconds(standard["drain_timeout"]), seconds(standard["stop_timeout"])
        self.assertGreaterEqual(seconds(self.unit["TimeoutStopSec"]), 2 * (2 * drain + stop + 20))
        self.assertEqual(subprocess.run([TERRACED, "--no-such"], stderr=subprocess.DEVNULL, check=False).returncode,
                         int(self.unit["RestartPreventExitStatus"]))
        for name in ("terraced.conf", "alerts.yml", "prometheus.yml", "grafana.json"):
            self.assertTrue(os.path.exists(os.path.join(self.unit.prefix, "share/terrace", name)), name)

    def test_notifies(self):
        self.assertEqual(self.unit["Type"], "notify")
        with running(TERRACED, *SMALL, start=False) as d:
            listener = Listener(self, d)
            d.start()
            self.assertEqual(listener.hear(), {"READY": "1", "STATUS": "serving"})
            d.stop()
            self.assertEqual(listener.hear(), {"STOPPING": "1", "STATUS": "draining"})
            self.assertTrue(listener.silent())

    def test_ready_is_when_it_serves(self):
        """Whoever connects when he hears READY finds both sockets."""
        with running(TERRACED, *SMALL, start=False) as d:
            listener = Listener(self, d)
            path = d.address[len("unix:"):]
            process = subprocess.Popen([TERRACED, "--data-dir", os.path.join(d.folder, "data"), "--socket", path, *SMALL], stderr=subprocess.DEVNULL,
                                       env={**os.environ, **d.env})
            self.assertEqual(listener.hear()["READY"], "1")
            for at, kind in ((path, socket.SOCK_STREAM), (path.replace(".sock", ".fd"), socket.SOCK_SEQPACKET)):
                with socket.socket(socket.AF_UNIX, kind) as s:
                    s.connect(at)
            process.terminate()
            self.assertEqual(process.wait(timeout=CALL_S), 0)

    def test_hangup_while_it_starts(self):
        """It reads its configuration by then, from a pipe that goes on when the signal is sent."""
        with running(TERRACED, *SMALL, start=False) as d:
            listener = Listener(self, d)
            pipe = os.path.join(d.folder, "configuration")
            os.mkfifo(pipe)
            write = os.open(pipe, os.O_RDWR)
            os.write(write, b"# begins\n")
            process = subprocess.Popen([TERRACED, "--config", pipe, "--data-dir", os.path.join(d.folder, "data"), "--socket",
                                        d.address[len("unix:"):], *SMALL], stderr=subprocess.PIPE, env={**os.environ, **d.env})
            wait_for(lambda: struct.unpack("i", fcntl.ioctl(write, termios.FIONREAD, bytes(4)))[0] == 0, CALL_S, "the first line is read")
            process.send_signal(signal.SIGHUP)
            os.close(write)
            self.assertEqual(listener.hear()["READY"], "1")
            process.terminate()
            self.assertIn(b"hangup_ignored", process.communicate(timeout=CALL_S)[1])
            self.assertEqual(process.returncode, 0)

    def test_never_ready(self):
        with running(TERRACED, *SMALL, start=False) as d, socket.create_server(("127.0.0.1", 0)) as taken:
            listener = Listener(self, d)
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            ended = subprocess.run([TERRACED, "--data-dir", os.path.join(d.folder, "data"), "--socket", d.address[len("unix:"):], *SMALL,
                                    "--metrics-address", address], stderr=subprocess.PIPE, timeout=CALL_S, check=False,
                                   env={**os.environ, **d.env})
            self.assertEqual(ended.returncode, 1)
            self.assertIn("cannot listen on " + address, ended.stderr.decode())
            self.assertTrue(listener.silent())


class Sandboxed(Daemon):
    """As the unit has it started: by a user who may nothing, with its limits and its filters."""

    def __init__(self, unit, rules, *flags):
        self.unit, self.rules = unit, rules
        super().__init__(TERRACED, *flags, start=False)
        os.chmod(self.folder, 0o755)
        self.terraced = shutil.copy(TERRACED, self.folder)  # where nobody may go
        for name in ("data", "disk", "run"):
            os.mkdir(os.path.join(self.folder, name), 0o700 if name != "run" else 0o755)
            if os.getuid() == 0:
                os.chown(os.path.join(self.folder, name), NOBODY, NOBODY)
        self.address = "unix:" + os.path.join(self.folder, "run", "t.sock")
        self.before = self.enter

    def enter(self):
        """In the child."""
        for name in ("LimitNOFILE", "LimitMEMLOCK", "LimitCORE"):
            value = resource.RLIM_INFINITY if self.unit[name] == "infinity" else int(self.unit[name])
            with contextlib.suppress(ValueError, OSError):  # more than whoever tests may have
                resource.setrlimit(getattr(resource, "RLIMIT_" + name[5:]), (value, value))
        os.umask(int(self.unit["UMask"], 8))
        if os.getuid() == 0:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        self.rules.load()


class Rules:
    """The unit's SystemCallFilter and RestrictAddressFamilies, for this process and what it starts, by libseccomp, which systemd comes with."""

    ALLOW, REFUSE, EQUAL = 0x7FFF0000, 0x00050000, 4  # SCMP_ACT_ALLOW, SCMP_ACT_ERRNO(0), SCMP_CMP_EQ

    class Compare(ctypes.Structure):
        _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]

    def __init__(self, unit):
        self.library = ctypes.CDLL("libseccomp.so.2")
        self.library.seccomp_init.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.library.seccomp_init(self.REFUSE | getattr(errno, unit["SystemCallErrorNumber"])))
        allowed = self.calls(unit["SystemCallFilter"])
        families = [FAMILIES[name] for name in unit["RestrictAddressFamilies"].split()]
        for name in allowed - {"socket"}:
            number = self.library.seccomp_syscall_resolve_name(name.encode())
            if number >= 0:
                assert self.library.seccomp_rule_add_array(self.context, self.ALLOW, number, 0, None) == 0, name
        number = self.library.seccomp_syscall_resolve_name(b"socket")
        for family in families:
            compare = (self.Compare * 1)(self.Compare(0, self.EQUAL, family, 0))
            assert self.library.seccomp_rule_add_array(self.context, self.ALLOW, number, 1, compare) == 0

    @staticmethod
    def calls(words):
        found, seen, todo = set(), set(), words.split()
        while todo:
            word = todo.pop()
            if not word.startswith("@"):
                found.add(word)
            elif word not in seen:
                seen.add(word)
                told = subprocess.run(["systemd-analyze", "--no-pager", "syscall-filter", word], stdout=subprocess.PIPE, check=True)
                todo += re.findall(r"^    (@?\w[\w-]*)$", told.stdout.decode(), re.M)
        assert len(found) > 200
        return found

    def load(self):
        if self.library.seccomp_load(self.context) != 0:
            os._exit(99)


class Sandbox(unittest.TestCase):
    def test_all_of_it_works_there(self):
        unit = Unit()
        self.addCleanup(shutil.rmtree, unit.prefix)
        rules = Rules(unit)

        def engine_of(d):
            return re.search(r"event=disk .*engine=(\w+) engine_reason=(\S*)", d.log()).groups()

        with running(TERRACED, *SMALL, start=False) as free:
            free.flags += ("--disks", os.path.join(free.folder, "disk") + ":64MiB")
            free.start()
            expected = engine_of(free)
        d = Sandboxed(unit, rules, *SMALL, "--metrics-address", "127.0.0.1:0")
        d.flags += ("--disks", os.path.join(d.folder, "disk") + ":64MiB")
        try:
            d.start()
            self.assertEqual(engine_of(d), expected)
            with open("/proc/%d/status" % d.process.pid, encoding="ascii") as f:
                status = dict(line.split(":\t", 1) for line in f.read().splitlines() if ":\t" in line)
            self.assertEqual((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"))
            self.assertEqual(int(status["CapEff"], 16) if os.getuid() == 0 else 0, 0)
            self.works(d)
            d.stop()
            self.assertNotIn("level=error", d.log())
        except BaseException:
            sys.stderr.write(d.log())
            raise
        finally:
            d.close()

    def works(self, d):
        """Blocks go to the disk and come back; an engine of another user attaches, is lent memory, and its end is seen."""
        opened = d.open(layout())
        data = os.urandom(opened.layouts[0].block_bytes)
        self.assertEqual(d.put(opened.session, [(key(0), data)]), [pb.OK])
        flushed = d.cache.Flush(pb.FlushRequest(session=opened.session, keys=keys(0)), timeout=CALL_S)
        self.assertEqual(list(flushed.status), [pb.OK])
        lease, attached = borrow(d, opened, 0)
        self.addCleanup(attached.close)
        attached.send(struct.pack("=IHHII", 0x46445254, 3, 3, lease.places.extent[0], 0))  # MAP
        packet, (lent,), _, _ = socket.recv_fds(attached, 256, 4)
        self.assertEqual(struct.unpack("=8xII", packet[:16]), (pb.OK, lease.places.extent[0]))
        with mmap.mmap(lent, 0, prot=mmap.PROT_READ) as extent:
            at = lease.places.offset[0] + 4096
            self.assertEqual(extent[at:at + len(data)], data)
        os.close(lent)
        attached.send(struct.pack("=IHHII", 0x46445254, 3, 5, 0xffffffff, 0))  # UNMAPPED, of all: the process lives on
        self.assertEqual(scrape(port_of(d))["terrace_leases"][1][frozenset()], 1)
        attached.close()
        wait_for(lambda: scrape(port_of(d))["terrace_leases"][1][frozenset()] == 0, CALL_S, "the engine's end is seen")
        self.assertEqual(d.get(d.open(layout()).session, keys(0)), {0: (pb.OK, data)})


if __name__ == "__main__":
    TERRACED, CMAKE, BUILD = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])

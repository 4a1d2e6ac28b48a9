"""Memory that one tenant has borrowed goes to another that lacks it: real daemon, real engines with their memory mapped. usage: test_borrow.py
TERRACED LIBTERRACE
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from daemon import CALL_S, Daemon, wait_for

UID = 41002
EXTENT = 2 << 20
EXTENTS = 16
HERE = os.path.dirname(os.path.abspath(__file__))
LAYOUT = {"model": "test_borrow", "name": "test/borrow/1", "block_bytes": 120 * 1024}  # of which an extent has some 16


class Engine:
    """A process of one tenant, which does what the lines that it reads say."""

    def __init__(self, case, d, uid):
        self.p = subprocess.Popen([sys.executable, os.path.join(HERE, "engine.py"), d.address, str(uid)], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
        case.addCleanup(self.p.stdout.close)
        case.addCleanup(self.p.wait, CALL_S)
        case.addCleanup(self.p.stdin.close)
        case.addCleanup(self.p.kill)
        self.ask("open", "e", [LAYOUT])

    def ask(self, *command):
        self.p.stdin.write((json.dumps(command) + "\n").encode())
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        if not line:
            raise AssertionError("the engine has ended")
        return json.loads(line)

    def put(self, first, count):
        """How many of the blocks are stored then, 16 a call."""
        said = [s for n in range(first, first + count, 16) for s in self.ask("put", "e", n, min(16, first + count - n))]
        return sum(s in ("OK", "EXISTS") for s in said)

    def map_all(self, first, count):
        """Every block that is there is leased once; nothing is kept."""
        for n in range(first, first + count):
            self.ask("lease", "e", n, 1)
            self.ask("release", "e")

    def check(self, first, count):
        right, missing, wrong = self.ask("get", "e", first, count)
        return {"right": right, "wrong": wrong, "missing": missing}

    def stop(self):
        """None of its threads runs any more."""
        os.kill(self.p.pid, signal.SIGSTOP)
        wait_for(lambda: self.states() == {"T"}, CALL_S, "the engine has stopped")

    def states(self):
        stats = []
        for thread in os.listdir("/proc/%d/task" % self.p.pid):
            with open("/proc/%d/task/%s/stat" % (self.p.pid, thread), encoding="ascii", errors="replace") as f:
                stats.append(f.read())
        return {stat.rpartition(") ")[2][0] for stat in stats}

    def mapped(self):
        """The extents of which it has a mapping."""
        with open("/proc/%d/maps" % self.p.pid, encoding="ascii", errors="replace") as f:
            return len(set(re.findall(r" (\d+) +/memfd:terrace-extent", f.read())))


@unittest.skipIf(os.geteuid() != 0, "another user's process wants root")
class Borrow(unittest.TestCase):
    def start(self, alpha="", beta="", flags=()):
        folder = tempfile.mkdtemp(prefix="terrace-borrow-")
        self.addCleanup(shutil.rmtree, folder, True)
        table = os.path.join(folder, "tenants")
        with open(table, "w", encoding="ascii") as f:
            f.write("tenant = alpha\nuids = %d\n%s\ntenant = beta\nuids = %d\n%s\n" % (os.geteuid(), alpha, UID, beta))
        d = Daemon(TERRACED, "--host-bytes", "%d" % (EXTENTS * EXTENT), "--extent-bytes", "2MiB", "--socket-mode", "0666", "--tenants", table,
                   "--tenant-metrics", "4", "--gpus", "off", *flags, start=False)
        self.addCleanup(d.close)
        os.chmod(d.folder, 0o755)
        d.start()
        return d

    def row(self, d, name, **labels):
        return d.stats().get(name + ("{%s}" % ",".join("%s=%s" % pair for pair in labels.items()) if labels else ""), 0)

    def bytes_of(self, d, tenant):
        return self.row(d, "terrace_tenant_extent_bytes", tenant=tenant)

    def full(self, d, uid=0, count=EXTENTS * 16):
        """An engine that has all memory, all of it mapped, and no lease."""
        e = Engine(self, d, uid)
        e.put(1, count)
        e.map_all(1, count)
        wait_for(lambda: self.row(d, "terrace_leases") == 0, CALL_S, "the daemon has read the last release")
        self.assertGreater(e.mapped(), EXTENTS - 2)
        return e

    def test_an_idle_engine_gives_half_back(self):
        d = self.start()
        a = self.full(d)
        b = Engine(self, d, UID)
        wait_for(lambda: b.put(1, 400) >= 0 and self.bytes_of(d, "beta") >= 7 * EXTENT, 2 * CALL_S, "beta gets its half")
        b.put(1, 400)
        self.assertLessEqual(self.bytes_of(d, "beta"), 9 * EXTENT)
        self.assertGreaterEqual(self.bytes_of(d, "alpha"), 7 * EXTENT)
        self.assertGreaterEqual(self.row(d, "terrace_extents_moved_total"), 7)
        self.assertGreater(self.row(d, "terrace_evictions_total", tier="host", reason="tenant"), 50)
        self.assertLessEqual(self.row(d, "terrace_tenant_lent_bytes", tenant="alpha"), self.bytes_of(d, "alpha"))
        self.assertGreater(self.row(d, "terrace_tenant_lent_bytes", tenant="alpha"), 4 * EXTENT)
        self.assertLessEqual(a.mapped(), EXTENTS - 6)  # it was asked, and has unmapped what it lost
        for e in (a, b):
            got = e.check(1, 400)
            self.assertEqual(got["wrong"], 0)
            self.assertGreater(got["right"], 60)
        self.assertGreater(a.put(1000, 100), 60)  # alpha goes on with what it has
        self.assertEqual(a.check(1000, 100)["wrong"], 0)

    def test_what_is_ones_own_stays(self):
        d = self.start(alpha="host_bytes = 20MiB", beta="host_bytes_max = 6MiB")
        self.full(d)
        b = Engine(self, d, UID)
        wait_for(lambda: b.put(1, 200) >= 0 and self.bytes_of(d, "beta") >= 2 * EXTENT, 2 * CALL_S, "beta gets some")
        for _ in range(10):
            b.put(1, 200)
            self.assertLessEqual(self.bytes_of(d, "beta"), 3 * EXTENT)
        self.assertGreaterEqual(self.bytes_of(d, "alpha"), 10 * EXTENT)

    def test_a_stopped_engine_keeps_what_it_has_mapped(self):
        d = self.start()
        a = self.full(d)
        a.stop()  # first: memory is made ready for a tenant as soon as it has a session
        b = Engine(self, d, UID)
        for _ in range(30):
            b.put(1, 20)
        self.assertEqual(self.bytes_of(d, "beta"), 0)
        self.assertEqual(self.row(d, "terrace_extents_moved_total"), 0)
        self.assertEqual(self.row(d, "terrace_evictions_total", tier="host", reason="tenant"), 0)  # and nothing is lost in vain
        os.kill(a.p.pid, signal.SIGCONT)
        wait_for(lambda: b.put(1, 400) >= 0 and self.bytes_of(d, "beta") >= 4 * EXTENT, 3 * CALL_S, "beta gets some")
        self.assertEqual(a.check(1, 400)["wrong"], 0)
        self.assertEqual(b.check(1, 400)["wrong"], 0)

    def test_what_a_dead_engine_had_mapped(self):
        d = self.start()
        a = self.full(d)
        a.p.kill()
        b = Engine(self, d, UID)
        wait_for(lambda: b.put(1, 400) >= 0 and self.bytes_of(d, "beta") >= 7 * EXTENT, 2 * CALL_S, "beta gets its half")
        self.assertEqual(b.check(1, 400)["wrong"], 0)

    def test_with_disks_nothing_is_lost(self):
        disk = tempfile.mkdtemp(prefix="terrace-borrow-disk-")
        self.addCleanup(shutil.rmtree, disk, True)
        d = self.start(flags=("--disks", disk + ":1GiB", "--policy", "lru"))
        a = self.full(d, count=248)
        b = Engine(self, d, UID)
        first = iter(range(1000, 100000, 32))  # new ones: those of before are on the disk
        wait_for(lambda: b.put(next(first), 32) >= 0 and self.bytes_of(d, "beta") >= 4 * EXTENT, 2 * CALL_S, "beta gets some")
        self.assertEqual(a.check(1, 248), {"right": 248, "wrong": 0, "missing": 0})


if __name__ == "__main__":
    TERRACED, os.environ["LIBTERRACE"] = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)

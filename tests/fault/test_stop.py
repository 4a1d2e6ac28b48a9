"""The stop of a daemon while a GPU's driver does not return, or is well: `test_stop.py TERRACED GPU_ENGINE SIM_FOLDER`.

The GPU is a simulated device whose calls stop for as long as a file is there. Whatever hangs in it (what gives memory back at the end, a progress page
that is being lent, a call whose memory is being registered, the thread that asks whether the GPU is lost), the daemon ends, by exit status 3;
its sockets are gone, the log says what it has left behind, and the next daemon finds every block by the catalog alone.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import grpc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from daemon import CALL_S, key, keys, layout, pb, running, wait_for  # noqa: E402

TERRACED, ENGINE, SIM = "terraced", "gpu_engine", "."
GRACE_S, DRAIN_S, STOP_S, SLACK_S = 2, 1, 2, 15  # SLACK_S: for a busy machine, and sanitizers; without a bound it would be for ever
LEFT, BLOCKS = 3, 24
MORE = 1600  # blocks: more than the memory that is made ahead
LAYOUT = layout(layers=8, heads=4, total_heads=4)


class Stop(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="terrace-stop-")
        self.addCleanup(self.folder.cleanup)
        self.stuck = os.path.join(self.folder.name, "stuck")

    @contextlib.contextmanager
    def daemon(self, left=True, host_bytes="32MiB"):
        """left: it will leave a thread behind, and with it all that this one may come back to: threads that have ended are not joined then."""
        flags = ("--gpus", "all", "--gpu-bytes", "32MiB", "--host-bytes", host_bytes, "--extent-bytes", "2MiB", "--slab-bytes", "2MiB",
                 "--drain-timeout", "%ds" % DRAIN_S, "--stop-timeout", "%ds" % STOP_S,
                 "--disks", os.path.join(self.folder.name, "disk") + ":64MiB")
        env = {"LD_LIBRARY_PATH": SIM, "SIM_GPU_STUCK_FILE": self.stuck}
        if left:
            env["TSAN_OPTIONS"] = os.environ.get("TSAN_OPTIONS", "") + ":report_thread_leaks=0"
        with running(TERRACED, *flags, env=env) as daemon:
            try:
                yield daemon
            finally:
                self.go_on()

    def hang(self, text=""):
        with open(self.stuck + ".0", "w", encoding="ascii") as file:
            file.write(text)

    def go_on(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.stuck + ".0")

    def restored(self, daemon):
        wait_for(lambda: daemon.stats()["terrace_restored"] == 1, 60, "the disks are taken up")

    def fill(self, daemon):
        """Blocks that are durable. Returns their bytes, by number."""
        self.restored(daemon)
        opened = daemon.open(LAYOUT)
        blocks = [random.Random(n).randbytes(opened.layouts[0].block_bytes) for n in range(BLOCKS)]
        self.assertEqual(daemon.put(opened.session, [(key(n), b) for n, b in enumerate(blocks)], chunk=1 << 19), [pb.OK] * BLOCKS)
        self.assertEqual(list(daemon.cache.Flush(pb.FlushRequest(session=opened.session), timeout=CALL_S).status), [pb.OK])
        return opened.session, blocks

    def ends(self, daemon, expect):
        """SIGTERM. Returns the seconds to the end."""
        began = time.monotonic()
        daemon.process.send_signal(signal.SIGTERM)
        try:
            code = daemon.process.wait(timeout=GRACE_S + 2 * DRAIN_S + STOP_S + SLACK_S)
        except subprocess.TimeoutExpired:
            self.fail("the daemon does not end:\n" + daemon.log()[-3000:])
        took = time.monotonic() - began
        self.assertEqual(code, expect, daemon.log()[-3000:])
        for name in ("t.sock", "t.sock.fd"):
            self.assertFalse(os.path.exists(os.path.join(daemon.folder, name)), name)
        print("%s: %.2f s" % (self.id().rsplit(".", 1)[1], took))
        return took

    def next_one(self, daemon, blocks):
        """All blocks are there, and no header was read to find them."""
        self.go_on()
        daemon.channel.close()
        daemon.start()
        self.restored(daemon)
        self.assertEqual(daemon.stats()["terrace_restore_scanned_disks"], 0)
        found = daemon.get(daemon.open(LAYOUT).session, keys(*range(BLOCKS)))
        self.assertEqual([found[n] for n in range(BLOCKS)], [(pb.OK, b) for b in blocks])

    def left(self, daemon, what):
        lines = [line for line in daemon.log().splitlines() if "event=left_behind" in line]
        self.assertTrue(any("what=" + what in line for line in lines), daemon.log()[-3000:])

    def busy(self, daemon):
        """Chores take a worker for a moment, too: it is seen there again and again."""
        wait_for(lambda: all(daemon.stats()["terrace_worker_running"] > 0 for _ in range(20)), 60, "a worker is in the driver")

    def test_nothing_hangs(self):
        with self.daemon(left=False) as daemon:
            _, blocks = self.fill(daemon)
            self.assertLess(self.ends(daemon, 0), STOP_S + SLACK_S)
            self.assertNotIn("event=left_behind", daemon.log())
            self.next_one(daemon, blocks)

    def test_memory_is_given_back(self):
        with self.daemon() as daemon:
            _, blocks = self.fill(daemon)
            self.hang()
            self.ends(daemon, LEFT)
            self.left(daemon, "cache")
            self.next_one(daemon, blocks)

    def test_it_is_asked_whether_it_is_lost(self):
        with self.daemon() as daemon:
            _, blocks = self.fill(daemon)
            self.hang("nothing is answered")
            time.sleep(0.2)  # it is asked every 50 ms
            self.ends(daemon, LEFT)
            self.left(daemon, "cache")
            self.next_one(daemon, blocks)

    def test_a_board_is_lent(self):
        with self.daemon() as daemon:
            _, blocks = self.fill(daemon)
            with subprocess.Popen([ENGINE, daemon.address], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  text=True) as engine:
                try:
                    wait_for(lambda: "event=attached" in daemon.log(), 60, "an engine")
                    self.hang()
                    engine.stdin.write("lease 0 0 1\n")
                    engine.stdin.flush()
                    self.busy(daemon)
                    self.ends(daemon, LEFT)
                finally:
                    engine.kill()
            self.left(daemon, "workers")
            self.next_one(daemon, blocks)

    def test_memory_is_registered(self):
        """For calls that need more of it than is made ahead, and which are cancelled."""
        with self.daemon(host_bytes="256MiB") as daemon:
            session, blocks = self.fill(daemon)
            self.hang()

            def put():
                with contextlib.suppress(grpc.RpcError):
                    daemon.put(session, [(key(1000 + n), blocks[0]) for n in range(MORE)], chunk=1 << 19)

            thread = threading.Thread(target=put)
            thread.start()
            self.busy(daemon)
            self.ends(daemon, LEFT)
            thread.join(timeout=60)
            self.assertFalse(thread.is_alive())
            self.left(daemon, "workers")
            self.next_one(daemon, blocks)


if __name__ == "__main__":
    TERRACED, ENGINE, SIM = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)

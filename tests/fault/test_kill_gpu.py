"""Engines on a GPU die at any moment, and the daemon that lends its memory does: `test_kill_gpu.py TERRACED STORM_GPU SIM_FOLDER [ROUNDS [TEST]]`.

The GPU is the simulated device. Each round starts an engine that leases, attends, writes and commits in the GPU's memory by work on a
stream, and kills it with SIGKILL after a random time, while another leases and looks at every byte. Its slots must come back; in the
end no slot of the GPU is in use.
"""

import os
import random
import struct
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from daemon import Daemon, pb, running, wait_for  # noqa: E402
from stalls import within  # noqa: E402

TERRACED, STORM, SIM, ROUNDS, BATCH = "terraced", "storm_gpu", ".", 20, 4
KEYS = 96
# More blocks than the GPU has slots, and more than host memory has.
FLAGS = ("--gpus", "all", "--gpu-bytes", "16MiB", "--host-bytes", "16MiB", "--extent-bytes", "2MiB")


def environment():
    return {"LD_LIBRARY_PATH": SIM}


def engine(daemon, role, seed):
    return subprocess.Popen([STORM, role, daemon.address, str(seed)], stdout=subprocess.PIPE, text=True)


def kill(process):
    process.kill()
    process.wait(timeout=30)
    process.stdout.close()


def stop(process):
    process.terminate()
    checked = int(process.stdout.read().split()[-1])
    assert process.wait(timeout=60) == 0
    process.stdout.close()
    return checked


def key(number):
    return struct.pack("<Q", number) * 2


def alive(daemon):
    stats = daemon.stats()
    return stats["terrace_sessions"] + stats["terrace_ghost_sessions"]


class KillGpu(unittest.TestCase):
    def empty(self, daemon):
        """All blocks deleted: every slot of the GPU is free again, and so is host memory."""
        reply = daemon.admin.Layouts(pb.LayoutsRequest(), timeout=60)
        session = daemon.open(reply.rows[0].layout)
        daemon.cache.Delete(pb.DeleteRequest(session=session.session, keys=pb.Keys(
            key_bytes=16, keys=b"".join(key(n) for n in range(KEYS)))), timeout=60)
        names = ("terrace_gpu_slots_used{gpu=0}", "terrace_gpu_held_bytes{gpu=0}", "terrace_gpu_blocks{gpu=0}",
                 "terrace_slots_used{tier=host}", "terrace_leases", "terrace_reservations", "terrace_ghost_sessions")
        wait_for(lambda: not any(daemon.stats()[n] for n in names), 60, "nothing is in use: " + " ".join(names))

    def test_engines_die(self):
        rng = random.Random(11)
        slowest = (0.0, 0.0)
        with running(TERRACED, *FLAGS, env=environment()) as daemon:
            reader = engine(daemon, "reader", 1)
            self.assertEqual(reader.stdout.readline(), "ready\n")
            for start in range(0, ROUNDS, BATCH):
                victims = [engine(daemon, "victim", 100 + start + n) for n in range(min(BATCH, ROUNDS - start))]
                for victim in victims:
                    self.assertEqual(victim.stdout.readline(), "ready\n")
                    time.sleep(rng.random() * 0.02)
                    self.assertIsNone(victim.poll(), "the victim saw a wrong byte or failed")
                    kill(victim)
                    self.assertIsNone(reader.poll(), "the reader saw a wrong byte or failed")
                slowest = max(slowest, within(5.0, lambda: alive(daemon) == 1, "the dead engines' sessions are gone", at_most=60.0))
                self.assertEqual(daemon.stats()["terrace_reservations"], 0)
            checked = stop(reader)
            self.assertGreater(checked, ROUNDS)
            verified = daemon.admin.Verify(pb.VerifyRequest(), timeout=60)
            self.assertEqual(verified.corrupt, 0)
            stats = daemon.stats()
            self.assertGreater(stats["terrace_moved_bytes_total{from=gpu,to=host}"], 0)
            self.assertGreater(stats["terrace_moved_bytes_total{from=host,to=gpu}"], 0)
            self.assertEqual(stats["terrace_gpu_lost{gpu=0}"], 0)
            self.empty(daemon)
            print("%d kills, %d blocks checked by the reader, slots back after at most %.0f ms, of which the machine stalled for %.0f" %
                  (ROUNDS, checked, 1000 * slowest[0], 1000 * slowest[1]))

    def test_the_daemon_dies(self):
        """Engines are told so (3), and none hangs on a stream or sees a wrong byte; the next daemon serves others."""
        rng = random.Random(12)
        daemon = Daemon(TERRACED, *FLAGS, env=environment())
        try:
            for turn in range(max(2, ROUNDS // 10)):
                engines = [engine(daemon, "victim", 1000 * turn + n) for n in range(3)]
                engines.append(engine(daemon, "reader", turn))
                for e in engines:
                    self.assertEqual(e.stdout.readline(), "ready\n")
                time.sleep(rng.random() * 0.05)
                daemon.kill()
                for e in engines:
                    self.assertEqual(e.wait(timeout=60), 3)
                    e.stdout.close()
                daemon.start()
            again = engine(daemon, "victim", 5)
            self.assertEqual(again.stdout.readline(), "ready\n")
            kill(again)
            wait_for(lambda: alive(daemon) == 0, 60, "its session is gone")
            self.empty(daemon)
        finally:
            daemon.close()

    def test_two_engines_share_one_copy(self):
        with running(TERRACED, *FLAGS, env=environment()) as daemon:
            first = engine(daemon, "victim", 7)
            self.assertEqual(first.stdout.readline(), "ready\n")
            kill(first)
            wait_for(lambda: alive(daemon) == 0, 60, "its session is gone")
            blocks = daemon.stats()["terrace_gpu_blocks{gpu=0}"]
            self.assertGreater(blocks, 0)
            readers = [engine(daemon, "reader", n) for n in (8, 9)]
            for reader in readers:
                self.assertEqual(reader.stdout.readline(), "ready\n")
            for reader in readers:
                self.assertEqual(reader.stdout.readline(), "checked\n")
            time.sleep(0.5)
            for reader in readers:
                stop(reader)
            stats = daemon.stats()
            # Each block is in one slot, whoever reads it.
            self.assertEqual(stats["terrace_gpu_slots_used{gpu=0}"], stats["terrace_gpu_blocks{gpu=0}"])
            self.assertGreaterEqual(stats["terrace_gpu_blocks{gpu=0}"], blocks)
            self.assertLessEqual(stats["terrace_gpu_blocks{gpu=0}"], KEYS)
            self.empty(daemon)


if __name__ == "__main__":
    TERRACED, STORM, SIM = sys.argv[1:4]
    if len(sys.argv) > 4:
        ROUNDS = int(sys.argv[4])
    unittest.main(argv=sys.argv[:1] + sys.argv[5:], verbosity=2)

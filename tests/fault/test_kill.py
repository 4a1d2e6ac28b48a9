"""Engines die at any moment, and nobody else notices: `test_kill.py TERRACED STORM [ROUNDS [TEST]]`.

Each round starts an engine that leases, reserves, half-writes and commits, and kills it with SIGKILL after a random time, while another
engine leases and checks every byte. Within a second of the exit all its slots must be back; a slot that a forked child still maps must not.
What the machine stalls in such a second is measured and comes on top (stalls.py).
"""

import os
import random
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from daemon import Daemon, pb, running  # noqa: E402
from stalls import within  # noqa: E402

TERRACED, STORM, ROUNDS, BATCH = "terraced", "storm", 1000, 5


def held(daemon):
    stats = daemon.stats()
    slots = "terrace_quarantined_slots{tier=host}"
    found = {name: stats[name] for name in ("terrace_sessions", "terrace_ghost_sessions", "terrace_leases",
                                            "terrace_reservations")}
    return {**found, "terrace_quarantined_slots": stats[slots]}


def alive(daemon):
    now = held(daemon)
    return now["terrace_sessions"] + now["terrace_ghost_sessions"]


def engine(daemon, role, seed=1):
    return subprocess.Popen([STORM, role, daemon.address, str(seed)], stdout=subprocess.PIPE, text=True)


def kill(process):
    process.kill()
    process.wait(timeout=30)
    process.stdout.close()


class Kill(unittest.TestCase):
    def test_kill_storm(self):
        rng = random.Random(4)
        slowest = (0.0, 0.0)
        with running(TERRACED, "--host-bytes", "16MiB", "--extent-bytes", "2MiB") as daemon:
            reader = engine(daemon, "reader")
            self.assertEqual(reader.stdout.readline(), "ready\n")
            for start in range(0, ROUNDS, BATCH):
                victims = [engine(daemon, "victim", seed=start + n) for n in range(min(BATCH, ROUNDS - start))]
                for victim in victims:
                    self.assertEqual(victim.stdout.readline(), "ready\n")
                    time.sleep(rng.random() * 0.01)
                    self.assertIsNone(victim.poll(), "the victim saw a wrong byte or failed")
                    kill(victim)
                    self.assertIsNone(reader.poll(), "the reader saw a wrong byte or failed")
                slowest = max(slowest, within(1.0, lambda: alive(daemon) == 1, "the dead engines' sessions are gone"))
                now = held(daemon)
                self.assertEqual((now["terrace_reservations"], now["terrace_quarantined_slots"]), (0, 0))
            reader.terminate()
            checked = int(reader.stdout.read())
            self.assertEqual(reader.wait(timeout=30), 0)
            reader.stdout.close()
            self.assertGreater(checked, ROUNDS)
            verified = daemon.admin.Verify(pb.VerifyRequest(), timeout=60)
            self.assertEqual(verified.corrupt, 0)
            print("%d kills, %d blocks checked by the reader, slots back after at most %.0f ms, of which the machine stalled for %.0f" %
                  (ROUNDS, checked, 1000 * slowest[0], 1000 * slowest[1]))

    def test_a_forked_child_keeps_the_slot(self):
        with running(TERRACED, "--host-bytes", "16MiB", "--extent-bytes", "2MiB") as daemon:
            holder = engine(daemon, "holder")
            child = int(holder.stdout.readline())
            self.assertEqual(held(daemon)["terrace_quarantined_slots"], 0)
            kill(holder)
            within(1.0, lambda: held(daemon)["terrace_ghost_sessions"] == 1, "the dead session is a ghost")
            time.sleep(1.5)
            now = held(daemon)
            self.assertEqual((now["terrace_ghost_sessions"], now["terrace_leases"]), (1, 1))
            self.assertEqual(now["terrace_quarantined_slots"], 2)
            os.kill(child, signal.SIGKILL)
            within(1.0, lambda: held(daemon)["terrace_quarantined_slots"] == 0, "the child's slots are back")
            self.assertEqual(held(daemon)["terrace_ghost_sessions"], 0)

    def test_two_that_want_more_than_fits(self):
        with running(TERRACED, "--host-bytes", "4MiB", "--extent-bytes", "1MiB") as daemon:
            hogs = [engine(daemon, "hog", seed=n) for n in (1, 2)]
            for hog in hogs:
                got = hog.stdout.read()
                self.assertEqual(hog.wait(timeout=60), 0)
                hog.stdout.close()
                self.assertGreater(int(got), 0)

    def test_the_daemon_dies(self):
        daemon = Daemon(TERRACED, "--host-bytes", "16MiB", "--extent-bytes", "2MiB")
        victim = engine(daemon, "victim")
        self.assertEqual(victim.stdout.readline(), "ready\n")
        daemon.process.kill()
        daemon.process.wait()
        # 3: a call failed with a status. A crash would be a negative number, a wrong byte 1.
        self.assertEqual(victim.wait(timeout=60), 3)
        victim.stdout.close()
        daemon.start()
        again = engine(daemon, "victim")
        self.assertEqual(again.stdout.readline(), "ready\n")
        kill(again)
        daemon.close()


if __name__ == "__main__":
    TERRACED, STORM = sys.argv[1:3]
    if len(sys.argv) > 3:
        ROUNDS = int(sys.argv[3])
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)

"""Slow copies, and GPUs that are lost while engines lease on them: `test_gpu.py TERRACED GPU_ENGINE SIM_FOLDER TERRACECTL`.

The GPUs are simulated devices; files that the daemon's devices look at hold their copies up, and lose them, whenever the test wants it.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from daemon import CALL_S, health_pb2, pb, running, wait_for  # noqa: E402

TERRACED, ENGINE, SIM, CTL = "terraced", "gpu_engine", ".", "terracectl"
FLAGS = ("--gpus", "all", "--gpu-bytes", "32MiB", "--host-bytes", "32MiB", "--extent-bytes", "2MiB")
OK, MISS, BUSY, UNAVAILABLE = 0, 1, 2, 9
HOST, LAYERS, BLOCKS = -1, 8, 4
BLOCK_MIB = LAYERS * 4 * 64 * 132 / 2**20


class Engine:
    """Obeys; see gpu_engine.c."""

    def __init__(self, daemon, **env):
        self.process = subprocess.Popen([ENGINE, daemon.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **env})

    def say(self, *words):
        """Sends a command, whose answer is read later."""
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hear(self):
        """(status, number, milliseconds)."""
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError("the engine is gone: %r" % self.process.wait(timeout=60))
        status, number, ms = line.split()
        return int(status), int(number), float(ms)

    def do(self, *words):
        self.say(*words)
        return self.hear()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.process.kill()
        self.process.stdin.close()
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        if not kind:
            assert code == 0, code


class OnGpus(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="terrace-gpu-")
        self.addCleanup(folder.cleanup)
        self.hold, self.lost = os.path.join(folder.name, "hold"), os.path.join(folder.name, "lost")

    @contextlib.contextmanager
    def daemon(self, gpus=1, **env):
        with running(TERRACED, *FLAGS, env={"LD_LIBRARY_PATH": SIM, "SIM_GPU_DEVICES": str(gpus), "SIM_GPU_HOLD_FILE": self.hold,
                                            "SIM_GPU_LOST_FILE": self.lost, **env}) as daemon:
            yield daemon

    def touch(self, path, gpu, text=""):
        with open("%s.%d" % (path, gpu), "w", encoding="ascii") as file:
            file.write(text)

    def good(self, answer, number):
        self.assertEqual(answer[:2], (OK, number))
        return answer[2]

    def expect_state(self, daemon, state):
        """Over the wire, and as an operator sees it; it serves all the same."""
        self.assertEqual(daemon.admin.Stats(pb.StatsRequest(), timeout=CALL_S).state, state)
        self.assertEqual(daemon.health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_S).status,
                         health_pb2.HealthCheckResponse.SERVING)
        said = subprocess.run([CTL, "--address", daemon.address, "status"], capture_output=True, text=True, timeout=CALL_S, check=False)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertRegex(said.stdout, r"(?m)^state\s+%s$" % state)
        self.assertRegex(said.stdout, r"(?m)^health\s+SERVING$")

    def room(self, daemon, engine):
        """The GPU has free slots: what goes there goes as one list, whose layers are told one by one."""
        self.good(engine.do("put", 0, 900, 3), 3)
        wait_for(lambda: not daemon.stats()["terrace_gpu_dirty_blocks{gpu=0}"] + daemon.stats()["terrace_gpu_downs{gpu=0}"], 60,
                 "it has come down")
        stats = daemon.stats()
        self.assertGreaterEqual(stats["terrace_gpu_slots{gpu=0}"] - stats["terrace_gpu_slots_used{gpu=0}"], BLOCKS)

    def test_slow_copies(self):
        """A lease comes before its copies, layers come one after the other, and each has its bytes when it is there."""
        ms = 4000.0  # the machine may stall for more than a second, and the halves are still told from each other
        with self.daemon(SIM_GPU_US_PER_MIB=str(int(1000 * ms / (BLOCKS * BLOCK_MIB)))) as daemon, Engine(daemon) as engine:
            self.room(daemon, engine)
            self.good(engine.do("put", HOST, 0, BLOCKS), BLOCKS)
            leased = self.good(engine.do("lease", 0, 0, BLOCKS), BLOCKS)
            self.assertEqual(engine.do("check")[0], BUSY)
            first = self.good(engine.do("layer", 0), 0)
            self.assertEqual(engine.do("check")[0], BUSY)
            rest = self.good(engine.do("look"), 0)
            self.assertLess(leased, ms / 2)
            self.assertLess(first, ms / 2)
            self.assertGreater(rest, ms / 2)
            self.assertEqual(engine.do("release")[0], OK)
            # There is nothing to wait for any more, once the daemon has ended the list, of which the stream saw the last word.
            wait_for(lambda: daemon.stats()["terrace_moved_bytes_total{from=host,to=gpu}"] >= BLOCKS * BLOCK_MIB * 2**20, 60, "all has moved")
            self.good(engine.do("lease", 0, 0, BLOCKS), BLOCKS)
            self.assertEqual(engine.do("check")[0], OK)
            self.good(engine.do("look"), 0)
            print("lease %.0f ms, first layer after %.0f ms, all after %.0f ms more" % (leased, first, rest))

    def test_warmed_ahead(self):
        with self.daemon(SIM_GPU_US_PER_MIB="50000") as daemon, Engine(daemon) as engine:
            self.good(engine.do("put", HOST, 0, BLOCKS), BLOCKS)
            self.good(engine.do("warm", 0, 0, BLOCKS), BLOCKS)
            self.assertEqual(daemon.stats()["terrace_gpu_blocks{gpu=0}"], BLOCKS)
            self.good(engine.do("lease", 0, 0, BLOCKS), BLOCKS)
            self.assertEqual(engine.do("check")[0], OK)
            self.good(engine.do("look"), 0)

    def test_lost_to_the_daemon_alone(self):
        """The engine's own GPU works: its stream goes on at once, and the lease is void."""
        with self.daemon() as daemon, Engine(daemon) as engine:
            self.room(daemon, engine)
            self.good(engine.do("put", HOST, 0, BLOCKS), BLOCKS)
            self.touch(self.hold, 0, "3")
            self.good(engine.do("lease", 0, 0, BLOCKS), BLOCKS)
            self.good(engine.do("layer", 2), 0)
            self.assertEqual(engine.do("check")[0], BUSY)
            engine.say("look")
            time.sleep(0.1)  # the stream waits
            self.touch(self.lost, 0)
            status, _, ms = engine.hear()
            self.assertEqual(status, UNAVAILABLE)
            self.assertLess(ms, 30000)  # and not never: the copy is held up for good
            self.assertEqual(engine.do("release")[0], OK)
            self.assertEqual(engine.do("lease", 0, 0, BLOCKS)[0], UNAVAILABLE)
            # What host memory has, it has.
            self.good(engine.do("lease", HOST, 0, BLOCKS), BLOCKS)
            print("the stream went on after %.0f ms" % ms)

    def test_lost_while_engines_lease(self):
        """One GPU of two goes: on it misses, or UNAVAILABLE, and no wrong byte; the other one goes on."""
        seen = {"SIM_GPU_DEVICES": "2", "SIM_GPU_LOST_FILE": self.lost}
        with self.daemon(2) as daemon, Engine(daemon, **seen) as one, Engine(daemon, **seen) as other:
            self.good(one.do("put", HOST, 0, BLOCKS), BLOCKS)
            self.good(other.do("put", 1, 100, BLOCKS), BLOCKS)
            self.expect_state(daemon, "serving")
            ends, rounds = threading.Event(), []

            def goes_on():
                while not ends.is_set():
                    for first in (0, 100):
                        rounds.append((other.do("lease", 1, first, BLOCKS), other.do("look")))
                        other.do("release")

            thread = threading.Thread(target=goes_on)
            thread.start()
            try:
                before, after = 0, set()
                for turn in range(40):
                    if turn == 20:
                        self.touch(self.lost, 0)
                    status, number, _ = one.do("lease", 0, 0, BLOCKS)
                    if status:
                        after.add(status)
                        continue
                    looked = one.do("look")
                    self.assertEqual(looked[:2] if turn < 20 else looked[0], (OK, 0) if turn < 20 else UNAVAILABLE)
                    one.do("release")
                    before += number
                self.assertEqual(before, 20 * BLOCKS)
                self.assertLessEqual(after, {MISS, UNAVAILABLE})
                self.assertTrue(after)
                wait_for(lambda: daemon.stats()["terrace_gpu_lost{gpu=0}"] == 1, 60, "Stats says that the GPU is lost")
                told = len(rounds)
                wait_for(lambda: len(rounds) > told + 10, 60, "the other GPU goes on")
            finally:
                ends.set()
                thread.join(timeout=60)
            self.assertFalse(thread.is_alive())
            for leased, looked in rounds:
                self.good(leased, BLOCKS)
                self.good(looked, 0)
            stats = daemon.stats()
            self.assertEqual(stats["terrace_gpu_lost{gpu=1}"], 0)
            self.expect_state(daemon, "degraded")
            self.good(other.do("put", 1, 200, 2), 2)
            self.good(other.do("lease", 1, 200, 2), 2)
            self.good(other.do("look"), 0)
            self.assertEqual(other.do("release")[0], OK)
            wait_for(lambda: "event=gpu_lost" in daemon.log(), 60, "so does the log")
            wait_for(lambda: daemon.stats()["terrace_gpu_slots_used{gpu=0}"] == 0, 60, "nothing is left of what it had")
            print("%d rounds on the other GPU" % len(rounds))


if __name__ == "__main__":
    TERRACED, ENGINE, SIM, CTL = sys.argv[1:5]
    unittest.main(argv=sys.argv[:1] + sys.argv[5:], verbosity=2)

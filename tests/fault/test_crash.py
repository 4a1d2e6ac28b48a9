"""A real terraced dies, again and again: `test_crash.py TERRACED STORM CRASH_CORE [KILLS [SEED]]`.

TERRACED is built with the points of store/crash_point.h, which CRASH_CORE lists. In each life a grpcio client puts, gets, flushes and
deletes, and a borrowing engine leases and puts, until the daemon is killed at a point or at any time. The next daemon must have another
epoch, serve at once, have what was flushed, not have what was deleted, and give no wrong byte.
"""

import os
import random
import select
import socket
import subprocess
import sys
import time
import unittest

import grpc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
import daemon  # noqa: E402
from daemon import CALL_S, Daemon, key, keys, layout, pb, wait_for  # noqa: E402

TERRACED, STORM, CRASH_CORE, KILLS, SEED = "terraced", "storm", "crash_core", 40, 1
KEYS, LIFE_SECONDS, LIFE_TURNS = 64, 0.4, 12
BY_GRAPH = ("--policy", "graph", "--disk-policy", "graph", "--advisor-every", "50ms", "--recompute-growth", "64")
# Passed only after damage that nobody does here, or in an orderly end.
ELSEWHERE = ("draft_", "aside_", "wipe_", "mark_", "unit_", "clean_", "settle", "tier_stop", "disk_close", "catalog_close",
             "catalog_make", "catalog_grow", "catalog_empty", "id_", "compact")


class Mortal(Daemon):
    """Starts without the client's waiting between tries, which grows with each daemon that dies."""

    def start(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [self.terraced, "--data-dir", os.path.join(self.folder, "data"), "--socket", self.address[len("unix:"):],
                 *self.flags], stdout=log, stderr=log, env={**os.environ, **self.env})
        wait_for(lambda: self.process.poll() is not None or self.answers(), CALL_S, "the socket is there")
        self.channel = grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.cache = daemon.terrace_pb2_grpc.CacheStub(self.channel)
        self.admin = daemon.terrace_pb2_grpc.AdminStub(self.channel)

    def answers(self):
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.address[len("unix:"):]) == 0


class Promise:
    """Of one key: the versions that may be seen, and what was flushed."""

    def __init__(self):
        self.next, self.floor, self.flushed = 0, 1, 0


class Crash(unittest.TestCase):
    def setUp(self):
        self.rng = random.Random(SEED)
        self.layout = layout(first_layer=64, layers=1, heads=1, total_heads=1)
        self.promises = [Promise() for _ in range(KEYS)]
        self.epochs, self.checked, self.flushed, self.deleted, self.at_points, self.by_graph = set(), 0, 0, 0, 0, 0
        self.choice = random.Random(SEED + 1)
        self.daemon = Mortal(TERRACED, "--host-bytes", "4MiB", "--extent-bytes", "1MiB", "--slab-bytes", "2MiB", start=False)
        self.daemon.flags += ("--disks", os.path.join(self.daemon.folder, "disk") + ":64MiB")
        self.flags = self.daemon.flags
        self.addCleanup(self.daemon.close)

    def block(self, number, version):
        head = b"%08d%08d" % (number, version)
        return head + random.Random("%d/%d" % (number, version)).randbytes(self.size - len(head))

    def open(self):
        opened = self.daemon.open(self.layout)
        self.assertNotIn(opened.epoch, self.epochs)
        self.epochs.add(opened.epoch)
        self.session, self.size = opened.session, opened.layouts[0].block_bytes

    def put(self, numbers):
        items = []
        for n in numbers:
            self.promises[n].next += 1
            items.append((key(n), self.block(n, self.promises[n].next)))
        for status in self.daemon.put(self.session, items, chunk=1 << 16):
            self.assertIn(status, (pb.OK, pb.EXISTS, pb.BUSY, pb.EXHAUSTED))

    def get(self, numbers):
        """The versions that are there, by number."""
        found = {}
        for index, (status, data) in self.daemon.get(self.session, keys(*numbers)).items():
            self.assertIn(status, (pb.OK, pb.MISS))
            if status == pb.MISS:
                continue
            n, version = int(data[:8]), int(data[8:16])
            promise = self.promises[n]
            self.assertEqual(n, numbers[index])
            self.assertEqual(data, self.block(n, version), "wrong bytes of %d" % n)
            self.assertGreaterEqual(version, promise.floor, "%d was deleted" % n)
            self.assertLessEqual(version, promise.next)
            found[n] = version
            self.checked += 1
        return found

    def flush(self, numbers):
        # EXISTS or not, what is there after the flush, and was before, has been flushed.
        before = self.get(numbers)
        reply = self.daemon.cache.Flush(pb.FlushRequest(session=self.session, keys=keys(*numbers)), timeout=CALL_S)
        for n, status in zip(numbers, reply.status):
            if status == pb.OK and n in before:
                self.promises[n].flushed = before[n]
                self.flushed += 1

    def delete(self, numbers):
        for n in numbers:
            self.promises[n].flushed = 0
        self.daemon.cache.Delete(pb.DeleteRequest(session=self.session, keys=keys(*numbers)), timeout=CALL_S)
        for n in numbers:
            self.promises[n].floor = self.promises[n].next + 1
            self.deleted += 1

    def check(self):
        wait_for(lambda: self.daemon.stats()["terrace_restored"] == 1, CALL_S, "the disks are taken up")
        for at in range(0, KEYS, 16):
            numbers = list(range(at, at + 16))
            there = self.get(numbers)
            for n in numbers:
                if self.promises[n].flushed:
                    if n not in there: # the other engine may have all of the memory for a moment: a miss, and no loss
                        wait_for(lambda n=n: there.update(self.get([n])) or n in there, CALL_S, "%d, flushed, is not lost" % n)
                    self.assertGreaterEqual(there[n], self.promises[n].flushed)

    def work(self, seconds, turns):
        """So long, and so many turns at least."""
        until, done = time.monotonic() + seconds, 0
        while time.monotonic() < until or done < turns:
            done += 1
            numbers = self.rng.sample(range(KEYS), self.rng.randint(1, 8))
            self.rng.choice((self.put, self.put, self.put, self.get, self.flush, self.delete))(numbers)

    def live(self, point):
        """One life, every second or so with policies that learn and keep what they learned."""
        by_graph = self.choice.random() < 0.5
        self.by_graph += by_graph
        self.daemon.flags = (*self.flags, *(BY_GRAPH if by_graph else ()))
        self.daemon.env = {"CRASH_AT": "%s:%d" % (point, self.rng.choice((1, 1, 2, 3, 6)))} if point else {}
        engine = None
        try:
            self.daemon.start()
            self.open()
            engine = subprocess.Popen([STORM, "victim", self.daemon.address, "7"], stdout=subprocess.PIPE, text=True)
            self.check()
            if point: # which a slow machine passes later
                self.work(LIFE_SECONDS, LIFE_TURNS)
            else:
                self.work(self.rng.random() * LIFE_SECONDS, 0)
        except grpc.RpcError as e:
            self.assertTrue(self.dead(), "a call failed, and the daemon lives: %s" % e)
        self.at_points += self.daemon.process.poll() is not None
        self.daemon.kill()
        if engine:
            self.end(engine)
        self.assertEqual(self.daemon.process.returncode, -9, self.daemon.log()[-4000:])

    def end(self, engine):
        """3: a call failed. A crash would be a negative number, a wrong byte 1. One that has not begun may still look for the daemon."""
        try:
            code = engine.wait(timeout=2)
        except subprocess.TimeoutExpired:
            begun = select.select([engine.stdout], [], [], 0)[0]
            if not begun:
                engine.kill()
            code = engine.wait(timeout=CALL_S)
            code = code if begun else 3
        self.assertEqual(code, 3)
        engine.stdout.close()

    def dead(self):
        try:
            self.daemon.process.wait(timeout=CALL_S)
            return True
        except subprocess.TimeoutExpired:
            return False

    def test_killed_at_points_and_at_any_time(self):
        listed = subprocess.run([CRASH_CORE, "list"], capture_output=True, text=True, check=True).stdout.split()
        points = [p for p in listed if not p.startswith(ELSEWHERE)]
        self.assertGreater(len(points), 60)
        self.rng.shuffle(points)
        began = time.monotonic()
        for life in range(KILLS):
            self.live(points[life * 2 // 3 % len(points)] if life % 3 else None)
        self.daemon.env = {}
        self.daemon.start()
        self.open()
        self.check()
        self.daemon.stop()
        self.assertGreater(self.at_points, 0)
        self.assertGreater(self.by_graph, KILLS // 4)
        self.assertGreater(KILLS - self.by_graph, KILLS // 4)
        print("%d kills in %.0f s (%d at points, %d with the graph's policy); %d blocks checked, %d flushed, %d deleted" %
              (KILLS, time.monotonic() - began, self.at_points, self.by_graph, self.checked, self.flushed, self.deleted))


if __name__ == "__main__":
    TERRACED, STORM, CRASH_CORE = sys.argv[1:4]
    KILLS = int(sys.argv[4]) if len(sys.argv) > 4 else KILLS
    SEED = int(sys.argv[5]) if len(sys.argv) > 5 else SEED
    unittest.main(argv=sys.argv[:1], verbosity=2)

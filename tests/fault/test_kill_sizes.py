"""The daemon dies at any moment while slabs of one block size are given up for another:

    test_kill_sizes.py TERRACED [KILLS]

Eight layouts of eight block sizes share a disk of 64 slabs. All the time blocks of a random size are put, which are
spilled and not flushed, more than the disk has room for: so slabs are deleted and made anew for other sizes. Beside
them some blocks of each size are flushed, fewer than there are slabs, and deleted later. The daemon is killed with
SIGKILL in the middle of that, again and again. Asserted after each death: every block whose Flush was acknowledged,
and whose Delete was not begun, is there, bit for bit; no block whose Delete was acknowledged is there; and over all,
slabs were given up. The temporary folder must be on a disk: SIGKILL tears writes into files in memory.
"""

import glob
import os
import random
import sys
import tempfile
import threading
import time
import unittest

import grpc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from daemon import CALL_S, Daemon, key, keys, layout, pb, wait_for  # noqa: E402

TERRACED, KILLS, SEED = "terraced", 12, 23
SIZES, KEPT, PUT = 8, 4, 6  # kept: flushed blocks of a size; put at a time
FLAGS = ("--host-bytes", "32MiB", "--extent-bytes", "1MiB", "--spill-share", "1")
EVICTED = "terrace_evictions_total{tier=disk,reason=full}"


def size_layout(number):
    """Each needs more than a sixteenth more than the one before."""
    return layout(fingerprint=bytes([number + 1]) * 32, layers=2 + 2 * number, heads=16, total_heads=16)


def block(size, n, length):
    piece = random.Random(size * 1000003 + n).randbytes(96)
    return (piece * (length // len(piece) + 1))[:length]


class Load(threading.Thread):
    """What an engine does, until the daemon is gone. `kept`: flushed, and not deleted; `deleted`: acknowledged."""

    def __init__(self, daemon, rng, kept, deleted, first):
        super().__init__()
        self.daemon, self.rng, self.kept, self.deleted, self.next = daemon, rng, kept, deleted, first
        opened = [daemon.open(size_layout(s)) for s in range(SIZES)]
        self.sessions = [o.session for o in opened]
        self.bytes = [o.layouts[0].block_bytes for o in opened]
        self.failure = None

    def numbers(self, count):
        self.next += count
        return list(range(self.next - count, self.next))

    def put(self, size, numbers):
        def chunks():
            for n in numbers:
                header = pb.PutHeader(session=self.sessions[size], layout=0, key=key(n), info=pb.BlockInfo(tokens=16))
                yield pb.PutChunk(header=header, data=block(size, n, self.bytes[size]))

        statuses = self.daemon.cache.Put(chunks(), timeout=CALL_S).status
        return [n for n, status in zip(numbers, statuses) if status == pb.OK]

    def keep(self, size):
        stored = self.put(size, self.numbers(2))
        if stored:
            request = pb.FlushRequest(session=self.sessions[size], keys=keys(*stored))
            reply = self.daemon.cache.Flush(request, timeout=CALL_S)
            self.kept[size] += [n for n, status in zip(stored, reply.status) if status == pb.OK]

    def drop(self, size):
        gone = self.kept[size][:2]
        self.kept[size] = self.kept[size][2:]  # before the call: whether it was begun is not known if it fails
        request = pb.DeleteRequest(session=self.sessions[size], keys=keys(*gone))
        reply = self.daemon.cache.Delete(request, timeout=CALL_S)
        self.deleted[size] += [n for n, status in zip(gone, reply.status) if status in (pb.OK, pb.MISS)]

    def step(self):
        size = self.rng.randrange(SIZES)
        self.put(size, self.numbers(PUT))
        if self.rng.random() < 0.3:
            self.keep(size)
        if len(self.kept[size]) > KEPT:
            self.drop(size)

    def run(self):
        try:
            while True:
                self.step()
        except grpc.RpcError as gone:
            if gone.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                self.failure = gone
        except ValueError as closed:  # a call on a channel that was closed
            self.failure = None if "closed" in str(closed) else closed


def slabs_of(folder):
    """Their numbers: one that is made gets the next, and those of slabs that are deleted are not used again."""
    return [int(os.path.basename(name)[5:11]) for name in glob.glob(folder + "/disk/slab-*.trc")]


def given_up(folder):
    slabs = slabs_of(folder)
    return max(slabs) - len(slabs) if slabs else 0


class KillSizes(unittest.TestCase):
    def look(self, daemon, load):
        for size in range(SIZES):
            for at in range(0, len(load.kept[size]), 8):
                some = load.kept[size][at:at + 8]
                for index, (status, data) in daemon.get(load.sessions[size], keys(*some)).items():
                    self.assertEqual(status, pb.OK, "flushed block %d of size %d is lost" % (some[index], size))
                    self.assertEqual(data, block(size, some[index], load.bytes[size]))
            for at in range(0, len(load.deleted[size]), 256):
                some = load.deleted[size][at:at + 256]
                request = pb.LookupRequest(session=load.sessions[size], keys=keys(*some), states=True)
                reply = daemon.cache.Lookup(request, timeout=CALL_S)
                self.assertEqual(set(reply.states), {0}, "a deleted block of size %d is back" % size)

    def test_kill(self):
        rng = random.Random(SEED)
        kept, deleted = [[] for _ in range(SIZES)], [[] for _ in range(SIZES)]
        evicted, first = 0, 0
        with tempfile.TemporaryDirectory(prefix="terrace-kill-sizes-") as folder:
            daemon = Daemon(TERRACED, *FLAGS, "--disks", folder + "/disk:64MiB")
            self.addCleanup(daemon.close)
            for number in range(KILLS + 1):
                wait_for(lambda: daemon.stats()["terrace_restored"] == 1, 60, "the disk is taken up")
                load = Load(daemon, rng, kept, deleted, first)
                self.look(daemon, load)
                if number == KILLS:
                    break
                load.start()
                time.sleep(0.3 + rng.random())
                wait_for(lambda: given_up(folder) > number, 60, "slabs are given up")
                evicted += daemon.stats()[EVICTED]
                daemon.kill()
                load.join(2 * CALL_S)
                self.assertIsNone(load.failure)
                self.assertFalse(load.is_alive())
                first = load.next
                daemon.start()
            self.assertGreater(evicted, 0)
            self.assertGreater(sum(map(len, kept)), SIZES)
            self.assertGreater(sum(map(len, deleted)), SIZES)
            slabs = slabs_of(folder)
            print("%d kills: %d blocks kept, %d deleted, %d displaced, %d slabs, the last number %d"
                  % (KILLS, sum(map(len, kept)), sum(map(len, deleted)), evicted, len(slabs), max(slabs)),
                  file=sys.stderr)
            self.assertGreater(given_up(folder), 0)


if __name__ == "__main__":
    TERRACED = os.path.abspath(sys.argv[1])
    KILLS = int(sys.argv[2]) if len(sys.argv) > 2 else KILLS
    unittest.main(argv=sys.argv[:1], verbosity=2)

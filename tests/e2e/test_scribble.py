"""An engine that writes to its blocks after it committed them: its own process, with the daemon's memory mapped writable.

Others get what was committed, or a miss; what Flush answers OK for is there after a crash. Run with `engine` as the first argument it is that engine,
which takes lines of orders.
"""

import mmap
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import CALL_S, key, keys, layout, pb, running, terrace_pb2_grpc, wait_for  # noqa: E402

import grpc  # noqa: E402

HEADER = 4096
MAGIC, VERSION, HELLO, MAP = 0x46445254, 3, 1, 3
LAYER_CRC, LAYERS = 208, 64  # of a slot's header: the layers' sums, and how many there are
LAYOUT = layout(layers=4)


def block(n, size):
    return random.Random(n).randbytes(size)


def attach(path, token):
    """The socket, and the attachment's number."""
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(CALL_S)
    s.connect(path)
    s.send(struct.pack("=IHH", MAGIC, VERSION, HELLO) + token)
    status, attachment = struct.unpack("=8xI4x16xQ", s.recv(256)[:40])
    assert status == pb.OK, status
    return s, attachment


def map_extent(s, extent, write):
    """The status, and the memory if it is OK."""
    s.send(struct.pack("=IHHII", MAGIC, VERSION, MAP, extent, write))
    packet, lent, _, _ = socket.recv_fds(s, 256, 4)
    status = struct.unpack("=8xI", packet[:12])[0]
    if status != pb.OK:
        return status, None
    memory = mmap.mmap(lent[0], 0, prot=mmap.PROT_READ | (mmap.PROT_WRITE if write else 0))
    for fd in lent:
        os.close(fd)
    return status, memory


class Engine:
    """Slots of blocks 0 .. count - 1, committed, and still mapped writable."""

    def __init__(self, address, count):
        self.cache = terrace_pb2_grpc.CacheStub(grpc.insecure_channel(address))
        opened = self.cache.OpenSession(pb.OpenSessionRequest(layouts=[LAYOUT], engine="scribbler"), timeout=CALL_S)
        self.socket, attachment = attach(opened.fd_socket, opened.token)
        self.size = opened.layouts[0].block_bytes
        infos = [pb.BlockInfo(tokens=16)] * count  # full: what an engine writes behind a block's tokens is zeroed
        r = self.cache.Reserve(pb.ReserveRequest(session=opened.session, keys=keys(*range(count)), info=infos, attachment=attachment),
                               timeout=CALL_S)
        assert list(r.status) == [pb.OK] * count, r.status
        memory = {e: map_extent(self.socket, e, 1)[1] for e in set(r.places.extent)}
        self.slots = [(memory[e], at) for e, at in zip(r.places.extent, r.places.offset)]
        for n, (m, at) in enumerate(self.slots):
            m[at + HEADER:at + HEADER + self.size] = block(n, self.size)
        done = self.cache.Commit(pb.CommitRequest(session=opened.session, items=[pb.CommitItem(reservation=x) for x in r.reservation],
                                                  attachment=attachment), timeout=CALL_S)
        assert list(done.status) == [pb.OK] * count, done.status
        self.storms = []

    def flip(self, n, at):
        memory, slot = self.slots[n]
        memory[slot + at] ^= 1

    def storm(self, n, stop):
        """Again and again, whoever reads it meanwhile."""
        while not stop.wait(0.0001):
            self.flip(n, HEADER + random.randrange(self.size))

    def order(self, what, n):
        if what == "body":
            self.flip(n, HEADER + 100)
        elif what == "tail":
            self.flip(n, HEADER + self.size - 1)
        elif what == "sum":
            self.flip(n, LAYER_CRC)
        elif what == "length":
            memory, slot = self.slots[n]
            memory[slot + LAYERS:slot + LAYERS + 4] = b"\xff" * 4
        elif what == "all":
            memory, slot = self.slots[n]
            memory[slot:slot + HEADER + self.size] = b"\xff" * (HEADER + self.size)
        elif what == "storm":
            stop = threading.Event()
            self.storms.append((stop, threading.Thread(target=self.storm, args=(n, stop), daemon=True)))
            self.storms[-1][1].start()

    def run(self):
        print("ready", flush=True)
        for line in sys.stdin:
            what, n = line.split()
            self.order(what, int(n))
            print("done", flush=True)


class Scribble(unittest.TestCase):
    DAMAGES = ("body", "tail", "sum", "length", "all")

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="terrace-scribble-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def daemon(self, *flags):
        return running(TERRACED, "--host-bytes", "64MiB", *flags)

    def with_disk(self, *flags):
        return self.daemon("--disks", os.path.join(self.folder, "disk") + ":256MiB", "--slab-bytes", "32MiB", *flags)

    def engine(self, daemon, count):
        p = subprocess.Popen([sys.executable, os.path.abspath(__file__), "engine", daemon.address, str(count)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def end():
            p.kill()
            p.wait()
            p.stdin.close()
            p.stdout.close()
        self.addCleanup(end)
        self.assertEqual(p.stdout.readline().strip(), "ready")
        return p

    def order(self, engine, what, n):
        engine.stdin.write("%s %d\n" % (what, n))
        engine.stdin.flush()
        self.assertEqual(engine.stdout.readline().strip(), "done")

    def got(self, daemon, session, numbers):
        """Of each block whether it is there; one that is there is right."""
        found = daemon.get(session, keys(*numbers))
        for index, (status, data) in found.items():
            self.assertIn(status, (pb.OK, pb.MISS))
            if status == pb.OK:
                self.assertEqual(data, block(numbers[index], len(data)), "block %d" % numbers[index])
        return [found[i][0] == pb.OK for i in range(len(numbers))]

    def flush(self, daemon, session, count):
        return list(daemon.cache.Flush(pb.FlushRequest(session=session, keys=keys(*range(count))), timeout=CALL_S).status)

    def test_get(self):
        with self.daemon() as d:
            engine, session = self.engine(d, 10), d.open(LAYOUT).session
            for n, what in enumerate(self.DAMAGES):
                self.order(engine, what, n)
            self.assertEqual(self.got(d, session, list(range(10))), [False] * 5 + [True] * 5)
            self.assertEqual(d.stats()["terrace_memory_corrupt_blocks_total{found=get}"], 5)
            wait_for(lambda: d.log().count("event=block_written_over ") == 5, 60, "the log says it")
            self.assertIn("found_by=get", d.log())
            self.assertNotIn(key(0).hex(), d.log())  # keys are for the level debug

    def again(self, d):
        """It is killed and started; what its disk has is served once the catalog has been read."""
        d.kill()
        d.start()
        wait_for(lambda: d.stats()["terrace_restored"] == 1, CALL_S, "the disk is taken up")

    def test_flush_then_crash(self):
        with self.with_disk() as d:
            engine, session = self.engine(d, 10), d.open(LAYOUT).session
            for n, what in enumerate(self.DAMAGES):
                self.order(engine, what, n)
            self.assertEqual(self.flush(d, session, 10), [pb.MISS] * 5 + [pb.OK] * 5)
            self.assertEqual(d.stats()["terrace_memory_corrupt_blocks_total{found=spill}"], 5)
            self.again(d)
            self.assertEqual(self.got(d, d.open(LAYOUT).session, list(range(10))), [False] * 5 + [True] * 5)

    def test_after_the_flush(self):
        """What is found wrong in memory is a miss, though it was acknowledged; what the restart is before is not."""
        with self.with_disk() as d:
            engine, session = self.engine(d, 10), d.open(LAYOUT).session
            self.assertEqual(self.flush(d, session, 10), [pb.OK] * 10)
            for n, what in enumerate(self.DAMAGES):
                self.order(engine, what, n)
                self.order(engine, what, n + 5)
            self.assertEqual(self.got(d, session, list(range(5))), [False] * 5)
            self.assertEqual(self.flush(d, session, 10), [pb.MISS] * 5 + [pb.OK] * 5)
            self.again(d)
            self.assertEqual(self.got(d, d.open(LAYOUT).session, list(range(10))), [False] * 5 + [True] * 5)

    def test_all_the_while(self):
        """One that never stops writing, beside Gets, background spills and Flushes."""
        with self.with_disk("--spill-share", "1") as d:
            engine, session = self.engine(d, 24), d.open(LAYOUT).session
            for n in range(8):
                self.order(engine, "storm", n)
            for _ in range(40):
                there = self.got(d, session, list(range(16)))
                self.assertEqual(there[8:], [True] * 8)
            acknowledged = [n for n, s in enumerate(self.flush(d, session, 24)) if s == pb.OK]
            self.assertTrue(set(range(8, 24)) <= set(acknowledged))
            self.again(d)
            after = self.got(d, d.open(LAYOUT).session, list(range(24)))
            self.assertEqual([n for n in acknowledged if not after[n] and n >= 8], [])

    def test_memory_is_writable_for_who_puts(self):
        with self.daemon() as d:
            self.engine(d, 4)
            opened = d.open(LAYOUT)
            attached, attachment = attach(opened.fd_socket, opened.token)
            self.addCleanup(attached.close)
            lease = d.cache.Lease(pb.LeaseRequest(session=opened.session, keys=keys(0), attachment=attachment), timeout=CALL_S)
            extent = lease.places.extent[0]
            self.assertEqual(map_extent(attached, extent, 1), (pb.PRECONDITION, None))
            status, memory = map_extent(attached, extent, 0)
            self.assertEqual(status, pb.OK)
            at = lease.places.offset[0] + HEADER
            self.assertEqual(memory[at:at + 64], block(0, 64))
            r = d.cache.Reserve(pb.ReserveRequest(session=opened.session, keys=keys(100), attachment=attachment), timeout=CALL_S)
            self.assertEqual(map_extent(attached, r.places.extent[0], 1)[0], pb.OK)


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        Engine(sys.argv[2], int(sys.argv[3])).run()
    else:
        TERRACED = sys.argv[1]
        unittest.main(argv=sys.argv[:1] + sys.argv[2:])

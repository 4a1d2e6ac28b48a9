"""The Python binding, against a real terraced and a simulated GPU: `test_python.py TERRACED LIBTERRACE PYTHON_ABI SIM_FOLDER [TEST]`."""

import array
import ctypes
import gc
import math
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

TERRACED, LIBRARY, ABI, SIM = sys.argv[1:5]
os.environ["LIBTERRACE"] = LIBRARY
HERE = os.path.dirname(os.path.abspath(__file__))
CLIENT = os.path.join(os.path.dirname(os.path.dirname(HERE)), "client")
EXAMPLE = os.path.join(CLIENT, "examples", "transformers")
sys.path[:0] = [HERE, os.path.join(CLIENT, "python"), EXAMPLE]
sys.dont_write_bytecode = True
import terrace  # noqa: E402
from terrace import _abi, _arguments  # noqa: E402
import tiers  # noqa: E402
from daemon import Daemon, running, wait_for  # noqa: E402
from prefix import Lost, Sequence  # noqa: E402

SMALL = ("--host-bytes", "16MiB", "--extent-bytes", "1MiB")
LAYOUT = terrace.Layout("test_python", layers=2, heads=2, head_dim=64, k_format="fp8")
KEYS = terrace.chain(list(range(64)), 16)


def bytes_of(i):
    return bytes((i * 31 + k) % 251 for k in range(LAYOUT.block_bytes))


def fill(session, keys=KEYS):
    with session.reserve(keys) as slots:
        for i in range(len(keys)):
            slots.block(i)[:] = bytes_of(i)
        return slots.commit()


def mapped(rights):
    """(first, end) of this process's mappings of the daemon's host memory that have these rights."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        lines = [line.split() for line in maps if "memfd:terrace-extent" in line]
    return sorted(tuple(int(at, 16) for at in line[0].split("-")) for line in lines if line[1] == rights)


def writable_bytes():
    return sum(end - first for first, end in mapped("rw-s"))


def stray_engine(address):
    """Commits, and writes to a committed block when the library has taken the pages back."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with terrace.connect(address) as client, client.session([LAYOUT]) as session:
        with session.reserve(KEYS) as slots:
            for i in range(len(KEYS)):
                slots.block(i)[:] = bytes_of(i)
            at = _arguments.pointer(slots.block(1))[0]
            slots.commit()
        wait_for(lambda: not writable_bytes(), 60, "what was committed is not writable any more")
        print("committed", flush=True)
        ctypes.memset(at + 9, 0xff, 1)
        print("damaged", flush=True)


def forking_engine(address):
    """Holds a lease and a reservation, and forks a child that outlives it; says the child's number."""
    with terrace.connect(address) as client, client.session([LAYOUT]) as session:
        fill(session)
        with session.lease(KEYS), session.reserve(terrace.chain(list(range(100, 164)), 16)):
            child = os.fork()
            if not child:
                os.close(1)
                signal.pause()
            print(child, flush=True)
            signal.pause()


class Abi(unittest.TestCase):
    def test_structs_are_the_compilers(self):
        """Every member of every struct: one that the binding lacks, or has elsewhere, is seen."""
        want = {}
        for line in subprocess.run([ABI], capture_output=True, text=True, check=True).stdout.splitlines():
            name, *numbers = line.split()
            want[name] = [int(n) for n in numbers]
        have = {}
        for name, kind in _abi.STRUCTS.items():
            have[name] = [ctypes.sizeof(kind)]
            for member, _ in kind._fields_:
                field = getattr(kind, member)
                have["%s.%s" % (name, member)] = [field.offset, field.size]
        self.assertEqual(have, want)
        for name, kind in _abi.STRUCTS.items():  # of C's the library's compiler says it (client/value/layout.c)
            self.assertEqual(sum(getattr(kind, member).size for member, _ in kind._fields_), ctypes.sizeof(kind), name)


class Values(unittest.TestCase):
    def test_layouts(self):
        self.assertEqual(LAYOUT.block_bytes, 2 * 2 * 16 * 2 * (64 + 2))
        with self.assertRaisesRegex(ValueError, "head_dim"):
            terrace.Layout("x", layers=2, heads=2, head_dim=63)
        with self.assertRaisesRegex(ValueError, "int4_rounding"):  # tq4 rounds to no dtype
            terrace.Layout("x", layers=2, heads=2, head_dim=64, int4_bf16=True)
        self.assertEqual(terrace.Layout("x", layers=2, heads=2, head_dim=64, k_format="int4_pth",
            int4_bf16=True).block_bytes,
                         2 * 2 * 16 * 2 * (32 + 4))
        with self.assertRaises(terrace.Error) as caught:
            terrace.Layout("x", layers=2, heads=2, head_dim=64, k_format="tq9")
        self.assertEqual(caught.exception.status, terrace.Status.INVALID)

    def test_chains(self):
        self.assertEqual(len(KEYS), 4)
        self.assertEqual(terrace.chain(list(range(70)), 16), KEYS)
        self.assertEqual(terrace.chain_hash(KEYS[0], range(16, 32)), KEYS[1])
        self.assertNotEqual(terrace.chain(list(range(64)), 16, salt=b"s"), KEYS)

    def test_encode_decode_attend(self):
        """One head's K all the same: attention is the mean of V."""
        block = bytearray(LAYOUT.block_bytes)
        k = array.array("f", [0.5] * 64 * 16)
        v = array.array("f", [float(t) for t in range(16) for _ in range(64)])
        for head in range(2):
            terrace.encode(LAYOUT, block, 1, head, 0, 16, k, v)
        back = array.array("f", [0.0] * 64 * 16)
        terrace.decode(LAYOUT, bytes(block), 1, 1, 0, 16, v=back)
        self.assertAlmostEqual(back[64 * 7], 7, delta=0.5)
        room = bytearray(len(block) + 16)
        at = -_arguments.pointer(room)[0] % 16
        aligned = memoryview(room)[at:at + len(block)]
        aligned[:] = block
        q, out, lse = array.array("f", [0.1] * 2 * 64), array.array("f", [0.0] * 2 * 64), array.array("f", [0.0] * 2)
        terrace.attend(LAYOUT, layer=1, queries=1, q_heads=2, q=q, blocks=[aligned], kv_tokens=16, out=out, lse=lse,
                       features=terrace.attend_features(window=16))
        self.assertAlmostEqual(out[0], 7.5, delta=0.3)
        self.assertAlmostEqual(out[127], 7.5, delta=0.3)
        with self.assertRaises(TypeError):
            terrace.attend(LAYOUT, quarries=1)
        with self.assertRaises(terrace.Error) as caught:
            terrace.attend(LAYOUT, layer=9, queries=1, q_heads=2, q=q, blocks=[aligned], kv_tokens=16, out=out)
        self.assertEqual(caught.exception.status, terrace.Status.INVALID)

    def test_memory_that_is_too_small(self):
        """The library cannot see it: it would read and write what is somebody else's."""
        block, k, out = bytearray(LAYOUT.block_bytes), array.array("f", [0.5] * 64 * 16), array.array("f", [0.0] * 2 * 64)
        query = dict(queries=1, q_heads=2, q=array.array("f", [0.1] * 2 * 64), blocks=[block], kv_tokens=16, out=out)
        sinks = terrace.attend_features(sinks=array.array("f", [0.0]))
        for wrong, call in (
                ("block: 16 bytes", lambda: terrace.encode(LAYOUT, block[:16], 0, 0, 0, 16, k)),
                ("k: 4092 bytes, of the 4096", lambda: terrace.encode(LAYOUT, block, 0, 0, 0, 16, k[1:])),
                ("v: elements of 8 bytes, not 4", lambda: terrace.encode(LAYOUT, block, 0, 0, 0, 16, v=array.array("d", k))),
                ("k: elements of 4 bytes, not 2", lambda: terrace.encode(LAYOUT, block, 0, 0, 0, 16, k, dtype=terrace.Dtype.BF16)),
                ("block: 16 bytes", lambda: terrace.decode(LAYOUT, bytes(16), 0, 0, 0, 16, k)),
                ("v: 4092 bytes", lambda: terrace.decode(LAYOUT, block, 0, 0, 0, 16, v=k[1:])),
                ("cannot be written", lambda: terrace.decode(LAYOUT, block, 0, 0, 0, 16, v=bytes(4096))),
                ("q: 8 bytes", lambda: terrace.attend(LAYOUT, **{**query, "q": bytes(8)})),
                ("out: 508 bytes", lambda: terrace.attend(LAYOUT, **{**query, "out": out[1:]})),
                ("cannot be written", lambda: terrace.attend(LAYOUT, **{**query, "out": bytes(512)})),
                ("lse: 4 bytes", lambda: terrace.attend(LAYOUT, lse=out[:1], **query)),
                ("blocks: 16 bytes", lambda: terrace.attend(LAYOUT, **{**query, "blocks": [block[:16]]})),
                ("block_count: 2 of 1", lambda: terrace.attend(LAYOUT, block_count=2, **query)),
                ("sinks: 4 bytes", lambda: terrace.attend(LAYOUT, features=sinks, **query)),
                ("lse_a: -1 elements", lambda: terrace.merge(-1, -64, out, out[:1], out[:64], out[:1])),
                ("out_b: 4 bytes", lambda: terrace.merge(2, 64, out, out[:2], out[:1], out[:2]))):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, wrong):
                call()

    def test_merge(self):
        """Of two halves of equal weight: their mean."""
        a, b, lse_a, lse_b = (array.array("f", x) for x in ([1.0] * 8, [2.0] * 8, [0.5] * 2, [0.5] * 2))
        terrace.merge(2, 4, a, lse_a, b, lse_b)
        for value in a:
            self.assertAlmostEqual(value, 1.5, delta=1e-6)
        self.assertAlmostEqual(lse_a[1], 0.5 + math.log(2), delta=1e-6)

    def test_values_that_would_be_taken_for_others(self):
        for error, call in (
                (ValueError, lambda: terrace.chain_hash(b"short", [1])),
                (ValueError, lambda: terrace.chain_hash(b"longer than the 16 bytes that count", [1])),
                (ValueError, lambda: terrace.chain_hash(array.array("H", range(16)), [1])),
                (TypeError, lambda: terrace.Layout(5, layers=2, heads=2, head_dim=64)),
                (TypeError, lambda: terrace.attend(LAYOUT, layer=0, queries=1, q_heads=2, q=[0] * 128, blocks=[], kv_tokens=0, out=bytearray(512))),
                (TypeError, lambda: terrace.attend_features(sinks=(0, 0))),
                (ValueError, lambda: terrace.attend_features(window=1 << 32)),
                (ValueError, lambda: terrace.attend_features(window=-1)),
                (TypeError, lambda: terrace.attend_features(window=1.5)),
                (ValueError, lambda: terrace.Layout("x", layers=2 + (1 << 32), heads=2, head_dim=64)),
                (ctypes.ArgumentError, lambda: terrace.encode(LAYOUT, bytearray(LAYOUT.block_bytes), 1 << 32, 0, 0, 0)),
                (TypeError, lambda: terrace.cuda_features(sinks=[0, 0])),
                (ValueError, lambda: terrace.connect("unix:/nonexistent/terraced.sock", timeout=-1))):
            with self.assertRaises(error):
                call()

    def test_bytes_of_wider_elements(self):
        """A key, or a salt, of numbers is all of its bytes."""
        salt = array.array("I", [1, 2, 3])
        self.assertEqual(terrace.chain_hash(None, [1], salt), terrace.chain_hash(None, [1], bytes(salt)))

    def test_no_cuda(self):
        """In a process of its own: this one may have a plugin by now."""
        done = subprocess.run([sys.executable, "-c", "import terrace\n"
                               "try: terrace.cuda_load('/nowhere/libterrace_cuda.so')\n"
                               "except terrace.Unsupported as error: print(error)"],
                              env={**os.environ, "PYTHONPATH": os.path.join(CLIENT, "python")}, capture_output=True, text=True,
                              check=False)
        self.assertRegex(done.stdout, "^no CUDA: /nowhere", done.stderr)

    def test_it_stays_loaded(self):
        """It has threads without an end, whoever unloads it."""
        done = subprocess.run([sys.executable, "-c", "import _ctypes, ctypes, sys\n"
                               "_ctypes.dlclose(ctypes.CDLL(sys.argv[1])._handle)\n"
                               "print(sys.argv[1] in open('/proc/self/maps').read())", LIBRARY], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "True\n")

    def test_no_daemon(self):
        with self.assertRaises(terrace.Unavailable) as caught:
            terrace.connect("unix:/nonexistent/terraced.sock", timeout=0.5)
        self.assertIn("/nonexistent/", str(caught.exception))


class WithDaemon(unittest.TestCase):
    def test_load_estimate(self):
        """What a lookup found on disks takes so long to load; not known until the daemon has read a disk."""
        disk, host = [[terrace.State.DISK]], [[terrace.State.HOST]]
        with tempfile.TemporaryDirectory() as folder, running(TERRACED, *SMALL, "--disks", folder + ":64MiB") as daemon:
            with terrace.connect(daemon.address) as client, client.session([LAYOUT]) as session:
                fill(session)
                _, states = session.lookup(KEYS, states=True)
                self.assertEqual(session.load_estimate(states), 0)
                self.assertIsNone(session.load_estimate(host + disk))
                session.flush(KEYS)
                with self.assertRaises(ValueError):
                    session.load_estimate([[terrace.State.DISK] * 2])
            daemon.stop()
            daemon.start()
            with terrace.connect(daemon.address) as client, client.session([LAYOUT]) as session:
                wait_for(lambda: session.lookup(KEYS, states=True)[1] == disk * len(KEYS), 60, "the disk has the blocks")
                self.assertIsNone(session.load_estimate(disk))
                session.lease(KEYS, all=True, timeout=60).release()
                self.assertEqual(session.lookup(KEYS, states=True), (len(KEYS), host * len(KEYS)))
                one = session.load_estimate(disk)
                self.assertGreater(one, 0)
                self.assertAlmostEqual(session.load_estimate(disk * 50 + host), 50 * one, delta=1e-4)
                self.assertEqual(session.load_estimate(host), 0)

    def test_round_trips(self):
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, \
                client.session([LAYOUT], engine="test") as session:
            self.assertTrue(session.borrows)
            self.assertEqual(session.gpus, [])
            self.assertEqual(session.lookup(KEYS), 0)
            self.assertIsNone(session.lease(KEYS))
            self.assertIsNone(session.get(KEYS[0]))
            with self.assertRaisesRegex(terrace.Unsupported, "lends no GPU"):
                session.lease(KEYS, gpu=0)
            self.assertEqual(fill(session, KEYS[:3]), [terrace.Status.OK] * 3)
            self.assertEqual(session.lookup(KEYS, states=True), (3, [[terrace.State.HOST]] * 3 + [[terrace.State.ABSENT]]))
            self.assertIsNone(session.lease(KEYS, all=True))
            with session.lease(KEYS) as lease:
                self.assertEqual(len(lease), 3)
                for i in range(3):
                    self.assertEqual(bytes(lease.block(i)), bytes_of(i))
                    self.assertEqual(lease.tokens(i), 16)
                with self.assertRaises(TypeError):
                    lease.block(0)[0] = 1
                with self.assertRaises(terrace.Error) as caught:
                    lease.addresses()
                self.assertEqual(caught.exception.status, terrace.Status.PRECONDITION)
            self.assertTrue(session.put(KEYS[3], bytes_of(3), info=terrace.BlockInfo(parent=KEYS[2], position=48, tokens=9)))
            self.assertFalse(session.put(KEYS[3], bytes_of(3)))
            self.assertEqual(session.get(KEYS[3]), (bytearray(bytes_of(3)), 9))
            self.assertEqual(session.get(array.array("I", KEYS[3]))[1], 9)
            self.assertFalse(session.put(array.array("I", KEYS[3]), bytes_of(3)))
            self.assertEqual(session.warm(KEYS, wait=True), 4)
            session.touch(KEYS)
            session.report(KEYS, terrace.Event.TURN_END)
            with self.assertRaises(terrace.Unavailable):
                session.flush(KEYS)  # no disks
            self.assertEqual(session.delete(KEYS[2:] + [b"n" * 16]), [0, 0, terrace.Status.MISS])
            self.assertEqual(session.lookup(KEYS), 2)

    def test_reservations(self):
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, \
                client.session([LAYOUT]) as session:
            with session.reserve(KEYS[:1]) as slots:
                slots.block(0)[:4] = b"half"
            self.assertIsNone(session.lease(KEYS[:1]))  # it was aborted
            self.assertEqual(fill(session, KEYS[:2]), [0, 0])
            again = session.reserve(KEYS[:3], [terrace.BlockInfo(position=16 * i) for i in range(3)])
            self.assertEqual(again.statuses, [terrace.Status.EXISTS, terrace.Status.EXISTS, terrace.Status.OK])
            self.assertIsNone(again.block(0))
            again.block(2)[:] = bytes_of(2)
            statuses, lease = again.commit(lease=True)
            self.assertEqual(statuses, [terrace.Status.EXISTS, terrace.Status.EXISTS, terrace.Status.OK])
            self.assertEqual(bytes(lease.block(2)), bytes_of(2))
            lease.release()
            with self.assertRaisesRegex(terrace.Error, "given back"):
                lease.block(2)
            tail = session.reserve_open(terrace.BlockInfo(position=48))
            tail.block(0)[:] = bytes_of(3)
            self.assertTrue(tail.commit_open(KEYS[3], 5))
            self.assertEqual(session.get(KEYS[3])[1], 5)

    def test_views_hold_the_lease(self):
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, \
                client.session([LAYOUT]) as session:
            fill(session)
            lease = session.lease(KEYS)
            view = lease.block(1)
            piece = lease.block(1)[10:20]
            with self.assertRaises(BufferError):
                lease.release()
            self.assertEqual(bytes(piece), bytes_of(1)[10:20])
            piece.release()
            lease.release()
            with self.assertRaises(ValueError):
                view[0]  # released with it
            view = session.lease(KEYS).block(2)  # the view alone keeps the lease
            gc.collect()
            self.assertEqual(daemon.stats()["terrace_leases"], 1)
            self.assertEqual(bytes(view), bytes_of(2))
            del view
            gc.collect()
            wait_for(lambda: daemon.stats()["terrace_leases"] == 0, 60, "the lease is back")

    def test_views_that_another_thread_takes(self):
        """While one notes a view that it has taken, forgets those that are gone, or gives the blocks back."""
        class Other(threading.Thread):
            """Is given time to do what it should not get to."""
            def start(self):
                super().start()
                self.join(0.1)

        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, \
                client.session([LAYOUT]) as session:
            fill(session)
            lease, kept = session.lease(KEYS), []
            other = Other(target=lambda: kept.append(lease.block(1)[:8]))
            lease._views_most = 1
            lease._views.append((other.start, None))  # gone, and asked when another view is noted
            view = lease.block(0)
            other.join()
            with self.assertRaises(BufferError):
                lease.release()
            self.assertEqual(bytes(kept[0]), bytes_of(1)[:8])
            kept.clear()

            def block(*arguments):
                address = real(*arguments)
                other.start()
                return address

            real, other = terrace._lib.terrace_lease_block, Other(target=lease.release)
            with unittest.mock.patch.object(terrace._lib, "terrace_lease_block", block):
                view = lease.block(1)
            other.join()
            with self.assertRaisesRegex(ValueError, "released"):
                view[0]
            lease, ended = session.lease(KEYS), []

            def use():
                pointer = terrace.Lease._use(lease)
                if not ended:
                    ended.append(None)
                    other.start()
                return pointer

            other = Other(target=lease.close)
            lease._use, lease._end = use, lambda pointer: (ended.append(pointer), terrace.Lease._end(pointer))
            lease.close()
            other.join()
            self.assertEqual(len(ended), 2)  # once

    def test_processes_share(self):
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, \
                client.session([LAYOUT]) as session:
            fill(session)
            with terrace.connect(daemon.address) as other, other.attach(session.token) as joined:
                with joined.lease(KEYS) as lease:
                    self.assertEqual(bytes(lease.block(3)), bytes_of(3))
            with terrace.connect(daemon.address, no_borrow=True) as other, other.session([LAYOUT]) as streams:
                self.assertFalse(streams.borrows)
                self.assertEqual(bytes(streams.get(KEYS[0])[0]), bytes_of(0))
                with self.assertRaises(terrace.Error) as caught:
                    streams.lease(KEYS)
                self.assertEqual(caught.exception.status, terrace.Status.PRECONDITION)

    def test_only_reserved_slots_are_writable(self):
        """A session that reads has nothing to write by; one that puts has the pages of its slots, and not for long after."""
        with running(TERRACED, *SMALL) as daemon:
            with terrace.connect(daemon.address) as other, other.session([LAYOUT]) as writer:
                self.assertEqual(fill(writer), [terrace.Status.OK] * len(KEYS))
            self.assertEqual(writable_bytes(), 0)  # it is closed
            with terrace.connect(daemon.address) as client, client.session([LAYOUT]) as session:
                with session.lease(KEYS) as lease:
                    self.assertEqual(bytes(lease.block(0)), bytes_of(0))
                    self.assertEqual(writable_bytes(), 0)
                    self.assertTrue(mapped("r--s"))
                slot = (LAYOUT.block_bytes + 4096 + 4095) // 4096 * 4096
                with session.reserve(terrace.chain(list(range(100, 164)), 16)) as slots:
                    self.assertEqual(slots.statuses, [terrace.Status.OK] * 4)
                    self.assertEqual(writable_bytes(), 4 * slot)
                    self.assertEqual(daemon.stats()["terrace_writable_extents"], 1)
                wait_for(lambda: not writable_bytes(), 60, "what was aborted is not writable any more")
                wait_for(lambda: not daemon.stats()["terrace_writable_extents"], 120, "and the daemon knows it")

    def test_a_forked_child_holds_nothing_for_its_dead_parent(self):
        """The library keeps its mappings from children, and its descriptors are closed once it has mapped them."""
        with running(TERRACED, *SMALL) as daemon:
            command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:5], "--forks", daemon.address]
            engine = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            child = int(engine.stdout.readline())
            try:
                self.assertGreater(daemon.stats()["terrace_reservations"], 0)
                engine.kill()
                engine.wait()
                # The reservations first: before the daemon has seen that the process is dead, it has no session of a dead one.
                wait_for(lambda: not daemon.stats()["terrace_reservations"], 60, "what it had reserved is given back")
                wait_for(lambda: not daemon.stats()["terrace_ghost_sessions"], 60, "nothing is held for it")
                os.kill(child, 0)  # it lives
            finally:
                engine.stdout.close()
                os.kill(child, signal.SIGKILL)

    def test_a_key_that_a_killed_writer_had_reserved(self):
        """As deploy/GUARANTEES.md says: a second writer is BUSY until the first one's session has ended, then it gets the slot."""
        keys, busy, ok = terrace.chain(list(range(100, 164)), 16), [terrace.Status.BUSY] * 4, [terrace.Status.OK] * 4
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, client.session([LAYOUT]) as session:
            def reserved():
                with session.reserve(keys) as slots:
                    return slots.statuses == ok
            command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:5], "--forks", daemon.address]
            writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            child = int(writer.stdout.readline())
            try:
                with session.reserve(keys) as slots:
                    self.assertEqual(slots.statuses, busy)
                with self.assertRaises(terrace.Busy):
                    session.put(keys[0], bytes_of(0))
                self.assertEqual(session.lookup(keys), 0)
                writer.kill()
                writer.wait()
                wait_for(reserved, 60, "the second writer gets the slots")
                self.assertEqual(fill(session, keys), ok)
                with session.lease(keys, all=True) as lease:
                    self.assertEqual(bytes(lease.block(3)), bytes_of(3))
            finally:
                writer.stdout.close()
                writer.kill()
                writer.wait()
                os.kill(child, signal.SIGKILL)

    def test_a_stray_write_after_the_commit_ends_the_engine(self):
        with running(TERRACED, *SMALL) as daemon:
            done = subprocess.run([sys.executable, os.path.abspath(__file__), *sys.argv[1:5], "--stray", daemon.address],
                                  capture_output=True, text=True, check=False, timeout=120)
            self.assertEqual((done.stdout, done.returncode), ("committed\n", -signal.SIGSEGV), done.stderr)
            with terrace.connect(daemon.address) as client, client.session([LAYOUT]) as session, session.lease(KEYS) as lease:
                self.assertEqual([bytes(lease.block(i)) for i in range(len(KEYS))], [bytes_of(i) for i in range(len(KEYS))])
            wait_for(lambda: not daemon.stats()["terrace_ghost_sessions"], 60, "nothing is held for the dead engine")


    def test_the_old_name_of_no_local_calls(self):
        with running(TERRACED, *SMALL) as daemon:
            before = daemon.stats()
            with self.assertWarns(DeprecationWarning), terrace.connect(daemon.address, no_near_calls=True) as client:
                with client.session([LAYOUT]) as session:
                    session.lookup(KEYS)
                after = daemon.stats()
            name = "terrace_rpc_calls_total{method=Cache.Lookup,status=OK}"
            self.assertEqual(after.get(name, 0) - before.get(name, 0), 1)

    def test_local_calls_and_by_grpc(self):
        def near(stats, method):
            return stats.get("terrace_rpc_calls_total{method=Cache.%s,status=OK,way=local}" % method, 0)

        def by_grpc(stats, method):
            return stats.get("terrace_rpc_calls_total{method=Cache.%s,status=OK}" % method, 0)

        with running(TERRACED, *SMALL) as daemon:
            for far in (True, False):
                before = daemon.stats()
                with terrace.connect(daemon.address, no_local_calls=far) as client, client.session([LAYOUT]) as session:
                    if far:
                        fill(session)
                    for _ in range(3):
                        self.assertEqual(session.lookup(KEYS), len(KEYS))
                        with session.lease(KEYS) as lease:
                            self.assertEqual(bytes(lease.block(3)), bytes_of(3))
                    after = daemon.stats()
                for method in "Lookup", "Lease":
                    self.assertEqual(near(after, method) - near(before, method), 0 if far else 3)
                    self.assertEqual(by_grpc(after, method) - by_grpc(before, method), 3 if far else 0)
            wait_for(lambda: daemon.stats()["terrace_local_connections"] == 0, 60, "the connections are closed")

    def test_a_forked_child_keeps_no_connection(self):
        """It has their descriptors. The parent's closing them hangs up all the same."""
        with running(TERRACED, *SMALL) as daemon:
            with terrace.connect(daemon.address) as client, client.session([LAYOUT]) as session:
                fill(session)
                self.assertEqual(daemon.stats()["terrace_local_connections"], 1)
                reader, writer = os.pipe()
                child = os.fork()
                if not child:
                    os.close(writer)
                    os.read(reader, 1)
                    os._exit(0)
            for name in "terrace_local_connections", "terrace_fd_socket_connections":
                wait_for(lambda: daemon.stats()[name] == 0, 60, "the daemon knows")
            self.assertEqual(os.waitpid(child, os.WNOHANG), (0, 0))  # it lives
            os.close(writer)
            os.close(reader)
            self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_a_daemon_that_restarts(self):
        daemon = Daemon(TERRACED, *SMALL)
        try:
            with terrace.connect(daemon.address, timeout=60) as client, client.session([LAYOUT]) as session:
                fill(session)
                lease = session.lease(KEYS)
                epoch = session.epoch
                daemon.kill()
                with self.assertRaises((terrace.Unavailable, terrace.Stale)):
                    session.lookup(KEYS)
                self.assertEqual(bytes(lease.block(1)), bytes_of(1))  # what is leased stays
                daemon.start()
                session.reopen(timeout=60)
                self.assertNotEqual(session.epoch, epoch)
                self.assertEqual(session.lookup(KEYS), 0)
                self.assertEqual(bytes(lease.block(1)), bytes_of(1))
                lease.release()
                fill(session)
                self.assertEqual(session.lookup(KEYS), 4)
        finally:
            daemon.close()

    def test_bad_arguments(self):
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, \
                client.session([LAYOUT]) as session:
            for wrong in ([], [b"a", b"bb"], [b""]):
                with self.assertRaises((ValueError, terrace.Error)):
                    session.lookup(wrong)
            for wrong in (KEYS[0], [5], ["abc"]):
                with self.assertRaises(TypeError):
                    session.lookup(wrong)
            for wrong in (lambda: session.put(KEYS[0], b"short"), lambda: session.get(KEYS[0], layout=-1), lambda: client.attach(b""),
                          lambda: session.report(KEYS, ttl=-1)):
                with self.assertRaises(ValueError):
                    wrong()
            slots = session.reserve(KEYS)
            for wrong in (lambda: session.lease(KEYS, gpu=-1), lambda: session.lease(KEYS, gpu=1 << 32), lambda: session.warm(KEYS, gpu=-1),
                          lambda: slots.block(1 << 32), lambda: session.reserve([b"open"], [terrace.BlockInfo(position=-1)]),
                          lambda: session.reserve_open(terrace.BlockInfo(tokens=1 << 32)), lambda: session.report(KEYS, 1 << 32)):
                with self.assertRaises((ValueError, ctypes.ArgumentError)):
                    wrong()
            with self.assertRaises(ValueError):
                slots.commit(timeout=-1)
            self.assertEqual(len(slots), len(KEYS))  # it is still there
            slots.abort()
            with self.assertRaises(ValueError):
                session.reserve(KEYS, [terrace.BlockInfo()])
            with self.assertRaises(terrace.Error):
                client.session([LAYOUT, terrace.Layout("y", 2, 2, 64, block_tokens=32)])
            self.assertEqual(struct.unpack("<Q", session.token[:8]) != (0,), True)


class Gpu:
    """The simulated device's runtime, by the names of CUDA's; what it allocates is freed with it."""

    def __init__(self):
        self.runtime = ctypes.CDLL(os.path.join(SIM, "libcudart.so.13"))
        for name, arguments in (("StreamCreate", 1), ("StreamSynchronize", 1), ("Malloc", 2), ("MemcpyAsync", 5)):
            getattr(self.runtime, "cuda" + name).argtypes = [ctypes.c_void_p] * arguments
        self.runtime.cudaMemcpyAsync.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        self.runtime.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
        stream = ctypes.c_void_p()
        self.must(self.runtime.cudaStreamCreate(ctypes.byref(stream)))
        self.stream = stream.value

    @staticmethod
    def must(error):
        assert error == 0, "CUDA error %d" % error

    def wait(self):
        self.must(self.runtime.cudaStreamSynchronize(self.stream))

    def put(self, address, data):
        data = bytes(data)
        self.must(self.runtime.cudaMemcpyAsync(address, data, len(data), 1, self.stream))

    def get(self, address, size):
        out = ctypes.create_string_buffer(size)
        self.must(self.runtime.cudaMemcpyAsync(out, address, size, 2, self.stream))
        self.wait()
        return out.raw

    def new(self, data):
        """A copy on the device: its address."""
        out = ctypes.c_void_p()
        self.must(self.runtime.cudaMalloc(ctypes.byref(out), max(1, len(bytes(data)))))
        self.put(out.value, data)
        return out.value


class WithGpu(unittest.TestCase):
    FLAGS = (*SMALL, "--gpus", "all", "--gpu-bytes", "16MiB")

    def setUp(self):
        terrace.cuda_load(os.path.join(SIM, "libterrace_cuda.so.0"))
        self.gpu = Gpu()

    def test_idle_engines_give_room(self):
        """All of the GPU's memory is one layout's, and mapped by an engine that does nothing: another layout gets its share all the same."""
        wide, other = [terrace.Layout(name, layers=32, heads=8, head_dim=128, k_format="fp8") for name in ("wide", "other")]
        with running(TERRACED, *self.FLAGS, env={"LD_LIBRARY_PATH": SIM}) as daemon, \
                terrace.connect(daemon.address) as client, client.session([wide], gpu=True) as idle:
            keys = terrace.chain(list(range(16 * 7)), 16)  # a span each; the eighth is kept for newcomers
            with idle.reserve(keys, gpu=0, timeout=20) as slots:
                self.assertEqual(slots.statuses, [terrace.Status.OK] * 7)
                slots.commit()
            idle.gpu_ready(0, reservations=True)
            with client.session([other], gpu=True) as late:
                def has_room():
                    with late.reserve(keys[:1], gpu=0) as slots:
                        return slots.statuses == [terrace.Status.OK]

                wait_for(has_room, 60, "a newcomer is served")

    def test_blocks_on_the_gpu(self):
        gpu = self.gpu
        with running(TERRACED, *self.FLAGS, env={"LD_LIBRARY_PATH": SIM}) as daemon, \
                terrace.connect(daemon.address) as client, client.session([LAYOUT], gpu=True) as session:
            self.assertEqual(len(session.gpus), 1)
            self.assertEqual(session.gpu_of(0), 0)
            session.gpu_ready(0)
            with self.assertRaisesRegex(terrace.Error, "session_gpu_ready: the daemon lends 1 GPUs, and none of number 1"):
                session.gpu_ready(1)
            slots = session.reserve(KEYS, gpu=0)
            self.assertIsNone(slots.block(0))
            for i, address in enumerate(slots.addresses()):
                gpu.put(address, bytes_of(i))
            operation = slots.commit_after(gpu.stream)
            self.assertEqual(operation.finish(), [terrace.Status.OK] * 4)
            with session.lease(KEYS, all=True, gpu=0) as lease:
                for i, address in enumerate(lease.addresses()):
                    self.assertEqual(gpu.get(address, LAYOUT.block_bytes), bytes_of(i))
                lease.check()
            self.assertEqual(bytes(session.get(KEYS[1])[0]), bytes_of(1))  # the same bytes by stream
            session.gpu_ready(0, reservations=True, host_blocks=True)
            wait_for(lambda: daemon.stats()["terrace_fd_socket_offers_total"] >= 2, 60, "the GPU's extent, and the one behind it, are offered")
            fill(session, [b"on the host only", b"warmed up there."])
            self.assertEqual(session.warm([b"warmed up there."], wait=True, gpu=0), 1)
            self.assertEqual(daemon.stats()["terrace_gpu_blocks{gpu=0}"], 5)
            with self.assertRaisesRegex(terrace.Error, "lends 1 GPUs, and none of number 1"):
                session.warm(KEYS, gpu=1)
            with session.lease([b"on the host only"], gpu=0) as lease:  # goes up, a layer after the other
                for layer in range(LAYOUT.layers):
                    lease.wait_layer(layer, gpu.stream)
                self.assertEqual(gpu.get(lease.addresses()[0], LAYOUT.block_bytes), bytes_of(0))
                lease.check()
            lease = session.lease(KEYS, gpu=0, gpu_or_host=True)
            lease.release_after(gpu.stream)
            wait_for(lambda: daemon.stats()["terrace_leases"] == 0, 60, "the lease is back")
            with self.assertRaisesRegex(terrace.Error, "given back"):
                lease.addresses()
            session.reserve([b"never written..."], gpu=0).abort()
            self.assertIsNone(session.lease([b"never written..."]))

    def test_attention_on_the_gpu(self):
        """Encoded and attended on the device, in the daemon's memory: what the CPU makes of the same bytes."""
        gpu = self.gpu
        floats = [((i * 37) % 101 - 50) / 50 for i in range(32 * 2 * 64)]
        k, v = array.array("f", floats), array.array("f", reversed(floats))
        q = array.array("f", floats[:4 * 64])
        with running(TERRACED, *self.FLAGS, env={"LD_LIBRARY_PATH": SIM}) as daemon, \
                terrace.connect(daemon.address) as client, client.session([LAYOUT], gpu=True) as session:
            with session.reserve(KEYS[:2], gpu=0) as slots:
                table = gpu.new(array.array("Q", slots.addresses()))
                for layer in range(2):
                    terrace.cuda_encode(LAYOUT, gpu.stream, layer=layer, tokens=32, slots=gpu.new(array.array("q", range(32))),
                                        blocks=table, block_count=2, k=gpu.new(k), v=gpu.new(v), k_stride=128, v_stride=128,
                                        dtype=terrace.Dtype.F32)
                slots.commit_after(gpu.stream).finish()
            with session.lease(KEYS, gpu=0) as lease:
                out, lse = gpu.new(bytes(4 * 64 * 4)), gpu.new(bytes(4 * 4))
                shape = dict(sequences=1, queries=1, q_heads=4)
                size = terrace.cuda_attend_workspace(LAYOUT, **shape)
                options = dict(shape, layer=1, q=gpu.new(q), blocks=gpu.new(array.array("Q", lease.addresses())), blocks_stride=2,
                               kv_tokens=gpu.new(array.array("I", [32])), out=out, lse=lse, workspace=gpu.new(bytes(size)),
                               workspace_bytes=size)
                terrace.cuda_attend_plan(LAYOUT, gpu.stream, **options)
                terrace.cuda_attend(LAYOUT, gpu.stream, **options)
                got = array.array("f", gpu.get(out, 4 * 64 * 4))
                lease.check()
            with session.lease(KEYS) as lease:
                want = array.array("f", bytes(4 * 64 * 4))
                terrace.attend(LAYOUT, layer=1, queries=1, q_heads=4, q=q, blocks=[lease.block(0), lease.block(1)], kv_tokens=32,
                               causal=True, first_pos=31, out=want)
            self.assertGreater(max(map(abs, want)), 0.01)
            for a, b in zip(got, want):
                self.assertAlmostEqual(a, b, delta=1e-4)

    def test_refused_formats(self):
        with running(TERRACED, *self.FLAGS, env={"LD_LIBRARY_PATH": SIM}) as daemon, terrace.connect(daemon.address) as client:
            with self.assertRaisesRegex(terrace.Unsupported, "no CUDA kernel attends fp8 keys with tq2 values"):
                client.session([terrace.Layout("x", 2, 2, 64, k_format="fp8", v_format="tq2")], gpu=True)

    def test_the_daemon_dies_under_a_gpu_lease(self):
        daemon = Daemon(TERRACED, *self.FLAGS, env={"LD_LIBRARY_PATH": SIM})
        try:
            with terrace.connect(daemon.address, timeout=60) as client, client.session([LAYOUT]) as session:
                fill(session)
                with session.lease(KEYS, gpu=0) as lease:
                    for layer in range(LAYOUT.layers):
                        lease.wait_layer(layer, self.gpu.stream)
                    self.gpu.wait()
                    daemon.kill()
                    self.assertEqual(self.gpu.get(lease.addresses()[2], LAYOUT.block_bytes), bytes_of(2))
                    lease.check()  # its bytes had all come
                daemon.start()
                session.reopen(timeout=60)
                self.assertIsNone(session.lease(KEYS, gpu=0))
        finally:
            daemon.close()


class Example(unittest.TestCase):
    """client/examples/transformers: its bookkeeping; the rest, which wants torch, is only compiled."""

    FLAGS = WithGpu.FLAGS
    setUp = WithGpu.setUp

    def sequence(self, session, prompt):
        sequence = Sequence(session, LAYOUT, 0, lambda size: (self.gpu.new(bytes(size)), None))
        sequence.begin(prompt)
        return sequence

    def compute(self, sequence, tokens):
        """What the model would pack: of each block bytes that its number gives."""
        for layer in range(LAYOUT.layers):
            sequence.wait_layer(layer, self.gpu.stream)
        for i in range(sequence.reused // 16, -(-tokens // 16)):
            self.gpu.put(sequence.addresses[i], bytes_of(i))
        self.gpu.wait()

    def check(self, sequence, blocks):
        for i in range(blocks):
            self.assertEqual(self.gpu.get(sequence.addresses[i], LAYOUT.block_bytes), bytes_of(i))

    def test_prefixes_are_reused(self):
        prompt = list(range(70))
        with running(TERRACED, *self.FLAGS, env={"LD_LIBRARY_PATH": SIM}) as daemon, \
                terrace.connect(daemon.address) as client, client.session([LAYOUT], gpu=True) as session:
            for reused, stored in ((0, 4), (64, 0)):
                with self.sequence(session, prompt) as sequence:
                    self.assertEqual(sequence.reused, reused)
                    self.assertEqual(len(sequence.addresses), 5)
                    self.compute(sequence, 70)
                    sequence.publish()
                    self.assertEqual(sequence.stored, stored)
                    self.check(sequence, 5)
                    self.assertFalse(sequence.room(80))
                    self.assertTrue(sequence.room(81))
            with self.sequence(session, prompt[:64]) as sequence:  # the last token is always computed
                self.assertEqual(sequence.reused, 48)
            with self.sequence(session, prompt[:20] + [9] * 20) as sequence:
                self.assertEqual(sequence.reused, 16)
            self.assertEqual(daemon.stats()["terrace_reservations"], 0)

    def test_without_a_daemon(self):
        with self.sequence(None, list(range(40))) as sequence:
            self.assertEqual((sequence.reused, len(sequence.addresses)), (0, 3))
            self.compute(sequence, 40)
            sequence.publish()
            self.check(sequence, 3)

    def test_the_daemon_dies(self):
        daemon = Daemon(TERRACED, *self.FLAGS, env={"LD_LIBRARY_PATH": SIM})
        try:
            with terrace.connect(daemon.address, timeout=60) as client, client.session([LAYOUT]) as session, \
                    self.sequence(session, list(range(64))) as sequence:
                self.compute(sequence, 64)
                daemon.kill()
                with self.assertRaises(Lost):
                    sequence.publish()
        finally:
            daemon.close()

    def test_first_token_by_tier(self):
        """tiers.py with an engine that computes nothing: where the prefix is, what is reused, and that its bytes are right from everywhere."""
        test = self

        class Engine:
            layout, prompt = LAYOUT, list(range(100))

            def compute(self):
                return [7, 8], 0.001, "dense"

            def run(self, session, gpu, salt):
                begin = time.monotonic()
                with Sequence(session, LAYOUT, gpu, lambda size: (test.gpu.new(bytes(size)), None), salt) as sequence:
                    sequence.begin(self.prompt)
                    test.compute(sequence, len(self.prompt))
                    test.check(sequence, len(self.prompt) // 16)
                    sequence.publish()
                    return [7, 8], time.monotonic() - begin, "packed", sequence.reused

        with unittest.mock.patch.dict(os.environ, LD_LIBRARY_PATH=SIM):
            rows = tiers.measure(Engine(), TERRACED, rounds=2)
        self.assertEqual([row["tier"] for row in rows], ["recompute", "first", "nvme", "host", "vram"])
        self.assertEqual([row["reused"] for row in rows], [0, 0, 96, 96, 96])
        self.assertEqual([row["logits"] for row in rows], ["dense"] + 4 * ["packed"])
        self.assertEqual([len(row["ms_all"]) for row in rows], [2, 6, 2, 2, 2])
        self.assertTrue(all(row["same_as_recompute"] for row in rows))
        self.assertEqual([row.get("gb") for row in rows], [None, None, *2 * [round(6 * LAYOUT.block_bytes / 1e9, 5)], None])

    def test_other_texts_are_seen(self):
        class Engine:
            layout, prompt = LAYOUT, list(range(100))

        for tier, told in ((None, None), ("host", ([7], "packed", 96)), ("first", ([7, 8], "other", 0)), ("nvme", ([7, 8], "packed", 80))):
            results = {name: tiers.Result() for name in tiers.TIERS}
            for name, result in results.items():
                ids, logits, reused = told if name == tier else ([7, 8], "packed", 96 if name in tiers.STORED else 0)
                result.note(ids, 0.1, logits, reused)
            if tier:
                with self.assertRaises(RuntimeError):
                    tiers.check(Engine(), results)
            else:
                tiers.check(Engine(), results)

    def test_the_rest_compiles(self):
        for name in ("packed_cache.py", "generate.py", "copier.py", "ttft.py"):
            with open(os.path.join(EXAMPLE, name), encoding="utf-8") as source:
                compile(source.read(), name, "exec")


if __name__ == "__main__":
    if sys.argv[5:6] == ["--stray"]:
        stray_engine(sys.argv[6])
    elif sys.argv[5:6] == ["--forks"]:
        forking_engine(sys.argv[6])
    else:
        unittest.main(argv=sys.argv[:1] + sys.argv[5:], verbosity=2)

"""What the Python package adds to the calls: asyncio, watches, views as arrays, `python -m terrace`: `test_python_async.py TERRACED LIBTERRACE [TEST]`."""

import asyncio
import contextlib
import gc
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import unittest
import unittest.mock

TERRACED, LIBRARY = sys.argv[1:3]
os.environ["LIBTERRACE"] = LIBRARY
HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "client", "python")
sys.path[:0] = [HERE, PACKAGE]
sys.dont_write_bytecode = True
import terrace  # noqa: E402
from terrace import operation as operations, watch as watches  # noqa: E402
from daemon import Daemon, running, wait_for  # noqa: E402

WAIT_S = 60
SMALL = ("--host-bytes", "16MiB", "--extent-bytes", "1MiB")
LAYOUT = terrace.Layout("test_python_async", layers=2, heads=2, head_dim=64, k_format="fp16")
KEYS = terrace.chain(list(range(64)), 16)
OK, EXISTS = terrace.Status.OK, terrace.Status.EXISTS


def bytes_of(i):
    return bytes((i * 31 + k) % 251 for k in range(LAYOUT.block_bytes))


def fill(session, keys=KEYS):
    with session.reserve(keys) as slots:
        for i in range(len(keys)):
            slots.block(i)[:] = bytes_of(i)
        return slots.commit()


@contextlib.contextmanager
def stopped(daemon):
    """It answers no call meanwhile: all its threads stand still."""
    folder = "/proc/%d/task" % daemon.process.pid

    def state(task):
        with open(os.path.join(folder, task, "stat"), encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0]

    daemon.process.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: all(state(task) == "T" for task in os.listdir(folder)), WAIT_S, "the daemon stands still")
        yield
    finally:
        daemon.process.send_signal(signal.SIGCONT)


class Case(unittest.TestCase):
    """A daemon and a session, once for all tests of a class; each begins with an empty cache."""

    FLAGS = SMALL

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(TERRACED, *cls.FLAGS)
        cls.client = terrace.connect(cls.daemon.address, timeout=WAIT_S)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.daemon.close()

    def setUp(self):
        self.session = self.client.session([LAYOUT])
        self.addCleanup(self.session.close)
        self.session.delete(KEYS)


class Asyncio(Case):
    def test_every_call(self):
        async def main():
            session = self.session
            self.assertEqual(await session.lookup_async(KEYS), 0)
            self.assertIsNone(await session.lease_async(KEYS))
            self.assertIsNone(await session.get_async(KEYS[0]))
            with await session.reserve_async(KEYS[:2], [terrace.BlockInfo(position=16 * i) for i in range(2)]) as slots:
                self.assertEqual(slots.statuses, [OK, OK])
                for i in range(2):
                    slots.block(i)[:] = bytes_of(i)
                self.assertEqual(await slots.commit_async(), [OK, OK])
                self.assertTrue(slots.closed)
            self.assertTrue(await session.put_async(KEYS[2], bytes_of(2), info=terrace.BlockInfo(tokens=9)))
            self.assertFalse(await session.put_async(KEYS[2], bytes_of(2)))
            block, tokens = await session.get_async(KEYS[2])
            self.assertEqual((bytes(block), tokens), (bytes_of(2), 9))
            room = bytearray(LAYOUT.block_bytes)
            self.assertIs((await session.get_async(KEYS[1], into=room))[0], room)
            self.assertEqual(bytes(room), bytes_of(1))
            with await session.lease_async(KEYS) as lease:
                self.assertEqual([bytes(lease.block(i)) for i in range(len(lease))], [bytes_of(i) for i in range(3)])
            self.assertEqual(await session.warm_async(KEYS, wait=True), 3)
            self.assertEqual(await session.lookup_async(KEYS, states=True),
                             (3, [[terrace.State.HOST]] * 3 + [[terrace.State.ABSENT]]))
            with self.assertRaises(terrace.Unavailable):
                await session.flush_async(KEYS)  # no disks

        asyncio.run(asyncio.wait_for(main(), WAIT_S))

    def test_many_at_once_over_one_eventfd(self):
        fill(self.session)

        async def one(i):
            block, _ = await self.session.get_async(KEYS[i % 4])
            return bytes(block) == bytes_of(i % 4)

        async def main():
            bell = operations._bell()
            right = await asyncio.gather(*(one(i) for i in range(300)))
            self.assertEqual(right, [True] * 300)
            self.assertIs(operations._bell(), bell)
            self.assertFalse(bell._waiting)

        before = set(os.listdir("/proc/self/fd"))
        for _ in range(3):
            asyncio.run(asyncio.wait_for(main(), WAIT_S))
        gc.collect()
        self.assertEqual(len(set(os.listdir("/proc/self/fd")) - before), 0)  # each loop's eventfd went with it

    def test_the_loop_goes_on_while_a_call_waits(self):
        """The daemon is stopped: a call gets no answer, and the loop serves others."""
        async def main():
            ticks = 0
            waiting = asyncio.ensure_future(self.session.lookup_async(KEYS))
            for _ in range(5):
                await asyncio.sleep(0.01)
                ticks += 1
            self.assertFalse(waiting.done())
            self.daemon.process.send_signal(signal.SIGCONT)
            self.assertEqual(await waiting, 0)
            self.assertEqual(ticks, 5)

        with stopped(self.daemon):
            asyncio.run(asyncio.wait_for(main(), WAIT_S))

    def test_a_cancelled_task_cancels_its_operation(self):
        """And the lease that the daemon grants all the same is given back."""
        async def main():
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(self.session.lease_async(KEYS)._result(), 0.05)
            bell = operations._bell()
            self.assertFalse(bell._waiting)
            while bell._cancelled:  # it ends now, and not when its time is over: the daemon does not answer
                await asyncio.sleep(0.01)

        fill(self.session)
        with stopped(self.daemon):
            asyncio.run(asyncio.wait_for(main(), WAIT_S / 3))
        wait_for(lambda: self.daemon.stats()["terrace_leases"] == 0, WAIT_S, "no lease is left")

    def test_an_operation_that_nobody_ends(self):
        fill(self.session)
        self.session.lease_async(KEYS)
        gc.collect()
        wait_for(lambda: self.daemon.stats()["terrace_leases"] == 0, WAIT_S, "the lease is given back")

    def test_a_session_that_is_closed_ends_its_leases_under_way(self):
        async def main():
            waiting = asyncio.ensure_future(session.lease_async(KEYS))
            await asyncio.sleep(0)
            timer = threading.Timer(0.1, self.daemon.process.send_signal, [signal.SIGCONT])
            timer.start()
            session.close()
            with self.assertRaises(terrace.Cancelled):
                await waiting
            timer.join()

        session = self.client.session([LAYOUT])
        fill(session)
        with stopped(self.daemon):
            asyncio.run(asyncio.wait_for(main(), WAIT_S))

    def test_no_lease_outlives_its_session(self):
        """Not that of an operation either, which is complete and not ended yet: its blocks are not mapped any more."""
        fill(self.session)
        session = self.client.session([LAYOUT])
        operation = session.lease_async(KEYS)
        wait_for(lambda: operation.done, WAIT_S, "it is granted")
        session.close()
        with self.assertRaisesRegex(terrace.Precondition, "given back"):
            operation.finish()

    def test_wrong_loops(self):
        async def start():
            return self.session.lookup_async(KEYS)

        async def end(operation):
            return await operation

        for begin, words in ((lambda: asyncio.run(start()), "another event loop"), (lambda: self.session.lookup_async(KEYS), "outside of")):
            with stopped(self.daemon):
                operation = begin()
                with self.assertRaisesRegex(RuntimeError, words):
                    asyncio.run(end(operation))
            self.assertEqual(operation.finish(), 0)
            with self.assertRaises(terrace.Precondition):
                operation.finish()

    def test_an_eventfd_of_the_engines(self):
        fill(self.session)
        mine = os.eventfd(0)
        self.addCleanup(os.close, mine)
        under_way = [self.session.get_async(key, eventfd=mine) for key in KEYS]
        rung = 0
        while rung < len(KEYS):
            self.assertTrue(select.select([mine], [], [], WAIT_S)[0])
            rung += os.eventfd_read(mine)
        self.assertEqual([o.done for o in under_way], [True] * 4)
        self.assertEqual([bytes(o.finish()[0]) for o in under_way], [bytes_of(i) for i in range(4)])


class Watches(Case):
    def kinds(self, events):
        return [(e.kind.name, e.key) for e in events]

    def test_a_thread(self):
        fill(self.session, KEYS[:2])
        with self.session.watch() as watch:
            events = iter(watch)
            told = [next(events) for _ in range(3)]
            self.assertEqual(sorted(self.kinds(told[:2])), sorted(("STORED", key) for key in KEYS[:2]))
            self.assertEqual(told[2].kind, terrace.WatchKind.SYNCED)
            self.assertEqual([(e.layout, e.state, e.epoch) for e in told[:2]], [(0, terrace.State.HOST, self.session.epoch)] * 2)
            self.assertIsNone(watch.next(0.05))
            self.session.delete(KEYS[:1])
            self.assertEqual(self.kinds([next(events)]), [("REMOVED", KEYS[0])])
        with self.assertRaises(terrace.Precondition):
            watch.next()
        self.assertEqual(list(watch), [])

    def test_one_that_is_closed_while_a_thread_reads(self):
        watch, seen = self.session.watch(from_now=True), []
        reader = threading.Thread(target=lambda: seen.extend(watch))
        reader.start()
        fill(self.session)
        wait_for(lambda: len(seen) == 4, WAIT_S, "all are told")
        watch.close()
        reader.join(WAIT_S)
        self.assertFalse(reader.is_alive())
        self.assertTrue(watch.closed)

    def test_a_coroutine(self):
        async def main():
            seen = []
            with self.session.watch(from_now=True) as watch:
                filling = asyncio.get_running_loop().run_in_executor(None, fill, self.session)
                async for event in watch:
                    seen.append(event)
                    if len(seen) == len(KEYS):
                        break
                await filling
                self.assertEqual({event.key for event in seen}, set(KEYS))
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(watch.__aiter__().__anext__(), 0.1)
                self.session.delete(KEYS[:1])
                async for event in watch:  # goes on where the others ended
                    self.assertEqual(self.kinds([event]), [("REMOVED", KEYS[0])])
                    break

        async def closed_soon():
            with self.session.watch(from_now=True) as watch:
                asyncio.get_running_loop().call_later(0.1, watch.close)
                async for event in watch:
                    self.fail(event)

        for coroutine in (main, closed_soon):
            asyncio.run(asyncio.wait_for(coroutine(), WAIT_S))
        wait_for(lambda: not [t for t in threading.enumerate() if t.name == "terrace-watch"], WAIT_S, "no thread is left")

    def test_a_coroutine_that_is_behind(self):
        """The watch's thread keeps a bounded number of events and waits; none is lost."""
        keys = [b"%016d" % i for i in range(50)]

        async def main():
            with self.session.watch(from_now=True) as watch, unittest.mock.patch.object(watches, "_BEHIND_MOST", 4):
                events = watch.__aiter__()
                first = asyncio.ensure_future(events.__anext__())
                await asyncio.sleep(0)  # the thread reads
                fill(self.session, keys)  # the loop stands still
                await asyncio.sleep(0.3)
                told = [await first]
                self.assertLessEqual(len(watch._reader._events), 4)
                while len(told) < len(keys):
                    told.append(await events.__anext__())
                self.assertEqual(sorted(event.key for event in told), keys)

        try:
            asyncio.run(asyncio.wait_for(main(), WAIT_S))
        finally:
            self.session.delete(keys)

    def test_a_daemon_that_goes(self):
        async def main(watch):
            async for _ in watch:
                pass

        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, client.session([LAYOUT]) as session, \
                session.watch() as watch, session.watch() as other:
            self.assertEqual(watch.next(WAIT_S).kind, terrace.WatchKind.SYNCED)
            daemon.kill()
            with self.assertRaises(terrace.Unavailable):
                for _ in watch:
                    pass
            with self.assertRaises(terrace.Unavailable):
                asyncio.run(asyncio.wait_for(main(other), WAIT_S))


class Views(Case):
    def views(self, name, writable, array_bytes):
        """A block as an array of the library `name`: no copy, the lease's bytes, and the lease stays as long as it does."""
        with self.session.reserve(KEYS) as slots:
            for i in range(len(KEYS)):
                array = getattr(slots, name)(i, shape=(2, -1))
                array[:] = getattr(slots, name)(i, shape=(2, -1))  # writable
                del array
                slots.block(i)[:] = bytes_of(i)
            self.assertEqual(array_bytes(getattr(slots, name)(1)), bytes_of(1))
            slots.commit()
        lease = self.session.lease(KEYS)
        halves = getattr(lease, name)(1, dtype=writable, shape=(2, 2, -1))
        self.assertEqual(tuple(halves.shape), (2, 2, LAYOUT.block_bytes // 8))
        self.assertEqual(array_bytes(halves), bytes_of(1))
        piece = halves[1]
        del halves
        gc.collect()
        with self.assertRaises(BufferError):
            lease.release()
        self.assertEqual(array_bytes(piece), bytes_of(1)[LAYOUT.block_bytes // 2:])
        del piece
        gc.collect()
        lease.release()
        with self.assertRaises(terrace.Precondition):
            getattr(lease, name)(0)
        array = getattr(self.session.lease(KEYS), name)(2)  # alone it keeps the lease
        gc.collect()
        self.assertEqual(self.daemon.stats()["terrace_leases"], 1)
        self.assertEqual(array_bytes(array), bytes_of(2))
        del array
        gc.collect()
        wait_for(lambda: self.daemon.stats()["terrace_leases"] == 0, WAIT_S, "the lease is back")

    def test_numpy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not installed")
        self.views("numpy", numpy.float16, lambda array: array.tobytes())
        with self.session.lease(KEYS) as lease:
            array = lease.numpy(0)
            self.assertEqual(array.ctypes.data % 4096, 0)  # it is the daemon's memory
            with self.assertRaises(ValueError):
                array[0] = 1
            del array

    def test_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        self.views("torch", torch.float16, lambda tensor: bytes(tensor.view(torch.uint8).reshape(-1).tolist()))


class Words(unittest.TestCase):
    def test_an_exception_a_status(self):
        for status in terrace.Status:
            if status == OK:
                continue
            name = "".join(word.capitalize() for word in status.name.split("_"))
            kind = getattr(terrace, name)
            self.assertTrue(issubclass(kind, terrace.Error))
            self.assertIs(terrace.Error.by_status[status], kind)
            again = pickle.loads(pickle.dumps(kind(status, "words")))
            self.assertEqual((type(again), again.status, str(again)), (kind, status, "words"))

    def test_one_version(self):
        self.assertEqual(terrace.__version__, terrace.version())

    def main(self, *arguments, **environment):
        told = {name: value for name, value in os.environ.items() if name not in ("TERRACE_ADDRESS", "LIBTERRACE")}
        done = subprocess.run([sys.executable, "-m", "terrace", *arguments], capture_output=True, text=True, check=False, timeout=WAIT_S,
                              env={**told, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1", **environment})
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout

    def test_the_command(self):
        with running(TERRACED, *SMALL) as daemon:
            code, text = self.main(daemon.address, LIBTERRACE=LIBRARY)
            self.assertEqual(code, 0, text)
            self.assertRegex(text, r"(?s)^terrace +%s, .*library +%s, .*address +unix:.*daemon +answers\n$" % (terrace.__version__, terrace.version()))
            self.assertEqual(self.main(LIBTERRACE=LIBRARY, TERRACE_ADDRESS=daemon.address)[0], 0)
        code, text = self.main("unix:/nonexistent/terraced.sock", LIBTERRACE=LIBRARY)
        self.assertEqual(code, 1, text)
        self.assertRegex(text, r"(?s)daemon +no answer\n.*/nonexistent/.*systemctl start terraced")
        code, text = self.main("nonsense", LIBTERRACE=LIBRARY)
        self.assertEqual(code, 1, text)
        self.assertIn("unix:PATH", text)
        code, text = self.main(LIBTERRACE="/nonexistent")
        self.assertEqual(code, 1, text)
        self.assertRegex(text, r"(?s)library +none\n.*/nonexistent.*build_wheel.sh")
        self.assertEqual(self.main("a", "b")[0], 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)

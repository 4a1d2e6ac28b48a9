"""The disk tier of a real terraced, by a stock grpcio client and by terracectl: `test_disk.py TERRACED TERRACECTL`.

What is flushed is there after a kill, bit for bit; what is deleted stays deleted; what the disks bring is what was put.
"""

import functools
import glob
import json
import os
import pty
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import CALL_S, held_folder, key, keys, layout, pb, running, wait_for  # noqa: E402

TERRACED, TERRACECTL = os.environ.get("TERRACED", "terraced"), os.environ.get("TERRACECTL", "terracectl")
HOST_MIB, BATCH = 2, 8
SMALL = ("--host-bytes", "%dMiB" % HOST_MIB, "--extent-bytes", "1MiB", "--slab-bytes", "2MiB", "--spill-share", "0.5")
LAYOUT = layout(layers=8, heads=4, total_heads=4)


@functools.lru_cache(maxsize=1024)
def block(seed, size):
    return random.Random(seed).randbytes(size)


class Disk(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="terrace-disk-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def disks(self, *names, size="32MiB"):
        return ("--disks", ",".join("%s:%s" % (os.path.join(self.folder, n), size) for n in names))

    def open(self, daemon):
        opened = daemon.open(LAYOUT)
        self.size, self.slot = opened.layouts[0].block_bytes, opened.layouts[0].slot_bytes
        return opened.session

    def put(self, daemon, session, numbers):
        """No faster than the disks: memory that is full of what no disk has yet drops blocks rather than wait."""
        numbers, slots = list(numbers), (HOST_MIB << 20) // self.slot
        for at in range(0, len(numbers), BATCH):
            some = [(key(n), block(n, self.size)) for n in numbers[at:at + BATCH]]
            self.assertEqual(daemon.put(session, some, chunk=1 << 19), [pb.OK] * len(some))
            alone = slots * 5 // 8  # half of them, as the spill share has it, and what is on its way
            wait_for(lambda done=at + len(some): done - self.on_disk(daemon) <= alone, 60, "the disks keep up")

    @staticmethod
    def on_disk(daemon):
        return sum(row.disk_blocks for row in daemon.admin.Layouts(pb.LayoutsRequest(), timeout=CALL_S).rows)

    def there(self, daemon, session, numbers):
        """Reads blocks; those that are there have the right bytes. Returns their numbers."""
        numbers = list(numbers)
        found = set()
        for at in range(0, len(numbers), 32):
            some = numbers[at:at + 32]
            for index, (status, data) in daemon.get(session, keys(*some)).items():
                self.assertIn(status, (pb.OK, pb.MISS))
                if status == pb.OK:
                    self.assertEqual(data, block(some[index], self.size), "block %d" % some[index])
                    found.add(some[index])
        return found

    def states(self, daemon, session, numbers):
        return daemon.cache.Lookup(pb.LookupRequest(session=session, keys=keys(*numbers), states=True), timeout=CALL_S).states

    def flush(self, daemon, session, *numbers):
        request = pb.FlushRequest(session=session, keys=keys(*numbers)) if numbers else pb.FlushRequest(session=session)
        return list(daemon.cache.Flush(request, timeout=CALL_S).status)

    def restored(self, daemon):
        wait_for(lambda: daemon.stats()["terrace_restored"] == 1, 60, "the disks are taken up")

    def memory_four_times(self):
        return 4 * (HOST_MIB << 20) // self.slot

    def refused(self, *flags):
        """Starts a daemon that must not start. Returns what it said."""
        done = subprocess.run([TERRACED, "--data-dir", os.path.join(self.folder, "other"), "--socket",
                               os.path.join(self.folder, "other.sock"), *SMALL, *flags], capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        return done.stderr

    def test_sixty_four_sizes_on_a_small_disk(self):
        """Of each size some blocks are flushed, others are not: after an orderly stop all that was flushed is there."""
        layouts = [layout(fingerprint=b"s" * 32, layers=2 + 4 * n, heads=1, total_heads=1) for n in range(64)]

        def opened(daemon):
            replies = [daemon.open(one) for one in layouts]
            given = [r.layouts[0] for r in replies]
            return [r.session for r in replies], [g.block_bytes for g in given], {g.slot_bytes for g in given}

        flags = ("--host-bytes", "128MiB", "--extent-bytes", "1MiB", "--spill-share", "1")
        with running(TERRACED, *flags, *self.disks("a", size="68MiB")) as daemon:
            sessions, sizes, slots = opened(daemon)
            self.assertEqual(len(slots), 64)
            for n, session in enumerate(sessions):
                some = [(key(k), block(64 * k + n, sizes[n])) for k in range(3)]
                self.assertEqual(daemon.put(session, some, chunk=1 << 19), [pb.OK] * 3)
                self.assertEqual(self.flush(daemon, session, *range(3)), [pb.OK] * 3)
            for n, session in enumerate(sessions):
                daemon.put(session, [(key(k), block(k, sizes[n])) for k in range(100, 108)], chunk=1 << 19)
            self.assertEqual(daemon.stats()["terrace_disk_block_sizes{disk=0}"], 64)
            self.assertEqual(daemon.stats()["terrace_disk_small{disk=0}"], 0)
            daemon.stop()
            daemon.start()
            self.restored(daemon)
            sessions, _, _ = opened(daemon)
            for n, session in enumerate(sessions):
                found = daemon.get(session, keys(*range(3)))
                for k in range(3):
                    self.assertEqual(found[k], (pb.OK, block(64 * k + n, sizes[n])), "block %d of size %d" % (k, n))
            self.assertNotIn("event=disk_small", daemon.log())

    def test_what_a_run_without_disks_deletes(self):
        """Stays deleted: the next run with disks wipes them, once. One that deletes nothing costs nothing; one that is killed may have."""
        disks = self.disks("a")

        def stored(daemon, n):
            session = self.open(daemon)
            daemon.put(session, [(key(n), block(n, self.size))], chunk=1 << 19)
            self.assertEqual(self.flush(daemon, session, n), [pb.OK])

        def started_with(daemon, *flags):
            daemon.flags = SMALL + flags
            daemon.start()
            if flags:
                self.restored(daemon)
            return self.open(daemon)

        with running(TERRACED, *SMALL, *disks) as daemon:
            for end in ("stop", "delete", "kill"):
                stored(daemon, 0)
                daemon.stop()
                session = started_with(daemon)
                if end == "delete":
                    request = pb.DeleteRequest(session=session, keys=keys(0))
                    self.assertEqual(list(daemon.cache.Delete(request, timeout=CALL_S).status), [pb.MISS])
                daemon.kill() if end == "kill" else daemon.stop()
                session = started_with(daemon, *disks)
                self.assertEqual(self.there(daemon, session, [0]), {0} if end == "stop" else set(), end)
                stored(daemon, 1)
                daemon.kill()
                self.assertEqual(self.there(daemon, started_with(daemon, *disks), [1]), {1})

    def test_a_start_without_disks_that_fails(self):
        """Has deleted nothing, so that it costs nothing."""
        disks = self.disks("a")
        with socket.create_server(("127.0.0.1", 0)) as taken, running(TERRACED, *SMALL, *disks) as daemon:
            session = self.open(daemon)
            self.put(daemon, session, range(8))
            self.assertEqual(self.flush(daemon, session, *range(8)), [pb.OK] * 8)
            daemon.stop()
            daemon.flags = (*SMALL, "--metrics-address", "127.0.0.1:%d" % taken.getsockname()[1])
            done = subprocess.run(daemon.command(), capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("event=start_failed part=metrics", done.stderr)
            daemon.flags = (*SMALL, *disks)
            daemon.start()
            self.restored(daemon)
            self.assertEqual(self.there(daemon, self.open(daemon), range(8)), set(range(8)))

    def survives_a_kill(self, *flags):
        with running(TERRACED, *SMALL, *flags) as daemon:
            session = self.open(daemon)
            count = self.memory_four_times()
            self.put(daemon, session, range(count))
            self.assertEqual(self.there(daemon, session, range(count)), set(range(count)))
            self.assertEqual(self.flush(daemon, session), [pb.OK])
            self.assertEqual(self.flush(daemon, session, 3, count + 5, count - 1), [pb.OK, pb.MISS, pb.OK])
            daemon.kill()
            daemon.start()
            session = self.open(daemon)
            self.restored(daemon)
            self.assertEqual(self.there(daemon, session, range(count)), set(range(count)))
            verified = daemon.admin.Verify(pb.VerifyRequest(), timeout=CALL_S)
            self.assertGreaterEqual(verified.blocks, count)
            self.assertEqual((verified.corrupt, verified.next), (0, 0))
            return daemon.stats(), daemon.log()

    def test_two_disks_survive_a_kill(self):
        stats, log = self.survives_a_kill(*self.disks("a", "b"))
        self.assertGreater(stats["terrace_disk_blocks{disk=0}"], 50)
        self.assertGreater(stats["terrace_disk_blocks{disk=1}"], 50)
        self.assertIn("event=catalog found=none", log)
        self.assertIn("event=catalog found=sound", log)
        self.assertEqual(log.count("event=disk disk=1"), 2)

    def test_threads_instead_of_io_uring(self):
        stats, log = self.survives_a_kill(*self.disks("a"), "--disk-io", "threads")
        self.assertEqual(stats["terrace_disk_engine_info{disk=0,engine=threads}"], 1)
        self.assertIn("engine=threads", log)

    def test_a_folder_in_memory(self):
        """A file system without O_DIRECT, perhaps."""
        folder, hold = held_folder("/dev/shm")
        self.addCleanup(os.close, hold)
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        self.survives_a_kill("--disks", folder + "/a:32MiB")

    def test_deleted_stays_deleted(self):
        with running(TERRACED, *SMALL, *self.disks("a", "b")) as daemon:
            session = self.open(daemon)
            count = self.memory_four_times()
            self.put(daemon, session, range(count))
            self.flush(daemon, session)
            gone, kept = range(0, count, 3), set(range(count)) - set(range(0, count, 3))
            reply = daemon.cache.Delete(pb.DeleteRequest(session=session, keys=keys(*gone)), timeout=CALL_S)
            self.assertEqual(list(reply.status), [pb.OK] * len(gone))
            for again in ((), ("--catalog", "rebuild"), ()):
                daemon.kill()
                daemon.flags = (*SMALL, *self.disks("a", "b"), *again)
                daemon.start()
                session = self.open(daemon)
                self.restored(daemon)
                self.assertEqual(self.there(daemon, session, range(count)), kept, again)
            self.assertIn("rebuilding=1", daemon.log())

    def test_a_stop_in_order_keeps_all(self):
        with running(TERRACED, *SMALL, *self.disks("a")) as daemon:
            session = self.open(daemon)
            self.put(daemon, session, range(40))
            daemon.stop()
            daemon.start()
            session = self.open(daemon)
            self.restored(daemon)
            self.assertEqual(self.there(daemon, session, range(40)), set(range(40)))
            self.assertNotIn("not_settled", daemon.log())
            wait_for(lambda: "event=disks_restored blocks=40" in daemon.log(), 60, "the log says what was taken up")

    def test_older_copies_that_are_put_back(self):
        """As the table of deploy/GUARANTEES.md has it: of data_dir it costs nothing; of a disk what was put since is gone,
        and what was deleted since is back."""
        early, later, deleted = range(4), range(100, 104), range(4, 8)
        with running(TERRACED, *SMALL, *self.disks("a")) as daemon:
            places = {"disk": os.path.join(self.folder, "a"), "data": os.path.join(daemon.folder, "data")}

            def keep(name):
                for place in places.values():
                    shutil.copytree(place, place + name)

            session = self.open(daemon)
            self.put(daemon, session, (*early, *deleted))
            self.assertEqual(self.flush(daemon, session, *early, *deleted), [pb.OK] * 8)
            daemon.stop()
            keep(".old")
            daemon.start()
            self.restored(daemon)
            session = self.open(daemon)
            self.assertEqual(list(daemon.cache.Delete(pb.DeleteRequest(session=session, keys=keys(*deleted)), timeout=CALL_S).status), [pb.OK] * 4)
            self.put(daemon, session, later)
            self.assertEqual(self.flush(daemon, session, *later), [pb.OK] * 4)
            daemon.stop()
            keep(".new")
            for disk, data in ((".new", ".old"), (".old", ".new"), (".old", ".old")):
                for place, name in ((places["disk"], disk), (places["data"], data)):
                    shutil.rmtree(place)
                    shutil.copytree(place + name, place)
                daemon.start()
                self.restored(daemon)
                told = {*early, *later} if disk == ".new" else {*early, *deleted}
                self.assertEqual(self.there(daemon, self.open(daemon), (*early, *later, *deleted)), told, (disk, data))
                daemon.stop()

    def test_a_truncated_catalog_is_made_anew(self):
        with running(TERRACED, *SMALL, *self.disks("a")) as daemon:
            session = self.open(daemon)
            self.put(daemon, session, range(60))
            self.flush(daemon, session)
            daemon.kill()
            path = os.path.join(daemon.folder, "data", "catalog", "data.mdb")
            os.truncate(path, os.path.getsize(path) // 8192 * 4096)
            daemon.start()
            session = self.open(daemon)
            self.restored(daemon)
            self.assertEqual(self.there(daemon, session, range(60)), set(range(60)))
            self.assertIn("event=catalog found=damaged", daemon.log())

    def test_a_disk_that_was_given_up_is_emptied(self):
        with running(TERRACED, *SMALL, *self.disks("a", "b")) as daemon:
            session = self.open(daemon)
            self.put(daemon, session, range(60))
            self.flush(daemon, session)
            on_b = daemon.stats()["terrace_disk_blocks{disk=1}"]
            daemon.kill()
            with open(os.path.join(self.folder, "a", "quarantine"), "w", encoding="utf-8") as marker:
                marker.write("a test\n")
            daemon.start()
            session = self.open(daemon)
            self.restored(daemon)
            self.assertEqual(len(self.there(daemon, session, range(60))), on_b)
            self.assertIn("level=warn event=disk_wiped disk=0", daemon.log())
            self.assertNotIn("disk_wiped disk=1", daemon.log())

    def test_two_daemons_and_one_folder(self):
        with running(TERRACED, *SMALL, *self.disks("a")):
            said = self.refused(*self.disks("a"))
            self.assertIn(os.path.join(self.folder, "a"), said)
            self.assertIn("another process", said)

    def test_a_folder_that_cannot_be_made(self):
        said = self.refused("--disks", "/proc/terrace/a:32MiB", "--require-disks", "one")
        self.assertRegex(said, r"/proc/terrace/a.*No such file or directory")

    def test_warm_states_and_moves(self):
        # Only what the test asks for is to move: asking where blocks are makes the daemon read ahead.
        with running(TERRACED, *SMALL, *self.disks("a"), "--prefetch-bytes", "0") as daemon:
            session = self.open(daemon)
            count = self.memory_four_times()
            self.put(daemon, session, range(count))
            first = list(range(16))
            self.assertEqual(self.states(daemon, session, first), b"\2" * 16)
            inspected = daemon.admin.Inspect(pb.InspectRequest(key=key(0)), timeout=CALL_S).blocks[0]
            self.assertEqual((inspected.tier, inspected.extent, inspected.checksum_ok), ("disk", 0xffffffff, True))
            watch = daemon.cache.Watch(pb.WatchRequest(session=session, from_now=True), timeout=CALL_S)
            request = pb.WarmRequest(session=session, keys=keys(*first, count + 1), wait=True)
            wait_for(lambda: daemon.stats()["terrace_watches"] == 1, 60, "the watch is open")
            self.assertEqual(daemon.cache.Warm(request, timeout=CALL_S).blocks, 16)
            self.assertEqual(self.states(daemon, session, first), b"\1" * 16)
            moved = {}
            for event in watch:
                if event.kind == pb.WATCH_MOVED:
                    moved[event.key] = event.tier
                if all(moved.get(key(n)) == "host+disk" for n in first):
                    break
            self.assertIn("disk", moved.values())
            watch.cancel()
            later = list(range(16, 32))
            self.assertEqual(daemon.cache.Warm(pb.WarmRequest(session=session, keys=keys(*later)), timeout=CALL_S).blocks, 16)
            wait_for(lambda: self.states(daemon, session, later) == b"\1" * 16, 60, "what was begun is done")

    def damage(self, number):
        """Changes a byte of a block in its slab file. How many copies it found."""
        wanted, found = block(number, self.size)[:64], 0
        for path in glob.glob(os.path.join(self.folder, "a", "slab-*.trc")):
            with open(path, "r+b") as slab:
                at = slab.read().find(wanted)
                if at >= 0:
                    slab.seek(at + 7)
                    slab.write(bytes([wanted[7] ^ 1]))
                    slab.flush()
                    os.fsync(slab.fileno())
                    found += 1
        return found

    def test_damage_is_found_and_never_served(self):
        # Nothing is to be read ahead between the look at where blocks are and the damage to what the disk has.
        with running(TERRACED, *SMALL, *self.disks("a"), "--prefetch-bytes", "0") as daemon:
            session = self.open(daemon)
            count = self.memory_four_times()
            self.put(daemon, session, range(count))
            self.flush(daemon, session)
            self.assertEqual(self.states(daemon, session, [0, 1, 2]), b"\2\2\2")
            self.assertEqual([self.damage(n) for n in (0, 1)], [1, 1])
            self.assertEqual(daemon.get(session, keys(0))[0], (pb.MISS, b""))
            cursor, blocks, corrupt, calls = 0, 0, 0, 0
            while calls == 0 or cursor:
                piece = daemon.admin.Verify(pb.VerifyRequest(max_ms=1, **{"from": cursor}), timeout=CALL_S)
                cursor, calls = piece.next, calls + 1
                blocks += piece.blocks
                corrupt += piece.corrupt
            self.assertEqual(corrupt, 1)
            self.assertGreater(calls, 1)
            self.assertGreaterEqual(blocks, count - 1)
            self.assertEqual(self.there(daemon, session, range(count)), set(range(2, count)))
            self.assertEqual(daemon.stats()["terrace_disk_corrupt_total{disk=0}"], 2)

    def test_without_disks(self):
        with running(TERRACED, *SMALL) as daemon:
            session = self.open(daemon)
            self.put(daemon, session, range(3))
            self.assertEqual(self.flush(daemon, session), [pb.UNAVAILABLE])
            self.assertEqual(self.flush(daemon, session, 1), [pb.UNAVAILABLE])
            self.assertEqual(daemon.cache.Warm(pb.WarmRequest(session=session, keys=keys(0, 1, 9), wait=True),
                                               timeout=CALL_S).blocks, 2)
            with self.assertRaises(grpc.RpcError) as caught:
                daemon.admin.Compact(pb.CompactRequest(), timeout=CALL_S)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)
            done = self.ctl(daemon, "compact")
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("no disks", done.stderr)
            done = self.ctl(daemon, "flush")
            self.assertEqual(done.returncode, 1)
            self.assertIn("durable", done.stderr)
            self.assertNotIn("disks", json.loads(self.ctl(daemon, "--json", "stat").stdout))

    def ctl(self, daemon, *words):
        return subprocess.run([TERRACECTL, "--address", daemon.address, *words], capture_output=True, text=True, timeout=60,
                              check=False)

    def told(self, daemon, code, *words):
        done = self.ctl(daemon, "--json", *words)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def test_terracectl(self):
        with running(TERRACED, *SMALL, *self.disks("a", "b")) as daemon:
            session = self.open(daemon)
            count = self.memory_four_times()
            self.put(daemon, session, range(count))
            self.assertEqual(self.told(daemon, 0, "flush"), {"layouts": 1, "durable": True})
            some = self.told(daemon, 3, "flush", key(1).hex(), key(count).hex())
            self.assertEqual([row["key"] for row in some["blocks"]], [key(1).hex(), key(count).hex()])
            self.assertFalse(some["durable"])
            self.assertEqual(self.states(daemon, session, [0]), b"\2")
            warm = self.told(daemon, 0, "warm", key(0).hex(), key(1).hex())
            self.assertEqual((warm["stored"], warm["layouts"][0]["in_memory"]), (2, 2))
            self.assertEqual(self.states(daemon, session, [0, 1]), b"\1\1")
            self.assertEqual(self.told(daemon, 3, "warm", key(count).hex())["stored"], 0)
            disks = self.told(daemon, 0, "stat")["disks"]
            self.assertEqual([(d["disk"], d["health"], d["corrupt"]) for d in disks], [(0, "healthy", 0), (1, "healthy", 0)])
            self.assertEqual(sum(d["blocks"] for d in disks), count)
            self.assertTrue(all(0 < d["used_bytes"] <= d["budget_bytes"] for d in disks), disks)
            self.assertRegex(self.ctl(daemon, "stat").stdout, r"(?m)^ *0 +healthy +(io_uring|threads) +\d+")
            verified = self.told(daemon, 0, "verify")
            self.assertGreaterEqual(verified["blocks"], count)
            self.assertTrue(verified["complete"])
            self.assertEqual(self.ctl(daemon, "verify").stderr, "")
            self.assertTrue(self.told(daemon, 0, "verify", "--rebuild")["complete"])
            self.assertIn("catalog_renewed", daemon.log())
            wait_for(lambda: daemon.stats()["terrace_catalog_records"] == count, 60, "the catalog knows all again")
            self.progress(daemon)
            before = sum(d["used_bytes"] for d in disks)
            daemon.cache.Delete(pb.DeleteRequest(session=session, keys=keys(*range(count // 2))), timeout=CALL_S)
            freed = sum(d["freed_bytes"] for d in self.told(daemon, 0, "compact")["disks"])
            self.assertGreater(freed, 0)
            after = sum(d["used_bytes"] for d in self.told(daemon, 0, "stat")["disks"])
            self.assertEqual(after, before - freed)
            self.told(daemon, 0, "compact", "--disk", "1", "--max", "2MiB")
            self.assertLessEqual(self.told(daemon, 0, "stat")["disks"][1]["used_bytes"], 2 << 20)
            self.assertEqual(self.ctl(daemon, "compact", "--disk", "2").returncode, 1)

    def progress(self, daemon):
        """On a terminal there is a bar, and it is gone at the end."""
        try:
            reader, terminal = pty.openpty()
        except OSError as e: # a container without /dev/pts
            print("the bar is not looked at: %s" % e)
            return
        done = subprocess.run([TERRACECTL, "--address", daemon.address, "verify", "--rate", "8MiB"], stdout=subprocess.PIPE,
                              stderr=terminal, text=True, timeout=60, check=True)
        os.close(terminal)
        seen = b""
        try:
            while chunk := os.read(reader, 4096):
                seen += chunk
        except OSError:
            pass
        os.close(reader)
        self.assertRegex(seen.decode(), r"\r\[#+ *\] +\d+ %  \d+ of \d+ blocks")
        self.assertTrue(seen.endswith(b"\r\x1b[K"), seen)
        self.assertIn("corrupt", done.stdout)


if __name__ == "__main__":
    TERRACED, TERRACECTL = sys.argv[1], sys.argv[2]
    unittest.main(argv=sys.argv[:1], verbosity=2)

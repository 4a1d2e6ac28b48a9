"""What the first version left opens: `test_old_data.py TERRACED`.

tests/data/first_version holds two data folders with their disks, one of a daemon that was stopped in order and one of a daemon that was killed, and
two configuration files. The test starts today's daemon on each of them: every flushed block is there with its bytes and its place in the
sequence, and what was deleted stays deleted.

tests/data/slot_version_2 holds one more, of the last version whose slots have headers of version 2: its slots keep them until they are written anew.
"""

import contextlib
import glob
import importlib.util
import os
import re
import socket
import struct
import sys
import tarfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(os.path.dirname(HERE), "data", "first_version")
sys.path.insert(0, HERE)
sys.path.insert(0, DATA)
import blocks  # noqa: E402
from daemon import CALL_S, Daemon, pb, running, wait_for  # noqa: E402

SLOTS_2 = os.path.join(os.path.dirname(HERE), "data", "slot_version_2")
_spec = importlib.util.spec_from_file_location("slot_version_2", os.path.join(SLOTS_2, "blocks.py"))
slots_2 = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(slots_2)

TERRACED = os.environ.get("TERRACED", "terraced")
FLAGS = ("--host-bytes", "8MiB", "--extent-bytes", "1MiB", "--slab-bytes", "1MiB")
LEARNING = ("--policy", "graph", "--disk-policy", "graph", "--graph-nodes", "512")


def keys_of(layout, numbers):
    return pb.Keys(key_bytes=20, keys=b"".join(blocks.key(layout, n) for n in numbers))


class OldData(unittest.TestCase):
    @contextlib.contextmanager
    def on(self, variant, *flags):
        """A daemon on an unpacked data folder, with the old blocks taken up."""
        daemon = Daemon(TERRACED, start=False)
        try:
            with tarfile.open(os.path.join(DATA, variant + ".tar.xz")) as tar:
                tar.extractall(daemon.folder)
            daemon.flags = (*FLAGS, *flags, "--disks", os.path.join(daemon.folder, "disk") + ":16MiB")
            daemon.start()
            wait_for(lambda: daemon.stats()["terrace_restored"] == 1, 60, "the disk is taken up")
            yield daemon
            daemon.stop()
        except BaseException:
            sys.stderr.write(daemon.log()[-8000:])
            raise
        finally:
            if daemon.process and daemon.process.poll() is None:
                daemon.kill()
            daemon.close()

    def look(self, daemon, layout):
        fields = blocks.LAYOUTS[layout]
        opened = daemon.open(pb.Layout(**fields))
        size = opened.layouts[0].block_bytes
        found = daemon.get(opened.session, keys_of(layout, range(blocks.CHAIN)))
        for n in range(blocks.CHAIN):
            status, data = found[n]
            self.assertEqual(status, pb.MISS if n in blocks.DELETED else pb.OK, "layout %d, block %d" % (layout, n))
            self.assertEqual(data, b"" if n in blocks.DELETED else blocks.data(layout, n, size), "layout %d, block %d" % (layout, n))
            if n not in blocks.DELETED:
                self.described(daemon, layout, n, fields, size)

    def described(self, daemon, layout, n, fields, size):
        inspected, = daemon.admin.Inspect(pb.InspectRequest(key=blocks.key(layout, n)), timeout=CALL_S).blocks
        want = blocks.info(layout, n)
        got = dict(parent=inspected.parent, position=inspected.position, tokens=inspected.tokens, role=inspected.role, turn=inspected.turn)
        self.assertEqual(got, want, "layout %d, block %d" % (layout, n))
        self.assertTrue(inspected.checksum_ok)
        self.assertEqual(inspected.block_bytes, size)
        self.assertEqual({name: getattr(inspected.layout, name) for name in fields}, fields)

    def opens(self, variant, *flags):
        with self.on(variant, *flags) as daemon:
            for layout in range(len(blocks.LAYOUTS)):
                self.look(daemon, layout)
            stats, log = daemon.stats(), daemon.log()
            self.assertEqual(stats["terrace_disk_corrupt_total{disk=0}"], 0)
            for event in ("disk_wiped", "disk_left_out", "disk_corrupt", "disk_slabs_damaged"):
                self.assertNotIn("event=" + event, log)
            if "rebuild" not in flags:
                self.assertIn("event=catalog found=sound rebuilding=0", log)
            # The old blocks last: another start, by then with what this version has written itself.
            daemon.stop()
            daemon.start()
            wait_for(lambda: daemon.stats()["terrace_restored"] == 1, 60, "the disk is taken up again")
            for layout in range(len(blocks.LAYOUTS)):
                self.look(daemon, layout)

    def test_stopped_in_order(self):
        self.opens("stopped", *LEARNING)

    def test_killed(self):
        self.opens("killed", *LEARNING)

    def test_other_policies(self):
        self.opens("stopped")
        self.opens("killed")

    def test_without_its_catalog(self):
        """The slab files alone say all that is to be known, tombstones too."""
        self.opens("stopped", "--catalog", "rebuild")
        self.opens("killed", "--catalog", "rebuild")

    def test_what_was_learned(self):
        """The graph of what was asked for together is there."""
        for variant in ("stopped", "killed"):
            with self.on(variant, *LEARNING) as daemon:
                wait_for(lambda: daemon.stats()["terrace_graph_edges"] > blocks.CHAIN, 60, variant + ": the edges are taken up")
                self.assertGreaterEqual(daemon.stats()["terrace_graph_nodes"], len(blocks.LAYOUTS) * blocks.CHAIN, variant)
                # What edges weigh halves with time, and the fixture grows older: the block's own copies are all that is there for ever.
                edges = daemon.admin.Graph(pb.GraphRequest(key=blocks.key(0, 2)), timeout=CALL_S).edges
                self.assertEqual([edge.key for edge in edges if edge.type == "spill_link"], [blocks.key(0, 2)], variant)

    def rows_of(self, name, folder, port):
        """{option: value} of a configuration file of the fixture, and the file, with this run's folder and ports in it."""
        with open(os.path.join(DATA, name), encoding="utf-8") as file:
            text = file.read().replace("@FOLDER@", folder).replace("@PORT@", str(port))
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return dict(re.findall(r"(?m)^(?!#)(\w+) = (.*)$", text)), path

    def starts_with(self, daemon, path, *flags):
        daemon.command = lambda: [TERRACED, "--config", path, *flags]
        daemon.start()
        daemon.open()
        return {row.name: row for row in daemon.admin.Config(pb.ConfigRequest(), timeout=CALL_S).rows}

    def test_a_file_with_policies_that_are_gone(self):
        """The daemon starts, goes by the default and warns."""
        with running(TERRACED, start=False) as daemon, socket.create_server(("127.0.0.1", 0)) as listener:
            wanted, path = self.rows_of("every_option.conf", daemon.folder, listener.getsockname()[1])
            listener.close()
            daemon.address = "unix:" + wanted["socket"]
            with open(path, encoding="utf-8") as file:
                text = file.read()
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace("\npolicy = graph\n", "\npolicy = fifo\n").replace("\ndisk_policy = s3fifo\n", "\ndisk_policy = gdsf\n"))
            got = self.starts_with(daemon, path)
            for option, was in (("policy", "fifo"), ("disk_policy", "gdsf")):
                self.assertEqual((got[option].value, got[option].origin), ("lru", "file"))
                self.assertIn('"level":"warn","event":"retired_value","option":"%s","value":"%s","used":"lru"' % (option, was), daemon.log())

    def test_a_file_with_every_option(self):
        with running(TERRACED, start=False) as daemon, socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            wanted, path = self.rows_of("every_option.conf", daemon.folder, port)
            listener.close()
            daemon.address = "unix:" + wanted["socket"]
            got = self.starts_with(daemon, path)
            self.assertEqual(len(wanted), 48)
            for name, value in wanted.items():
                self.assertEqual((got[name].value, got[name].origin), (value, "file"), name)

    def test_the_sample_with_its_defaults_written_out(self):
        with running(TERRACED, start=False) as daemon:
            _, path = self.rows_of("terraced.conf", daemon.folder, 0)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            with open(path, "w", encoding="utf-8") as file:
                file.write(re.sub(r"(?m)^# (\w+ = .*)$", r"\1", text))
            flags = ("--data-dir", os.path.join(daemon.folder, "data"), "--socket", daemon.address[len("unix:"):], "--host-bytes", "8MiB")
            got = self.starts_with(daemon, path, *flags)
            self.assertEqual(got["lease_ttl"].origin, "file")
            self.assertEqual(got["data_dir"].origin, "flag")


def slot_versions(folder):
    """{(file, slot): (version, tombstone)} of every slot of a disk that was ever written; the offsets are of store/slab/folder.c and store/slot.h."""
    found = {}
    for path in glob.glob(os.path.join(folder, "slab-*.trc")):
        with open(path, "rb") as file:
            slab = file.read()
        slot_bytes, = struct.unpack_from("<Q", slab, 24)
        for at in range(4096, len(slab) - slot_bytes + 1, slot_bytes):
            version, = struct.unpack_from("<I", slab, at + 8)
            if version:
                found[os.path.basename(path), at] = (version, slab[at + 79])
    return found


def one(key):
    return pb.Keys(key_bytes=len(key), keys=key)


class SlotVersion2(unittest.TestCase):
    FLAGS = ("--host-bytes", "8MiB", "--extent-bytes", "1MiB", "--slab-bytes", "1MiB")

    @contextlib.contextmanager
    def on_old(self, *flags):
        daemon = Daemon(TERRACED, start=False)
        try:
            with tarfile.open(os.path.join(SLOTS_2, "stopped.tar.xz")) as tar:
                tar.extractall(daemon.folder)
            self.disk = os.path.join(daemon.folder, "disk")
            daemon.flags = (*self.FLAGS, *flags, "--disks", self.disk + ":4MiB")
            self.before = slot_versions(self.disk)
            self.begin(daemon)
            yield daemon
            daemon.stop()
        except BaseException:
            sys.stderr.write(daemon.log()[-8000:])
            raise
        finally:
            if daemon.process and daemon.process.poll() is None:
                daemon.kill()
            daemon.close()

    def begin(self, daemon):
        daemon.start()
        wait_for(lambda: daemon.stats()["terrace_restored"] == 1, 60, "the disk is taken up")
        opened = daemon.open(pb.Layout(**slots_2.LAYOUT))
        self.session, self.size = opened.session, opened.layouts[0].block_bytes

    def check(self, daemon, gone=slots_2.DELETED):
        for n, key in enumerate(slots_2.KEYS):
            status, data = daemon.get(self.session, one(key))[0]
            self.assertEqual(status, pb.MISS if n in gone else pb.OK, n)
            self.assertEqual(data, b"" if n in gone else slots_2.data(n, self.size), n)
            if n in gone:
                continue
            seen, = daemon.admin.Inspect(pb.InspectRequest(key=key), timeout=CALL_S).blocks
            self.assertTrue(seen.checksum_ok, n)
            self.assertEqual(dict(parent=seen.parent, position=seen.position, tokens=seen.tokens, role=seen.role, turn=seen.turn), slots_2.info(n), n)
        stats = daemon.stats()
        self.assertEqual(stats["terrace_disk_corrupt_total{disk=0}"], 0)
        for event in ("disk_wiped", "disk_left_out", "disk_corrupt", "disk_slabs_damaged"):
            self.assertNotIn("event=" + event, daemon.log())

    def verify(self, daemon):
        """Every copy is read and compared, also where it stands on the disk."""
        reply = daemon.admin.Verify(pb.VerifyRequest(), timeout=CALL_S)
        self.assertEqual((reply.corrupt, reply.unread, reply.next), (0, 0, 0))

    def test_every_block_is_found(self):
        for flags in ((), ("--catalog", "rebuild")):
            with self.on_old(*flags) as daemon:
                self.check(daemon)
                self.verify(daemon)
                self.assertEqual({version for version, _ in self.before.values()}, {2})
                daemon.stop()
                # Reading does not write: the slots are as they were.
                self.assertEqual(slot_versions(self.disk), self.before)
                self.begin(daemon)
                self.check(daemon)

    def test_a_slot_that_is_written_gets_the_new_header(self):
        """Long keys beside old ones; a deleted one's slot has a tombstone of the new version. Then both versions are read."""
        deleted = len(slots_2.KEYS) - 1
        long_keys = [b"a key of vLLM: 32 bytes of a hash" + bytes(n) for n in (1, 3, 31)]
        with self.on_old() as daemon:
            self.check(daemon)
            items = [(key, slots_2.data(100 + n, self.size)) for n, key in enumerate(long_keys)]
            self.assertEqual(daemon.put(self.session, items), [pb.OK] * len(items))
            for key in long_keys:
                self.assertEqual(list(daemon.cache.Flush(pb.FlushRequest(session=self.session, keys=one(key)), timeout=CALL_S).status), [pb.OK])
            gone = daemon.cache.Delete(pb.DeleteRequest(session=self.session, keys=one(slots_2.KEYS[deleted])), timeout=CALL_S)
            self.assertEqual(list(gone.status), [pb.OK])
            for _ in range(2):
                daemon.stop()
                after = slot_versions(self.disk)
                self.assertEqual(sum(version == 3 for version, _ in after.values()), 1 + len(items))
                for place, was in self.before.items():
                    self.assertTrue(after[place] == was or after[place][0] == 3, place)
                self.begin(daemon)
                self.check(daemon, (*slots_2.DELETED, deleted))
                for key, data in items:
                    self.assertEqual(daemon.get(self.session, one(key))[0], (pb.OK, data))
                self.verify(daemon)


if __name__ == "__main__":
    TERRACED = sys.argv[1]
    unittest.main(argv=sys.argv[:1], verbosity=2)

"""Keys of up to 64 bytes from end to end: `test_long_keys.py TERRACED LIBTERRACE TERRACECTL TERRACE_REPLAY`.

vLLM's offloading keys have 36 bytes, a SHA-256 and a group. The keys here are equal in their first 32 bytes, are prefixes of one another, or end with
zero bytes, and each must name a block of its own: in the library, for a watch, for terracectl, and in a recording that terrace-replay reads.
"""

import json
import os
import subprocess
import sys
import unittest

TERRACED, LIBRARY, CTL, REPLAY = sys.argv[1:5]
os.environ["LIBTERRACE"] = LIBRARY
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(os.path.dirname(HERE)), "client", "python")]
sys.dont_write_bytecode = True
import terrace  # noqa: E402
from daemon import CALL_S, pb, running, wait_for  # noqa: E402

SMALL = ("--host-bytes", "16MiB", "--extent-bytes", "1MiB")
LAYOUT = terrace.Layout("test_long_keys", layers=1, heads=1, head_dim=64, k_format="fp8")
HASH = bytes(range(32))
# Of each length some that differ at their ends alone; the shorter ones are prefixes of the longer.
FAMILIES = {length: [HASH + bytes(length - 33) + bytes([n]) for n in range(4)] for length in (33, 36, 40, 64)}


def bytes_of(length, n):
    return bytes((length * 7 + n * 31 + k) % 251 for k in range(LAYOUT.block_bytes))


def fill(session, length):
    with session.reserve(FAMILIES[length]) as slots:
        for n in range(len(FAMILIES[length])):
            slots.block(n)[:] = bytes_of(length, n)
        return slots.commit()


class LongKeys(unittest.TestCase):
    def check(self, session):
        for length, keys in FAMILIES.items():
            with session.lease(keys) as lease:
                self.assertEqual(len(lease), len(keys), length)
                for n in range(len(keys)):
                    self.assertEqual(bytes(lease.block(n)), bytes_of(length, n), (length, n))
            self.assertEqual(bytes(session.get(keys[2])[0]), bytes_of(length, 2))

    def test_library(self):
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, client.session([LAYOUT]) as session:
            for length, keys in FAMILIES.items():
                self.assertEqual(session.lookup(keys), 0, length)
                fill(session, length)
                self.assertEqual(session.lookup(keys), len(keys), length)
            self.check(session)
            for keys in FAMILIES.values():
                session.delete(keys[3:])
            for length, keys in FAMILIES.items():
                self.assertEqual(session.lookup(keys), 3, length)

    def test_as_many_and_as_long_as_may_be(self):
        """4,096 keys of 64 bytes do not fit into a packet of the local socket: the call goes by gRPC, and the answer is the same."""
        keys = [HASH + bytes(28) + n.to_bytes(4, "big") for n in range(4096)]
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, client.session([LAYOUT]) as session:
            with session.reserve(keys[:3]) as slots:
                slots.commit()
            self.assertEqual(session.lookup(keys), 3)
            with session.lease(keys) as lease:
                self.assertEqual(len(lease), 3)

    def test_bad_keys_are_refused(self):
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, client.session([LAYOUT]) as session:
            with self.assertRaisesRegex(terrace.Error, "key_bytes is 65, not 1 to 64"):
                session.lookup([bytes(65)])
            with self.assertRaisesRegex(ValueError, "all of one length"):
                session.lookup([bytes(36), bytes(37)])
            with self.assertRaises((ValueError, terrace.Error)):
                session.lookup([b""])
            with self.assertRaisesRegex(terrace.Error, "parent_bytes is 65, not 1 to 64"):
                session.put(bytes(36), bytes(LAYOUT.block_bytes), info=terrace.BlockInfo(parent=bytes(65)))

    def test_watches(self):
        """The library of an earlier version says no bound, and has room for 32 bytes."""
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, client.session([LAYOUT]) as session:
            for length in FAMILIES:
                fill(session, length)
            with session.reserve([HASH]) as slots:
                slots.commit()
            opened = daemon.open(self.layout_of(daemon))
            for bound, want in ((0, {HASH}), (36, {HASH, *FAMILIES[33], *FAMILIES[36]}), (64, {HASH}.union(*FAMILIES.values()))):
                told = []
                for event in daemon.cache.Watch(pb.WatchRequest(session=opened.session, key_bytes_max=bound), timeout=CALL_S):
                    if event.kind == pb.WATCH_SYNCED:
                        self.assertEqual(event.sequence, len(want) + 1)
                        break
                    told.append(event.key)
                self.assertEqual((set(told), len(told)), (want, len(want)))

    @staticmethod
    def layout_of(daemon):
        row, = daemon.admin.Layouts(pb.LayoutsRequest(), timeout=CALL_S).rows
        return row.layout

    def ctl(self, daemon, *words, code=0):
        done = subprocess.run([CTL, "--address", daemon.address, "--json", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=CALL_S, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr if code else json.loads(done.stdout)

    def test_terracectl(self):
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, client.session([LAYOUT]) as session:
            fill(session, 64)
            keys = FAMILIES[64]
            self.assertEqual(self.ctl(daemon, "lookup", *(key.hex() for key in keys))["prefix"], len(keys))
            self.ctl(daemon, "lookup", keys[0][:63].hex(), code=3)
            seen, = self.ctl(daemon, "inspect", keys[1].hex())["blocks"]
            self.assertTrue(seen["checksum_ok"])
            self.assertIn(keys[1].hex(), json.dumps(self.ctl(daemon, "explain", keys[1].hex())))
            self.assertIn("2 to 128 hex digits", self.ctl(daemon, "inspect", keys[1].hex() + "00", code=2))

    def test_recordings(self):
        """Blocks of a recording are names of whole keys: all of a family are different blocks."""
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, client.session([LAYOUT]) as session:
            for length in FAMILIES:
                fill(session, length)
            daemon.admin.TraceStart(pb.TraceStartRequest(name="long"), timeout=CALL_S)
            for _ in range(2):
                for keys in FAMILIES.values():
                    with session.lease(keys) as lease:
                        self.assertEqual(len(lease), len(keys))
            wait_for(lambda: self.recorded(daemon) >= 2 * len(FAMILIES), 60, "the requests are recorded")
            daemon.admin.TraceStop(pb.TraceStopRequest(), timeout=CALL_S)
            path = os.path.join(daemon.folder, "data", "traces", "long")
            done = subprocess.run([REPLAY, "--trace", path, "--policy", "lru", "--size", "1", "--json"], stdout=subprocess.PIPE, text=True,
                                  timeout=CALL_S, check=True)
            row = json.loads(done.stdout.splitlines()[0])
            self.assertEqual(row["capacity"], sum(map(len, FAMILIES.values())))

    @staticmethod
    def recorded(daemon):
        with open(os.path.join(daemon.folder, "data", "traces", "long"), encoding="utf-8") as file:
            return sum(not line.startswith("#") for line in file)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[5:], verbosity=2)

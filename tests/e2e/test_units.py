"""Sessions with a unit, partial blocks and keep rules, against a real terraced: `test_units.py TERRACED LIBTERRACE`.

A hybrid: full attention of 64 tokens a block, a sliding window of 16 a block, and a state that is stored at few places.
"""

import os
import sys
import tempfile
import unittest

TERRACED, LIBRARY = sys.argv[1:3]
os.environ["LIBTERRACE"] = LIBRARY
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(os.path.dirname(HERE)), "client", "python")]
sys.dont_write_bytecode = True
import terrace  # noqa: E402
from daemon import running, wait_for  # noqa: E402
from terrace import Rule, State, Status  # noqa: E402

UNIT, COUNT = 16, 24
FULL, WINDOW, STATES = 0, 1, 2
SMALL = ("--host-bytes", "16MiB", "--extent-bytes", "1MiB")


def one(block_tokens, layer, **over):
    return terrace.Layout("test_units", layers=1, heads=1, head_dim=64, first_layer=layer, block_tokens=block_tokens,
                          k_format="fp8", **over)


LAYOUTS = [one(64, 0), one(16, 1, window=33), one(32, 2)]
RULES = [Rule(partial=True), Rule(sparse=True), Rule(keep_last=1, partial=True, sparse=True)]
KEYS = terrace.chain(list(range(COUNT * UNIT)), UNIT)
# Of the window what a prefix of 12 and of 24 keys needs; states at 12, 18 and 24.
CELLS = [(i % 4 == 3) << FULL | (i in (10, 11, 22, 23)) << WINDOW | (i in (11, 17, 23)) << STATES for i in range(COUNT)]


def bytes_of(layout, i):
    return bytes((i * 31 + layout * 7 + k) % 251 for k in range(LAYOUTS[layout].block_bytes))


def open_session(client):
    return client.session(LAYOUTS, unit_tokens=UNIT, rules=RULES)


def fill(session):
    with session.reserve(KEYS, cells=CELLS) as slots:
        for i in range(COUNT):
            for l in range(len(LAYOUTS)):
                view = slots.block(i, l)
                assert (view is not None) == bool(CELLS[i] >> l & 1), (i, l)
                if view is not None:
                    view[:] = bytes_of(l, i)
        return slots.commit()


class Units(unittest.TestCase):
    def check(self, session):
        """What is stored is found, from the start and from the middle."""
        prefix, states = session.lookup(KEYS, states=True)
        self.assertEqual(prefix, 24)
        for i in range(COUNT):
            for l in range(len(LAYOUTS)):
                want = {State.ABSENT} if not CELLS[i] >> l & 1 else {State.HOST, State.DISK}
                self.assertIn(states[i][l], want, (i, l))
        self.assertEqual(session.lookup(KEYS[:20]), 12)  # 18: the full attention ends at 16 and 20; 20: no state
        self.assertEqual(session.lookup(KEYS[8:], first_position=8), 16)
        self.assertEqual(session.lookup(KEYS[9:13], first_position=9), 3)
        self.assertEqual(session.lookup(KEYS[:11]), 0)
        self.assertEqual(session.lookup([KEYS[11]], first_position=11), 1)
        self.assertEqual(session.lookup([KEYS[11]], first_position=8), 0)  # its blocks have more tokens than a key has there
        self.assertIsNone(session.lease([KEYS[11]], first_position=8))

    def check_lease(self, session):
        with session.lease(KEYS[:20], timeout=60) as lease:
            self.assertEqual(len(lease), 12)
            for i in range(12):
                needed = [i % 4 == 3, i >= 10, i == 11]
                self.assertEqual([lease.block(i, l) is not None for l in range(3)], needed, i)
                for l in range(3):
                    if needed[l]:
                        self.assertEqual(bytes(lease.block(i, l)), bytes_of(l, i))
                self.assertEqual([lease.tokens(i, l) for l in range(3)], [64 * needed[0], 16 * needed[1], 32 * needed[2]])
        self.assertIsNone(session.lease(KEYS[:20], all=True))

    def test_a_hybrid(self):
        for no_local_calls in (False, True):
            with self.subTest(no_local_calls=no_local_calls), running(TERRACED, *SMALL) as daemon, \
                    terrace.connect(daemon.address, no_local_calls=no_local_calls) as client, open_session(client) as session:
                self.assertEqual((session.unit, session.prefix_multiple), (16, 1))
                statuses = fill(session)
                self.assertEqual([s for s in statuses if s not in (Status.OK, Status.EXISTS)], [])
                self.check(session)
                self.check_lease(session)
                with client.attach(session.token) as joined:
                    self.assertEqual(joined.unit, 16)
                    self.check(joined)
                    self.check_lease(joined)
                session.touch(KEYS[:12])
                self.assertEqual(session.warm(KEYS[:20], wait=True), 12)
                self.assertEqual(session.delete(KEYS[:12]), [Status.OK if c else Status.MISS for c in CELLS[:12]])
                self.assertEqual(session.lookup(KEYS), 0)
                self.assertEqual(session.lookup(KEYS[12:], first_position=12), 12)

    def test_partial_blocks(self):
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, open_session(client) as session:
            fill(session)
            self.assertEqual(session.lookup(KEYS[:18]), 12)
            with session.reserve(KEYS[16:18], first_position=16, cells=[1 << WINDOW, 1 << FULL | 1 << WINDOW]) as slots:
                for i, l in ((0, WINDOW), (1, FULL), (1, WINDOW)):
                    slots.block(i, l)[:] = bytes_of(l, 16 + i)
                slots.commit()
            self.assertEqual(session.lookup(KEYS[:18]), 18)
            with session.lease(KEYS[:18]) as lease:
                self.assertEqual([lease.tokens(17, l) for l in range(3)], [32, 16, 32])
                half = len(bytes_of(FULL, 17)) // 2
                self.assertEqual(bytes(lease.block(17, FULL))[:half], bytes_of(FULL, 17)[:half])
                self.assertEqual(set(bytes(lease.block(17, FULL))[half:]), {0})
            block, tokens = session.get(KEYS[17], FULL)
            self.assertEqual(tokens, 32)
            # By stream, a partial block and a full one.
            self.assertTrue(session.put(KEYS[12], bytes_of(FULL, 12), FULL, terrace.BlockInfo(position=12 * UNIT)))
            self.assertEqual(session.get(KEYS[12], FULL), (bytearray(bytes_of(FULL, 12)), 16))
            self.assertFalse(session.put(KEYS[15], bytes_of(FULL, 15), FULL, terrace.BlockInfo(position=15 * UNIT)))

    def grow(self, session, layout, first, end):
        """An open block of the keys from `first` on that becomes the block of the key before `end`."""
        with session.reserve_open(terrace.BlockInfo(position=first * UNIT), cells=1 << layout) as tail:
            self.assertEqual([tail.block(0, l) is not None for l in range(3)], [l == layout for l in range(3)])
            tail.block(0, layout)[:] = bytes_of(layout, end - 1)
            tail.commit_open(KEYS[end - 1], (end - first) * UNIT)

    def test_open_blocks(self):
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client, open_session(client) as session:
            self.grow(session, FULL, 0, 4)
            for i in range(6):
                self.grow(session, WINDOW, i, i + 1)
            self.grow(session, STATES, 2, 4)
            self.assertEqual(session.lookup(KEYS[:6]), 4)
            self.grow(session, FULL, 4, 6)  # a partial one
            self.grow(session, STATES, 4, 6)
            self.assertEqual(session.lookup(KEYS), 6)
            with session.lease(KEYS) as lease:
                self.assertEqual([lease.tokens(5, l) for l in range(3)], [32, 16, 32])
                self.assertEqual(lease.tokens(3, FULL), 64)
                self.assertEqual(bytes(lease.block(3, FULL)), bytes_of(FULL, 3))
                self.assertEqual(bytes(lease.block(5, WINDOW)), bytes_of(WINDOW, 5))
                half = len(bytes_of(FULL, 5)) // 2
                self.assertEqual(bytes(lease.block(5, FULL))[:half], bytes_of(FULL, 5)[:half])
                self.assertEqual(set(bytes(lease.block(5, FULL))[half:]), {0})
            # In all layouts, until the smallest block is full; and one that is given up.
            session.reserve_open(terrace.BlockInfo(position=64)).abort()
            with session.reserve_open() as tail:
                for l in range(3):
                    tail.block(0, l)[:] = bytes_of(l, 0)
                tail.commit_open(terrace.chain([7] * UNIT, UNIT)[0], UNIT)
            self.assertEqual(session.lookup(terrace.chain([7] * UNIT, UNIT)), 1)

    def test_a_restart(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = (*SMALL, "--disks", os.path.join(folder, "d") + ":32MiB")
            with running(TERRACED, *flags) as daemon, terrace.connect(daemon.address) as client, open_session(client) as session:
                fill(session)
                session.flush(KEYS, timeout=60)
                daemon.kill()
                daemon.start()
                session.reopen(timeout=60)
                self.assertEqual(session.unit, 16)
                wait_for(lambda: session.lookup(KEYS) == COUNT, 60, "the disk is read")
                self.check(session)
                self.check_lease(session)

    def test_what_has_run_out_is_said(self):
        """12 MiB may be pinned: two leases of 5 MiB of flushed blocks are granted, a third and an open block of 3 MiB are not."""
        pages = terrace.Layout.opaque("test_units", "test/pages/1", 5 << 15, block_tokens=16)
        large = terrace.Layout.opaque("test_units", "test/large/1", 3 << 20, block_tokens=16)
        chains = [terrace.chain([c] * 32 * UNIT, UNIT) for c in range(3)]
        why = r"too many .*pinned.*: \d+ of 125827\d\d are free, and .* holds \d+: .*pinned_share"
        for no_local_calls in (False, True):
            with self.subTest(no_local_calls=no_local_calls), tempfile.TemporaryDirectory() as folder, \
                    running(TERRACED, "--host-bytes", "16MiB", "--extent-bytes", "4MiB", "--disks",
                            os.path.join(folder, "d") + ":64MiB") as daemon, \
                    terrace.connect(daemon.address, no_local_calls=no_local_calls) as client, client.session([pages]) as session:
                for keys in chains:
                    with session.reserve(keys) as slots:
                        slots.commit()
                    session.flush(keys, timeout=60)
                held = [session.lease(keys, all=True, timeout=60) for keys in chains[:2]]
                with self.assertRaisesRegex(terrace.Exhausted, "^lease: " + why):
                    session.lease(chains[2], timeout=60)
                with client.session([large]) as other, self.assertRaisesRegex(terrace.Exhausted, "^reserve_open: " + why):
                    other.reserve_open()
                with client.session([large]) as other:
                    names = terrace.chain([9] * 2 * UNIT, UNIT)
                    for reserve in other.reserve, lambda keys: other.reserve_async(keys).finish():
                        self.assertRaises(terrace.Exhausted, session.lease, chains[2], timeout=60) # has words of its own
                        with reserve(names) as slots:
                            self.assertEqual(slots.statuses, [Status.EXHAUSTED] * 2)
                            self.assertRegex(slots.refusal, "^reserve: key 0 and those after it: " + why)
                with session.reserve(chains[0]) as slots:
                    self.assertEqual(slots.refusal, "")
                held.pop().close()
                wait_for(lambda: daemon.stats()['terrace_pinned_bytes{tier=host}'] < 6 << 20, 60, "the lease is given back")
                session.lease(chains[2], all=True, timeout=60).close()
                held.pop().close()

    def test_a_call_of_4096_keys(self):
        layouts = [one(16, layer) for layer in range(8)]
        keys = terrace.chain(list(range(4096 * 16)), 16)
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client:
            with client.session(layouts) as session:
                self.assertEqual(session.lookup(keys), 0)
                with session.reserve(keys[:2]) as slots:
                    slots.commit()
                prefix, states = session.lookup(keys, states=True)
                self.assertEqual((prefix, states[1], states[2]), (2, [State.HOST] * 8, [State.ABSENT] * 8))
            with client.session(layouts + [one(16, 8)]) as session, self.assertRaisesRegex(terrace.Error, "more than 32768 blocks"):
                session.lookup(keys)
            with client.session([one(64, l) for l in range(60)] + [one(16, 60)], unit_tokens=16) as session:
                self.assertEqual(session.lookup(keys[:400]), 0)  # 24,400 places, 6,400 cells
                _, states = session.lookup(keys[:8], states=True)
                self.assertEqual(states[2], [State.NONE] * 60 + [State.ABSENT])
                self.assertEqual(states[3], [State.ABSENT] * 61)
                with session.reserve(keys[:600], cells=[1 << 60] * 600) as slots:
                    self.assertEqual(set(slots.commit()), {Status.OK})  # 36,600 places, 9,600 cells
                _, states = session.lookup(keys[596:600], states=True, first_position=596)
                self.assertEqual([row[60] for row in states], [State.HOST] * 4)

    def refused(self, client, words, layouts=LAYOUTS, **over):
        with self.assertRaisesRegex(terrace.Error, words) as caught:
            client.session(layouts, **over).close()
        self.assertEqual(caught.exception.status, Status.INVALID)

    def test_what_is_refused(self):
        with running(TERRACED, *SMALL) as daemon, terrace.connect(daemon.address) as client:
            self.refused(client, "block_tokens differs")
            self.refused(client, "unit_tokens: block_tokens of a layout is no multiple", unit_tokens=48)
            self.refused(client, "unchained_keys", unit_tokens=16, unchained_keys=True)
            self.refused(client, "not both", unit_tokens=16, rules=[Rule(), Rule(keep_last=1), Rule()])
            self.refused(client, "sparse", unit_tokens=16, rules=[Rule(sparse=True), Rule(), Rule()])
            self.refused(client, "more than 4096", unit_tokens=16, rules=[Rule(keep_last=4097), Rule(), Rule()])
            with open_session(client) as session:
                with self.assertRaisesRegex(terrace.Error, "position is 16, where no block of layout 0 begins"):
                    session.reserve_open(terrace.BlockInfo(position=16))
                with self.assertRaisesRegex(terrace.Error, "tokens is 33, more than the 32 of a block of layout 2"):
                    session.reserve_open(terrace.BlockInfo(tokens=33), cells=1 << STATES)
                for cells in (0, 1 << 3):
                    with self.assertRaisesRegex(terrace.Error, "cells is %#x" % cells if cells else "cells is 0"):
                        session.reserve_open(cells=cells)
                for tokens, why in ((20, "no multiple of the session's unit of 16"), (80, "more than the 64 of a block of layout 0")):
                    with self.assertRaisesRegex(terrace.Error, "tokens is %d, %s" % (tokens, why)):
                        session.reserve_open(cells=1 << FULL).commit_open(KEYS[3], tokens)
                with self.assertRaisesRegex(terrace.Error, "no info"):
                    session.put(KEYS[0], bytes_of(FULL, 0), FULL)
                with self.assertRaisesRegex(terrace.Error, "unit's first token"):
                    session.put(KEYS[0], bytes_of(FULL, 0), FULL, terrace.BlockInfo(position=7))
                with session.reserve(KEYS[:1], cells=[1 << 3]) as slots:
                    self.assertEqual(slots.statuses, [Status.INVALID])
                with session.reserve(KEYS[:1], cells=[0]) as slots:
                    self.assertEqual(slots.statuses, [Status.EXISTS])
                with self.assertRaisesRegex(terrace.Error, "first_position"):
                    session.lookup(KEYS, first_position=(1 << 31) + 1)
            with client.session(LAYOUTS[:1] + LAYOUTS[2:], unit_tokens=16) as session:
                self.assertEqual(session.prefix_multiple, 4)
                with self.assertRaisesRegex(terrace.Error, "layout 0 has no partial blocks: give the 64"):
                    session.reserve_open(cells=1).commit_open(KEYS[1], 32)
                with self.assertRaisesRegex(terrace.Error, "no block there"):
                    session.put(KEYS[0], bytes_of(FULL, 0), FULL, terrace.BlockInfo(position=0))
            with client.session(LAYOUTS[1:2], unchained_keys=True) as session:
                self.assertEqual(session.unit, 16)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])

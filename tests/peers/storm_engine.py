#!/usr/bin/python3
"""An engine of a storm, until it is killed: `storm_engine.py ADDRESS SEED LOG`, with LIBTERRACE in the environment.

It stores chains, leases those of other engines, reads blocks by stream, and compares each byte with what the key says. All engines of a
machine mean the same chains: there is a new one each EVERY_S, and each is asked for while it is one of the last RECENT.

Each call is a line of LOG: its kind, how it ended, its blocks, those of them that were wrong, and the seconds past its deadline.
"""

import json
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from engine import content, key  # noqa: E402
import terrace  # noqa: E402

LAYOUT = {"layers": 2, "heads": 2, "head_dim": 64, "k_format": "tq4", "v_format": "tq4", "block_tokens": 16}
EVERY_S, RECENT = 0.5, 24
FIRST = 1 << 40  # of the storm's keys
CALL_S, REOPEN_S = 3, 1
GOES_ON = (terrace.Status.EXHAUSTED, terrace.Status.DEADLINE, terrace.Status.BUSY)


def chain():
    """The keys' numbers of some recent chain."""
    number = int(time.monotonic() / EVERY_S) - random.randrange(RECENT)
    return range(FIRST + number * 1000, FIRST + number * 1000 + 48 + 16 * (number % 4))


class Engine:
    def __init__(self, address, log):
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.layout = terrace.Layout("storm", **LAYOUT)
        self.client, self.session = None, None
        self.goes_on = True
        self.call("open", 2 * CALL_S, lambda: self.open(address))

    def call(self, kind, seconds, what):
        """The result of a call; None: it failed, or was a miss."""
        began, out, how = time.monotonic(), None, "OK"
        try:
            out = what()
        except terrace.Error as e:
            how = e.status.name
            self.goes_on = e.status in GOES_ON
        self.note(kind, how, 0, 0, time.monotonic() - began - seconds)
        return out

    def note(self, kind, how, blocks, wrong, late):
        os.write(self.log, (json.dumps([kind, how, blocks, wrong, round(late, 3)]) + "\n").encode())

    def open(self, address):
        self.client = terrace.connect(address, timeout=CALL_S)
        self.session = self.client.session([self.layout], engine="storm")

    def compare(self, kind, numbers, blocks):
        size = self.layout.block_bytes
        wrong = sum(bytes(b) != content(n, 0, size) for n, b in zip(numbers, blocks))
        self.note(kind + " compared", "OK", len(blocks), wrong, -1)

    def store(self):
        numbers = chain()
        keys = [key(n) for n in numbers]
        reservation = self.call("reserve", CALL_S, lambda: self.session.reserve(keys, timeout=CALL_S))
        if reservation is None:
            return
        with reservation:
            for i, n in enumerate(numbers):
                block = reservation.block(i)
                if block is not None:
                    block[:] = content(n, 0, self.layout.block_bytes)
                del block
            self.call("commit", CALL_S, lambda: reservation.commit(timeout=CALL_S))
        self.lease(numbers)  # it is used: the other members are told of it soon

    def lease(self, numbers=None):
        numbers = numbers or chain()
        keys = [key(n) for n in numbers]
        lease = self.call("lease", CALL_S, lambda: self.session.lease(keys, timeout=CALL_S))
        if lease is not None:
            with lease:
                self.compare("lease", numbers, [lease.block(i) for i in range(len(lease))])

    def get(self):
        number = random.choice(chain())
        got = self.call("get", CALL_S, lambda: self.session.get(key(number), timeout=CALL_S))
        if got is not None:
            self.compare("get", [number], [got[0]])

    def lookup(self):
        self.call("lookup", CALL_S, lambda: self.session.lookup([key(n) for n in chain()], timeout=CALL_S))

    def run(self):
        while True:
            self.goes_on = True
            random.choices([self.store, self.lease, self.get, self.lookup], [2, 6, 1, 1])[0]()
            while not self.goes_on:
                self.goes_on = True
                self.call("reopen", REOPEN_S, lambda: self.session.reopen(timeout=REOPEN_S))
                time.sleep(0.1)
            time.sleep(random.random() / 10)


if __name__ == "__main__":
    where, seed, to = sys.argv[1:]
    random.seed(int(seed))
    while True:
        engine = Engine(where, to)
        if engine.session:
            engine.run()
        time.sleep(0.1)

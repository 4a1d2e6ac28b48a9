#!/usr/bin/python3
"""An engine in a process of its own, over the Python binding: `engine.py ADDRESS [UID]`, with LIBTERRACE in the environment. UID: whose
process it is.

One JSON list a line of standard input, [command, argument...], has one line of JSON in answer. Sessions are told apart by a name. A key is named by a
number, a block's bytes follow from its key's number and its layout's. The process ends with its input.

    ["open", name, [layout options...]]     the bytes of a block in each layout
    ["put", name, first, count, timeout]    one status a key: in place, the keys in one call
    ["stream", name, first, count]          one status a key: by stream, layout 0, one key a call
    ["get", name, first, count]             [right, missing, wrong] of the keys, read by stream in layout 0
    ["lookup", name, first, count]          the prefix
    ["lease", name, first, count]           whether all of the keys are leased now; the lease is kept
    ["release", name]                       how many leases of the session have been given back
    ["flush", name]                         "OK" or the status
"""

import hashlib
import json
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "client", "python"))
import terrace  # noqa: E402


def key(number):
    return struct.pack(">QQ", number, ~number & (1 << 64) - 1)


def content(number, layout, size):
    seed = hashlib.blake2b(struct.pack("<QQ", number, layout), digest_size=64).digest()
    return (seed * (size // len(seed) + 1))[:size]


class Engine:
    def __init__(self, address):
        self.client = terrace.connect(address)
        self.sessions, self.layouts, self.leases = {}, {}, {}

    def open(self, name, options):
        self.layouts[name] = [terrace.Layout.opaque(o.pop("model"), **o) if "name" in o else terrace.Layout(o.pop("model"), **o) for o in options]
        self.sessions[name] = self.client.session(self.layouts[name], engine=name)
        self.leases[name] = []
        return [layout.block_bytes for layout in self.layouts[name]]

    def put(self, name, first, count, timeout=None):
        keys = [key(n) for n in range(first, first + count)]
        try:
            with self.sessions[name].reserve(keys, timeout=timeout) as r:
                for i in range(count):
                    for n, layout in enumerate(self.layouts[name]):
                        block = r.block(i, n)
                        if block is not None:
                            block[:] = content(first + i, n, layout.block_bytes)
                        del block
                return [s.name for s in r.commit(timeout=timeout)]
        except terrace.Error as e:
            return [e.status.name] * count

    def stream(self, name, first, count):
        statuses = []
        for n in range(first, first + count):
            try:
                stored = self.sessions[name].put(key(n), content(n, 0, self.layouts[name][0].block_bytes))
                statuses.append("OK" if stored else "EXISTS")
            except terrace.Error as e:
                statuses.append(e.status.name)
        return statuses

    def get(self, name, first, count):
        found = [0, 0, 0]
        for n in range(first, first + count):
            got = self.sessions[name].get(key(n))
            right = got is not None and bytes(got[0]) == content(n, 0, len(got[0]))
            found[0 if right else 1 if got is None else 2] += 1
        return found

    def lookup(self, name, first, count):
        return self.sessions[name].lookup([key(n) for n in range(first, first + count)])

    def lease(self, name, first, count):
        try:
            lease = self.sessions[name].lease([key(n) for n in range(first, first + count)], all=True)
        except terrace.Error:
            lease = None
        if lease is not None:
            self.leases[name].append(lease)
        return lease is not None

    def release(self, name):
        count = len(self.leases[name])
        for lease in self.leases[name]:
            lease.release()
        self.leases[name] = []
        return count

    def flush(self, name):
        try:
            self.sessions[name].flush()
            return "OK"
        except terrace.Error as e:
            return e.status.name


if __name__ == "__main__":
    if len(sys.argv) > 2:
        uid = int(sys.argv[2])
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    engine = Engine(sys.argv[1])
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(getattr(engine, command)(*arguments)), flush=True)
    os._exit(0)  # as an engine goes: what it holds is the daemon's to take back

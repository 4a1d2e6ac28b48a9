"""Time to the first token of a prompt whose beginning is stored on the GPU, in host memory or on a disk, beside computing it anew.

    for row in measure(engine, terraced, rounds=3): ...

`engine` is what generates:
    engine.layout, engine.prompt    the layout of its blocks; the prompt's ids
    engine.compute()                (generated ids, seconds until the first, a hash of its logits), without Terrace
    engine.run(session, gpu, salt)  the same with it, and the tokens that were reused

The prompt is stored under a salt for each tier and round and flushed, and a new daemon started, so that all of it is on the disk alone;
Warm then brings what is to be in memory, or on the GPU. All is measured with one session, after one set that opens the GPU. Row `first`
is the request that stores: it finds nothing, computes all, and packs it. Nothing here needs torch.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import statistics
import struct
import subprocess
import tempfile
import time

import terrace

TIERS = ("recompute", "first", "nvme", "host", "vram")
STORED = TIERS[2:]
MIB = 1 << 20
RESTORE_S = START_S = 60.0


class Daemon:
    """A terraced of its own, whose disk outlives it, with room for `sets` prompts of so many bytes."""

    def __init__(self, terraced, folder, set_bytes, sets):
        address = os.path.join(folder, "t.sock")
        memory = "%dMiB" % (256 + 4 * 1.3 * set_bytes / MIB)
        with open(os.path.join(folder, "log"), "ab") as log:
            self.process = subprocess.Popen(
                [terraced, "--data-dir", os.path.join(folder, "data"), "--socket", address, "--host-bytes", memory, "--gpus", "all",
                 "--gpu-bytes", memory, "--prefetch-bytes", "0", "--disks",
                 "%s/disk:%dMiB" % (folder, 256 + 1.3 * sets * set_bytes / MIB)], stdout=log, stderr=log)
        end = time.monotonic() + START_S
        while not os.path.exists(address):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("terraced does not come up")
            time.sleep(0.02)
        self.address = "unix:" + address

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(timeout=120) != 0:
            raise RuntimeError("terraced ended with %d" % self.process.returncode)


@contextlib.contextmanager
def served(engine, terraced, folder, sets):
    """A daemon and a session with it: (session, the GPU's number)."""
    blocks = len(engine.prompt) // engine.layout.block_tokens + 1
    daemon = Daemon(terraced, folder, blocks * engine.layout.block_bytes, sets)
    try:
        with terrace.connect(daemon.address, timeout=START_S) as client, \
                client.session([engine.layout], engine="ttft", gpu=True) as session:
            gpu = session.gpu_of(0)
            if gpu is None:
                raise RuntimeError("the daemon lends no memory of this GPU")
            yield session, gpu
        daemon.stop()
    finally:
        if daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait()


def salt_of(number):
    return b"set %d" % number


def keys_of(engine, number):
    """Of the blocks that a prompt can have from the cache: the last token's logits are nobody's."""
    n = engine.layout.block_tokens
    return terrace.chain(engine.prompt, n, salt_of(number))[:(len(engine.prompt) - 1) // n]


def all_are(session, keys, state):
    prefix, states = session.lookup(keys, states=True)
    return prefix == len(keys) and all(row == [state] for row in states)


def store(engine, session, gpu, sets):
    """The first requests' Result, but for the very first's, which opens the GPU."""
    result = Result()
    for number in range(sets):
        ran = engine.run(session, gpu, salt_of(number))
        if number:
            result.note(*ran)
        session.flush(keys_of(engine, number), timeout=120)
    return result


def await_restored(engine, session, sets):
    end = time.monotonic() + RESTORE_S
    for number in range(sets):
        while not all_are(session, keys_of(engine, number), terrace.State.DISK):
            if time.monotonic() > end:
                raise RuntimeError("set %d did not come back with the daemon" % number)
            time.sleep(0.02)


def bring(engine, session, gpu, number, tier):
    keys = keys_of(engine, number)
    if not all_are(session, keys, terrace.State.DISK):
        raise RuntimeError("set %d is not on the disk alone" % number)
    for to in {"nvme": (), "host": (None,), "vram": (None, gpu)}[tier]:
        if session.warm(keys, wait=True, gpu=to, timeout=60) != len(keys):
            raise RuntimeError("set %d was not warmed" % number)


class Result:
    """What a tier's runs gave."""

    def __init__(self):
        self.ms, self.texts, self.logits, self.reused = [], set(), set(), set()

    def note(self, ids, seconds, logits, reused=0):
        self.ms.append(seconds * 1e3)
        self.texts.add(tuple(ids))
        self.logits.add(logits)
        self.reused.add(reused)

    def row(self, base):
        """base: that of recompute."""
        ms, compute = statistics.median(self.ms), statistics.median(base.ms)
        return {"ms": round(ms, 3), "ms_all": [round(one, 3) for one in self.ms], "of_recompute": round(ms / compute, 4),
                "text": hash_of(min(self.texts)), "same_as_recompute": self.texts == base.texts, "logits": min(self.logits)}


def run_rounds(engine, session, gpu, rounds, results):
    for _ in range(2):
        engine.run(session, gpu, salt_of(0))
        engine.compute()
    for r in range(rounds):
        results["recompute"].note(*engine.compute())
        for i in range(3):
            tier, number = STORED[(r + i) % 3], 1 + 3 * r + i
            bring(engine, session, gpu, number, tier)
            results[tier].note(*engine.run(session, gpu, salt_of(number)))


def hash_of(text):
    return hashlib.sha256(struct.pack("<%dI" % len(text), *text)).hexdigest()[:16]


def check(engine, results):
    """Whoever computed or had the blocks: the same text, and the same logits, bit for bit; and all was reused that could be. Without packed
    blocks the text may be another, by the format's error, but is always the same."""
    packed = [results[tier] for tier in TIERS[1:]]
    if any(len(set().union(*seen)) != 1 for seen in ([r.texts for r in packed], [r.logits for r in packed], [results["recompute"].texts])):
        raise RuntimeError("other texts or logits: %s" %
                           {tier: ([hash_of(t) for t in r.texts], list(r.logits)) for tier, r in results.items()})
    most = len(keys_of(engine, 0)) * engine.layout.block_tokens
    if any(results[tier].reused != ({most} if tier in STORED else {0}) for tier in TIERS):
        raise RuntimeError("not all was reused: %s of %d" % ({tier: r.reused for tier, r in results.items()}, most))


def measure(engine, terraced, rounds=3):
    """A dict a tier: tier, tokens, reused, ms (the median), ms_all, of_recompute, text and logits (hashes), same_as_recompute; gb, of blocks
    that had to come to the GPU, and gb_s, those over the whole time until the first token."""
    sets, folder, results = 3 * rounds + 1, tempfile.mkdtemp(prefix="terrace-ttft-"), {tier: Result() for tier in TIERS}
    try:
        with served(engine, terraced, folder, sets) as (session, gpu):
            results["first"] = store(engine, session, gpu, sets)
        with served(engine, terraced, folder, sets) as (session, gpu):
            await_restored(engine, session, sets)
            run_rounds(engine, session, gpu, rounds, results)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    check(engine, results)
    return [row_of(engine, tier, r, results["recompute"]) for tier, r in results.items()]


def row_of(engine, tier, result, base):
    reused = max(result.reused)
    row = {"tier": tier, "tokens": len(engine.prompt), "reused": reused, **result.row(base)}
    if tier in ("nvme", "host"):
        gb = reused // engine.layout.block_tokens * engine.layout.block_bytes / 1e9
        row.update(gb=round(gb, 5), gb_s=round(gb / row["ms"] * 1e3, 3))
    return row

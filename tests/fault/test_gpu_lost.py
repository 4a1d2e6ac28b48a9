"""The daemon's GPU is lost under engines that lease on it:

    test_gpu_lost.py TERRACED TERRACECTL MIXED_ENGINE TRAP [--libraries FOLDER] [...]

On a real GPU the daemon is started with TRAP (tests/gpu/trap_library.c), by which a kernel traps in the daemon's own context, the way that an
uncorrectable error ends one: the GPU, and the engines on it, are unharmed. Over the simulated device the daemon's device is lost.

Two engines, a process each (two_gpus.py's, with more commands), lease while it happens: one on the GPU, what host memory has, and one in host memory.
Asserted: no wrong byte, no call that takes over BOUND_S; what was leased on the GPU keeps its bytes; Stats and `terracectl status` say degraded,
and it serves; leases on the GPU are UNAVAILABLE, what only it had is a miss, what host memory has is leased there and, by an engine that takes
either, read from there by its own GPU; puts go on; it stops in order, soon; and the next daemon has the GPU again, and the blocks from the disk.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
import zlib

import test_mixed as mixed

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gpu"))
import two_gpus  # noqa: E402

OK, MISS, UNAVAILABLE, DEFAULT = 0, 1, 9, 4  # statuses; enum cudaMemcpyKind
BOUND_S, LOST_S, STOP_S = 5.0, 5.0, 30.0     # a call, less what a busy machine may take; from the trap until Stats says so; SIGTERM to the end
SET, TURNS = 8, 24
ONLY, HELD, LATER = 1000, 1100, 1200         # numbers of blocks: on the GPU alone; leased all the time; put after the loss


class Engine(two_gpus.Engine):
    """Also puts and leases in host memory."""

    def put_host(self, first, count):
        sums = []
        with self.session.reserve(two_gpus.keys_of(first, count)) as slots:
            for i in range(count):
                block = self.block(first + i)
                slots.block(i)[:] = block
                sums.append(zlib.crc32(block))
            if any(slots.commit()):
                raise RuntimeError("not all was stored")
        return sums

    def flush(self, first, count):
        return [int(s) for s in self.session.flush(two_gpus.keys_of(first, count), timeout=two_gpus.WAIT_S)]

    def take_host(self, first, count):
        """The checksums of what is there."""
        lease = self.session.lease(two_gpus.keys_of(first, count))
        if not lease:
            return []
        with lease:
            return [zlib.crc32(bytes(lease.block(i))) for i in range(len(lease))]

    def take_gpu(self, first, count, either=False):
        """The same on the GPU, or, with either, of host memory as the GPU sees it. Nothing of what the GPU did counts if the lease was void."""
        lease = self.session.lease(two_gpus.keys_of(first, count), gpu=self.gpu, gpu_or_host=either)
        if not lease:
            return []
        try:
            lease.wait_layer(self.layout.layers - 1, self.stream)
            sums = [self.sum_at(address) for address in lease.addresses()]
            lease.check()
            return sums
        finally:
            lease.release()

    def sum_at(self, address):
        self.copy(ctypes.addressof(self.host), address, DEFAULT)
        return zlib.crc32(self.host.raw)

    def held_sums(self):
        """Of the lease that take() has made, whatever has become of the daemon's GPU."""
        return [self.sum_at(address) for address in self.lease.addresses()]

    def reopen(self):
        self.session.reopen(timeout=two_gpus.WAIT_S)
        self.gpu = self.session.gpu_of(0)
        return self.gpu


class Child(two_gpus.Child):
    program = os.path.abspath(__file__)

    def hear(self):
        began = time.monotonic()
        if not select.select([self.process.stdout], [], [], two_gpus.WAIT_S)[0]:
            raise AssertionError("an engine does not answer")
        answer = super().hear()
        self.took = time.monotonic() - began
        return answer


class Service(mixed.Service):
    """One whose GPU the test can lose."""

    def __init__(self, o, folder):
        self.trap = os.path.join(folder, "lost.0")
        super().__init__(o, folder)

    def start(self):
        engines = self.environment
        lost = {"SIM_GPU_LOST_FILE": self.trap[:-2]} if self.o.libraries else {"LD_PRELOAD": self.o.trap, "TRAP_FILE": self.trap}
        self.environment = dict(engines, **lost)
        try:
            super().start()
        finally:
            self.environment = engines

    def lose(self):
        with open(self.trap, "w", encoding="ascii"):
            self.sprung = time.monotonic()

    def await_loss(self):
        """Seconds since then until Stats says so; the log does, too, in time."""
        mixed.wait_for(lambda: self.stats()["terrace_gpu_lost{gpu=0}"] == 1, LOST_S, "Stats says that the GPU is lost")
        took = time.monotonic() - self.sprung
        mixed.wait_for(lambda: "event=gpu_lost" in self.log(), LOST_S, "so does the log")
        return took

    def state(self):
        """By terracectl's status."""
        said = self.ctl("--json", "status")
        assert said.returncode == 0, said.stdout + said.stderr
        plain = self.ctl("status")
        state = json.loads(said.stdout)["state"]
        assert plain.returncode == 0 and state in plain.stdout, plain.stdout
        return state


# ---- the story -------------------------------------------------------------------------------------------------------------------------

def turns(service, one, other, sums):
    """Both lease, a set after the other; half way the GPU goes. A part of the result."""
    good, after, slowest, told = 0, [], 0.0, 0.0
    for turn in range(TURNS):
        one.say("take_gpu", turn * SET, SET)
        other.say("take_host", turn * SET, SET)
        if turn == TURNS // 2:
            service.lose()
        status, value = one.hear()
        slowest = max(slowest, one.took)
        if status == OK and value == sums[turn]:
            good += 1
        else:
            assert turn >= TURNS // 2 and status in (OK, UNAVAILABLE) and (status or value == []), "turn %d: %r" % (turn, (status, value))
            after.append(status)
        status, value = other.hear()
        slowest = max(slowest, other.took)
        assert status == OK and value == sums[turn], "host memory, turn %d: %r" % (turn, (status, value))
        if turn == TURNS // 2:
            told = service.await_loss()
    assert good >= TURNS // 2 and after, "%d leases, %d that failed" % (good, len(after))
    assert slowest < BOUND_S, "a call took %.1f s" % slowest
    return {"leases": good, "leases_failed": len(after), "slowest_call_ms": round(1000 * slowest, 1), "stats_ms": round(1000 * told, 1)}


def expect_served(service, one, other, sums, held):
    """What is left when the GPU is not."""
    assert service.state() == "degraded"
    assert one.do("held_sums") == held, "what was leased has other bytes now"
    one.do("release")
    for words in (("take_gpu", 0, SET), ("take_gpu", ONLY, SET), ("put", LATER + 100, 1)):
        one.say(*words)
        status, value = one.hear()
        assert status == UNAVAILABLE, "%r on a lost GPU: %r" % (words, (status, value))
    for engine in (one, other):
        assert engine.do("take_host", ONLY, SET) == [], "what only the lost GPU had"
        assert engine.do("take_host", 0, SET) == sums[0]
    assert one.do("take_gpu", 0, SET, True) == sums[0], "host memory, as the engine's own GPU sees it"
    later = other.do("put_host", LATER, SET)
    assert one.do("take_host", LATER, SET) == later
    assert other.do("flush", LATER, SET) == [OK] * SET
    return later


def stop(service):
    began = time.monotonic()
    service.process.send_signal(signal.SIGTERM)
    code = service.process.wait(timeout=120)
    took = time.monotonic() - began
    assert code == 0, "terraced ended with %d" % code
    assert took < STOP_S, "it took %.1f s to stop" % took
    return took


def expect_next(service, one, sums, later):
    """Another daemon on the same GPU; what was flushed comes from the disk."""
    os.unlink(service.trap)
    service.start()
    one.do("reopen")
    mixed.wait_for(lambda: service.stats()["terrace_restored"] == 1, 60, "the disk is read")
    assert service.state() == "serving"
    assert one.do("take_gpu", 0, SET) == sums[0], "from the disk to the GPU"
    assert one.do("take_gpu", LATER, SET) == later
    put = one.do("put", LATER + 200, SET)
    assert one.do("take_gpu", LATER + 200, SET) == put
    assert service.stats()["terrace_gpu_lost{gpu=0}"] == 0


def tell_loss(o, service, one, other):
    one.do("first")
    sums = [other.do("put_host", turn * SET, SET) for turn in range(TURNS)]
    assert other.do("flush", 0, SET) == [OK] * SET
    one.do("put", ONLY, SET)
    held = one.do("put", HELD, SET)
    assert one.do("take", HELD, SET)[0] == SET
    assert service.state() == "serving"
    row = turns(service, one, other, sums)
    later = expect_served(service, one, other, sums, held)
    seconds = stop(service)
    expect_next(service, one, sums, later)
    return {**row, "stop_ms": round(1000 * seconds, 1)}


def run(o, service):
    engines, began = [], time.monotonic()
    try:
        engines += [Child(service, 0), Child(service, 0)]
        row = tell_loss(o, service, *engines)
        for engine in engines:
            engine.stop()
    finally:
        for engine in engines:
            if engine.process.poll() is None:
                engine.process.kill()
                engine.process.wait()
    mixed.tell(o, {"bench": "gpu_lost", "device": "simulated" if o.libraries else "gpu", "seconds": round(time.monotonic() - began, 1), **row})


if __name__ == "__main__":
    if sys.argv[1:2] == ["engine"]:
        two_gpus.load_cuda()
        Engine(sys.argv[2], int(sys.argv[3])).obey()
    else:
        mixed.serve(mixed.options(__doc__, more=("trap",)), "gpu-lost", Service, run)

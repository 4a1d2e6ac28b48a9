"""An engine dies while its work on the GPU still writes over the slots that it has reserved:

    test_writer.py TERRACED TERRACECTL MIXED_ENGINE SLOW_WRITER [--libraries FOLDER] [--kills N] [...]

The work is a kernel that writes for seconds (slow_writer.c); over the simulated device a child that has the memory and outlives its parent.
Two engines of the mixed load (test_mixed.py) put, lease and look at every byte meanwhile, over a GPU with so few slots that each of them is
wanted again and again. Each round kills a writer with SIGKILL while it writes. Asserted: no wrong byte; as long as the process, or the child, is
there, its slots are held, and they are back soon after; its work has ended when they are back; blocks left the GPU for want of room all the time;
in the end nothing is held, and the device's memory is what Stats says. The same command on a real GPU and over the simulated one.
"""

import mmap
import os
import random
import re
import select
import statistics
import struct
import subprocess
import threading
import time

import test_mixed as mixed
from stalls import within
from test_mixed import Engine, Service, wait_for

WORKERS, SLOTS, RUN = 2, 40, 16
WORK_MS = {"kernel": 6000, "child": 60000} # how long the work goes on, if nothing ends it, also before its turn on a busy machine;
AFTER_S = 0.3        # a child's goes on for so long after the kill, and until it was seen to
BACK_S = 5.0         # from the end of the process until its slots are free, at most


def ended(pidfds):
    return all(select.select([fd], [], [], 0)[0] for fd in pidfds)


class Writer:
    """One that has begun."""

    def __init__(self, service, number):
        self.service, self.name = service, "w%d" % number
        self.page_fd = os.memfd_create("beat")
        os.ftruncate(self.page_fd, mmap.PAGESIZE)
        self.page = mmap.mmap(self.page_fd, mmap.PAGESIZE)
        how = "child" if service.o.libraries else "kernel"
        self.process = subprocess.Popen([service.o.writer, how, service.address, self.name, str(SLOTS), str(WORK_MS[how]), str(self.page_fd)],
                                        stdout=subprocess.PIPE, text=True, env=service.environment, pass_fds=[self.page_fd])
        self.pidfds = [os.pidfd_open(self.process.pid)]
        self.slots = 0

    def ready(self):
        said = re.fullmatch(r"writing (\d+) (\d+)\n", self.process.stdout.readline())
        assert said, "a writer did not begin"
        self.slots = int(said[1])
        if int(said[2]):
            self.pidfds.append(os.pidfd_open(int(said[2])))

    def beat(self):
        """Counts what it writes."""
        return struct.unpack_from("<Q", self.page)[0]

    def end_child(self):
        struct.pack_into("<Q", self.page, 8, 1)

    def ended(self):
        return ended(self.pidfds)

    def held(self, stats):
        """(bytes that the daemon holds for it, whether it is a ghost)."""
        rows = {k: v for k, v in stats.items() if k.startswith("terrace_session_held_bytes{") and "engine=%s," % self.name in k}
        return sum(rows.values()), any("state=ghost" in k for k in rows)

    def close(self):
        self.end_child()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        for fd in self.pidfds:
            os.close(fd)
        self.page.close()
        os.close(self.page_fd)


def hold(writer, service, at_kill):
    """After the kill, until nothing of it is there: what it held then is held. Times that was seen, and times as a ghost's."""
    seen = ghosts = 0
    began = time.monotonic()
    while True:
        if time.monotonic() > began + AFTER_S and ghosts and writer.beat() > at_kill:
            writer.end_child()
        stats = service.stats()
        if writer.ended():  # asked after Stats: what it says of one that has ended may be either
            return seen, ghosts
        held, ghost = writer.held(stats)
        assert held >= writer.slots * mixed.BLOCK_BYTES, "%d bytes held, of %d slots of one that is there still" % (held, writer.slots)
        assert not ghost or stats["terrace_quarantined_slots{tier=gpu}"] >= writer.slots, "a ghost's slots that are not counted"
        seen, ghosts = seen + 1, ghosts + ghost
        assert time.monotonic() < began + 60, "the work does not end"


class Watch(threading.Thread):
    """When the work was last seen to write."""

    def __init__(self, writer):
        super().__init__()
        self.writer, self.last = writer, time.monotonic()
        self.start()

    def run(self):
        beat = self.writer.beat()
        while not self.writer.ended():
            time.sleep(0.001)
            if self.writer.beat() != beat:
                beat, self.last = self.writer.beat(), time.monotonic()


def one_death(service, rng, writer):
    """A row of figures."""
    time.sleep(rng.random() * 0.2)
    before = writer.beat()
    wait_for(lambda: writer.beat() > before, 60, "it writes")
    at_kill, began = writer.beat(), time.monotonic()
    assert writer.process.poll() is None, "a writer has ended"
    writer.process.kill()
    watch = Watch(writer)
    try:
        seen, ghosts = hold(writer, service, at_kill)
    finally:
        writer.end_child()
        watch.join()
    gone, last = time.monotonic(), writer.beat()
    back, _ = within(BACK_S, lambda: writer.held(service.stats()) == (0, False), "its slots are free", at_most=60.0)
    assert writer.beat() == last, "it writes on"
    assert not service.o.libraries or last > at_kill and ghosts, "the child has not outlived its parent"
    return {"slots": writer.slots, "beats": at_kill, "beats_after": last - at_kill, "gone_ms": 1000 * (gone - began), "back_ms": 1000 * back,
            "writes_ms": 1000 * (watch.last - began), "held_seen": seen, "ghost_seen": ghosts}


def deaths(o, service, rng, engines):
    rows, number, writers = [], 0, [Writer(service, 0)]
    try:
        for number in range(1, o.kills + 1):
            writer = writers[-1]
            writer.ready()
            assert writer.slots >= RUN, "%d slots" % writer.slots
            if number < o.kills:
                writers.append(Writer(service, number)) # it begins while this one dies
            rows.append(one_death(service, rng, writer))
            for e in engines:
                e.watch()
    finally:
        for writer in writers:
            writer.close()
    return rows


def run(o, service):
    rng, before, began = random.Random(o.seed), mixed.memory_of(service), time.monotonic()
    engines = [Engine(service, o.seed * 100 + n) for n in range(WORKERS)]
    try:
        for e in engines:
            e.ready()
        wait_for(lambda: mixed.sum_of(service.stats(), "terrace_evictions_total", "tier=gpu") > 0, 60, "the GPU is full")
        left = mixed.sum_of(service.stats(), "terrace_evictions_total", "tier=gpu")
        rows = deaths(o, service, rng, engines)
        stats = service.stats()
        left = mixed.sum_of(stats, "terrace_evictions_total", "tier=gpu") - left
        for e in engines:
            e.stop()
    finally:
        for e in engines:
            if e.process.poll() is None:
                e.process.kill()
                e.process.wait()
    mixed.await_zero(service, mixed.of_all(service, mixed.IDLE, mixed.IDLE_GPU), 60)
    calls, counts = mixed.merge(engines)
    mixed.print_calls(calls)
    mixed.verify_all(service)
    mixed.sweep(o, service)
    memory = mixed.check_memory(service, before)
    most = {"%s_max" % name: round(max(row[name] for row in rows), 1) for name in ("gone_ms", "back_ms", "writes_ms")}
    mixed.tell(o, {"bench": "writer", "device": "simulated" if o.libraries else "gpu", "kills": o.kills,
                   "seconds": round(time.monotonic() - began, 1), "gpu_mib": o.gpu_mib, "gpu_slots": int(stats["terrace_gpu_slots{gpu=0}"]), "slots": min(row["slots"] for row in rows), **most,
                   **{name: round(statistics.median(row[name] for row in rows), 1) for name in ("gone_ms", "writes_ms", "beats", "beats_after")},
                   "held_seen": sum(row["held_seen"] for row in rows), "ghost_seen": sum(row["ghost_seen"] for row in rows),
                   "evicted": int(left), "memory": memory, **counts})
    assert left > stats["terrace_gpu_slots{gpu=0}"], "%d blocks left the GPU: not every slot was wanted" % left
    assert not stats["terrace_gpu_lost{gpu=0}"], "the GPU was lost"


if __name__ == "__main__":
    mixed.serve(mixed.options(__doc__, kills=20, more=("writer",)), "writer", Service, run)

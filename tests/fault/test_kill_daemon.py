"""The daemon dies at any moment under engines that use its GPUs' memory, and they go on with the next one:

    test_kill_daemon.py TERRACED TERRACECTL MIXED_ENGINE [--libraries FOLDER] [--kills N] [...]

The load and the engines are those of test_mixed.py, over the same tiers, but that the engines survive (mixed_engine.c): told of the death,
they look once more at what they have leased, give it back, and open their sessions with the next daemon. Each daemon lives until every engine
has leased from it, and some random time, and is killed with SIGKILL; now and then an engine dies with it. Asserted: no wrong byte, by what was
leased before a death neither; each engine goes on after each; no call or wait of a stream takes over --bound seconds, less the machine's stalls;
every third time, when the engines stand still, and once more when they have ended, nothing is held, and the device's memory is what
the daemon that lives says: nothing of the dead ones' is left; and Verify finds no damage, for which the temporary folder must be on a disk: SIGKILL
tears writes into files in memory. The same command on a real GPU and over the simulated one.
"""

import os
import random
import signal
import time

import test_mixed as mixed
from test_mixed import Engine, Service, await_zero, merge, of_all, wait_for

ENGINES, PAUSE_EVERY, NEXT_S = 3, 3, 60
ENGINES_SLACK_MIB = 48  # what the driver takes for their kernels, loaded when they are first used, and for another engine's; an extent is 64


def counts_of(engine):
    return engine.tally()["counts"]


def await_next(engines, before):
    """Each has opened a session with the next daemon, and checked blocks that it leased there."""
    def gone_on():
        for e in engines:
            e.watch()
        now = [counts_of(e) for e in engines]
        return all(n["reopens"] > b["reopens"] and n["checked_blocks"] > b["checked_blocks"] for n, b in zip(now, before))

    wait_for(gone_on, NEXT_S, "all engines go on with the next daemon")


def settle(service, engines, base):
    """While the engines stand still: of the daemons' memory there is only the living one's. base: the memory at another such time.
    Returns it now, and by how much it differs from what Stats says."""
    for e in engines:
        e.process.send_signal(signal.SIGUSR1)
    for e in engines:
        assert e.process.stdout.readline() == "paused\n", "an engine did not stand still"
    await_zero(service, of_all(service, mixed.HELD, mixed.IDLE_GPU), NEXT_S)
    differs = mixed.check_memory(service, base, engines, ENGINES_SLACK_MIB)["device_differs_by"] if base else 0
    memory = mixed.memory_of(service, engines)
    for e in engines:
        e.process.send_signal(signal.SIGUSR1)
    return memory, differs


def one_death(o, service, rng, engines, number):
    """Returns the milliseconds from the kill until all engines had gone on."""
    time.sleep(rng.random() * 0.5)
    for e in engines:
        e.watch()
    if number % 4 == 3: # one of them dies, too
        engines[0].kill()
        engines[0] = Engine(service, 1000 * o.seed + number, "survivor")
        engines[0].ready()
    before = [counts_of(e) for e in engines]
    began = time.monotonic()
    service.kill()
    service.start()
    await_next(engines, before)
    return 1000 * (time.monotonic() - began)


def run(o, service):
    rng = random.Random(o.seed)
    began = time.monotonic()
    empty = mixed.memory_of(service)
    engines = [Engine(service, o.seed * 100 + n, "survivor") for n in range(ENGINES)]
    every = list(engines)
    slowest, differs = 0.0, 0
    try:
        for e in engines:
            e.ready()
        wait_for(lambda: all(counts_of(e)["checked_blocks"] and counts_of(e)["stored_gpu_blocks"] for e in engines), NEXT_S, "work")
        base, _ = settle(service, engines, empty if o.libraries else None)
        for number in range(o.kills):
            slowest = max(slowest, one_death(o, service, rng, engines, number))
            every += [e for e in engines if e not in every]
            if number % PAUSE_EVERY == PAUSE_EVERY - 1:
                differs = max(differs, settle(service, engines, base)[1], key=abs)
        for e in engines:
            e.stop()
    finally:
        for e in every:
            if e.process.poll() is None:
                e.process.kill()
                e.process.wait()
    await_zero(service, of_all(service, mixed.IDLE, mixed.IDLE_GPU), NEXT_S)
    calls, counts = merge(every)
    mixed.print_calls(calls)
    times = mixed.check_times(o, calls)
    mixed.verify_all(service)
    mixed.sweep(o, service)
    memory = mixed.check_memory(service, empty)
    mixed.tell(o, {"bench": "kill_daemon", "device": "simulated" if o.libraries else "gpu", "kills": o.kills,
                   "seconds": round(time.monotonic() - began, 1), "gpus": o.gpus, "gpu_mib": o.gpu_mib, "host_mib": o.host_mib,
                   "slowest_to_next_ms": round(slowest), "paused_device_differs_by": differs, "memory": memory, **times, **counts})
    assert counts["reopens"] >= o.kills * (ENGINES - 1)


def main():
    o = mixed.options(__doc__, kills=20)
    if o.libraries:
        os.environ["SIM_GPU_US_PER_MIB"] = "2000" # a death comes while copies are under way
    mixed.serve(o, "kill-daemon", Service, run)


if __name__ == "__main__":
    main()

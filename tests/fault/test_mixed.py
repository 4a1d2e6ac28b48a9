"""Mixed load over VRAM, host memory and NVMe, with a cache of a tenth of what is asked for:

    test_mixed.py TERRACED TERRACECTL MIXED_ENGINE [--libraries FOLDER] [--seconds N | --kills N | --long] [...]

Engines lease to the GPU with waits layer by layer, attend, put from the GPU behind their streams, grow open blocks, warm, flush, cancel,
close sessions; now and then one is killed. Asserted: no wrong byte; no call and no wait of a stream over --bound seconds, less what the
machine itself stalled meanwhile (mixed_tally.h), nor over --hang seconds at all; everything was done, and every way between tiers taken,
for which a slow machine gets more time; every block that came into a tier by a put or a move is there or was counted out; in the end
nothing is held, no slot is in use, and the memory that Stats counts is what the device has given. A call that is late is told with what it was
about, the time that it was in the GPU's driver, and what Stats says of before, meanwhile and after; the books are looked at all the same.
Nothing but Python's own library is needed,
so that it is the same command where there is a real GPU (tests/gpu/run.sh) and over the simulated one (--libraries: its folder).
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
CHAIN, BLOCK_BYTES = 16, 8 * 4 * 64 * 132  # mixed_work.h
SLOT_BYTES = BLOCK_BYTES + 4096            # in host memory and on disk
WORKERS, BUCKET_US = 3, 16
VERIFY_S = 60
DONE = ("checked_blocks", "stored_gpu_blocks", "stored_host_blocks", "attends", "open_blocks", "warms")
LATE_TOLD = 4                              # of an engine: each costs two looks at Stats
WAITED_FOR = re.compile("terrace_(blocks|dirty|moved|gpu_|disk_(loads|spills|oldest|under|waiting|refused)|evictions_total|lease|loads|spills|dropped"
                        "|extent|draining|rpc_(calls|seconds).*method=(Lease|Warm|Reserve|Commit)|local_calls|worker_(queued|running|refused))")
UNBOUNDED = ("first", "reopen")            # a driver's time, and that to the next daemon
SMI_SLACK_MIB = 16                         # what the driver keeps beside the memory it was asked for; 2 to 6 were seen


def smi_name(gpu):
    """nvidia-smi's name of a GPU: it knows nothing of those that are hidden from a process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",")[gpu] if visible else str(gpu)


def options(text=__doc__, kills=None, more=()):
    """more: names of further arguments."""
    parser = argparse.ArgumentParser(description=text.split("\n", maxsplit=1)[0])
    parser.add_argument("terraced")
    parser.add_argument("terracectl")
    parser.add_argument("engine")
    for name in more:
        parser.add_argument(name)
    parser.add_argument("--libraries", help="folder of the plugin and CUDA's runtime; it is the simulated device's")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--long", action="store_true", help="ten minutes")
    parser.add_argument("--kills", type=int, default=kills, help="ends after so many kills of engines that have just begun, instead of by time")
    parser.add_argument("--gpus", type=int, default=1, help="the daemon's first so many; engines take turns at them")
    parser.add_argument("--gpu-mib", type=int, default=32, help="of each")
    parser.add_argument("--host-mib", type=int, default=32)
    parser.add_argument("--bound", type=float, default=1.0, help="seconds that a call or a stream may wait")
    parser.add_argument("--hang", type=float, default=60.0, help="seconds after which it hangs, whatever the machine does")
    parser.add_argument("--slower", type=float, default=6, help="times as long as --seconds a run may take until it has done everything")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="file that gets the result as a line")
    o = parser.parse_args()
    if o.long:
        o.seconds = 600
    return o


def memfds(folder, name):
    """Those that the links there lead to: bytes by inode."""
    seen = {}
    for link in os.listdir(folder):
        path = os.path.join(folder, link)
        try:
            if os.readlink(path).startswith(name):
                seen[os.stat(path).st_ino] = os.stat(path).st_size
        except FileNotFoundError:
            continue
    return seen


class Service:
    """A terraced of its own, asked through terracectl."""

    def __init__(self, o, folder):
        self.o, self.folder = o, folder
        self.environment = dict(os.environ)
        if o.libraries:
            self.environment["LD_LIBRARY_PATH"] = o.libraries + ":" + os.environ.get("LD_LIBRARY_PATH", "")
            self.environment["SIM_GPU_DEVICES"] = str(o.gpus)
        self.address = "unix:" + os.path.join(folder, "t.sock")
        cache = (o.gpus * o.gpu_mib + o.host_mib) * MIB
        self.chains = 10 * cache // BLOCK_BYTES // CHAIN
        disk = 6 * cache // MIB  # less than the working set: puts go on
        extent = 2 if cache < 256 * MIB else 64
        self.command = [o.terraced, "--data-dir", os.path.join(folder, "data"), "--socket", self.address[5:],
                        "--gpus", ",".join(str(g) for g in range(o.gpus)),
                        "--gpu-bytes", "%dMiB" % o.gpu_mib, "--host-bytes", "%dMiB" % o.host_mib, "--extent-bytes", "%dMiB" % extent,
                        "--disks", "%s/disk:%dMiB" % (folder, disk), "--slab-bytes", "16MiB",
                        "--session-idle", "20s"] # an engine killed between opening its session and attaching to it leaves it for so long
        self.seen = {}                     # what stats() said last
        self.start()

    def start(self):
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.environment)
        wait_for(lambda: self.process.poll() is None and self.ctl("status").returncode == 0, 60, "terraced serves")

    def kill(self):
        assert self.process.poll() is None, "terraced ended with %r" % self.process.poll()
        self.process.kill()
        self.process.wait(timeout=60)

    def ctl(self, *words):
        return subprocess.run([self.o.terracectl, "--address", self.address, *words], capture_output=True, text=True,
                              timeout=120, check=False)

    def stats(self):
        out = self.ctl("--timeout", "60", "stat") # it proves nothing: a machine may be slow
        assert out.returncode == 0, out.stderr
        self.seen = {m[1]: float(m[2]) for m in re.finditer(r"^(terrace_\S+)\s+(\S+)$", out.stdout, re.M)}
        self.seen["at_s"] = time.monotonic()
        return self.seen

    def log(self):
        with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as log:
            return log.read()

    def device_bytes(self, gpu, engines=()):
        """What of a GPU's memory is in use, as the device says: of the simulated one exactly, for it is descriptors and mappings, of the
        daemon and of those engines."""
        if not self.o.libraries:
            out = subprocess.run(["nvidia-smi", "-i", smi_name(gpu), "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                                 capture_output=True, text=True, timeout=60, check=True)
            return int(out.stdout) * MIB
        seen = {}
        for pid in [self.process.pid] + [e.process.pid for e in engines]:
            for folder in ("fd", "map_files"):
                seen.update(memfds("/proc/%d/%s" % (pid, folder), "/memfd:simulated-device-%d " % gpu))
        return sum(seen.values())

    def users(self):
        """Who else has memory of the GPUs, for a log."""
        if self.o.libraries:
            return "simulated"
        out = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,name,used_memory", "--format=csv,noheader"], capture_output=True, text=True,
                             timeout=60, check=False)
        return "in use by: " + "; ".join(out.stdout.split("\n"))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=120)
        assert code == 0, "terraced ended with %d" % code


class Engine:
    def __init__(self, service, seed, role="worker"):
        self.service, self.seed = service, seed
        self.late = []                     # what note() has seen
        self.tally_path = os.path.join(service.folder, "tally.%d" % seed)
        self.process = subprocess.Popen([service.o.engine, role, service.address, str(seed), str(service.chains), self.tally_path,
                                         str(seed % service.o.gpus)],
                                        stdout=subprocess.PIPE, text=True, env=service.environment)

    def ready(self):
        assert self.process.stdout.readline() == "ready\n", "an engine did not begin"

    def tally(self):
        out = subprocess.run([self.service.o.engine, "tally", self.tally_path], capture_output=True, text=True, timeout=60, check=True)
        return json.loads(out.stdout)

    def watch(self):
        """It runs, and no call of it hangs."""
        assert self.process.poll() is None, "engine %d saw a wrong byte (1) or a failed call (3): %r" % (self.seed, self.process.poll())
        now = self.tally()["now"]
        assert now["call"] in UNBOUNDED or now["ms"] < self.service.o.hang * 1000, "engine %d hangs in: %r" % (self.seed, now)
        self.note(now)

    def note(self, now):
        """What Stats says while a call is late, and once more when it is over."""
        if self.late and "after" not in self.late[-1] and self.late[-1]["call"] != now["call"]:
            self.late[-1]["after"] = self.service.stats()
        elif not (self.late and "after" not in self.late[-1]) and now["call"] not in UNBOUNDED and len(self.late) < LATE_TOLD and \
                now["ms"] > self.service.o.bound * 1000 / 2:
            self.late.append({"call": now["call"], "began_s": time.monotonic() - now["ms"] / 1000, "before": self.service.seen,
                              "meanwhile": self.service.stats()})

    def kill(self):
        assert self.process.poll() is None, "engine %d saw a wrong byte (1) or a failed call (3): %r" % (self.seed, self.process.poll())
        self.process.kill()
        self.process.wait(timeout=30)
        self.process.stdout.close()

    def stop(self):
        self.process.terminate()
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        assert code == 0, "engine %d ended with %d" % (self.seed, code)


def wait_for(condition, seconds, what):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("not within %g s: %s" % (seconds, what))


# ---- the load ----

def not_done(o, stats, counts):
    """Names of what has not been done yet, and of ways that nothing has taken."""
    ways = [("host", "gpu"), ("gpu", "host"), ("host", "disk"), ("disk", "host")] + ([("gpu", "gpu")] if o.gpus > 1 else [])
    return [name for name in DONE if not counts[name]] + \
           ["%s to %s" % way for way in ways if not stats["terrace_moved_bytes_total{from=%s,to=%s}" % way]]


def run_by_time(o, service, rng, engines):
    """Three workers, and a fourth that is killed every second or two. The engines, the killed ones among them, and the kills."""
    begin, kills, victim = time.monotonic(), 0, None
    end, last = begin + o.seconds, begin + o.slower * o.seconds
    while (now := time.monotonic()) < end or now < last and not_done(o, service.stats(), merge(engines)[1]):
        if victim is None:
            service.stats()
            victim = Engine(service, 1000 + kills)
            engines.append(victim)
            victim.ready()
        until = time.monotonic() + 0.5 + rng.random() * 1.5
        until = min(end, until) if now < end else until
        while time.monotonic() < until:
            for engine in engines[:WORKERS] + [victim]:
                engine.watch()
            time.sleep(min(0.2, max(0.0, until - time.monotonic())))
        victim.kill()
        kills, victim = kills + 1, None
    return kills


def run_by_kills(o, service, rng, engines):
    """Engines by fours, killed soon after they have begun."""
    kills = 0
    while kills < o.kills:
        batch = [Engine(service, 1000 + kills + n) for n in range(min(4, o.kills - kills))]
        engines += batch
        for victim in batch:
            victim.ready()
            time.sleep(rng.random() * 0.05)
            victim.kill()
        for engine in engines[:WORKERS]:
            engine.watch()
        kills += len(batch)
    return kills


# ---- what must hold in the end ----

def merge(engines):
    calls, counts = {}, {}
    for engine in engines:
        tally = engine.tally()
        for name, row in tally["calls"].items():
            whole = calls.setdefault(name, {"worst_ms": 0.0, "own_ms": 0.0, "histogram": [0] * len(row["histogram"])})
            for most in ("worst_ms", "own_ms"):
                whole[most] = max(whole[most], row[most])
            whole["histogram"] = [a + b for a, b in zip(whole["histogram"], row["histogram"])]
        for name, n in tally["counts"].items():
            counts[name] = counts.get(name, 0) + n
    return calls, counts


def percentile(histogram, share):
    """Milliseconds below which that share is: the upper edge of its bucket."""
    left = share * sum(histogram)
    for b, n in enumerate(histogram):
        left -= n
        if left <= 0:
            return BUCKET_US * 2 ** b / 1000
    return float("inf")


def print_calls(calls):
    print("%-12s %9s %10s %10s %10s %10s" % ("call", "times", "p50 ms <", "p99 ms <", "max ms", "less stalls"))
    for name, row in calls.items():
        if sum(row["histogram"]):
            print("%-12s %9d %10.3f %10.3f %10.3f %10.3f" % (name, sum(row["histogram"]), percentile(row["histogram"], 0.5),
                                                             percentile(row["histogram"], 0.99), row["worst_ms"], row["own_ms"]))


def changes(old, new):
    """What is another number than before, of what a call may have waited for."""
    return {name[len("terrace_"):]: "%g -> %g" % (old.get(name, 0), n) for name, n in sorted(new.items())
            if n != old.get(name, 0) and WAITED_FOR.match(name)}


def tell_late(o, engines):
    """What late calls were about."""
    for engine in engines:
        rows = [row for row in engine.tally()["late"] if row["call"] not in UNBOUNDED and row["own_ms"] > o.bound * 1000 / 2]
        for row in rows:
            print("late: engine %d: %s" % (engine.seed, json.dumps(row)))
        for late in engine.late if rows else ():
            print("late: engine %d: Stats, %s that began at %.3f s; changes from the look before:" %
                  (engine.seed, late["call"], late["began_s"]))
            for old, new in (("before", "meanwhile"), ("meanwhile", "after")):
                if new in late:
                    print("  %s, at %.3f s: %s" % (new, late[new]["at_s"], json.dumps(changes(late[old], late[new]))))


def sum_of(stats, name, label=""):
    return sum(v for k, v in stats.items() if k.startswith(name + "{") and label in k)


def check_books(stats, counts, kills):
    """What came into a tier less what left it is there. Puts count blocks over all tiers: engines know theirs, but for the last commit
    of one that was killed, or that got no answer in time."""
    moved = {way: stats["terrace_moved_bytes_total{from=%s,to=%s}" % way] / BLOCK_BYTES
             for way in (("host", "gpu"), ("gpu", "host"), ("gpu", "gpu"), ("host", "disk"), ("disk", "host"))}
    stored, unknown = stats["terrace_stored_blocks_total"], counts["unknown_blocks"] + kills * CHAIN
    there = {tier: stats["terrace_blocks{tier=%s}" % tier] for tier in ("gpu", "host", "disk")}
    left = {tier: sum_of(stats, "terrace_evictions_total", "tier=" + tier) for tier in ("gpu", "host", "disk")}
    came = {"gpu": moved["host", "gpu"] + moved["gpu", "gpu"], "host": moved["gpu", "host"] + moved["disk", "host"],
            "disk": moved["host", "disk"]}
    rows = {tier: {"moved_in": came[tier], "left": left[tier], "there": there[tier]} for tier in there}
    print("blocks by tier: %s; stored %d" % (json.dumps(rows), stored))
    assert all(n == int(n) for n in moved.values()), "moves of whole blocks"
    assert there["disk"] == came["disk"] - left["disk"], "the disk's books"
    assert there["gpu"] + there["host"] == stored + came["gpu"] + came["host"] - left["gpu"] - left["host"], "memory's books"
    for tier in ("gpu", "host"):
        puts = there[tier] + left[tier] - came[tier]
        known = counts["stored_%s_blocks" % tier]
        assert known <= puts <= known + unknown, "%s: %d blocks put there, engines know of %d and %d" % (tier, puts, known, unknown)
    return {"%s-%s" % way: int(n) for way, n in moved.items()}


HELD = ("terrace_leases", "terrace_reservations", "terrace_ghost_sessions", "terrace_open_blocks",
        "terrace_pinned_bytes{tier=host}", "terrace_reserved_bytes{tier=host}", "terrace_quarantined_bytes{tier=host}",
        "terrace_disk_spills_under_way{disk=0}", "terrace_disk_loads_under_way{disk=0}")
IDLE = HELD + ("terrace_sessions",)
IDLE_GPU = ("terrace_gpu_held_bytes{gpu=%d}", "terrace_gpu_downs{gpu=%d}")
EMPTY = ("terrace_slots_used{tier=host}", "terrace_blocks{tier=host}", "terrace_blocks{tier=disk}", "terrace_disk_slots_used{disk=0}")
EMPTY_GPU = ("terrace_gpu_slots_used{gpu=%d}", "terrace_gpu_blocks{gpu=%d}")


def of_all(service, names, of_gpus):
    return names + tuple(name % g for g in range(service.o.gpus) for name in of_gpus)


def await_zero(service, names, seconds):
    try:
        wait_for(lambda: not any(service.stats()[n] for n in names), seconds, "nothing is held")
    except AssertionError as error:
        stats = service.stats()
        raise AssertionError("%s: %s" % (error, {n: stats[n] for n in names if stats[n]})) from None


def memory_of(service, engines=()):
    """A GPU each: (bytes in use, by the device's own word; bytes in extents, by Stats')."""
    stats = service.stats()
    return [(service.device_bytes(g, engines), stats["terrace_gpu_extent_bytes{gpu=%d}" % g])
            for g in range(service.o.gpus)]


def check_memory(service, before, engines=(), slack_mib=SMI_SLACK_MIB):
    """before: memory_of when the daemon had begun, or when the same engines ran."""
    def differ():
        now = memory_of(service, engines)
        return max(((used - used0) - (extents - extents0) for (used, extents), (used0, extents0) in zip(now, before)), key=abs)

    slack, differs = 0 if service.o.libraries else slack_mib * MIB, differ()
    if abs(differs) > slack: # said before the wait, which may be ended from outside
        print("the devices' memory: %d bytes more than Stats says; %s" % (differs, service.users()), flush=True)
    wait_for(lambda: abs(differ()) <= slack, 60, "the devices' memory is what Stats says: %r" % differs)
    return {"extents": sum(extents for _, extents in memory_of(service, engines)), "device_differs_by": differ()}


def sweep(o, service):
    """Deletes everything: no slot is in use after it."""
    swept = subprocess.run([o.engine, "sweep", service.address, str(service.chains + 2)], env=service.environment, timeout=120, check=False)
    assert swept.returncode == 0, "the sweep"
    await_zero(service, of_all(service, IDLE + EMPTY, IDLE_GPU + EMPTY_GPU), 60)


def check_times(o, calls):
    """What the longest calls took, as a part of the result, printed first: no more than they may."""
    bounded = {name: row for name, row in calls.items() if name not in UNBOUNDED and sum(row["histogram"])}
    worst = max((row["worst_ms"], name) for name, row in bounded.items())
    own = max((row["own_ms"], name) for name, row in bounded.items())
    times = {"worst_ms": round(worst[0], 1), "worst_call": worst[1], "own_ms": round(own[0], 1), "own_call": own[1],
             **{name + "_ms": round(calls[name]["worst_ms"], 1) for name in UNBOUNDED},
             "p99_ms": {name: percentile(row["histogram"], 0.99) for name, row in calls.items() if sum(row["histogram"])}}
    print("times: " + json.dumps(times))
    assert own[0] <= o.bound * 1000, "a %s took %.0f ms, less the stalls of the machine" % (own[1], own[0])
    assert worst[0] <= o.hang * 1000, "a %s took %.0f ms" % (worst[1], worst[0])
    return times


def verify_all(service):
    """Reads every block. A disk that was held up counts as slow for a while, and a scrub passes over its blocks then."""
    def whole():
        verified = service.ctl("verify")
        sound = re.search(r"^corrupt +0$", verified.stdout, re.M)
        passed_over = " were not read: " in verified.stderr
        assert sound and (passed_over or verified.returncode == 0), verified.stdout + verified.stderr
        return verified.returncode == 0

    wait_for(whole, VERIFY_S, "no block is passed over")


def tell(o, result):
    print(json.dumps(result))
    if o.json:
        with open(o.json, "a", encoding="ascii") as out:
            out.write(json.dumps(result) + "\n")


def run(o, service):
    rng, engines, failures = random.Random(o.seed), [], []

    def held(check, *arguments):
        """What it returns, or None: what does not hold is told in the end, when all has been looked at."""
        try:
            return check(*arguments)
        except AssertionError as error:
            print("does not hold: %s" % error, flush=True)
            failures.append(str(error))
            return None

    before = memory_of(service)
    began = time.monotonic()
    try:
        engines += [Engine(service, o.seed * 100 + n) for n in range(WORKERS)]
        for engine in engines:
            engine.ready()
        kills = (run_by_kills if o.kills else run_by_time)(o, service, rng, engines)
        # What they closed is gone while they run: nothing of it waits for the end of their processes.
        wait_for(lambda: service.stats()["terrace_ghost_sessions"] == 0, 60, "no ghosts of living engines' sessions")
        for engine in engines[:WORKERS]:
            engine.stop()
    finally:
        for engine in engines:
            if engine.process.poll() is None:
                engine.process.kill()
                engine.process.wait()
    seconds = time.monotonic() - began
    held(await_zero, service, of_all(service, IDLE, IDLE_GPU), 60)
    calls, counts = merge(engines)
    print_calls(calls)
    print("counts: " + json.dumps(counts))
    times = held(check_times, o, calls)
    if not times:
        tell_late(o, engines)
    stats = service.stats()
    moved = held(check_books, stats, counts, kills)
    held(verify_all, service)
    held(sweep, o, service)
    memory = held(check_memory, service, before)
    left = not_done(o, stats, counts)
    if left:
        failures.append("never: %s" % left)
    if any(stats["terrace_gpu_lost{gpu=%d}" % g] for g in range(o.gpus)):
        failures.append("a GPU was lost")
    if failures:
        raise AssertionError("; ".join(failures))
    tell(o, {"bench": "mixed", "device": "simulated" if o.libraries else "gpu", "seconds": round(seconds, 1), "kills": kills,
             "gpus": o.gpus, "gpu_mib": o.gpu_mib, "host_mib": o.host_mib, "working_set_mib": round(service.chains * CHAIN * BLOCK_BYTES / MIB),
             **times, **counts, "moved_blocks": moved, "evicted_gpu": int(sum_of(stats, "terrace_evictions_total", "tier=gpu")),
             "dropped": int(stats["terrace_dropped_blocks_total"]), "memory": memory})


def serve(o, name, make, test):
    """Runs test(o, service) over a service of make(o, folder), in a folder of its own; the daemon's log is shown if that fails."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # with what it has started
    folder = tempfile.mkdtemp(prefix="terrace-%s-" % name)
    service = None
    try:
        service = make(o, folder)
        test(o, service)
        service.stop()
    except BaseException:
        if service:
            sys.stderr.write(service.log()[-6000:])
            service.process.kill()
            service.process.wait()
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    serve(options(), "mixed", Service, run)

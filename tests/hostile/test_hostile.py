"""A hostile client beside an engine: `test_hostile.py TERRACED HOSTILE VICTIM SIM_DEVICE_FOLDER [--seed N] [--messages N]`.

One daemon with memory, a disk and a simulated GPU. `victim` works there all the time and looks at its bytes; `hostile` sends every method of
the .proto files and every packet of proto/fdsock.h in every shape (hostile/kinds.h), as another user if this test may become one. A second, smaller run as the
daemon's own user, without an engine beside it, sends what an admin alone may have done, Drain too.

Then: every kind was sent in each of its shapes, and answered when it was valid; the victim noticed nothing; the daemon lives, holds nothing of
anybody, has no more descriptors or memory than before, has written no file outside its folders and no sanitizer's report; a new client works; and the
daemon stops in order. The seed and the last messages are printed when something is wrong.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time

import grpc

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from daemon import CALL_S, ROOT, Daemon, health_pb2, key, keys, layout, pb  # noqa: E402

NOBODY = 65534
ADMIN_SHARE = 0.2        # of the messages: those of the daemon's own user,
ADMIN_LEAST = 8000       # and so many at least, so that every kind is sent in every shape
RUN_S = 900              # ends a run that hangs, and proves nothing
GROWTH_MIB = 256         # of the daemon's memory, at most
FLAGS = ("--host-bytes", "96MiB", "--extent-bytes", "1MiB", "--slab-bytes", "2MiB", "--gpus", "0", "--gpu-bytes", "16MiB", "--session-idle", "2s",
         "--socket-mode", "0666")
# Gauges that are 0 when nobody is there.
HELD = ("terrace_sessions", "terrace_ghost_sessions", "terrace_leases", "terrace_reservations", "terrace_open_blocks", "terrace_attachments",
        "terrace_watches", "terrace_pinned_bytes{tier=host}", "terrace_reserved_bytes{tier=host}", "terrace_quarantined_bytes{tier=host}",
        "terrace_quarantined_bytes{tier=gpu}", "terrace_gpu_held_bytes{gpu=0}",
        "terrace_fd_socket_connections", "terrace_local_connections", "terrace_local_calls", "terrace_worker_queued")


def definitions():
    """Names of all kinds, from the definitions: a method or a packet that the hostile client does not know of is missing in its list."""
    rpcs = {"%s.%s" % (service.name, method.name)
            for file in (pb.DESCRIPTOR, health_pb2.DESCRIPTOR) for service in file.services_by_name.values() for method in service.methods
            if service.name != "Peer"}  # which is not served without a cluster
    with open(os.path.join(ROOT, "proto", "fdsock.h"), encoding="utf-8") as header:
        text = header.read()
    packets = set()
    for enum in ("fdsock_type", "fdsock_method"):
        packets |= set(re.findall(r"^\s*(FDSOCK_\w+)", re.search(r"enum %s \{(.*?)\};" % enum, text, re.S)[1], re.M))
    return rpcs | {name for name in packets if not name.endswith("_END")}


class Kinds:
    """The lists of all runs, added up."""

    def __init__(self):
        self.rows = {}

    def add(self, output):
        for line in re.findall(r"^kind (.*)$", output, re.M):
            name, *cells = line.split()
            row = self.rows.setdefault(name, {})
            for cell in cells:
                shape, count = cell.split("=")
                row[shape] = row.get(shape, 0) + int(count)

    def sent(self):
        return sum(count for row in self.rows.values() for shape, count in row.items() if shape != "answered")

    def print(self):
        for name, row in self.rows.items():
            print("%-20s %7d  %s" % (name, sum(row.values()) - row["answered"], " ".join("%s=%d" % cell for cell in row.items())))

    def missing(self):
        wanted = definitions()
        wrong = ["%s is in no list" % name for name in sorted(wanted - set(self.rows))]
        wrong += ["%s is not in the definitions" % name for name in sorted(set(self.rows) - wanted)]
        for name, row in self.rows.items():
            wrong += ["%s was never sent as %s" % (name, shape) for shape, count in row.items() if not count and shape != "answered"]
            if not row["answered"] and name not in ("FDSOCK_WELCOME", "FDSOCK_EXTENT", "FDSOCK_OFFER", "FDSOCK_REPLY",
                                                    "FDSOCK_RELEASE", "FDSOCK_UNMAPPED", "FDSOCK_LISTEN", "FDSOCK_RETIRE"):
                wrong.append("%s was never answered well, though valid" % name)
        return wrong


def of_process(pid, name):
    with open("/proc/%d/status" % pid, encoding="ascii") as status:
        return int(re.search(r"^%s:\s+(\d+)" % name, status.read(), re.M)[1])


def descriptors(pid):
    """By what they are, without numbers."""
    folder, kinds = "/proc/%d/fd" % pid, {}
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            kind = re.sub(r"\d+", "N", os.readlink(os.path.join(folder, name)))
            kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def more_than(before, now):
    """Kinds of descriptors of which there are more; memory and slab files stay when nobody is there."""
    return {kind: count for kind, count in now.items() if count > before.get(kind, 0) and not re.search(r"memfd:|/slab-", kind)}


class Victim:
    def __init__(self, program, address):
        self.process = subprocess.Popen([program, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.handles = re.findall(r"(\w+)=(\d+)", self.process.stdout.readline())
        assert self.handles, "the victim did not begin"

    def end(self):
        said = self.process.communicate(timeout=RUN_S)[0]
        print(said.strip(), flush=True)
        assert self.process.returncode == 0, "the victim noticed the hostile client: " + said


def shown_sessions(daemon):
    """What the daemon shows of its sessions to whoever asks, or logs."""
    numbers = set(re.findall(r"event=session_opened session=(\d+)", daemon.log()))
    for stat in daemon.admin.Stats(pb.StatsRequest(), timeout=CALL_S).stats:
        numbers |= set(re.findall(r"\bsession=(\d+)", stat.labels))
    return numbers


def copies(daemon, program):
    """The program and the header where another user finds them: the build may be in a folder of root's."""
    for path, mode in ((program, 0o755), (os.path.join(ROOT, "proto", "fdsock.h"), 0o644)):
        copy = os.path.join(daemon.folder, os.path.basename(path))
        shutil.copyfile(path, copy)
        os.chmod(copy, mode)
        yield copy


def attack(program, daemon, seed, messages, options=(), user=None):
    began = time.monotonic()
    command = [program[0], daemon.address, "--header", program[1], "--seed", str(seed), "--messages", str(int(messages)), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=RUN_S, check=False, user=user, group=user,
                          extra_groups=[] if user else None)
    rest = "\n".join(line for line in done.stdout.splitlines() if not line.startswith("kind "))
    print("%s\n%.0f s%s" % (rest, time.monotonic() - began, " as user %d" % user if user else ""), flush=True)
    assert done.returncode == 0, "hostile ended with %d:\n%s" % (done.returncode, done.stdout[-4000:])
    return done.stdout


def works(daemon, name):
    """A new client."""
    opened = daemon.open(layout(fingerprint=name.ljust(32)))
    data = {n: bytes([n + 1]) * opened.layouts[0].block_bytes for n in range(4)}
    put = daemon.put(opened.session, [(key(n), data[n]) for n in data])
    assert put == [pb.OK] * 4, put
    assert daemon.get(opened.session, keys(*data)) == {n: (pb.OK, data[n]) for n in data}
    assert list(daemon.cache.Flush(pb.FlushRequest(session=opened.session, keys=keys(*data)), timeout=CALL_S).status) == [pb.OK] * 4
    daemon.cache.CloseSession(pb.CloseSessionRequest(session=opened.session), timeout=CALL_S)


def held(daemon):
    """What is not 0, or is not told; nor is any call under way but the one that asks."""
    stats = daemon.stats()
    left = {name: stats.get(name) for name in HELD if stats.get(name) != 0}
    return left if stats["terrace_rpc_calls"] <= 1 else {"terrace_rpc_calls": stats["terrace_rpc_calls"], **left}


def files_of(folder):
    return {os.path.relpath(os.path.join(parent, name), folder) for parent, _, names in os.walk(folder) for name in names}


def soon(what, words):
    """Waits until nothing of it is there."""
    end = time.monotonic() + 120
    while left := what():
        assert time.monotonic() < end, "%s: %s" % (words, left)
        time.sleep(0.1)


def look_at(daemon, before):
    """The daemon after all of it."""
    assert daemon.process.poll() is None, "terraced has ended with %s:\n%s" % (daemon.process.returncode, daemon.log()[-8000:])
    soon(lambda: held(daemon), "is held")
    soon(lambda: more_than(before["descriptors"], descriptors(daemon.process.pid)), "descriptors are left")
    rss = of_process(daemon.process.pid, "VmRSS") >> 10
    print("memory %d MiB, %d before; threads %d" % (rss, before["rss"], of_process(daemon.process.pid, "Threads")))
    assert rss <= before["rss"] + GROWTH_MIB
    works(daemon, b"after")
    strange = {name for name in files_of(daemon.folder) if not re.match(r"(data/|disk/|(log|hostile|fdsock\.h)$|t\.(sock|fd)(\.lock)?$)", name)}
    assert not strange, "files that are none of the daemon's: %s" % strange


def run(options):
    kinds, victim = Kinds(), None
    of_admin = max(options.messages * ADMIN_SHARE, ADMIN_LEAST)
    asan = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=16" # what is freed is to be seen as freed
    daemon = Daemon(options.terraced, env={"LD_LIBRARY_PATH": options.sim, "ASAN_OPTIONS": asan}, start=False)
    daemon.flags = (*FLAGS, "--disks", os.path.join(daemon.folder, "disk") + ":32MiB")
    os.chmod(daemon.folder, 0o711)
    try:
        program = list(copies(daemon, options.hostile))
        daemon.start()
        works(daemon, b"before")
        victim = Victim(options.victim, daemon.address)
        before = {"descriptors": descriptors(daemon.process.pid), "rss": of_process(daemon.process.pid, "VmRSS") >> 10}
        others = ["--%s=%s" % handle for handle in victim.handles] + ["--session=" + number for number in shown_sessions(daemon)]
        user = NOBODY if os.geteuid() == 0 else None
        said = attack(program, daemon, options.seed, options.messages - of_admin, ["--beside", *others], user)
        assert not user or "without Admin.Drain" not in said, "another user may stop the daemon from serving"
        kinds.add(said)
        victim.end()
        kinds.add(attack(program, daemon, options.seed + 1000, of_admin, others))
        daemon.admin.Drain(pb.DrainRequest(undo=True), timeout=CALL_S)
        with contextlib.suppress(grpc.RpcError):
            daemon.admin.TraceStop(pb.TraceStopRequest(), timeout=CALL_S)
        look_at(daemon, before)
        daemon.stop()
        log = daemon.log()
        assert not re.search(r"AddressSanitizer|LeakSanitizer|ThreadSanitizer|runtime error:|level=error", log), "the log"
        kinds.print()
        wrong = kinds.missing()
        assert not wrong, "\n".join(wrong)
        assert kinds.sent() >= options.messages
        print("%d messages of %d kinds, seed %d" % (kinds.sent(), len(kinds.rows), options.seed))
    except BaseException:
        kinds.print()
        print("seed %d; the daemon's log:\n%s" % (options.seed, daemon.log()[-12000:]), flush=True)
        raise
    finally:
        if victim and victim.process.poll() is None:
            victim.process.kill()
            victim.process.wait()
        if daemon.process and daemon.process.poll() is None:
            daemon.kill()
        daemon.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("terraced", "hostile", "victim", "sim"):
        parser.add_argument(name)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--messages", type=int, default=100000)
    run(parser.parse_args())

"""Two GPUs under one daemon, as engines see them: two_gpus.py TERRACED TERRACECTL [--libraries FOLDER] [--blocks N] [--sets N] [--json FILE] [--one]

An engine a GPU, each in a process of its own, and a second one beside the second. What one engine puts into its GPU's memory the other
leases into its own: the same bytes by checksum, from GPU to GPU and not by host memory, as Stats counts; Stats, explain and the devices'
own word on their memory agree; two processes on one GPU share one copy. Figures: such leases beside cudaMemcpyPeer of as many bytes. Over
the simulated device (--libraries: its folder) one GPU is lost in the end, and the other serves on. With --one: of one GPU, two processes that
share one copy of a prefix there, alone. Exit code 77: there are not so many GPUs.

Nothing but Python's own library and client/python is needed; LIBTERRACE names the library.
"""

import argparse
import ctypes
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "client", "python"))
sys.dont_write_bytecode = True

MIB = 1 << 20
SMI_SLACK = 64 * MIB  # what the driver keeps beside the memory it was asked for
WAIT_S = 60.0
TO_DEVICE, TO_HOST = 1, 2  # enum cudaMemcpyKind


def smi_name(gpu):
    """nvidia-smi's name of a GPU: it knows nothing of those that are hidden from a process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",")[gpu] if visible else str(gpu)


def cuda(name, *values):
    """A call of CUDA's runtime, which is to succeed."""
    error = getattr(cuda.library, name)(*values)
    if error:
        raise RuntimeError("%s: error %d" % (name, error))


def load_cuda():
    cuda.library = ctypes.CDLL("libcudart.so.13")


def pointer(value=None):
    return ctypes.c_void_p(value)


# ---- an engine: a process that obeys -------------------------------------------------------------------------------------------------

class Engine:
    """One GPU's. Commands come as lines of JSON, [name, argument...], and are answered with one."""

    def __init__(self, address, ordinal):
        import terrace
        self.terrace = terrace
        cuda("cudaSetDevice", ordinal)
        self.stream = pointer()
        cuda("cudaStreamCreate", ctypes.byref(self.stream))
        self.layout = layout()
        self.client = terrace.connect(address, timeout=WAIT_S)
        # What is put on the GPU stays there alone: another GPU has no other place to take it from.
        self.session = self.client.session([self.layout], engine="two", gpu=True, gpu_write_back=True)
        self.gpu = self.session.gpu_of(ordinal)
        self.size = self.layout.block_bytes
        self.base = random.Random(1).randbytes(self.size)
        self.host = ctypes.create_string_buffer(self.size)
        self.lease = None

    def block(self, number):
        """Its number in every 4 KiB of it."""
        out = bytearray(self.base)
        for at in range(0, self.size - 8, 4096):
            out[at:at + 8] = number.to_bytes(8, "little")
        return bytes(out)

    def copy(self, to, source, kind):
        cuda("cudaMemcpyAsync", pointer(to), pointer(source), ctypes.c_size_t(self.size), kind, self.stream)
        cuda("cudaStreamSynchronize", self.stream)

    def first(self):
        """Opens the GPU: the driver's memory for it is there from now on."""
        self.session.reserve([b"never written..."], gpu=self.gpu).abort()
        return self.gpu

    def room(self, sets, count):
        """Slots for so many blocks are taken and given back: the daemon has their memory from now on."""
        held = [self.session.reserve(keys_of(1 << 32 | s * count, count), gpu=self.gpu) for s in range(sets)]
        had = sum(slots.statuses.count(self.terrace.Status.OK) for slots in held)
        for slots in held:
            slots.abort()
        return had

    def put(self, first, count):
        """The blocks' checksums."""
        sums = []
        with self.session.reserve(keys_of(first, count), gpu=self.gpu) as slots:
            for i, address in enumerate(slots.addresses()):
                if not address:
                    raise RuntimeError("no slot for block %d: %s" % (first + i, slots.statuses[i].name))
                block = self.block(first + i)
                sums.append(zlib.crc32(block))
                self.copy(address, ctypes.cast(block, ctypes.c_void_p).value, TO_DEVICE)
            if any(slots.commit()):
                raise RuntimeError("not all was stored")
        return sums

    def take(self, first, count):
        """Leases: (blocks, seconds until all of their bytes are there, where they lie from the first of them on)."""
        keys, began = keys_of(first, count), time.monotonic()
        self.lease = self.session.lease(keys, all=True, gpu=self.gpu, timeout=WAIT_S)
        if not self.lease:
            return [0, 0.0, []]
        self.lease.wait_layer(self.layout.layers - 1, self.stream)
        cuda("cudaStreamSynchronize", self.stream)
        seconds = time.monotonic() - began
        self.lease.check()
        addresses = self.lease.addresses()
        return [len(self.lease), seconds, [a - min(addresses) for a in addresses]]

    def sums(self):
        """The leased blocks' checksums."""
        out = []
        for address in self.lease.addresses():
            self.copy(ctypes.addressof(self.host), address, TO_HOST)
            out.append(zlib.crc32(self.host.raw))
        self.lease.check()
        return out

    def release(self):
        self.lease.release()
        self.lease = None

    def obey(self):
        for line in sys.stdin:
            name, *values = json.loads(line)
            try:
                answer = [0, getattr(self, name)(*values)]
            except self.terrace.Error as error:
                answer = [int(error.status), str(error)]
            print(json.dumps(answer), flush=True)
        if self.lease:
            self.release()
        self.session.close()
        self.client.close()


def layout():
    import terrace
    return terrace.Layout("two GPUs", layers=16, heads=8, head_dim=128, block_tokens=32, k_format="tq4")


def keys_of(first, count):
    return [b"two GPUs" + n.to_bytes(8, "little") for n in range(first, first + count)]


def peer_main(size):
    """Prints GB/s of cudaMemcpyPeer from GPU 0 to GPU 1: as it is, and once they have access to each other (0: they cannot)."""
    memory, stream, can, rates = [pointer(), pointer()], pointer(), ctypes.c_int(), []
    for g in range(2):
        cuda("cudaSetDevice", g)
        cuda("cudaMalloc", ctypes.byref(memory[g]), ctypes.c_size_t(size))
    cuda("cudaStreamCreate", ctypes.byref(stream))
    cuda("cudaDeviceCanAccessPeer", ctypes.byref(can), 1, 0)
    for enabled in (False, True):
        if enabled and can.value:
            for g in range(2):
                cuda("cudaSetDevice", g)
                cuda("cudaDeviceEnablePeerAccess", 1 - g, 0)
        seconds = []
        for _ in range(6):
            began = time.monotonic()
            cuda("cudaMemcpyPeerAsync", memory[1], 1, memory[0], 0, ctypes.c_size_t(size), stream)
            cuda("cudaStreamSynchronize", stream)
            seconds.append(time.monotonic() - began)
        rates.append(size / statistics.median(seconds[1:]) / 1e9 if can.value or not enabled else 0)
    print(json.dumps(rates))


# ---- what orders them ------------------------------------------------------------------------------------------------------------------

class Child:
    """An engine of another process."""
    program = os.path.abspath(__file__)

    def __init__(self, service, ordinal):
        self.process = subprocess.Popen([sys.executable, self.program, "engine", service.address, str(ordinal)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=service.environment)

    def say(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def hear(self):
        """(status, value)."""
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError("an engine has ended: %r" % self.process.wait(timeout=WAIT_S))
        return json.loads(line)

    def do(self, *words):
        self.say(*words)
        status, value = self.hear()
        assert status == 0, "%r: %r" % (words, value)
        return value

    def stop(self):
        self.process.stdin.close()
        code = self.process.wait(timeout=WAIT_S)
        self.process.stdout.close()
        assert code == 0, "an engine ended with %d" % code


class Service:
    """A terraced over the GPUs, without disks, asked through terracectl."""

    def __init__(self, o, folder, gpu_bytes):
        self.gpus = 1 if o.one else 2
        self.o, self.folder, self.environment = o, folder, dict(os.environ, CUDA_DEVICE_ORDER="PCI_BUS_ID")
        if o.libraries:
            self.lost = os.path.join(folder, "lost")
            self.environment.update(LD_LIBRARY_PATH=o.libraries + ":" + os.environ.get("LD_LIBRARY_PATH", ""), SIM_GPU_DEVICES=str(self.gpus),
                                    SIM_GPU_LOST_FILE=self.lost)
        self.address = "unix:" + os.path.join(folder, "t.sock")
        self.flags = ["--data-dir", os.path.join(folder, "data"), "--socket", self.address[5:], "--gpus", ",".join(map(str, range(self.gpus))),
                      "--gpu-bytes", "%d" % gpu_bytes, "--host-bytes", "256MiB"]
        self.process = None

    def start(self):
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen([self.o.terraced, *self.flags], stdout=log, stderr=log, env=self.environment)
        wait_for(lambda: self.process.poll() is None and self.ctl("status").returncode == 0, "terraced serves")

    def ctl(self, *words):
        return subprocess.run([self.o.terracectl, "--address", self.address, *words], capture_output=True, text=True, timeout=WAIT_S,
                              check=False)

    def stats(self):
        out = self.ctl("stat")
        assert out.returncode == 0, out.stderr
        return {m[1]: float(m[2]) for m in re.finditer(r"^(terrace_\S+)\s+(\S+)$", out.stdout, re.M)}

    def explained(self, key):
        """The numbers of the GPUs that have the block, and whether another tier has it."""
        out = self.ctl("--json", "explain", key.hex())
        assert out.returncode == 0, out.stderr
        tiers = json.loads(out.stdout)["blocks"][0]["tiers"]
        return sorted(t["gpu"] for t in tiers if t["tier"] == "gpu"), any(t["tier"] != "gpu" for t in tiers)

    def device_bytes(self, gpu):
        """What of a GPU's memory is in use, as the device says: of the simulated one exactly, for it is the daemon's descriptors."""
        if not self.o.libraries:
            out = subprocess.run(["nvidia-smi", "-i", smi_name(gpu), "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                                 capture_output=True, text=True, timeout=WAIT_S, check=True)
            return int(out.stdout) * MIB
        folder, seen = "/proc/%d/fd" % self.process.pid, {}
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            try:
                if os.readlink(path).startswith("/memfd:simulated-device-%d " % gpu):
                    seen[os.stat(path).st_ino] = os.stat(path).st_size
            except FileNotFoundError:
                continue
        return sum(seen.values())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=120)
        assert code == 0, "terraced ended with %d" % code


def wait_for(condition, what):
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("not within %g s: %s" % (WAIT_S, what))


class Ledger:
    """What Stats and the devices said, beside what they said before."""

    def __init__(self, service):
        self.service = service
        self.mark()

    def mark(self):
        self.stats = self.service.stats()
        self.used = [self.service.device_bytes(g) for g in range(self.service.gpus)]

    def grown(self, name):
        return self.service.stats()[name] - self.stats[name]

    def expect_moved(self, across):
        for way, want in (("from=gpu,to=gpu", across), ("from=host,to=gpu", 0), ("from=gpu,to=host", 0)):
            got = self.grown("terrace_moved_bytes_total{%s}" % way)
            assert got == want, "%d bytes went %s, not %d" % (got, way, want)

    def expect_blocks(self, *blocks):
        for g, want in enumerate(blocks):
            got = self.grown("terrace_gpu_blocks{gpu=%d}" % g)
            assert got == want, "GPU %d has %d blocks more, not %d" % (g, got, want)

    def expect_memory(self):
        """The GPUs' memory has grown by what Stats says of extents; by how much it differs."""
        slack, worst = 0 if self.service.o.libraries else SMI_SLACK, 0
        for g in range(self.service.gpus):
            differs = self.service.device_bytes(g) - self.used[g] - self.grown("terrace_gpu_extent_bytes{gpu=%d}" % g)
            assert abs(differs) <= slack, "GPU %d has %d bytes more in use than Stats says" % (g, differs)
            worst = max(worst, differs, key=abs)
        return worst


def check_leased(engine, first, count, sums):
    """(seconds, where the blocks lie)."""
    got, seconds, places = engine.do("take", first, count)
    assert got == count, "%d of %d blocks were leased" % (got, count)
    assert engine.do("sums") == sums, "other bytes"
    return seconds, places


# ---- the story --------------------------------------------------------------------------------------------------------------------------

def from_gpu_to_gpu(o, service, one, other, size):
    """Sets that one has put, leased by the other; the first of them is not timed. Seconds, and the last set's checksums and places."""
    ledger, sums, seconds, places = Ledger(service), [], [], []
    for s in range(o.sets + 1):
        sums.append(one.do("put", s * o.blocks, o.blocks))
    ledger.expect_moved(0)
    ledger.expect_blocks(len(sums) * o.blocks, 0)
    assert service.explained(keys_of(0, 1)[0]) == ([0], False), "the block is on GPU 0 alone"
    for s, wanted in enumerate(sums):
        if s:
            other.do("release")
        took, places = check_leased(other, s * o.blocks, o.blocks, wanted)
        seconds.append(took)
    ledger.expect_moved(len(sums) * o.blocks * size)
    ledger.expect_blocks(len(sums) * o.blocks, len(sums) * o.blocks)
    assert service.explained(keys_of(0, 1)[0]) == ([0, 1], False), "the block is on both GPUs"
    differs = ledger.expect_memory()
    return seconds[1:], sums[-1], places, differs


def shared_by_two(service, third, first, sums, places):
    """A second process on a GPU leases what another one holds: there is no second copy of it. By how much the memory differs, and seconds."""
    third.do("first")
    ledger = Ledger(service)
    seconds, seen = check_leased(third, first, len(sums), sums)
    assert seen == places, "the blocks lie elsewhere for the second process"
    ledger.expect_moved(0)
    ledger.expect_blocks(*[0] * service.gpus)
    for g in range(service.gpus):
        grown = ledger.grown("terrace_gpu_slots_used{gpu=%d}" % g)
        assert grown == 0, "%d slots more are in use" % grown
    differs = ledger.expect_memory()
    third.do("release")
    return differs, seconds


def both_ways(o, service, one, other, size):
    """Each puts a set and leases the other's, at the same time. The slower one's seconds."""
    at = [(o.sets + 1 + g) * o.blocks for g in range(2)]
    sums = [engine.do("put", at[g], o.blocks) for g, engine in enumerate((one, other))]
    ledger = Ledger(service)
    one.say("take", at[1], o.blocks)
    other.say("take", at[0], o.blocks)
    took = []
    for engine, wanted in ((one, sums[1]), (other, sums[0])):
        status, value = engine.hear()
        assert status == 0 and value[0] == o.blocks, value
        took.append(value[1])
    for engine, wanted in ((one, sums[1]), (other, sums[0])):
        assert engine.do("sums") == wanted, "other bytes"
        engine.do("release")
    ledger.expect_moved(2 * o.blocks * size)
    return max(took), sums[1]


def one_lost(o, service, one, other, sums):
    """GPU 0 goes: what only it had is a miss, what GPU 1 has is served, and takes puts."""
    at = (o.sets + 2) * o.blocks
    only = at + o.blocks
    one.do("put", only, 1)
    with open(service.lost + ".0", "w", encoding="ascii"):
        pass
    wait_for(lambda: service.stats()["terrace_gpu_lost{gpu=0}"] == 1, "Stats says that GPU 0 is lost")
    one.say("take", at, 1)
    assert one.hear()[0] != 0, "a lease on a lost GPU"
    check_leased(other, at, o.blocks, sums)
    other.do("release")
    assert other.do("take", only, 1)[0] == 0, "a block of the lost GPU's"
    written = other.do("put", only + 1, 2)
    check_leased(other, only + 1, 2, written)
    other.do("release")
    assert service.explained(keys_of(at, 1)[0]) == ([1], False), "GPU 1 alone has it now"
    assert service.stats()["terrace_gpu_lost{gpu=1}"] == 0


def run(o, service, engines, size):
    one, other, third = engines
    assert [engine.do("first") for engine in (one, other)] == [0, 1], "GPUs by other numbers"
    for engine in (one, other):
        assert engine.do("room", o.sets + 3, o.blocks) == (o.sets + 3) * o.blocks, "there is not room for all"
    seconds, sums, places, differs = from_gpu_to_gpu(o, service, one, other, size)
    shared_by_two(service, third, o.sets * o.blocks, sums, places)
    other.do("release")
    took, last = both_ways(o, service, one, other, size)
    if o.libraries:
        one_lost(o, service, one, other, last)
    peer = subprocess.run([sys.executable, os.path.abspath(__file__), "peer", str(o.blocks * size)], capture_output=True, text=True,
                          timeout=WAIT_S, env=service.environment, check=True)
    far, near = json.loads(peer.stdout)
    rate, both = o.blocks * size / statistics.median(seconds) / 1e9, 2 * o.blocks * size / took / 1e9
    return {"bench": "two_gpus", "device": "simulated" if o.libraries else "gpu", "blocks": o.blocks, "block_kib": size // 1024,
            "mib": round(o.blocks * size / MIB), "lease_gb_s": round(rate, 2), "both_ways_gb_s": round(both, 2),
            "memcpy_peer_gb_s": round(near or far, 2), "memcpy_peer_without_access_gb_s": round(far, 2),
            "peer_access": bool(near), "of_memcpy_peer": round(rate / (near or far), 4), "seconds": [round(s, 5) for s in seconds],
            "device_differs_by": differs}


def run_one(o, service, engines, size):
    """A prefix that one process has put is leased by it and by another, at the same time."""
    one, other = engines
    assert one.do("first") == 0 and one.do("room", 1, o.blocks) == o.blocks, "there is not room for all"
    ledger, sums = Ledger(service), one.do("put", 0, o.blocks)
    took, places = check_leased(one, 0, o.blocks, sums)
    assert len(set(places)) == o.blocks, "a slot a block"
    differs, seconds = shared_by_two(service, other, 0, sums, places)
    assert one.do("sums") == sums, "other bytes"
    ledger.expect_moved(0)
    ledger.expect_blocks(o.blocks)
    stats = service.stats()
    slots = stats["terrace_gpu_slots_used{gpu=0}"]
    assert slots == stats["terrace_gpu_blocks{gpu=0}"] == o.blocks, "%d slots in use, of %d blocks" % (slots, o.blocks)
    assert service.explained(keys_of(0, 1)[0]) == ([0], False), "the block is on the GPU alone, once"
    one.do("release")
    return {"bench": "shared_gpu", "device": "simulated" if o.libraries else "gpu", "processes": 2, "blocks": o.blocks, "block_kib": size // 1024,
            "mib": round(o.blocks * size / MIB), "slots_used": int(slots), "device_differs_by": differs, "lease_ms": round(1000 * took, 3),
            "second_lease_ms": round(1000 * seconds, 3)}


def devices_enough(o):
    """In a process of its own: CUDA is not to be open in this one."""
    environment = dict(os.environ)
    if o.libraries:
        environment.update(LD_LIBRARY_PATH=o.libraries + ":" + os.environ.get("LD_LIBRARY_PATH", ""), SIM_GPU_DEVICES="2")
    out = subprocess.run([sys.executable, os.path.abspath(__file__), "count"], capture_output=True, text=True, timeout=WAIT_S,
                         env=environment, check=True)
    return int(out.stdout) >= (1 if o.one else 2)


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("terraced")
    parser.add_argument("terracectl")
    parser.add_argument("--libraries", help="folder of the plugin and CUDA's runtime; it is the simulated device's")
    parser.add_argument("--blocks", type=int, default=1024, help="of a set")
    parser.add_argument("--sets", type=int, default=3)
    parser.add_argument("--json", help="file that gets the result as a line")
    parser.add_argument("--one", action="store_true", help="one GPU, which two processes share")
    return parser.parse_args()


def main():
    o = options()
    if not devices_enough(o):
        print("skipped: there are no such GPUs")
        sys.exit(77)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # with what it has started
    folder, service, engines = tempfile.mkdtemp(prefix="terrace-two-"), None, []
    size = layout().block_bytes
    try:
        # Room for all, and half of it free: nothing is to come down for want of room.
        service = Service(o, folder, 2 * (o.sets + 4) * (o.blocks + 8) * (size + 4096) + 512 * MIB * (not o.libraries))
        service.start()
        engines += [Child(service, ordinal) for ordinal in ((0, 0) if o.one else (0, 1, 1))]
        result = (run_one if o.one else run)(o, service, engines, size)
        for engine in engines:
            engine.stop()
        service.stop()
    except BaseException:
        if service and service.process:
            with open(os.path.join(folder, "log"), encoding="utf-8", errors="replace") as log:
                sys.stderr.write(log.read()[-6000:])
        raise
    finally:
        for process in [engine.process for engine in engines] + ([service.process] if service else []):
            if process and process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(result))
    if o.json:
        with open(o.json, "a", encoding="ascii") as out:
            out.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] in (["engine"], ["peer"], ["count"]):
        load_cuda()
    if sys.argv[1:2] == ["engine"]:
        Engine(sys.argv[2], int(sys.argv[3])).obey()
    elif sys.argv[1:2] == ["peer"]:
        peer_main(int(sys.argv[2]))
    elif sys.argv[1:2] == ["count"]:
        count = ctypes.c_int()
        print(0 if cuda.library.cudaGetDeviceCount(ctypes.byref(count)) else count.value)
    else:
        main()

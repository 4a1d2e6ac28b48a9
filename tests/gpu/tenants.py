"""GPU memory of two tenants, as engines see it: tenants.py TERRACED TERRACECTL [--libraries FOLDER] [--mib N] [--json FILE]

One daemon over one GPU, and an engine of each tenant, processes of two users. A tenant's own part is there whatever the other does. What a
tenant has borrowed goes to the other when its engines have unmapped it, in zeroed memory; a stopped engine keeps it. Neither gets a block of
the other's. Wants root, for the second user. Exit code 77: there is no GPU, or no root.
"""

import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import zlib

import two_gpus as base
from two_gpus import MIB, TO_DEVICE, TO_HOST, WAIT_S, Child, Service, cuda, keys_of, wait_for

UID = 41003
AT_ONCE = 8  # blocks a reservation
PAGE = 4096


class Engine(base.Engine):
    """Its blocks are of another pattern than the other tenant's."""

    def __init__(self, address, uid):
        import terrace  # with all that it loads: the user's process may not be able to read it
        cuda("cudaSetDevice", 0)
        ctypes.CDLL("libterrace_cuda.so.0")
        terrace.version()
        if uid:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        super().__init__(address, 0)
        self.pattern = random.Random(uid).randbytes(self.size)
        self.base = self.pattern
        self.foreign = random.Random(0 if uid else UID).randbytes(self.size)[8:PAGE]

    def put_some(self, first, count):
        """How many of the blocks could be put. What was in a slot before was zeroes or the tenant's own."""
        stored, wrong = 0, 0
        for at in range(first, first + count, AT_ONCE):
            with self.session.reserve(keys_of(at, AT_ONCE), gpu=self.gpu) as slots:
                for i, address in enumerate(slots.addresses()):
                    if not address:
                        continue
                    self.copy(ctypes.addressof(self.host), address, TO_HOST)
                    wrong += not self.is_own(self.host.raw)
                    block = self.block(at + i)
                    self.copy(address, ctypes.cast(block, ctypes.c_void_p).value, TO_DEVICE)
                stored += [s.name for s in slots.commit()].count("OK")
        return [stored, wrong]

    def is_own(self, found):
        """Zeroes, or a block of its own."""
        pages = {found[at + 8:at + PAGE] for at in range(0, self.size - PAGE, PAGE)}
        own = {self.pattern[at + 8:at + PAGE] for at in range(0, self.size - PAGE, PAGE)} | {bytes(PAGE - 8)}
        return pages <= own and self.foreign not in pages

    def check_some(self, first, count):
        """[right, wrong] of the blocks that are there, each leased on the GPU."""
        right, wrong = 0, 0
        for n in range(first, first + count):
            lease = self.session.lease(keys_of(n, 1), gpu=self.gpu, timeout=WAIT_S)
            if not lease:
                continue
            with lease:
                lease.wait_layer(self.layout.layers - 1, self.stream)
                cuda("cudaStreamSynchronize", self.stream)
                self.copy(ctypes.addressof(self.host), lease.addresses()[0], TO_HOST)
                lease.check()
                same = zlib.crc32(self.host.raw) == zlib.crc32(self.block(n))
                right, wrong = right + same, wrong + (not same)
        return [right, wrong]


class TenantChild(Child):
    program = os.path.abspath(__file__)

    def check(self, first, count, least):
        right, wrong = self.do("check_some", first, count)
        assert wrong == 0, "%d blocks have other bytes" % wrong
        assert right >= least, "%d of %d blocks are there, not %d" % (right, count, least)

    def put(self, first, count):
        stored, wrong = self.do("put_some", first, count)
        assert wrong == 0, "%d slots had bytes of the other tenant" % wrong
        return stored


class TenantService(Service):
    """Alpha is root's; a quarter of the GPU is beta's own. Each may borrow what is left."""

    def __init__(self, o, folder):
        super().__init__(o, folder, o.mib * MIB)
        table = os.path.join(folder, "tenants")
        with open(table, "w", encoding="ascii") as f:
            f.write("tenant = alpha\nuids = 0\ngpu_bytes_max = %dMiB\ntenant = beta\nuids = %d\ngpu_bytes = %dMiB\ngpu_bytes_max = %dMiB\n" %
                    (o.mib, UID, o.mib // 4, o.mib))
        os.chmod(folder, 0o755)
        del self.flags[self.flags.index("--host-bytes"):]
        self.flags += ["--tenants", table, "--tenant-metrics", "3", "--socket-mode", "0666", "--host-bytes", "%dMiB" % (4 * o.mib),
                       "--extent-bytes", "%dMiB" % (o.mib // 16)]

    def bytes_of(self, tenant, what="extent"):
        return self.stats()["terrace_tenant_gpu_%s_bytes{tenant=%s}" % (what, tenant)]


def own_part(o, service, alpha, beta, size):
    """Alpha takes all that it can; beta's quarter is there."""
    blocks = o.mib * MIB // size
    assert alpha.put(0, blocks) > blocks // 2, "too few blocks of alpha's could be put"
    has = service.bytes_of("alpha")
    assert o.mib * MIB * 5 // 8 <= has <= o.mib * MIB * 3 // 4, "alpha has %d bytes" % has
    quarter = blocks // 4 - 2 * (o.mib * MIB // 16 // size)
    assert beta.put(0, quarter) >= quarter - AT_ONCE
    beta.check(0, quarter, quarter - AT_ONCE)
    assert beta.do("check_some", quarter, blocks - quarter) == [0, 0], "beta has blocks of alpha's"
    assert service.bytes_of("alpha", "lent") > 0
    return blocks


def exchange(service, beta, moves, first):
    """Beta puts until so many extents have moved. The number of its next block, and seconds."""
    at, until, began = [first], service.stats()["terrace_extents_moved_total"] + moves, time.monotonic()

    def moved():
        beta.put(at[0], AT_ONCE)
        at[0] += AT_ONCE
        return service.stats()["terrace_extents_moved_total"] >= until
    wait_for(moved, "%d extents go to beta" % moves)
    return at[0], time.monotonic() - began


def stopped(service, alpha, beta, first, most):
    """While alpha's engine is stopped beta has its own part alone, and what nothing had mapped."""
    alpha.process.send_signal(signal.SIGSTOP)
    for n in range(8):
        beta.put(first + n * AT_ONCE, AT_ONCE)
        time.sleep(0.5)
    assert service.bytes_of("beta") <= most, "a stopped engine's memory has gone"
    assert service.stats()["terrace_extents_moved_total"] <= 1
    return first + 8 * AT_ONCE


def run(o, service, alpha, beta, size):
    total, extent = o.mib * MIB, o.mib * MIB // 16
    assert alpha.do("first") == 0 and beta.do("first") == 0
    ledger = base.Ledger(service)
    blocks = own_part(o, service, alpha, beta, size)
    at = stopped(service, alpha, beta, blocks, total // 4 + extent)
    differs = ledger.expect_memory()
    alpha.process.send_signal(signal.SIGCONT)
    at, seconds = exchange(service, beta, 1, at)
    alpha.process.kill()
    alpha.process.wait(timeout=WAIT_S)
    ledger.mark()  # its context's memory is gone
    at, after = exchange(service, beta, 1, at)
    beta.check(at - 2 * AT_ONCE, 2 * AT_ONCE, AT_ONCE)
    time.sleep(4)  # then beta wants nothing more
    differs, stats = max(differs, ledger.expect_memory(), key=abs), service.stats()
    assert stats["terrace_gpu_extent_bytes{gpu=0}"] <= total
    assert stats["terrace_gpu_lost{gpu=0}"] == 0
    return {"bench": "gpu_tenants", "device": "simulated" if o.libraries else "gpu", "mib": o.mib, "extent_mib": o.mib // 16,
            "extents_moved": int(stats["terrace_extents_moved_total"]), "extents_kept": int(stats["terrace_extents_kept_total"]),
            "seconds": round(seconds, 2), "seconds_after_kill": round(after, 2), "device_differs_by": differs}


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("terraced")
    parser.add_argument("terracectl")
    parser.add_argument("--libraries", help="folder of the plugin and CUDA's runtime; it is the simulated device's")
    parser.add_argument("--mib", type=int, default=1024, help="of the GPU")
    parser.add_argument("--json", help="file that gets the result as a line")
    o = parser.parse_args()
    o.one = True
    return o


def main():
    o = options()
    if os.geteuid() != 0 or not base.devices_enough(o):
        print("skipped: there is no GPU, or no root")
        sys.exit(77)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    folder, service, engines = tempfile.mkdtemp(prefix="terrace-tenants-"), None, []
    try:
        service = TenantService(o, folder)
        service.start()
        engines += [TenantChild(service, uid) for uid in (0, UID)]
        result = run(o, service, engines[0], engines[1], base.layout().block_bytes)
        engines.append(TenantChild(service, 0))
        engines[2].check(0, o.mib * MIB // base.layout().block_bytes, AT_ONCE)  # the next engine of alpha's
        engines[1].stop()
        engines[2].stop()
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
        for engine in engines:
            engine.process.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(result))
    if o.json:
        with open(o.json, "a", encoding="ascii") as out:
            out.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["engine"]:
        base.load_cuda()
        Engine(sys.argv[2], int(sys.argv[3])).obey()
    else:
        main()

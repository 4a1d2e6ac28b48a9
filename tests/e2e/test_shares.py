"""Shares of connections and calls, between real processes: what one process takes, and what others get beside it. The rule is in daemon/block/quota.h."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import grpc  # noqa: E402

from daemon import CALL_S, keys, pb, running, terrace_pb2_grpc, wait_for  # noqa: E402

TERRACED = ""
SMALL = ("--host-bytes", "64MiB", "--extent-bytes", "4MiB")

# Another process: it does one thing with raw connections, says that it has, and keeps them until its input ends.
OTHER = r"""
import os, socket, sys, time
sys.path.insert(0, sys.argv[1])
import h2_raw
path, connections, calls, method, says = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6])
held = []
for _ in range(connections):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    s.setblocking(False)
    held.append(s)
    data = h2_raw.hello() + b"".join(h2_raw.call(1 + 2 * i, method, b"", says or None) for i in range(calls))
    end = time.monotonic() + 5
    while data and time.monotonic() < end:  # it never reads: what does not go out stays here
        try:
            data = data[s.send(data):]
        except BlockingIOError:
            time.sleep(.001)
        except OSError:
            break
print("there", flush=True)
sys.stdin.read()
open_ones = 0
for s in held:
    s.setblocking(True)
    s.settimeout(5)
    try:
        while s.recv(1 << 16):
            pass
    except TimeoutError:
        open_ones += 1
    except OSError:
        pass
print(open_ones, flush=True)
"""


class Other:
    """That process. end() returns how many of its connections the daemon has kept."""

    def __init__(self, daemon, connections, calls, method="/grpc.health.v1.Health/Check", says=0):
        self.process = subprocess.Popen([sys.executable, "-c", OTHER, os.path.dirname(os.path.abspath(__file__)), daemon.address[len("unix:"):],
                                         str(connections), str(calls), method, str(says)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "there\n"

    def end(self):
        self.process.stdin.close()
        kept = int(self.process.stdout.readline())
        self.kill()
        return kept

    def kill(self):
        """May be called again."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


def quota(daemon, what, labels):
    return daemon.stats()["terrace_quota_%s{%s}" % (what, labels)]


def sanitized():
    with open(TERRACED, "rb") as f:
        program = f.read()
    return b"__asan_init" in program or b"__tsan_init" in program


def resident_bytes(pid):
    with open("/proc/%d/statm" % pid, encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Shares(unittest.TestCase):
    def serves(self, daemon, session, times=20):
        for n in range(times):
            daemon.cache.Lookup(pb.LookupRequest(session=session, keys=keys(n)), timeout=CALL_S)

    def test_idle_connections(self):
        """A process opens more connections than there may be: it has its share, the others are served, and its death gives all back."""
        with running(TERRACED, *SMALL, "--connections-max", "64") as daemon:
            session = daemon.open().session
            other = Other(daemon, 200, 1)
            self.addCleanup(other.kill)
            wait_for(lambda: quota(daemon, "held", "thing=rpc_connections") == 56, CALL_S, "those beyond the share are closed")  # with this process's
            wait_for(lambda: quota(daemon, "refused_total", "thing=rpc_connections,reason=process") >= 145, CALL_S, "each is refused")
            self.assertIn('event=rpc_refused reason="too many gRPC connections: process %d holds' % other.process.pid, daemon.log())
            self.serves(daemon, session)
            with grpc.insecure_channel(daemon.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                terrace_pb2_grpc.CacheStub(channel).Lookup(pb.LookupRequest(session=session, keys=keys(1)), timeout=CALL_S)
            other.kill()
            wait_for(lambda: quota(daemon, "held", "thing=rpc_connections") == 1, CALL_S, "a dead process has given its connections back")

    def test_a_connection_too_many_is_told_why(self):
        with running(TERRACED, *SMALL, "--connections-max", "16") as daemon:
            channels, said = [], None
            while said is None and len(channels) < 20:
                channels.append(grpc.insecure_channel(daemon.address, options=[("grpc.use_local_subchannel_pool", 1)]))
                try:
                    terrace_pb2_grpc.AdminStub(channels[-1]).Stats(pb.StatsRequest(), timeout=CALL_S)
                except grpc.RpcError as refused:
                    said = refused
            self.assertEqual(said.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
            self.assertRegex(said.details(), "^too many gRPC connections: process %d holds 14 of 16, and the 2 free ones are kept for others: "
                                             "close some, or raise connections_max$" % os.getpid())
            self.assertEqual(len(channels), 14)  # and the daemon's own channel
            for channel in channels:
                channel.close()

    def test_replies_that_are_not_read(self):
        """Calls whose replies are not read keep their connections for a while, and no place from others; then they are cut."""
        with running(TERRACED, *SMALL, "--calls-max", "64") as daemon:
            session = daemon.open().session
            other = Other(daemon, 4, 200, "/terrace.v1.Admin/Stats")
            self.addCleanup(other.kill)
            self.serves(daemon, session)
            self.assertLessEqual(quota(daemon, "held", "thing=calls"), 64 - 8 + 1)
            wait_for(lambda: quota(daemon, "held", "thing=rpc_connections") == 1, CALL_S, "what is not read is cut")
            wait_for(lambda: quota(daemon, "held", "thing=calls") <= 1, CALL_S, "and its calls end")
            self.assertEqual(quota(daemon, "held", "thing=reply_bytes"), 0)
            self.serves(daemon, session)
            self.assertEqual(other.end(), 0)
            self.assertGreaterEqual(sum(v for k, v in daemon.stats().items() if k.startswith("terrace_rpc_connections_cut_total")), 4)

    def test_a_flood_of_calls(self):
        """Its client reads nothing and never says that it knows the bound of calls: what gRPC took for them goes back to the kernel."""
        with running(TERRACED, *SMALL) as daemon:
            session = daemon.open().session
            before = resident_bytes(daemon.process.pid)
            other = Other(daemon, 16, 1000)
            self.addCleanup(other.kill)
            self.serves(daemon, session)
            if not sanitized():  # whose allocators keep what is freed
                wait_for(lambda: resident_bytes(daemon.process.pid) < before + (32 << 20), CALL_S, "the memory is back")
            self.serves(daemon, session)
            other.kill()

    def test_requests_that_do_not_end(self):
        """Half-sent requests are calls like others: counted, and ended when their time is up."""
        with running(TERRACED, *SMALL, "--calls-max", "64", "--call-deadline-max", "4s") as daemon:
            session = daemon.open().session
            other = Other(daemon, 2, 20, "/terrace.v1.Cache/Lookup", says=3 << 20)
            self.addCleanup(other.kill)
            self.assertLessEqual(quota(daemon, "held", "thing=requests_being_received"), 28 + 1)
            self.serves(daemon, session)
            wait_for(lambda: quota(daemon, "held", "thing=calls") <= 1, CALL_S, "they are ended")
            self.assertEqual(quota(daemon, "held", "thing=requests_being_received"), 0)
            self.serves(daemon, session)
            other.kill()

    def test_a_probe_beside_slow_scrapers(self):
        with running(TERRACED, *SMALL, "--metrics-address", "127.0.0.1:0") as daemon:
            wait_for(lambda: "event=ready" in daemon.log(), CALL_S, "it is ready")
            port = int(re.search(r" metrics_port=(\d+)", daemon.log()).group(1))
            slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
            for s in slow:
                s.sendall(b"GET /metrics HTTP/1.1\r\n")
            for _ in range(20):
                with urllib.request.urlopen("http://127.0.0.1:%d/healthz" % port, timeout=5) as reply:  # a slow one has ten seconds
                    self.assertEqual(reply.read(), b"serving\n")
            self.assertGreater(quota(daemon, "refused_total", "thing=metrics_connections,reason=user"), 0)
            for s in slow:
                s.close()


if __name__ == "__main__":
    TERRACED = sys.argv.pop(1)
    unittest.main(verbosity=0)

"""Starts and stops a real terraced for the end-to-end tests, and speaks to it with a stock grpcio client.

The generated protobuf modules are made afresh into a temporary folder; nothing generated is committed.
"""

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import grpc
from grpc_tools import protoc

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_generated = tempfile.mkdtemp(prefix="terrace-pb-")
atexit.register(shutil.rmtree, _generated, ignore_errors=True)
if protoc.main(["protoc", "--proto_path=" + os.path.join(ROOT, "proto"), "--python_out=" + _generated,
                "--grpc_python_out=" + _generated, "terrace.proto", "health.proto"]) != 0:
    sys.exit("protoc failed")
sys.path.insert(0, _generated)
import health_pb2  # noqa: E402
import health_pb2_grpc  # noqa: E402
import terrace_pb2 as pb  # noqa: E402
import terrace_pb2_grpc  # noqa: E402

# Ends a call that hangs, and proves nothing: a machine may be slow.
CALL_S = 60

_CRC_TABLE = []
for _n in range(256):
    _c = _n
    for _ in range(8):
        _c = (_c >> 1) ^ 0x82F63B78 if _c & 1 else _c >> 1
    _CRC_TABLE.append(_c)


@functools.lru_cache(maxsize=2048)  # the same blocks are put and read many times
def crc32c(data):
    """CRC-32C (Castagnoli) of bytes, independent of the daemon's."""
    c = 0xFFFFFFFF
    for byte in data:
        c = _CRC_TABLE[(c ^ byte) & 0xFF] ^ (c >> 8)
    return c ^ 0xFFFFFFFF


def key(number, size=16):
    return struct.pack(">Q", number).rjust(size, b"k")


def keys(*numbers, size=16):
    return pb.Keys(key_bytes=size, keys=b"".join(key(n, size) for n in numbers))


def layout(**over):
    """A small sound layout: 2 layers, 2 heads, d = 64, tq4, 16 tokens."""
    fields = dict(fingerprint=b"f" * 32, first_layer=0, layers=2, first_head=0, heads=2, total_heads=2,
                  head_dim_k=64, head_dim_v=64, block_tokens=16, k_format=pb.FORMAT_TQ4, v_format=pb.FORMAT_TQ4,
                  window=0, rotation_version=1, codebook_version=1, layout_version=1)
    fields.update(over)
    return pb.Layout(**fields)


def held_folder(parent=None):
    """A new folder, and a descriptor that holds it: once all who have that are gone, however they went, tests/sweep.sh removes it."""
    folder = tempfile.mkdtemp(prefix="terrace-held-", dir=parent)
    hold = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(hold, fcntl.LOCK_SH)
    return folder, hold


class Daemon:
    """A terraced of its own in a temporary folder, in `parent` if one is given."""

    def __init__(self, terraced, *flags, env=None, start=True, parent=None):
        self.terraced = terraced
        self.folder, self.hold = held_folder(parent)
        self.address = "unix:" + os.path.join(self.folder, "t.sock")
        self.flags = flags
        self.env = env or {}
        self.before = None  # to be run in the child, before it is terraced
        self.process = None
        self.log_path = os.path.join(self.folder, "log")
        self.readied = 0  # how often one of the same folder was, before the last start
        if start:
            self.start()

    def command(self):
        return [self.terraced, "--data-dir", os.path.join(self.folder, "data"), "--socket", self.address[len("unix:"):], *self.flags]

    def start(self):
        with open(self.log_path, "ab") as log:
            self.readied = self.log().count("event=ready")
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, env={**os.environ, **self.env},
                                            pass_fds=(self.hold,), preexec_fn=self.before)
        # A connection of its own, and soon again: gRPC shares those of an earlier channel to the same address, with the pauses, which
        # grow to many seconds, that the daemon's death left them.
        self.channel = grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1),
                                                                    ("grpc.initial_reconnect_backoff_ms", 100),
                                                                    ("grpc.max_reconnect_backoff_ms", 500)])
        try:
            grpc.channel_ready_future(self.channel).result(timeout=CALL_S)
        except grpc.FutureTimeoutError:
            self.process.kill()
            raise AssertionError("terraced did not start:\n" + self.log())
        self.cache = terrace_pb2_grpc.CacheStub(self.channel)
        self.admin = terrace_pb2_grpc.AdminStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def open(self, *layouts, **over):
        return self.cache.OpenSession(pb.OpenSessionRequest(layouts=list(layouts) or [layout()], engine="e2e", **over),
                                      timeout=CALL_S)

    def put(self, session, items, layout_index=0, chunk=1000, wrong_crc=False):
        """items: (key, bytes). Returns the statuses."""
        def chunks():
            for k, data in items:
                header = pb.PutHeader(session=session, layout=layout_index, key=k, info=pb.BlockInfo(tokens=16),
                                      has_crc=True, crc32c=crc32c(data) ^ (1 if wrong_crc else 0))
                yield pb.PutChunk(header=header, data=data[:chunk])
                for at in range(chunk, len(data), chunk):
                    yield pb.PutChunk(data=data[at:at + chunk])
        return list(self.cache.Put(chunks(), timeout=CALL_S).status)

    def get(self, session, wanted, layout_index=0, chunk=0):
        """Returns {index: (status, bytes)}, with the checksum verified."""
        found, current = {}, None
        for message in self.cache.Get(pb.GetRequest(session=session, keys=wanted, layout=layout_index,
                                                    chunk_bytes=chunk), timeout=CALL_S):
            if message.HasField("header"):
                current = message.header
                found[current.index] = (current.status, bytearray(), current)
            found[current.index][1].extend(message.data)
        for status, data, header in found.values():
            if status == pb.OK:
                assert len(data) == header.block_bytes
                assert crc32c(bytes(data)) == header.crc32c
        return {index: (status, bytes(data)) for index, (status, data, _) in found.items()}

    def stats(self):
        reply = self.admin.Stats(pb.StatsRequest(), timeout=CALL_S)
        return {s.name + ("{%s}" % s.labels if s.labels else ""): s.value for s in reply.stats}

    def stop(self, expect=0, signum=signal.SIGTERM):
        self.channel.close()
        if self.process.poll() is None:
            self.process.send_signal(signum)
        code = self.process.wait(timeout=2 * CALL_S)
        assert code == expect, "terraced ended with %d:\n%s" % (code, self.log())

    def kill(self):
        """As a crash would end it."""
        self.channel.close()
        self.process.kill()
        self.process.wait(timeout=CALL_S)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.hold is not None:
            os.close(self.hold)
            self.hold = None


@contextlib.contextmanager
def running(terraced, *flags, **over):
    daemon = Daemon(terraced, *flags, **over)
    try:
        yield daemon
    except BaseException:
        sys.stderr.write(daemon.log()[-8000:])
        with contextlib.suppress(BaseException):
            daemon.process.kill()
            daemon.process.wait()
        raise
    finally:
        daemon.close()


def wait_for(condition, seconds, what):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("not within %g s: %s" % (seconds, what))

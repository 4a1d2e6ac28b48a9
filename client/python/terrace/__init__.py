"""Terrace for Python: a thin layer over libterrace, whose header terrace.h is the manual for all that is not said here.

    with terrace.connect() as client, client.session([layout]) as session:
        lease = session.lease(keys)              # None: a miss
        if lease:
            with lease:
                lease.block(0)                   # a read-only memoryview of the daemon's memory
                lease.numpy(0)                   # the same as an array; lease.torch(0) as a tensor
        with session.reserve(keys) as slots:     # aborts, unless committed
            slots.block(0)[:] = packed
            slots.commit()

    async with asyncio.timeout(1):               # in a coroutine: the same calls, named ..._async
        lease = await session.lease_async(keys)
    with session.watch() as watch:
        async for event in watch: ...            # or `for`, in a thread

Keys are bytes, all of a call of one length, 1 to 64. Times are seconds; None is the connection's default. Memory of the CPU is anything
with a buffer; memory of a GPU is a number, or a tensor (what has data_ptr()), and a stream is a number, or what has cuda_stream, as
torch.cuda.Stream. Nothing but the standard library is imported; numpy and torch are, when a block is asked for as theirs.

Errors. A call that fails raises a subclass of Error, named after the status (Busy, Stale, Exhausted...), with the library's words. What the
library could not see, memory that is too small or a number that does not fit, is a ValueError, or ctypes.ArgumentError. The library is
loaded by the first call; OSError, with what to do, if that fails. `python -m terrace` says what is wrong.

Ownership. What is leased or reserved is given back by the context manager, by release() or abort(), or when the last reference goes; a
block that is still looked at is not: BufferError.

Threads. Handles may be used from several threads; no call may be running on a handle that is closed. Views may be taken while another
thread gives the blocks back: they are ended with the others, or there are none to be had. An Operation is awaited in the loop that started
it. After a fork handles are of no use to the child, and a child that looks at a view is ended by the kernel.

Not here: terrace_session_layout and _rule, terrace_plan, and terrace_cuda_merge and _copy.
"""

from ._abi import lib as _lib
from ._abi import path as library_path
from ._version import __version__
from .blocks import Lease, Reservation
from .codec import attend, attend_features, decode, encode, merge
from .cuda import (cuda_attend, cuda_attend_plan, cuda_attend_workspace, cuda_decode, cuda_encode, cuda_extend, cuda_extend_workspace,
                   cuda_features, cuda_load, dtype_of)
from .layout import BlockInfo, Dtype, Event, Layout, Role, Rule, State, chain, chain_hash
from .operation import Operation
from .session import Client, Session, connect
from .status import (Busy, Cancelled, Corrupt, Deadline, Denied, Error, Exhausted, Exists, Internal, Invalid, Io, Miss, NotFound,
                     Precondition, Stale, Status, Unavailable, Unsupported)
from .watch import Watch, WatchEvent, WatchKind

__all__ = [
    "BlockInfo", "Busy", "Cancelled", "Client", "Corrupt", "Deadline", "Denied", "Dtype", "Error", "Event", "Exhausted", "Exists",
    "Internal", "Invalid", "Io", "Layout", "Lease", "Miss", "NotFound", "Operation", "Precondition", "Reservation", "Role", "Rule",
    "Session", "Stale", "State", "Status", "Unavailable", "Unsupported", "Watch", "WatchEvent", "WatchKind", "__version__", "attend",
    "attend_features", "chain", "chain_hash", "connect", "cuda_attend", "cuda_attend_plan", "cuda_attend_workspace", "cuda_decode",
    "cuda_encode", "cuda_extend", "cuda_extend_workspace", "cuda_features", "cuda_load", "decode", "dtype_of", "encode", "library_path",
    "merge", "version",
]


def version() -> str:
    """The library's version, as "0.1.0". The package's is __version__."""
    text: str = _lib.terrace_version().decode()
    return text

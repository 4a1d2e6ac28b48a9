"""Terrace for Python: a thin layer over libterrace, whose header terrace.h is the manual for all that is not said here.

    with terrace.connect() as client, client.session([layout]) as session:
        lease = session.lease(keys)              # None: a miss
        if lease:
            with lease:
                lease.block(0)                   # a read-only memoryview of the daemon's memory
        with session.reserve(keys) as slots:     # aborts, unless committed
            slots.block(0)[:] = packed
            slots.commit()

Keys are bytes, all of a call of one length, 1 to 64. Times are seconds; None is the connection's default. Memory of the CPU is anything
with a buffer; memory of a GPU is a number, or a tensor (what has data_ptr()), and a stream is a number, or what has cuda_stream, as
torch.cuda.Stream. Nothing but the standard library is imported.

A call that fails raises Error, with the status and the library's words; what callers branch on has classes of its own (Miss, Busy, Stale...).
What the library could not see, memory that is too small or a number that does not fit, is a ValueError, or ctypes.ArgumentError.
Handles are safe to use from several threads as far as terrace.h says so: nothing catches one that is closed while a call uses it. Views may be
taken while another thread gives the blocks back: they are ended with the others, or there are none to be had. What is
leased or reserved is given back by the context manager, by release() or abort(), or when the last reference goes; a block that somebody
still has a view of is not: BufferError.
After a fork handles are of no use to the child, as terrace.h says, and it is ended if it looks at a view.

Not here: watches, asynchronous calls (but commit_after), terrace_session_layout and _rule, terrace_plan, and terrace_cuda_merge and _copy.
"""

import array
import ctypes
import dataclasses
import enum
import functools
import threading
import warnings
import weakref
from typing import Optional

from . import _abi as abi
from ._arguments import (bytes_of, cells_of, fill, gpu_number, infos_of, keys_of, microseconds, pointer, rules_of, sized,
                         stream_number)

_lib = abi.load()


class Status(enum.IntEnum):
    """terrace_status."""
    OK = 0
    MISS = 1
    BUSY = 2
    CANCELLED = 3
    INVALID = 4
    NOT_FOUND = 5
    EXISTS = 6
    EXHAUSTED = 7
    DEADLINE = 8
    UNAVAILABLE = 9
    PRECONDITION = 10
    DENIED = 11
    CORRUPT = 12
    UNSUPPORTED = 13
    STALE = 14
    IO = 15
    INTERNAL = 16


class Error(Exception):
    """A call that did not return OK. status: a Status."""

    def __init__(self, status, words):
        super().__init__(words)
        self.status = status


class Miss(Error):
    """It is not in the cache."""


class Busy(Error):
    """Somebody else is doing it, or it is not done yet."""


class Exists(Error):
    """Another put of the key was first."""


class Exhausted(Error):
    """A bound was met: memory, pins, queues."""


class Deadline(Error):
    """It took too long."""


class Unavailable(Error):
    """There is no daemon, it is going down, or a GPU is lost."""


class Stale(Error):
    """The daemon has restarted, or has closed the session: session.reopen() begins anew."""


class Unsupported(Error):
    """This build, this daemon, or this machine cannot."""


_ERRORS = {Status.MISS: Miss, Status.BUSY: Busy, Status.EXISTS: Exists, Status.EXHAUSTED: Exhausted, Status.DEADLINE: Deadline,
           Status.UNAVAILABLE: Unavailable, Status.STALE: Stale, Status.UNSUPPORTED: Unsupported}


class State(enum.IntEnum):
    """Where a block is (terrace_state)."""
    ABSENT = 0
    HOST = 1
    DISK = 2
    GPU = 3
    NONE = 4  # no cell: the layout can have no block there


class Role(enum.IntEnum):
    """terrace_role."""
    UNKNOWN = 0
    SYSTEM = 1
    USER = 2
    ASSISTANT = 3
    TOOL = 4


class Event(enum.IntEnum):
    """terrace_event."""
    NONE = 0
    TURN_END = 1
    TOOL_CALL = 2
    SESSION_END = 3


class Dtype(enum.IntEnum):
    """terrace_dtype."""
    F32 = 0
    F16 = 1
    BF16 = 2
    E4M3 = 3


_SIZES = {Dtype.F32: 4, Dtype.F16: 2, Dtype.BF16: 2}  # of E4M3, and of what is none, 1


def version():
    """The library's version."""
    return _lib.terrace_version().decode()


def _check(status):
    if status:
        words = _lib.terrace_error().decode(errors="replace")
        raise _ERRORS.get(status, Error)(Status(status), words)


# ---- layouts and keys ----

@dataclasses.dataclass(frozen=True)
class Layout:
    """One KV group of a model (terrace_layout). Formats are names: "fp16", "bf16", "fp8", "int4_pth", "tq4", "tq3", "tq2"; of
    V also "none", and of a rope part "fp16", "bf16" and "fp8". fingerprint: any text or bytes that names what must not be mixed.
    See opaque() for bytes of other formats."""
    fingerprint: object
    layers: int
    heads: int
    head_dim: int
    block_tokens: int = 16
    k_format: str = "tq4"
    v_format: Optional[str] = None  # None: as K
    head_dim_v: Optional[int] = None
    total_heads: Optional[int] = None
    first_layer: int = 0
    first_head: int = 0
    window: int = 0
    int4_bf16: bool = False  # of int4_pth: the model's dtype is bf16, and not fp16
    opaque_bytes: int = 0  # of "opaque" alone, with its name
    opaque_name: str = ""
    rope_format: str = "none"  # of multi-head latent attention: head_dim is 512 then, heads 1 and v_format "none"

    def __post_init__(self):
        problem = _lib.terrace_layout_problem(self._c())
        if problem:
            raise ValueError(problem.decode())

    def _c(self):
        text = self.fingerprint.encode() if isinstance(self.fingerprint, str) else bytes_of(self.fingerprint)
        out = abi.Layout(first_layer=self.first_layer, layers=self.layers, first_head=self.first_head, heads=self.heads,
                         total_heads=self.total_heads or self.heads, head_dim_k=self.head_dim,
                         head_dim_v=self.head_dim_v or self.head_dim, block_tokens=self.block_tokens,
                         k_format=_format(self.k_format), v_format=_format(self.v_format or self.k_format),
                             window=self.window,
                         int4_rounding=int(self.int4_bf16), rope_dim=64 if self.rope_format != "none" else 0,
                         rope_format=_format(self.rope_format), opaque_bytes=self.opaque_bytes,
                         opaque_name=self.opaque_name.encode()[:abi.Layout.opaque_name.size])
        _lib.terrace_fingerprint(text, len(text), ctypes.addressof(out.fingerprint))
        return out

    @classmethod
    def opaque(cls, fingerprint, name, block_bytes, layers=0, **more):
        """A layout of bytes that nothing here looks into. name: of their format, with its version, as in
        "vllm/int4_per_token_head/1". layers: equal parts of a block, which come to a GPU one by one; 0: it has none."""
        return cls(fingerprint, layers, more.pop("heads", 0), 0, k_format="opaque", v_format="none",
                   opaque_bytes=block_bytes, opaque_name=name, **more)

    @property
    def block_bytes(self):
        """Bytes of a block."""
        return _lib.terrace_block_bytes(self._c())


def _format(name):
    out = ctypes.c_int()
    if name == "none":
        return 0
    _check(_lib.terrace_format_parse(name.encode(), out))
    return out.value


def chain_hash(parent, tokens, salt=b""):
    """The key, 16 bytes, of the block of `tokens` (numbers) behind the block with key `parent`, as long (None: the first)."""
    parent, salt = None if parent is None else bytes_of(parent), bytes_of(salt)
    if parent is not None and len(parent) != 16:
        raise ValueError("parent: not the 16 bytes of a key of chain_hash()")
    ids = array.array("I", tokens)
    out = ctypes.create_string_buffer(16)
    address, _ = ids.buffer_info()
    _lib.terrace_chain_hash(parent, address, len(ids), salt, len(salt), out)
    return out.raw


def chain(tokens, block_tokens, salt=b""):
    """The keys of all full blocks of a sequence."""
    keys = []
    for at in range(0, len(tokens) // block_tokens * block_tokens, block_tokens):
        keys.append(chain_hash(keys[-1] if keys else None, tokens[at:at + block_tokens], salt))
    return keys


@dataclasses.dataclass
class Rule:
    """What a session says of a layout besides its window (terrace_layout_rule)."""
    keep_last: int = 0  # not 0: a prefix needs so many of its last blocks; 1: a state
    partial: bool = False  # it may have partial blocks
    sparse: bool = False  # what was never stored is not missing


@dataclasses.dataclass
class BlockInfo:
    """What a block is in its sequence (terrace_block_info)."""
    parent: Optional[bytes] = None
    position: int = 0
    tokens: int = 0
    role: Role = Role.UNKNOWN
    turn: int = 0


# ---- handles ----

class _Handle:
    """Something of the library's, given back once."""
    _end = None

    def __init__(self, pointer):
        self._lock = threading.RLock()  # not held while the library ends it
        self._pointer = pointer

    def _use(self):
        if not self._pointer:
            raise Error(Status.PRECONDITION, "the handle has been given back: it was closed, released or committed before")
        return self._pointer

    def _take(self):
        """The pointer, for a call that ends it."""
        with self._lock:
            pointer, self._pointer = self._use(), None
        return pointer

    def _taken(self, pointer, status):
        """That call's end: after a failure all is as it was."""
        if status:
            self._pointer = pointer
        _check(status)

    def close(self):
        """Gives it back. Twice is once."""
        with self._lock:
            pointer = self._take() if self._pointer else None
        if pointer:
            self._end(pointer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer:
            self._end(pointer)


class Client(_Handle):
    """A connection to a daemon; see connect()."""
    _end = staticmethod(_lib.terrace_disconnect)

    def session(self, layouts, tenant=None, engine=None, gpu=False, gpu_write_back=False, unit_tokens=0, rules=None,
                unchained_keys=False):
        """Opens a session over layouts. gpu: they are to be attended on a GPU; Unsupported, with the reason, if that cannot be.
        unit_tokens: of a key; 0: those of a block. rules: a Rule a layout. unchained_keys: keys name contents, not prefixes."""
        c = (abi.Layout * len(layouts))(*[layout._c() for layout in layouts])
        options = abi.SessionOptions(tenant=tenant.encode() if tenant else None, engine=engine.encode() if engine else b"python",
                                     gpu=gpu, gpu_write_back=gpu_write_back, unit_tokens=unit_tokens, unchained_keys=unchained_keys)
        options.rules, kept = rules_of(rules, len(layouts))
        out = ctypes.c_void_p()
        _check(_lib.terrace_session_open(self._use(), c, len(layouts), options, out))
        del kept
        return Session(self, out.value)

    def attach(self, token):
        """Joins the session of another process, by its token (16 bytes)."""
        out, token = ctypes.c_void_p(), bytes_of(token)
        if len(token) != 16:
            raise ValueError("token: not the 16 bytes of session.token")
        _check(_lib.terrace_session_attach(self._use(), abi.Token((ctypes.c_uint8 * 16)(*token)), out))
        return Session(self, out.value)


def connect(address=None, timeout=None, no_borrow=False, busy_poll=None, no_local_calls=False, no_adaptive_poll=False):
    """Connects to the daemon at "unix:PATH" or "127.0.0.1:PORT"; None: $TERRACE_ADDRESS, or the usual place. busy_poll: seconds for which a
    call looks for its answer before its thread sleeps; None: for as long as calls of its kind have been taking, .2 ms at most, but with
    no_adaptive_poll not at all. no_local_calls: every call goes by gRPC."""
    options = abi.ConnectOptions(address=address.encode() if address else None, timeout_us=microseconds(timeout), no_borrow=no_borrow,
                                 busy_poll_us=microseconds(busy_poll), no_local_calls=no_local_calls, no_adaptive_poll=no_adaptive_poll)
    out = ctypes.c_void_p()
    _check(_lib.terrace_connect(options, out))
    return Client(out.value)


class Session(_Handle):
    """A session. Closing it gives back what it leased and reserved."""
    _end = staticmethod(_lib.terrace_session_close)

    def __init__(self, client, pointer):
        super().__init__(pointer)
        self._client = client
        self._parts = weakref.WeakSet()
        self._learn()

    def _learn(self):
        self._block_bytes = []
        for l in range(_lib.terrace_session_layout_count(self._pointer)):
            layout = abi.Layout()
            _check(_lib.terrace_session_layout(self._pointer, l, layout))
            self._block_bytes.append(_lib.terrace_block_bytes(layout))

    def _bytes_of(self, layout):
        if not 0 <= layout < len(self._block_bytes):
            raise ValueError("layout %d: the session has %d, and their numbers begin with 0" % (layout, len(self._block_bytes)))
        return self._block_bytes[layout]

    def close(self):
        for part in list(self._parts):
            part.close()
        super().close()

    @property
    def token(self):
        """Joins this session (Client.attach)."""
        out = abi.Token()
        _lib.terrace_session_token(self._use(), out)
        return bytes(out.bytes)

    @property
    def epoch(self):
        """Of the daemon's boot."""
        return _lib.terrace_session_epoch(self._use())

    @property
    def borrows(self):
        """True if leases and reservations work: same node, attached."""
        return _lib.terrace_session_borrows(self._use())

    @property
    def unit(self):
        """Tokens of a key."""
        return _lib.terrace_session_unit(self._use())

    @property
    def prefix_multiple(self):
        """Only prefixes of a multiple of so many keys can be usable."""
        return _lib.terrace_session_prefix_multiple(self._use())

    @property
    def gpus(self):
        """The GPUs whose memory the daemon lends, [(uuid, bytes)]; their places in the list are their numbers."""
        infos = [abi.GpuInfo() for _ in range(_lib.terrace_session_gpu_count(self._use()))]
        for g, info in enumerate(infos):
            _check(_lib.terrace_session_gpu(self._use(), g, info))
        return [(bytes(info.uuid), info.bytes) for info in infos]

    def gpu_of(self, ordinal):
        """The number of this process's CUDA device `ordinal` among them; None: the daemon lends none of its memory."""
        out = ctypes.c_int32()
        status = _lib.terrace_session_gpu_of(self._use(), ordinal, out)
        if status != Status.NOT_FOUND:
            _check(status)
        return None if status == Status.NOT_FOUND else out.value

    def gpu_ready(self, gpu, reservations=False, host_blocks=False, timeout=None):
        """Maps what the daemon has on a GPU ahead of leases; also of reservations; and of leases of blocks in host memory."""
        _check(_lib.terrace_session_gpu_ready(self._use(), gpu, 1 | 2 * reservations | 4 * host_blocks, microseconds(timeout)))

    def reopen(self, timeout=None):
        """After Stale or Unavailable: waits for the daemon and begins anew, with an empty view. Leases stay until released."""
        _check(_lib.terrace_session_reopen(self._use(), microseconds(timeout)))

    def lookup(self, keys, states=False, timeout=None, first_position=0):
        """How many keys of the longest usable prefix. With states: (that, [[State a layout] a key]). first_position: of the first key."""
        keys = keys_of(keys)
        prefix, layouts = ctypes.c_uint32(), len(self._block_bytes)
        seen = (ctypes.c_uint8 * (keys.count * layouts))() if states else None
        _check(_lib.terrace_lookup_with(self._use(), keys, abi.CallOptions(first_position=first_position), microseconds(timeout), prefix, seen))
        if not states:
            return prefix.value
        return prefix.value, [[State(s) for s in seen[i * layouts:(i + 1) * layouts]] for i in range(keys.count)]

    def lease(self, keys, all=False, gpu=None, gpu_or_host=False, timeout=None, first_position=0):
        """Protects the longest prefix of keys, or all of them, in host memory or on a GPU: a Lease; None if they are not there."""
        keys, out = keys_of(keys), ctypes.c_void_p()
        options = abi.LeaseOptions(mode=int(all), gpu=gpu_number(gpu), gpu_or_host=gpu_or_host, first_position=first_position)
        status = _lib.terrace_lease_with(self._use(), keys, options, microseconds(timeout), out)
        if status == Status.MISS:
            return None
        _check(status)
        return Lease(self, out.value)

    def reserve(self, keys, infos=None, gpu=None, timeout=None, first_position=0, cells=None):
        """Slots to write, a key each: a Reservation, whose `statuses` tell which keys got one. cells: a number a key, whose bit l says
        that layout l is to have a slot; None: all layouts that have a full block there."""
        keys, out = keys_of(keys), ctypes.c_void_p()
        statuses = (ctypes.c_int * keys.count)()
        options = abi.ReserveOptions(gpu=gpu_number(gpu), first_position=first_position)
        options.cells, kept = cells_of(cells, keys.count)
        _check(_lib.terrace_reserve_with(self._use(), keys, infos_of(infos, keys.count), options, microseconds(timeout), statuses, out))
        del kept
        return Reservation(self, out.value, [Status(s) for s in statuses])

    def reserve_open(self, info=None, gpu=None, timeout=None):
        """One open block, the growing tail of a sequence: a Reservation, to be ended by commit_open()."""
        out = ctypes.c_void_p()
        _check(_lib.terrace_reserve_open_with(self._use(), infos_of([info or BlockInfo()], 1),
                                              abi.ReserveOptions(gpu=gpu_number(gpu)), microseconds(timeout), out))
        return Reservation(self, out.value, [Status.OK])

    def put(self, key, block, layout=0, info=None, timeout=None):
        """Stores one packed block by stream. False: it is stored already."""
        address, kept = pointer(block)
        key = bytes_of(key)
        if memoryview(block).nbytes != self._bytes_of(layout):
            raise ValueError("data: not the %d bytes of a block of that layout" % self._bytes_of(layout))
        status = _lib.terrace_put(self._use(), layout, key, len(key), infos_of([info] if info else None, 1), address,
                                  microseconds(timeout))
        del kept
        if status == Status.EXISTS:
            return False
        _check(status)
        return True

    def get(self, key, layout=0, timeout=None):
        """Reads one packed block by stream: (bytearray, valid tokens); None: it is not there."""
        key, block, tokens = bytes_of(key), bytearray(self._bytes_of(layout)), ctypes.c_uint32()
        address, kept = pointer(block, write=True)
        status = _lib.terrace_get(self._use(), layout, key, len(key), address, tokens, microseconds(timeout))
        del kept
        if status == Status.MISS:
            return None
        _check(status)
        return block, tokens.value

    def _statuses(self, function, keys, timeout):
        keys = keys_of(keys) if keys is not None else None
        statuses = (ctypes.c_int * (keys.count if keys else 1))()
        _check(function(self._use(), keys, microseconds(timeout), statuses))
        return [Status(s) for s in statuses]

    def delete(self, keys, timeout=None):
        """Removes blocks from every layout: a Status a key, OK or MISS."""
        return self._statuses(_lib.terrace_delete, keys, timeout)

    def flush(self, keys=None, timeout=None):
        """Makes blocks durable; None: all of the session's layouts. A Status a key, or one: OK or MISS, any other is raised."""
        return self._statuses(_lib.terrace_flush, keys, timeout)

    def warm(self, keys, wait=False, gpu=None, timeout=None, first_position=0):
        """Brings the longest prefix to host memory, or a GPU's, ahead of its use: how many keys are there, or on their way."""
        options = abi.WarmOptions(wait=wait, gpu=gpu_number(gpu), first_position=first_position)
        out = ctypes.c_uint32()
        _check(_lib.terrace_warm_with(self._use(), keys_of(keys), options, microseconds(timeout), out))
        return out.value

    def touch(self, keys, timeout=None, first_position=0):
        """Counts as use of blocks that were served from elsewhere."""
        _check(_lib.terrace_touch_with(self._use(), keys_of(keys), abi.CallOptions(first_position=first_position), microseconds(timeout)))

    def report(self, keys, event=Event.NONE, priority=0, ttl=0.0, timeout=None, first_position=0):
        """Tells the cache what is known of blocks: hints, never orders. priority: above 0 they are worth more, below less. ttl: for how long
        they will be wanted; 0: nobody knows."""
        if ttl < 0:
            raise ValueError("ttl: a time is not negative")
        options = abi.CallOptions(first_position=first_position)
        _check(_lib.terrace_report_with(self._use(), keys_of(keys), options, event, (priority > 0) - (priority < 0),
                                        int(ttl * 1000), microseconds(timeout)))


@functools.lru_cache(maxsize=None)
def _block_kind(size):
    return type("Block", (ctypes.c_uint8 * size,), {})


class _Blocks(_Handle):
    """What leases and reservations have in common: blocks in the daemon's memory."""

    def __init__(self, session, pointer):
        super().__init__(pointer)
        self._session = session
        self._views = []  # weak references: a block, which lives as long as any view of it, and the view that was given out
        self._views_most = 16  # before those that are gone are left out
        session._parts.add(self)

    def _view(self, function, i, layout, write):
        """Of the block at the address that the function gives: taken and noted at once, so that no other thread gives it back between."""
        with self._lock:
            address = function(self._use(), i, layout)
            if not address:
                return None
            block = _block_kind(self._session._block_bytes[layout]).from_address(address)
            block.owner = self  # whoever has the view keeps the lease
            view = memoryview(block).cast("B")
            view = view if write else view.toreadonly()
            if len(self._views) >= self._views_most:
                self._views = [pair for pair in self._views if pair[0]() is not None]
                self._views_most = max(self._views_most, 2 * len(self._views))
            self._views.append((weakref.ref(block), weakref.ref(view)))
            return view

    def _take(self):
        with self._lock:
            self._use()
            for block, view in self._views:
                if view() is not None:
                    view().release()  # BufferError: something was made of it
                if block() is not None:
                    raise BufferError("a piece of a block is still in use: delete the views of it first")
            self._views = []
            return super()._take()

    def _list(self, function, layout):
        out = (ctypes.c_uint64 * max(1, len(self)))()
        _check(function(self._use(), layout, out))
        return list(out)[:len(self)]


class Lease(_Blocks):
    """Protected blocks. len() is the number of keys."""
    _end = staticmethod(_lib.terrace_release)

    def __len__(self):
        return _lib.terrace_lease_count(self._use())

    def block(self, i, layout=0):
        """The packed block of key i, a read-only view, good until release; None for what is on a GPU, or outside a window."""
        return self._view(_lib.terrace_lease_block, i, layout, False)

    def tokens(self, i, layout=None):
        """Valid tokens of key i's block in a layout; None: in the one with the fewest."""
        tokens = _lib.terrace_lease_tokens if layout is None else _lib.terrace_lease_block_tokens
        return tokens(self._use(), i, *([] if layout is None else [layout]))

    def addresses(self, layout=0):
        """Of a lease on a GPU: the device address of each key's block, 0 outside a window."""
        return self._list(_lib.terrace_lease_addresses, layout)

    def wait_layer(self, layer, stream):
        """Work put into the stream after this waits until the blocks' layer is there."""
        _check(_lib.terrace_lease_wait_layer(self._use(), layer, stream_number(stream)))

    def check(self):
        """Once the work is done: raises Busy, Stale or Unavailable if the bytes were not all there; results are void then."""
        _check(_lib.terrace_lease_check(self._use()))

    def release(self):
        """Gives the lease back, and ends its views."""
        self.close()

    def release_after(self, stream):
        """The same once the stream has done what is in it now."""
        stream, pointer = stream_number(stream), self._take()
        self._taken(pointer, _lib.terrace_release_after(pointer, stream))


class Reservation(_Blocks):
    """Slots to write. statuses: a key each, OK or why it got none. Closing it unwritten aborts it."""
    _end = staticmethod(_lib.terrace_abort)

    def __init__(self, session, pointer, statuses):
        super().__init__(session, pointer)
        self.statuses = statuses

    def __len__(self):
        return _lib.terrace_reservation_count(self._use())

    def block(self, i, layout=0):
        """The slot of key i, a writable view; None if it got none, or one on a GPU."""
        return self._view(_lib.terrace_reservation_block, i, layout, True)

    def addresses(self, layout=0):
        """Of a reservation on a GPU: the device address of each key's slot, 0 if it got none."""
        return self._list(_lib.terrace_reservation_addresses, layout)

    def commit(self, lease=False, timeout=None):
        """Publishes the slots: a Status a key. With lease: (statuses, Lease or None)."""
        statuses, out, us = (ctypes.c_int * len(self))(), ctypes.c_void_p(), microseconds(timeout)
        _check(_lib.terrace_commit(self._take(), us, statuses, out if lease else None))
        self.statuses = [Status(s) for s in statuses]
        if not lease:
            return self.statuses
        return self.statuses, Lease(self._session, out.value) if out.value else None

    def commit_after(self, stream, timeout=None):
        """Of slots on a GPU: publishes them once the stream has done what is in it now. An Operation."""
        count, out = len(self), ctypes.c_void_p()
        nothing, stream, us = abi.Completion(eventfd=-1), stream_number(stream), microseconds(timeout)
        pointer = self._take()
        self._taken(pointer, _lib.terrace_commit_after(pointer, stream, us, nothing, out))
        return Operation(out.value, count)

    def commit_open(self, key, tokens, timeout=None):
        """Turns an open block of `tokens` tokens into a stored one. False: another was first."""
        key, tokens, us = bytes_of(key), int(tokens), microseconds(timeout)
        status = _lib.terrace_commit_open(self._take(), key, len(key), tokens, us)
        if status == Status.EXISTS:
            return False
        _check(status)
        return True

    def abort(self):
        """Gives the slots back unwritten."""
        self.close()


class Operation(_Handle):
    """A commit under way. To be finished."""

    def __init__(self, pointer, count):
        super().__init__(pointer)
        self._count = count

    @staticmethod
    def _end(pointer):
        _lib.terrace_op_cancel(pointer)
        _lib.terrace_commit_finish(pointer, None)

    @property
    def done(self):
        """True once finish() will not wait."""
        return _lib.terrace_op_done(self._use())

    def cancel(self):
        """Asks for an early end: finish() then mostly raises Error with CANCELLED."""
        _lib.terrace_op_cancel(self._use())

    def finish(self):
        """Waits; a Status a key."""
        statuses = (ctypes.c_int * max(1, self._count))()
        _check(_lib.terrace_commit_finish(self._take(), statuses))
        return [Status(s) for s in statuses][:self._count]


# ---- packed blocks on the CPU ----

def _key_dims(layout):
    """Elements of a key and of a query: those of a rope part come behind the latent's."""
    return layout.head_dim_k + layout.rope_dim


def _sides(layout, n, k, v, dtype, write):
    """Addresses of the two sides' vectors, and what keeps them."""
    size = _SIZES.get(dtype, 1)
    return sized(k, "k", n * _key_dims(layout), size, write), sized(v, "v", n * layout.head_dim_v, size, write)


def encode(layout, block, layer, head, first_token, n, k=None, v=None, dtype=Dtype.F32):
    """Packs n tokens of one layer and head: k and v are [n][head_dim], dense; either may be None. With a rope part k is
    [n][576]."""
    c = layout._c()
    block, *kept = sized(block, "block", _lib.terrace_block_bytes(c), 1, write=True)
    (k, *more), (v, *most) = _sides(c, n, k, v, dtype, False)
    _check(_lib.terrace_encode(c, block, layer, head, first_token, n, k, _key_dims(c), v, c.head_dim_v, dtype))
    del kept, more, most


def decode(layout, block, layer, head, first_token, n, k=None, v=None, dtype=Dtype.F32):
    """The inverse, into k and v."""
    c = layout._c()
    block, *kept = sized(block, "block", _lib.terrace_block_bytes(c), 1)
    (k, *more), (v, *most) = _sides(c, n, k, v, dtype, True)
    _check(_lib.terrace_decode(c, block, layer, head, first_token, n, k, _key_dims(c), v, c.head_dim_v, dtype))
    del kept, more, most


def attend(layout, **options):
    """Attention from packed blocks: the members of terrace_attend_options by name; blocks is a list. features: attend_features()."""
    c, shape, blocks = abi.AttendOptions(), layout._c(), options.get("blocks")
    queries, q_heads, features = options.get("queries", 0), options.get("q_heads", 0), options.get("features")
    if isinstance(blocks, (list, tuple)):
        options.setdefault("block_count", len(blocks))
        if options["block_count"] > len(blocks):
            raise ValueError("block_count: %d of %d blocks that were given" % (options["block_count"], len(blocks)))
    rows = queries * q_heads
    kept = fill(c, options, {
        "q": (rows * _key_dims(shape), _SIZES.get(options.get("q_dtype", Dtype.F32), 1)),
        "out": (rows * shape.head_dim_v, _SIZES.get(options.get("out_dtype", Dtype.F32), 1), True),
        "lse": (rows, 4, True), "blocks": (_lib.terrace_block_bytes(shape), 1)}, lists=("blocks",))
    if features:
        arrays = {"sinks": q_heads, "alibi": q_heads, "tree_bias": queries * queries, "ranges": 2 * features.range_count}
        for name, count in arrays.items():
            sized(features.values.get(name), name, count, 4)
    _check(_lib.terrace_attend(shape, c))
    del kept


def attend_features(**options):
    """The members of terrace_attend_features by name."""
    c = abi.AttendFeatures()
    c.kept, c.values = fill(c, options), options
    return c


def merge(rows, d, out_a, lse_a, out_b, lse_b):
    """Merges attention over other tokens into that of the same queries: (out_a, lse_a) of rows of d floats, by (out_b, lse_b). An infinite LSE, of
    either sign, is of a row that saw no token, and a NaN makes the row NaN: terrace.h says what to do with the LSEs of PyTorch."""
    arrays = [sized(memory, name, count, 4, name[-1] == "a") for name, memory, count in
              (("out_a", out_a, rows * d), ("lse_a", lse_a, rows), ("out_b", out_b, rows * d), ("lse_b", lse_b, rows))]
    _check(_lib.terrace_merge(rows, d, *[address for address, _ in arrays]))


# ---- packed blocks on a GPU ----
#
# Each takes the members of its C struct by name, addresses as numbers or tensors, and enqueues on the stream: what is passed must live
# until the stream has got there, as with any CUDA call. dtypes are Dtype's.

def cuda_load(path=None):
    """Loads the CUDA plugin. Unsupported, with the reason, if there is none or the current device will not do."""
    _check(_lib.terrace_cuda_load(path.encode() if path else None))


def dtype_of(tensor):
    """The Dtype of a torch tensor."""
    return {"torch.float32": Dtype.F32, "torch.float16": Dtype.F16, "torch.bfloat16": Dtype.BF16,
            "torch.float8_e4m3fn": Dtype.E4M3}[str(tensor.dtype)]


def cuda_features(**options):
    """The members of terrace_cuda_features by name."""
    c = abi.CudaFeatures()
    c.kept = fill(c, options)
    return c


def _cuda(function, struct, layout, stream, options):
    c = struct()
    kept = fill(c, options)
    _check(function(layout._c(), c, stream_number(stream)))
    del kept


def _workspace(function, struct, layout, options):
    c, out = struct(), ctypes.c_size_t()
    kept = fill(c, options)
    _check(function(layout._c(), c, out))
    del kept
    return out.value


def cuda_attend_workspace(layout, **options):
    """Bytes of workspace for a shape (sequences, queries, q_heads)."""
    return _workspace(_lib.terrace_cuda_attend_workspace, abi.CudaAttendOptions, layout, options)


def cuda_attend_plan(layout, stream, **options):
    """Plans a step by kv_tokens; once for all its layers (terrace_cuda_attend_plan)."""
    _cuda(_lib.terrace_cuda_attend_plan, abi.CudaAttendOptions, layout, stream, options)


def cuda_attend(layout, stream, **options):
    """The planned attention of one layer (terrace_cuda_attend)."""
    _cuda(_lib.terrace_cuda_attend, abi.CudaAttendOptions, layout, stream, options)


def cuda_extend_workspace(layout, **options):
    """Bytes of workspace for a prefill of a shape (sequences, total_queries, q_heads)."""
    return _workspace(_lib.terrace_cuda_extend_workspace, abi.CudaExtendOptions, layout, options)


def cuda_extend(layout, stream, **options):
    """Attention of many new tokens over their packed prefix and themselves (terrace_cuda_extend)."""
    _cuda(_lib.terrace_cuda_extend, abi.CudaExtendOptions, layout, stream, options)


def cuda_encode(layout, stream, **options):
    """K and V of tokens into packed blocks (terrace_cuda_encode)."""
    _cuda(_lib.terrace_cuda_encode, abi.CudaCodecOptions, layout, stream, options)


def cuda_decode(layout, stream, **options):
    """And out of them, to rows in order or those that `rows` names (terrace_cuda_decode)."""
    _cuda(_lib.terrace_cuda_decode, abi.CudaCodecOptions, layout, stream, options)

"""Connections and sessions: what an engine asks the daemon for.

Arguments that many methods have:
    keys            a list of keys: anything with a buffer, 1 to 64 bytes, all of one length; at most 4096
    timeout         seconds, for the whole call; None: the client's default
    first_position  of the first key in its sequence, in units; 0: it is the sequence's first
    gpu             a GPU's number, an index of Session.gpus; None: host memory
    layout          an index of the session's layouts
    eventfd         of the _async methods: see terrace.operation

Every method raises Invalid, Unavailable, Stale, Deadline, Cancelled, Exhausted or Internal as terrace.h says, besides what it names.
Methods without _async wait in the calling thread, let other Python threads run meanwhile, and may be called by several threads at once.
"""

from __future__ import annotations

import ctypes
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable, Literal, Optional, Sequence, TypeVar, Union, overload

from . import _abi as abi
from ._abi import lib
from ._arguments import PathLike, bytes_of, cells_of, gpu_number, infos_of, keys_of, microseconds, path_of, pointer, rules_of
from ._handle import Handle
from .blocks import Lease, Reservation
from .layout import BlockInfo, Event, Layout, Rule, State
from .operation import Completion, Operation
from .status import Status, check, statuses_of
from .watch import Watch, open_watch

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

T = TypeVar("T")
Looked = Union[int, tuple[int, list[list[State]]]]
Got = Optional[tuple[Any, int]]


class Client(Handle):
    """A connection to a daemon; see connect(). Closing it closes its sessions' connections; calls under way end with Cancelled."""

    @staticmethod
    def _end(pointer: int) -> None:
        lib.terrace_disconnect(pointer)

    def session(self, layouts: Sequence[Layout], tenant: Optional[str] = None, engine: Optional[str] = None, gpu: bool = False,
                gpu_write_back: bool = False, unit_tokens: int = 0, rules: Optional[Sequence[Rule]] = None,
                unchained_keys: bool = False, tokens_per_second: int = 0, local_only: bool = False) -> Session:
        """Opens a session over 1 to 64 layouts, and maps the daemon's memory where that can be had (Session.borrows).

        tenant: None: the caller's own, which the daemon knows by user or certificate; Denied for another. engine: a name for
        operators; None: "python".
        gpu: the blocks are to be attended on a GPU; Unsupported, with the reason, if that cannot be.
        gpu_write_back: blocks put on a GPU get their copy in host memory when the GPU needs room, and not at once.
        unit_tokens: tokens of a key; 0: those of a block, which all layouts then share.
        rules: one Rule a layout; None: none. unchained_keys: keys name contents, not prefixes.
        tokens_per_second: that the engine computes; what takes longer is not brought from other nodes of a cluster; 0: not known.
        local_only: nothing is brought from other nodes.
        """
        c = (abi.Layout * len(layouts))(*[layout._c() for layout in layouts])
        options = abi.SessionOptions(tenant=tenant.encode() if tenant else None, engine=engine.encode() if engine else b"python",
                                     gpu=gpu, gpu_write_back=gpu_write_back, unit_tokens=unit_tokens, unchained_keys=unchained_keys,
                                     tokens_per_second=tokens_per_second, local_only=local_only)
        options.rules, kept = rules_of(rules, len(layouts))
        out = ctypes.c_void_p()
        check(lib.terrace_session_open(self._use(), c, len(layouts), options, out))
        del kept
        return Session(self, out.value)

    def attach(self, token: ReadableBuffer) -> Session:
        """Joins the session of another process of the same engine, by its token (Session.token, 16 bytes). NotFound: it is no session's."""
        out, name = ctypes.c_void_p(), bytes_of(token)
        if len(name) != 16:
            raise ValueError("token: not the 16 bytes of session.token")
        check(lib.terrace_session_attach(self._use(), abi.Token((ctypes.c_uint8 * 16)(*name)), out))
        return Session(self, out.value)


def connect(address: Optional[str] = None, timeout: Optional[float] = None, no_borrow: bool = False, busy_poll: Optional[float] = None,
            no_near_calls: Optional[bool] = None, no_adaptive_poll: bool = False, no_local_calls: bool = False,
            tls_cert: Optional[PathLike] = None, tls_key: Optional[PathLike] = None, tls_ca: Optional[PathLike] = None,
            tls_name: Optional[str] = None) -> Client:
    """Connects to a daemon, and waits until it answers. In a coroutine: `await asyncio.to_thread(terrace.connect)`.

    address: "unix:PATH" or "127.0.0.1:PORT", with TLS any "HOST:PORT"; None: $TERRACE_ADDRESS, else unix:/run/terrace/terraced.sock.
    timeout: seconds, of this and the default of all other calls; None: 5.
    no_borrow: map nothing; blocks then move by Session.put() and get() alone.
    busy_poll: seconds for which a call looks for its answer before its thread sleeps; None: for as long as calls of its kind have been
    taking, .2 ms at most, but with no_adaptive_poll not at all.
    no_local_calls: every call goes by gRPC; no_near_calls is its name in 0.1.0.
    tls_cert, tls_key, tls_ca: PEM files of this client's certificate, of its key, and of the CAs that the daemon's certificate may be of;
    with them address may be any "HOST:PORT". None: $TERRACE_TLS_CERT, $TERRACE_TLS_KEY, $TERRACE_TLS_CA.
    tls_name: what the daemon's certificate must be for; None: $TERRACE_TLS_NAME, else the address's host.
    Unavailable: no daemon is there. Deadline, Invalid (not an address), Unsupported (another machine, without TLS), Denied (a certificate is not accepted).
    """
    if no_near_calls is not None:
        warnings.warn("no_near_calls is called no_local_calls", DeprecationWarning, stacklevel=2)
        no_local_calls = no_near_calls
    options = abi.ConnectOptions(address=address.encode() if address else None, timeout_us=microseconds(timeout), no_borrow=no_borrow,
                                 busy_poll_us=microseconds(busy_poll), no_local_calls=no_local_calls, no_adaptive_poll=no_adaptive_poll,
                                 tls_cert=path_of(tls_cert), tls_key=path_of(tls_key), tls_ca=path_of(tls_ca),
                                 tls_name=tls_name.encode() if tls_name else None)
    out = ctypes.c_void_p()
    check(lib.terrace_connect(options, out))
    return Client(out.value)


class Session(Handle):
    """A session: one engine's view of the cache over its layouts. See Client.session().

    Closing it gives back what it leased and reserved (BufferError while a block of that is still in use), and waits for streams, at most 10 s.
    """

    def __init__(self, client: Client, pointer: Optional[int]) -> None:
        super().__init__(pointer)
        self._client = client
        self._parts: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._learn()

    @staticmethod
    def _end(pointer: int) -> None:
        lib.terrace_session_close(pointer)

    def _learn(self) -> None:
        self._block_bytes: list[int] = []
        for l in range(lib.terrace_session_layout_count(self._pointer)):
            layout = abi.Layout()
            check(lib.terrace_session_layout(self._pointer, l, layout))
            self._block_bytes.append(lib.terrace_block_bytes(layout))

    def _bytes_of(self, layout: int) -> int:
        if not 0 <= layout < len(self._block_bytes):
            raise ValueError("layout %d: the session has %d, and their numbers begin with 0" % (layout, len(self._block_bytes)))
        return self._block_bytes[layout]

    def close(self) -> None:
        for part in list(self._parts):
            part.close()
        super().close()

    @property
    def token(self) -> bytes:
        """16 bytes by which another process of the engine joins this session (Client.attach)."""
        out = abi.Token()
        lib.terrace_session_token(self._use(), out)
        return bytes(out.bytes)

    @property
    def epoch(self) -> int:
        """Of the daemon's boot to which the session belongs."""
        return int(lib.terrace_session_epoch(self._use()))

    @property
    def borrows(self) -> bool:
        """True if leases and reservations work: the daemon is on this node, and its memory could be mapped."""
        return bool(lib.terrace_session_borrows(self._use()))

    @property
    def unit(self) -> int:
        """Tokens of a key."""
        return int(lib.terrace_session_unit(self._use()))

    @property
    def prefix_multiple(self) -> int:
        """Only prefixes of a multiple of so many keys can be usable: blocks end together there."""
        return int(lib.terrace_session_prefix_multiple(self._use()))

    @property
    def gpus(self) -> list[tuple[bytes, int]]:
        """The GPUs whose memory the daemon lends: (uuid, bytes that it may take). Their indices are their numbers."""
        infos = [abi.GpuInfo() for _ in range(lib.terrace_session_gpu_count(self._use()))]
        for g, info in enumerate(infos):
            check(lib.terrace_session_gpu(self._use(), g, info))
        return [(bytes(info.uuid), info.bytes) for info in infos]

    def gpu_of(self, ordinal: int) -> Optional[int]:
        """The number of this process's CUDA device `ordinal` among them; None: the daemon lends none of its memory.

        Invalid: the process has no such device. Unsupported: no CUDA plugin. Unavailable: the GPU is lost.
        """
        out = ctypes.c_int32()
        status = lib.terrace_session_gpu_of(self._use(), ordinal, out)
        if status != Status.NOT_FOUND:
            check(status)
        return None if status == Status.NOT_FOUND else out.value

    def gpu_ready(self, gpu: int, reservations: bool = False, host_blocks: bool = False, timeout: Optional[float] = None) -> None:
        """Maps what the daemon has on a GPU ahead of leases, so that calls need not wait for the driver.

        reservations: for reservations there too. host_blocks: for leases there with gpu_or_host.
        """
        check(lib.terrace_session_gpu_ready(self._use(), gpu, 1 | 2 * reservations | 4 * host_blocks, microseconds(timeout)))

    def reopen(self, timeout: Optional[float] = None) -> None:
        """After Stale or Unavailable: waits for the daemon and begins anew, with an empty view. No other call may run meanwhile.

        Leases made before stay readable until they are released. Precondition: this process attached; attach by the new token.
        """
        check(lib.terrace_session_reopen(self._use(), microseconds(timeout)))

    def _begin(self, function: Callable[..., int], finish: Callable[[int], T], eventfd: Optional[int], *arguments: Any) -> Operation[T]:
        completion, out = Completion(eventfd), ctypes.c_void_p()
        check(function(self._use(), *arguments, completion.c, out))
        return Operation(out.value or 0, finish, completion)

    # ---- lookup and lease ----

    @overload
    def lookup(self, keys: Iterable[ReadableBuffer], states: Literal[False] = False, timeout: Optional[float] = None,
               first_position: int = 0) -> int: ...

    @overload
    def lookup(self, keys: Iterable[ReadableBuffer], states: Literal[True], timeout: Optional[float] = None,
               first_position: int = 0) -> tuple[int, list[list[State]]]: ...

    def lookup(self, keys: Iterable[ReadableBuffer], states: bool = False, timeout: Optional[float] = None,
               first_position: int = 0) -> Looked:
        """How many keys of the longest prefix that is usable in every layout; 0: a miss. Protects nothing and counts as no use.

        With states: (that, a list of a State a layout for each key).
        """
        looked = _Looked(self, keys, states)
        check(lib.terrace_lookup_with(self._use(), looked.keys, abi.CallOptions(first_position=first_position), microseconds(timeout),
                                      looked.prefix, looked.seen))
        return looked.result()

    @overload
    def lookup_async(self, keys: Iterable[ReadableBuffer], states: Literal[False] = False, timeout: Optional[float] = None,
                     first_position: int = 0, eventfd: Optional[int] = None) -> Operation[int]: ...

    @overload
    def lookup_async(self, keys: Iterable[ReadableBuffer], states: Literal[True], timeout: Optional[float] = None,
                     first_position: int = 0, eventfd: Optional[int] = None) -> Operation[tuple[int, list[list[State]]]]: ...

    def lookup_async(self, keys: Iterable[ReadableBuffer], states: bool = False, timeout: Optional[float] = None,
                     first_position: int = 0, eventfd: Optional[int] = None) -> Any:
        """lookup() as an Operation."""
        looked = _Looked(self, keys, states)

        def finish(operation: int) -> Looked:
            check(lib.terrace_lookup_finish(operation, looked.prefix, looked.seen))
            return looked.result()

        return self._begin(lib.terrace_lookup_with_async, finish, eventfd, looked.keys,
                           abi.CallOptions(first_position=first_position), microseconds(timeout))

    def load_estimate(self, states: Sequence[Sequence[State]]) -> Optional[float]:
        """Seconds that it would take to bring to memory what lookup(states=True) of this session found on disks, at the
        rate at which a disk was lately read. None: that is not known, for the daemon has read no disk yet. It asks the
        daemon nothing: the rate came with the last lookup. To be compared with the time that computing the tokens takes.
        """
        layouts, out = len(self._block_bytes), ctypes.c_uint64()
        if any(len(key) != layouts for key in states):
            raise ValueError("states: not a state for each of the session's %d layouts" % layouts)
        flat = bytes(state for key in states for state in key)
        status = lib.terrace_load_estimate(self._use(), flat, len(states), out)
        if status == Status.MISS:
            return None
        check(status)
        return out.value / 1e6

    def lease(self, keys: Iterable[ReadableBuffer], all: bool = False, gpu: Optional[int] = None, gpu_or_host: bool = False,
              timeout: Optional[float] = None, first_position: int = 0) -> Optional[Lease]:
        """Protects the longest usable prefix of keys, or all of them, and maps their blocks: a Lease; None: they are not there.

        Blocks on a disk are brought to memory first: the call waits for that, nine tenths of its timeout at most.
        gpu: they are to be in that GPU's memory; with gpu_or_host those that only host memory has may stay there.
        Exhausted: too much is pinned. Precondition: the session maps nothing (borrows is False). Unsupported: no such GPU here.
        """
        c, out = keys_of(keys), ctypes.c_void_p()
        options = _lease_options(all, gpu, gpu_or_host, first_position)
        status = lib.terrace_lease_with(self._use(), c, options, microseconds(timeout), out)
        return self._leased(status, out)

    def _leased(self, status: int, out: ctypes.c_void_p) -> Optional[Lease]:
        if status == Status.MISS:
            return None
        check(status)
        return Lease(self, out.value)

    def lease_async(self, keys: Iterable[ReadableBuffer], all: bool = False, gpu: Optional[int] = None, gpu_or_host: bool = False,
                    timeout: Optional[float] = None, first_position: int = 0,
                    eventfd: Optional[int] = None) -> Operation[Optional[Lease]]:
        """lease() as an Operation. A lease that is granted and not taken is given back."""
        def finish(operation: int) -> Optional[Lease]:
            out = ctypes.c_void_p()
            return self._leased(lib.terrace_lease_finish(operation, out), out)

        return self._part(self._begin(lib.terrace_lease_with_async, finish, eventfd, keys_of(keys),
                                      _lease_options(all, gpu, gpu_or_host, first_position), microseconds(timeout)))

    def _part(self, operation: Operation[T]) -> Operation[T]:
        """Blocks that an operation gives must not outlive the session: closing that ends it."""
        self._parts.add(operation)
        return operation

    # ---- put ----

    def reserve(self, keys: Iterable[ReadableBuffer], infos: Optional[Sequence[BlockInfo]] = None, gpu: Optional[int] = None,
                timeout: Optional[float] = None, first_position: int = 0, cells: Optional[Sequence[int]] = None) -> Reservation:
        """Slots to write new blocks into: a Reservation, whose `statuses` tell which keys got one.

        infos: one BlockInfo a key; None: nothing is known.
        cells: a number a key, whose bit l says that layout l is to have a slot; None: all layouts that have a full block there.
        """
        c, out = keys_of(keys), ctypes.c_void_p()
        statuses = (ctypes.c_int * c.count)()
        options, kept = _reserve_options(gpu, first_position, cells, c.count)
        check(lib.terrace_reserve_with(self._use(), c, infos_of(infos, c.count), options, microseconds(timeout), statuses, out))
        del kept
        return Reservation(self, out.value, statuses_of(statuses, c.count))

    def reserve_async(self, keys: Iterable[ReadableBuffer], infos: Optional[Sequence[BlockInfo]] = None, gpu: Optional[int] = None,
                      timeout: Optional[float] = None, first_position: int = 0, cells: Optional[Sequence[int]] = None,
                      eventfd: Optional[int] = None) -> Operation[Reservation]:
        """reserve() as an Operation. Slots that are not taken are given back."""
        c = keys_of(keys)
        count = int(c.count)
        options, kept = _reserve_options(gpu, first_position, cells, count)

        def finish(operation: int) -> Reservation:
            statuses, out = (ctypes.c_int * count)(), ctypes.c_void_p()
            check(lib.terrace_reserve_finish(operation, statuses, out))
            return Reservation(self, out.value, statuses_of(statuses, count))

        begun = self._part(self._begin(lib.terrace_reserve_with_async, finish, eventfd, c, infos_of(infos, count), options,
                                       microseconds(timeout)))
        del kept
        return begun

    def reserve_open(self, info: Optional[BlockInfo] = None, gpu: Optional[int] = None, timeout: Optional[float] = None,
                     cells: Optional[int] = None) -> Reservation:
        """One open block, the growing tail of a sequence, without a key yet: a Reservation, to be ended by commit_open(). Where a block
        covers several keys it begins at info.position, in all layouts or in those of which `cells` has the bit, and its commit's tokens
        end with a unit."""
        out = ctypes.c_void_p()
        options, kept = _reserve_options(gpu, 0, None if cells is None else [cells], 1)
        check(lib.terrace_reserve_open_with(self._use(), infos_of([info or BlockInfo()], 1), options, microseconds(timeout), out))
        del kept
        return Reservation(self, out.value, [Status.OK])

    def _block_to_put(self, block: ReadableBuffer, layout: int) -> tuple[Optional[int], object]:
        if memoryview(block).nbytes != self._bytes_of(layout):
            raise ValueError("data: not the %d bytes of a block of that layout" % self._bytes_of(layout))
        return pointer(block)

    def put(self, key: ReadableBuffer, block: ReadableBuffer, layout: int = 0, info: Optional[BlockInfo] = None,
            timeout: Optional[float] = None) -> bool:
        """Stores one packed block by copying it to the daemon. False: it is stored already.

        block: the block's bytes (Layout.block_bytes), contiguous; only read during the call.
        Busy: another call writes it. Exhausted: there is no room now. A session that maps nothing can do this too.
        """
        address, kept = self._block_to_put(block, layout)
        name = bytes_of(key)
        status = lib.terrace_put(self._use(), layout, name, len(name), infos_of([info] if info else None, 1), address,
                                 microseconds(timeout))
        del kept
        return _stored(status)

    def put_async(self, key: ReadableBuffer, block: ReadableBuffer, layout: int = 0, info: Optional[BlockInfo] = None,
                  timeout: Optional[float] = None, eventfd: Optional[int] = None) -> Operation[bool]:
        """put() as an Operation. The block must not change until the operation is done."""
        address, kept = self._block_to_put(block, layout)
        name = bytes_of(key)

        def finish(operation: int, kept: object = kept) -> bool:
            return _stored(lib.terrace_put_finish(operation))

        return self._begin(lib.terrace_put_async, finish, eventfd, layout, name, len(name), infos_of([info] if info else None, 1),
                           address, microseconds(timeout))

    def get(self, key: ReadableBuffer, layout: int = 0, timeout: Optional[float] = None, into: Optional[WriteableBuffer] = None) -> Got:
        """Reads one packed block by copying it from the daemon: (its bytes, its valid tokens); None: it is not there.

        into: memory of a block's size to write, which is returned as the bytes; None: a new bytearray. Its content is undefined after a
        failure. Corrupt: the bytes do not match their checksum. A session that maps nothing can do this too.
        """
        name, block, tokens = bytes_of(key), self._block_to_get(into, layout), ctypes.c_uint32()
        address, kept = pointer(block, write=True)
        status = lib.terrace_get(self._use(), layout, name, len(name), address, tokens, microseconds(timeout))
        del kept
        return _got(status, block, tokens)

    def _block_to_get(self, into: Any, layout: int) -> Any:
        if into is None:
            return bytearray(self._bytes_of(layout))
        if memoryview(into).nbytes != self._bytes_of(layout):
            raise ValueError("into: not the %d bytes of a block of that layout" % self._bytes_of(layout))
        return into

    def get_async(self, key: ReadableBuffer, layout: int = 0, timeout: Optional[float] = None, into: Optional[WriteableBuffer] = None,
                  eventfd: Optional[int] = None) -> Operation[Got]:
        """get() as an Operation. `into` is written until the operation is done."""
        name, block, tokens = bytes_of(key), self._block_to_get(into, layout), ctypes.c_uint32()
        address, kept = pointer(block, write=True)

        def finish(operation: int, kept: object = kept) -> Got:
            return _got(lib.terrace_get_finish(operation, tokens), block, tokens)

        return self._begin(lib.terrace_get_async, finish, eventfd, layout, name, len(name), address, microseconds(timeout))

    # ---- other calls ----

    def _statuses(self, function: Callable[..., int], keys: Optional[Iterable[ReadableBuffer]], timeout: Optional[float]) -> list[Status]:
        c = keys_of(keys) if keys is not None else None
        count = int(c.count) if c else 1
        statuses = (ctypes.c_int * count)()
        check(function(self._use(), c, microseconds(timeout), statuses))
        return statuses_of(statuses, count)

    def delete(self, keys: Iterable[ReadableBuffer], timeout: Optional[float] = None) -> list[Status]:
        """Removes blocks from every layout: a Status a key, OK or MISS. No restart brings them back. Io: a disk may have them."""
        return self._statuses(lib.terrace_delete, keys, timeout)

    def flush(self, keys: Optional[Iterable[ReadableBuffer]] = None, timeout: Optional[float] = None) -> list[Status]:
        """Makes blocks durable; None: all of the session's layouts. A Status a key, or one: OK or MISS.

        Exhausted (no place), Io, Unavailable (no disk), Deadline (some may not be durable; another flush has less to do) are raised.
        """
        return self._statuses(lib.terrace_flush, keys, timeout)

    def flush_async(self, keys: Optional[Iterable[ReadableBuffer]] = None, timeout: Optional[float] = None,
                    eventfd: Optional[int] = None) -> Operation[list[Status]]:
        """flush() as an Operation."""
        c = keys_of(keys) if keys is not None else None
        count = int(c.count) if c else 1

        def finish(operation: int) -> list[Status]:
            statuses = (ctypes.c_int * count)()
            check(lib.terrace_flush_finish(operation, statuses))
            return statuses_of(statuses, count)

        return self._begin(lib.terrace_flush_async, finish, eventfd, c, microseconds(timeout))

    def warm(self, keys: Iterable[ReadableBuffer], wait: bool = False, gpu: Optional[int] = None, timeout: Optional[float] = None,
             first_position: int = 0) -> int:
        """Brings the longest prefix to host memory, or to a GPU's, ahead of its use; protects nothing.

        Returns how many keys are there, or, without wait, are on their way too.
        """
        options, out = _warm_options(wait, gpu, first_position), ctypes.c_uint32()
        check(lib.terrace_warm_with(self._use(), keys_of(keys), options, microseconds(timeout), out))
        return out.value

    def warm_async(self, keys: Iterable[ReadableBuffer], wait: bool = False, gpu: Optional[int] = None, timeout: Optional[float] = None,
                   first_position: int = 0, eventfd: Optional[int] = None) -> Operation[int]:
        """warm() as an Operation."""
        def finish(operation: int) -> int:
            out = ctypes.c_uint32()
            check(lib.terrace_warm_finish(operation, out))
            return out.value

        return self._begin(lib.terrace_warm_with_async, finish, eventfd, keys_of(keys), _warm_options(wait, gpu, first_position),
                           microseconds(timeout))

    def touch(self, keys: Iterable[ReadableBuffer], timeout: Optional[float] = None, first_position: int = 0) -> None:
        """Counts as use of blocks that the engine served from a cache of its own."""
        check(lib.terrace_touch_with(self._use(), keys_of(keys), abi.CallOptions(first_position=first_position), microseconds(timeout)))

    def report(self, keys: Iterable[ReadableBuffer], event: int = Event.NONE, priority: int = 0, ttl: float = 0.0,
               timeout: Optional[float] = None, first_position: int = 0) -> None:
        """Tells the cache what is known of blocks: hints for eviction, never orders.

        event: an Event. priority: above 0 the blocks are worth more, below 0 less. ttl: seconds for which they will be wanted; 0: unknown.
        """
        if ttl < 0:
            raise ValueError("ttl: a time is not negative")
        options = abi.CallOptions(first_position=first_position)
        check(lib.terrace_report_with(self._use(), keys_of(keys), options, event, (priority > 0) - (priority < 0),
                                      int(ttl * 1000), microseconds(timeout)))

    def watch(self, from_now: bool = False) -> Watch:
        """The events of the session's layouts, for `for` and `async for`: a Watch. Without from_now it begins with what is stored already.

        It does not wait for the daemon: one that is gone is told by the first event's call.
        """
        return open_watch(self, from_now)


class _Looked:
    """Where a lookup writes."""

    def __init__(self, session: Session, keys: Iterable[ReadableBuffer], states: bool) -> None:
        self.keys, self.prefix, self.layouts = keys_of(keys), ctypes.c_uint32(), len(session._block_bytes)
        self.count = int(self.keys.count)
        self.seen = (ctypes.c_uint8 * (self.count * self.layouts))() if states else None

    def result(self) -> Looked:
        if self.seen is None:
            return self.prefix.value
        seen, n = self.seen, self.layouts
        return self.prefix.value, [[State(s) for s in seen[i * n:(i + 1) * n]] for i in range(self.count)]


def _lease_options(all: bool, gpu: Optional[int], gpu_or_host: bool, first_position: int) -> abi.LeaseOptions:
    return abi.LeaseOptions(mode=int(all), gpu=gpu_number(gpu), gpu_or_host=gpu_or_host, first_position=first_position)


def _warm_options(wait: bool, gpu: Optional[int], first_position: int) -> abi.WarmOptions:
    return abi.WarmOptions(wait=wait, gpu=gpu_number(gpu), first_position=first_position)


def _reserve_options(gpu: Optional[int], first_position: int, cells: Optional[Sequence[int]],
                     count: int) -> tuple[abi.ReserveOptions, object]:
    options = abi.ReserveOptions(gpu=gpu_number(gpu), first_position=first_position)
    options.cells, kept = cells_of(cells, count)
    return options, kept


def _stored(status: int) -> bool:
    """The result of a put."""
    if status == Status.EXISTS:
        return False
    check(status)
    return True


def _got(status: int, block: Any, tokens: ctypes.c_uint32) -> Got:
    if status == Status.MISS:
        return None
    check(status)
    return block, tokens.value

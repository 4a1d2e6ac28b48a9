"""Leases and reservations: blocks in the daemon's memory, which this process has mapped, and views of them without a copy.

A view keeps its lease or reservation from going away: giving that back ends plain memoryviews and raises BufferError while anything else
still looks at a block, as a slice, a numpy array or a torch tensor. Delete those first.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import weakref
from typing import TYPE_CHECKING, Any, Callable, Literal, Optional, Sequence, Union, overload

from . import _abi as abi
from ._abi import lib
from ._arguments import Stream, bytes_of, microseconds, stream_number
from ._handle import Handle
from .operation import Completion, Operation
from .status import Status, check, statuses_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from .session import Session


@functools.lru_cache(maxsize=None)
def _block_kind(size: int) -> Any:
    return type("Block", (ctypes.c_uint8 * size,), {})


class Blocks(Handle):
    """What Lease and Reservation have in common. len() is the number of keys; i is a key's index, from 0; layout one of the session's."""

    def __init__(self, session: Session, pointer: Optional[int]) -> None:
        super().__init__(pointer)
        self._session = session
        # Weak references: a block, which lives as long as any view of it, and the memoryview that was given out, if any.
        self._views: list[tuple[Any, Any]] = []
        self._views_most = 16  # before those that are gone are left out
        session._parts.add(self)

    def _noted(self, block: Any, view: Any) -> None:
        if len(self._views) >= self._views_most:
            self._views = [pair for pair in self._views if pair[0]() is not None]
            self._views_most = max(self._views_most, 2 * len(self._views))
        self._views.append((weakref.ref(block), weakref.ref(view) if view is not None else None))

    def _block(self, i: int, layout: int) -> Optional[int]:
        """The address of a block."""
        raise NotImplementedError

    _writable = False

    def _view(self, i: int, layout: int, plain: bool) -> Any:
        """A memoryview of a block, or, if not plain, the block itself. Taken and noted at once, so that no other thread gives it back between."""
        with self._lock:
            address = self._block(i, layout)
            if not address:
                return None
            block = _block_kind(self._session._block_bytes[layout]).from_address(address)
            block.owner = self  # whatever has the view keeps the lease
            view = None
            if plain:
                view = memoryview(block).cast("B")
                view = view if self._writable else view.toreadonly()
            self._noted(block, view)
            return view if plain else block

    def block(self, i: int, layout: int = 0) -> Optional[memoryview]:
        """The packed block of key i in a layout of the session, as bytes in the daemon's memory. No byte is copied.

        The view of a lease is read-only, that of a reservation writable. It is good until the handle is given back, which ends it.
        None: the block is on a GPU, outside a window, the layout has none there, or the key got no slot.
        """
        view: Optional[memoryview] = self._view(i, layout, True)
        return view

    def numpy(self, i: int, layout: int = 0, dtype: Any = "uint8", shape: Union[int, Sequence[int]] = -1) -> Any:
        """block() as a numpy array of that dtype and shape, without a copy; read-only of a lease. None as block().

        The array keeps the handle: giving that back is BufferError until the array and all views of it are deleted.
        ImportError if numpy is not installed; ValueError if the block's bytes do not make the shape.
        """
        view = self.block(i, layout)
        return None if view is None else importlib.import_module("numpy").frombuffer(view, dtype=dtype).reshape(shape)

    def torch(self, i: int, layout: int = 0, dtype: Any = None, shape: Union[int, Sequence[int]] = -1) -> Any:
        """block() as a torch tensor of the CPU, of that dtype (None: torch.uint8) and shape, without a copy. None as block().

        The tensor keeps the handle, as with numpy(). torch has no read-only tensors: a write into the tensor of a lease ends the process
        with SIGSEGV. ImportError if torch is not installed; ValueError or RuntimeError if the block's bytes do not make the shape.
        """
        torch = importlib.import_module("torch")
        block = self._view(i, layout, False)
        return None if block is None else torch.frombuffer(block, dtype=dtype or torch.uint8).reshape(shape)

    def _take(self) -> int:
        with self._lock:
            self._use()
            for block, view in self._views:
                if view is not None and view() is not None:
                    view().release()  # BufferError: something was made of it
                if block() is not None:
                    raise BufferError("a piece of a block is still in use: delete the slices, arrays and tensors of it first")
            self._views = []
            return super()._take()

    def _list(self, function: Callable[..., int], layout: int) -> list[int]:
        out = (ctypes.c_uint64 * max(1, len(self)))()
        check(function(self._use(), layout, out))
        return list(out)[:len(self)]

    def __len__(self) -> int:
        raise NotImplementedError


class Lease(Blocks):
    """Protected blocks: the daemon neither moves nor removes them until the lease is given back. See Session.lease()."""

    @staticmethod
    def _end(pointer: int) -> None:
        lib.terrace_release(pointer)

    def _block(self, i: int, layout: int) -> Optional[int]:
        address: Optional[int] = lib.terrace_lease_block(self._use(), i, layout)
        return address

    def __len__(self) -> int:
        return int(lib.terrace_lease_count(self._use()))

    def tokens(self, i: int, layout: Optional[int] = None) -> int:
        """Valid tokens of key i's block in a layout; None: in the one with the fewest. 0: the lease has none there."""
        if layout is None:
            return int(lib.terrace_lease_tokens(self._use(), i))
        return int(lib.terrace_lease_block_tokens(self._use(), i, layout))

    def addresses(self, layout: int = 0) -> list[int]:
        """Of a lease on a GPU: the device address of each key's block, 0 outside a window. Good until the lease is given back.

        Precondition: the lease is not on a GPU. Invalid: the session has no such layout.
        """
        return self._list(lib.terrace_lease_addresses, layout)

    def wait_layer(self, layer: int, stream: Stream) -> None:
        """Work that is put into the CUDA stream after this waits until the blocks' layer is there. This thread does not wait.

        Layers count from 0 over all layouts. The stream's wait always ends; check() then tells whether the bytes came.
        Precondition, Invalid, Unavailable (the GPU is lost), Cancelled (the session is closed).
        """
        check(lib.terrace_lease_wait_layer(self._use(), layer, stream_number(stream)))

    def check(self) -> None:
        """To be called when the GPU's work on the lease is done. Returns if all bytes were there.

        Busy, Stale, Unavailable or Cancelled: they were not, and what was computed from them is void.
        """
        check(lib.terrace_lease_check(self._use()))

    def release(self) -> None:
        """Gives the lease back, without waiting, and ends its views. BufferError, and the lease stays, while a block is still in use."""
        self.close()

    def release_after(self, stream: Stream) -> None:
        """Gives a lease on a GPU back when the CUDA stream has done what is in it now. This thread does not wait.

        On a failure the lease is as it was: Precondition (not on a GPU), Invalid, Unavailable, Cancelled, Exhausted.
        """
        number, pointer = stream_number(stream), self._take()
        self._taken(pointer, lib.terrace_release_after(pointer, number))


class Reservation(Blocks):
    """Slots to write new blocks into. See Session.reserve(). One that is closed before its commit is aborted.

    statuses: one a key, after commit() its results: OK (a slot, or stored), EXISTS (stored already), BUSY (another call writes it),
    EXHAUSTED (no room).
    refusal: of keys that are EXHAUSTED what has run out, what holds it and what to do; else empty.
    """

    statuses: list[Status]
    refusal: str
    _writable = True

    def __init__(self, session: Session, pointer: Optional[int], statuses: list[Status]) -> None:
        super().__init__(session, pointer)
        self.statuses = statuses
        self.refusal = lib.terrace_error().decode(errors="replace") if Status.EXHAUSTED in statuses else ""

    @staticmethod
    def _end(pointer: int) -> None:
        lib.terrace_abort(pointer)

    def _block(self, i: int, layout: int) -> Optional[int]:
        address: Optional[int] = lib.terrace_reservation_block(self._use(), i, layout)
        return address

    def __len__(self) -> int:
        return int(lib.terrace_reservation_count(self._use()))

    def addresses(self, layout: int = 0) -> list[int]:
        """Of a reservation on a GPU: the device address of each key's slot, 0 if it got none. Good until the commit or abort."""
        return self._list(lib.terrace_reservation_addresses, layout)

    @overload
    def commit(self, lease: Literal[False] = False, timeout: Optional[float] = None) -> list[Status]: ...

    @overload
    def commit(self, lease: Literal[True], timeout: Optional[float] = None) -> tuple[list[Status], Optional[Lease]]: ...

    def commit(self, lease: bool = False, timeout: Optional[float] = None) -> Union[list[Status], tuple[list[Status], Optional[Lease]]]:
        """Publishes every slot, whole, and gives the handle back, also on a failure: a Status a key, OK or EXISTS.

        Write every byte before. timeout: seconds. With lease: (statuses, a Lease of what is stored now, or None if that is nothing).
        """
        us, statuses, out = microseconds(timeout), (ctypes.c_int * max(1, len(self)))(), ctypes.c_void_p()
        count = len(self)
        check(lib.terrace_commit(self._take(), us, statuses, out if lease else None))
        self.statuses = statuses_of(statuses, count)
        if not lease:
            return self.statuses
        return self.statuses, Lease(self._session, out.value) if out.value else None

    def _finish_commit(self, count: int) -> Callable[[int], list[Status]]:
        def finish(pointer: int) -> list[Status]:
            statuses = (ctypes.c_int * max(1, count))()
            check(lib.terrace_commit_finish(pointer, statuses))
            self.statuses = statuses_of(statuses, count)
            return self.statuses
        return finish

    def commit_async(self, timeout: Optional[float] = None, eventfd: Optional[int] = None) -> Operation[list[Status]]:
        """commit() as an Operation. The handle is given back at once, also on a failure."""
        us, count, completion, out = microseconds(timeout), len(self), Completion(eventfd), ctypes.c_void_p()
        check(lib.terrace_commit_async(self._take(), us, completion.c, out))
        return Operation(out.value or 0, self._finish_commit(count), completion)

    def commit_after(self, stream: Stream, timeout: Optional[float] = None, eventfd: Optional[int] = None) -> Operation[list[Status]]:
        """Publishes slots on a GPU when the CUDA stream has done what is in it now: an Operation, whose result is that of commit().

        timeout: seconds for both, the stream's work and the commit. Deadline or Unavailable: nothing is published.
        On a failure of this call itself the reservation is as it was, as with Lease.release_after().
        """
        count, out, completion = len(self), ctypes.c_void_p(), Completion(eventfd)
        number, us = stream_number(stream), microseconds(timeout)
        pointer = self._take()
        self._taken(pointer, lib.terrace_commit_after(pointer, number, us, completion.c, out))
        return Operation(out.value or 0, self._finish_commit(count), completion)

    def commit_open(self, key: ReadableBuffer, tokens: int, timeout: Optional[float] = None) -> bool:
        """Turns an open block (Session.reserve_open) of `tokens` valid tokens into a stored one. False: the key is stored already."""
        name, tokens, us = bytes_of(key), int(tokens), microseconds(timeout)
        status = lib.terrace_commit_open(self._take(), name, len(name), tokens, us)
        if status == Status.EXISTS:
            return False
        check(status)
        return True

    def abort(self) -> None:
        """Gives the slots back unwritten. Waits for the daemon's answer, a second at most. BufferError as Lease.release()."""
        self.close()

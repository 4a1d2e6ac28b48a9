"""Operations: calls under way, which end by themselves, by await, or by finish().

A method whose name ends in _async starts a call and returns an Operation. The library adds 1 to an eventfd when the operation is complete.
Which eventfd: that of the argument `eventfd`, which an engine with a loop of its own polls; else, inside a running asyncio loop, one that
this module makes for each loop and lets the loop watch; else none. No thread is started, and no thread waits.

    lease = await session.lease_async(keys)          # in a coroutine
    operation = session.get_async(key, eventfd=fd)   # in an engine with its own epoll
    ...                                              # fd became readable, and operation.done is true
    block, tokens = operation.finish()
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import Any, Callable, Generator, Generic, Optional, TypeVar

from . import _abi as abi
from ._abi import lib
from ._handle import Handle
from .status import Cancelled, Error, Status

T = TypeVar("T")

_os: Any = os  # mypy 1.0 does not know Python 3.10's eventfd


class _EventFd:
    """An eventfd that is closed when its loop and all operations that may write to it have ended: its number could be another file's then."""

    def __init__(self) -> None:
        self.number = int(_os.eventfd(0, _os.EFD_NONBLOCK | _os.EFD_CLOEXEC))
        self._lock = threading.Lock()
        self._holders = 1

    def hold(self) -> None:
        with self._lock:
            self._holders += 1

    def drop(self) -> None:
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            os.close(self.number)

    def read(self) -> int:
        """How many operations have been completed since the last time."""
        try:
            return int(_os.eventfd_read(self.number))
        except BlockingIOError:
            return 0


class _Bell:
    """Wakes the coroutines of one loop that await operations. It belongs to the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.eventfd = _EventFd()
        self._waiting: dict[Operation[Any], asyncio.Future[None]] = {}
        self._cancelled: set[Operation[Any]] = set()  # no task waits for them any more; they are finished when they are complete
        self.loop = weakref.ref(loop)
        loop.add_reader(self.eventfd.number, self._rung)
        weakref.finalize(loop, self.eventfd.drop)

    async def wait(self, operation: Operation[Any]) -> None:
        """Returns when the operation is complete. If the task is cancelled, so is the operation."""
        loop = asyncio.get_running_loop()
        if loop is not self.loop():
            raise RuntimeError("the operation was started in another event loop: await it there, or call finish()")
        future = loop.create_future()
        self._waiting[operation] = future
        try:
            if not operation._complete:
                await future
        except asyncio.CancelledError:
            operation.cancel()
            if operation._complete:
                operation.close()
            else:
                self._cancelled.add(operation)
            raise
        finally:
            del self._waiting[operation]

    def _rung(self) -> None:
        left = self.eventfd.read()
        for operation, future in list(self._waiting.items()):
            # An operation that is complete before the eventfd says so is woken now, and its own signal looks again at all others.
            if operation._complete:
                if not future.done():
                    future.set_result(None)
                left -= 1
                if not left:
                    break
        for operation in [o for o in self._cancelled if o._complete]:
            self._cancelled.remove(operation)
            operation.close()


_bells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bell] = weakref.WeakKeyDictionary()
_bells_lock = threading.Lock()


def _bell() -> Optional[_Bell]:
    """That of the running loop; None: no loop runs in this thread."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    with _bells_lock:
        for ended in [other for other in _bells if other.is_closed()]:
            del _bells[ended]
        if loop not in _bells:
            _bells[loop] = _Bell(loop)
        return _bells[loop]


class Completion:
    """How an operation is to say that it is complete: the struct terrace_completion for the call that starts it."""

    def __init__(self, eventfd: Optional[int] = None) -> None:
        self.bell = _bell() if eventfd is None else None
        if self.bell:
            eventfd = self.bell.eventfd.number
        self.c = abi.Completion(eventfd=-1 if eventfd is None else eventfd)


class Operation(Handle, Generic[T]):
    """A call under way. To be awaited in the loop that started it, or ended by finish(): once, by either.

    The operation keeps the memory that the call reads or writes. An operation that is dropped is cancelled, and its result given back,
    when the last reference goes: that waits until the library has let go of it.
    """

    def __init__(self, pointer: int, finish: Callable[[int], T], completion: Completion) -> None:
        super().__init__(pointer)
        self._make: Optional[Callable[[int], T]] = finish  # it keeps what the call reads or writes
        self._bell = completion.bell
        if self._bell:
            self._bell.eventfd.hold()

    @property
    def done(self) -> bool:
        """True once finish() will not wait."""
        return bool(lib.terrace_op_done(self._use()))

    @property
    def _complete(self) -> bool:
        """`done`, also for one that was closed."""
        pointer = self._pointer
        return not pointer or bool(lib.terrace_op_done(pointer))

    def cancel(self) -> None:
        """Asks for an early end: finish() or await then mostly raises Cancelled. One that has ended is left alone."""
        with self._lock:
            if self._pointer:
                lib.terrace_op_cancel(self._pointer)

    def finish(self) -> T:
        """Waits until the operation is complete, at most its timeout, and returns its result. Raises what the call raises."""
        return self._finish(self._take())

    def _finish(self, pointer: int) -> T:
        make, self._make = self._make, None
        assert make is not None  # _take() gives the pointer once
        try:
            return make(pointer)
        finally:
            if self._bell:
                self._bell.eventfd.drop()

    def _end(self, pointer: int) -> None:  # type: ignore[override]
        lib.terrace_op_cancel(pointer)
        try:
            self._finish(pointer)
        except Error:
            pass

    def __await__(self) -> Generator[Any, None, T]:
        return self._result().__await__()

    async def _result(self) -> T:
        if not self.done:
            if not self._bell:
                raise RuntimeError("the operation was started outside of an event loop, or with an eventfd of its own: call finish()")
            await self._bell.wait(self)
        if self.closed:
            raise Cancelled(Status.CANCELLED, "the operation was closed while a coroutine awaited it")
        return self.finish()

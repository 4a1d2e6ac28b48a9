"""Watches: what is stored, removed and moved in a session's layouts, as an iterator, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import collections
import ctypes
import dataclasses
import enum
import threading
from typing import TYPE_CHECKING, AsyncIterator, Deque, Iterator, Optional

from . import _abi as abi
from ._abi import lib
from ._arguments import microseconds
from ._handle import Handle
from .layout import State
from .status import Status, check

if TYPE_CHECKING:
    from .session import Session

# A call that waits cannot be ended from elsewhere, and Python handles a signal between calls: each waits so long at most.
_SLICE_S = 0.2
# Events that an asyncio reader may be behind. Then the library's stream waits, and at last the daemon says RESYNC.
_BEHIND_MOST = 4096


class WatchKind(enum.IntEnum):
    """enum terrace_watch_kind: what a consumer that keeps a set of keys has to do."""

    STORED = 0   # put the key into the set
    REMOVED = 1  # take it out; an unknown key means nothing
    MOVED = 2    # as STORED: the block is elsewhere now
    RESYNC = 3   # events were lost: drop the set, and open another watch with from_now False
    SYNCED = 4   # what was stored already has all been told


@dataclasses.dataclass(frozen=True)
class WatchEvent:
    """struct terrace_watch_event.

    key: whole, 1 to 64 bytes; empty for RESYNC and SYNCED. layout: index of the session's layouts.
    state: of STORED and MOVED, where the block is now. epoch, sequence: of the daemon's boot, and of the event.
    """

    kind: WatchKind
    key: bytes
    layout: int
    state: State
    epoch: int
    sequence: int


class Watch(Handle):
    """The events of a session's layouts, from Session.watch(). One reader at a time, in a thread or in a coroutine.

        for event in session.watch(): ...           # waits for each event
        async for event in session.watch(): ...     # the same in a coroutine, by a thread of the watch

    An iteration ends when close() was called; use the watch in a `with`, so that its thread ends too. It raises Unavailable if the daemon is gone, Stale if it does not know the session any more,
    Cancelled if the client was closed. A watch may outlive its session.
    """

    def __init__(self, pointer: Optional[int]) -> None:
        super().__init__(pointer)
        self._closing = False
        self._reading = 0
        self._reader: Optional[_Reader] = None

    @staticmethod
    def _end(pointer: int) -> None:
        lib.terrace_watch_close(pointer)

    def next(self, timeout: Optional[float] = None) -> Optional[WatchEvent]:
        """The next event; None: none came within `timeout` seconds (None: the client's), and the watch goes on."""
        event = abi.WatchEvent()
        with self._lock:
            pointer = self._use()
            self._reading += 1
        try:
            status = lib.terrace_watch_next(pointer, microseconds(timeout), event)
            if status == Status.DEADLINE:
                return None
            check(status)
        finally:
            self._read_end()
        return WatchEvent(WatchKind(event.kind), bytes(event.whole_key)[:event.key_bytes], event.layout, State(event.state),
                          event.epoch, event.sequence)

    def _read_end(self) -> None:
        """The last of the calls that were running when the watch was closed ends it."""
        with self._lock:
            self._reading -= 1
            last = self._closing and not self._reading
        if last:
            super().close()

    def close(self) -> None:
        """Ends the watch. A thread that reads it stops within a fifth of a second; this call does not wait for it."""
        with self._lock:
            self._closing = True
            if self._reading:
                return
        super().close()

    def __iter__(self) -> Iterator[WatchEvent]:
        while not self._closing:
            event = self.next(_SLICE_S)
            if event is not None and not self._closing:
                yield event

    def __aiter__(self) -> AsyncIterator[WatchEvent]:
        return self._events()

    async def _events(self) -> AsyncIterator[WatchEvent]:
        if self._reader is None:
            self._reader = _Reader(self, asyncio.get_running_loop())
        while True:
            event = await self._reader.get()
            if event is None:
                return
            yield event


class _Reader:
    """A thread that reads a watch for a coroutine. It ends when the watch is closed, has failed, or its loop is closed."""

    def __init__(self, watch: Watch, loop: asyncio.AbstractEventLoop) -> None:
        self._watch = watch
        self._loop = loop
        self._events: Deque[WatchEvent] = collections.deque()
        self._error: Optional[BaseException] = None
        self._ended = False
        self._some = asyncio.Event()
        self._room = threading.Semaphore(_BEHIND_MOST)
        threading.Thread(target=self._read, name="terrace-watch", daemon=True).start()

    def _read(self) -> None:
        try:
            for event in self._watch:
                while not self._room.acquire(timeout=_SLICE_S):
                    if self._watch._closing or self._loop.is_closed():
                        return
                self._events.append(event)
                self._tell()
                if self._loop.is_closed():
                    return
        except Exception as error:  # the coroutine is to have it
            self._error = error
        finally:
            self._ended = True
            self._tell()

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._some.set)
        except RuntimeError:  # the loop is closed
            self._watch.close()

    async def get(self) -> Optional[WatchEvent]:
        """The next event; None: the watch was closed."""
        while True:
            ended = self._ended  # read first: the thread sets it last
            if self._events:
                self._room.release()
                return self._events.popleft()
            if ended and self._error:
                raise self._error
            if ended:
                return None
            self._some.clear()
            if not self._events and not self._ended:
                await self._some.wait()


def open_watch(session: Session, from_now: bool) -> Watch:
    """Session.watch()."""
    out = ctypes.c_void_p()
    check(lib.terrace_watch_open(session._use(), from_now, out))
    return Watch(out.value)

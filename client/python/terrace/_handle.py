"""A handle of the library: given back once, by close(), by its context manager, or when the last reference to it goes."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Optional, Type, TypeVar

from .status import Precondition, Status, check

H = TypeVar("H", bound="Handle")


class Handle:
    """What Client, Session, Lease, Reservation, Operation and Watch have in common.

    Any thread may call it. As terrace.h says, no call may be running on a handle that is closed. A handle that was given back raises
    Precondition. In a child after fork() handles are of no use.
    """

    def __init__(self, pointer: Optional[int]) -> None:
        self._lock = threading.RLock()  # not held while the library ends it
        self._pointer = pointer

    @staticmethod
    def _end(pointer: int) -> None:
        raise NotImplementedError

    def _use(self) -> int:
        if not self._pointer:
            raise Precondition(Status.PRECONDITION, "the handle has been given back: it was closed, released or committed before")
        return self._pointer

    def _take(self) -> int:
        """The pointer, for a call that ends it."""
        with self._lock:
            pointer, self._pointer = self._use(), None
        return pointer

    def _taken(self, pointer: int, status: int) -> None:
        """That call's end: after a failure all is as it was."""
        if status:
            self._pointer = pointer
        check(status)

    @property
    def closed(self) -> bool:
        """True once it has been given back."""
        return not self._pointer

    def close(self) -> None:
        """Gives it back. A second call does nothing."""
        with self._lock:
            pointer = self._take() if self._pointer else None
        if pointer:
            self._end(pointer)

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], where: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer:
            self._end(pointer)


def address_of(out: Any) -> int:
    """The pointer that a call wrote to a c_void_p."""
    return int(out.value)

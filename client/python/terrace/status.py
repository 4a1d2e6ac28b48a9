"""Statuses of libterrace, and the exceptions that stand for them.

Each status but OK has an exception of its own, named after it: MISS is Miss, NOT_FOUND is NotFound. All are subclasses of Error, whose
`status` is the Status and whose text is the library's: what went wrong, why, and what to do. Misses and keys that are stored already are
ordinary outcomes: the calls for which they are return None or False, and their docstrings say so.
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar

from ._abi import lib


class Status(enum.IntEnum):
    """enum terrace_status: how a call, or a call's part for one key, ended."""

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
    """A call that did not return OK. Its subclasses are named after the statuses.

    status: the Status. str(error): the library's sentence about the failure.
    """

    status: Status
    by_status: ClassVar[dict[int, type[Error]]] = {}

    def __init__(self, status: Status, words: str) -> None:
        super().__init__(words)
        self.status = status

    def __reduce__(self) -> tuple[type[Error], tuple[Status, str]]:
        return type(self), (self.status, str(self))


class Miss(Error):
    """The block is not in the cache."""


class Busy(Error):
    """Another call is doing this, or it is not complete yet. Try again."""


class Cancelled(Error):
    """The operation was cancelled, or its session or connection was closed."""


class Invalid(Error):
    """An argument makes no sense; the text names it."""


class NotFound(Error):
    """The daemon does not know the session, lease or reservation."""


class Exists(Error):
    """The key is stored already: another put of it was first."""


class Exhausted(Error):
    """A bound was met: memory, pinned bytes, a queue. The text names it."""


class Deadline(Error):
    """The call's time is over."""


class Unavailable(Error):
    """No daemon answers, the daemon is going down, or a GPU is lost."""


class Precondition(Error):
    """The call is right and the state is wrong: after a fork, a lease without mapped memory, a handle that was given back."""


class Denied(Error):
    """This user or tenant may not do it."""


class Corrupt(Error):
    """Bytes do not match their checksum."""


class Unsupported(Error):
    """This build, this daemon or this machine cannot do it."""


class Stale(Error):
    """The daemon has restarted, or has closed the session. Session.reopen() begins anew."""


class Io(Error):
    """A disk failed."""


class Internal(Error):
    """gRPC failed, or the daemon sent something that makes no sense."""


Error.by_status = {
    Status.MISS: Miss, Status.BUSY: Busy, Status.CANCELLED: Cancelled, Status.INVALID: Invalid, Status.NOT_FOUND: NotFound,
    Status.EXISTS: Exists, Status.EXHAUSTED: Exhausted, Status.DEADLINE: Deadline, Status.UNAVAILABLE: Unavailable,
    Status.PRECONDITION: Precondition, Status.DENIED: Denied, Status.CORRUPT: Corrupt, Status.UNSUPPORTED: Unsupported,
    Status.STALE: Stale, Status.IO: Io, Status.INTERNAL: Internal,
}


def error_of(status: int, words: str) -> Error:
    """The exception for a status. A status that this package does not know counts as INTERNAL."""
    known = Status(status) if status in Error.by_status else Status.INTERNAL
    return Error.by_status[known](known, words)


def check(status: int) -> None:
    """Raises the exception for a status that is not OK, with the text of the calling thread's last failure."""
    if status:
        raise error_of(status, lib.terrace_error().decode(errors="replace"))


def statuses_of(numbers: Any, count: int) -> list[Status]:
    """The first `count` of an array of statuses."""
    return [Status(numbers[i]) for i in range(count)]

"""The daemon as an engine's process sees it: a session for each KV group, and whether the daemon is there.

An engine goes on without its daemon. The first call that fails because the daemon is absent, dead or stopped puts the
store down: from then on every call is answered with Down at once, and one thread tries to reach the daemon again,
four times a second, with new sessions. Where the daemon answers the thread and then fails calls again within
STEADY_S, as one that has too much to do, each pause is twice the one before. So it is where the daemon refuses the
engine, because of its tenant, say. Leases of old sessions keep their bytes. Nothing raises into vLLM: callers catch
Down and terrace.Error, and take both for a miss.

A group has a session of its own, because vLLM looks its groups up one by one and by its own rules. The key of a block
is its hash (32 bytes with sha256 and sha256_cbor, 16 with xxhash), and the group is the layout, or a layout for each
worker."""

from __future__ import annotations

import logging
import threading
import time
from typing import Callable, Iterator, Optional, Sequence, TypeVar

import terrace

T = TypeVar("T")
logger = logging.getLogger("vllm.terrace")  # below vllm's logger, so that vLLM's settings hold
RETRY_S, RETRY_MOST_S = 0.25, 8.0
REFUSED_MOST_S = 30.0  # between attempts that the daemon refuses
STEADY_S = 10.0  # a daemon that has answered for so long is tried again after RETRY_S
FIRST_S = 5.0  # for the first connection; a daemon that is absent is then tried on
KEYS_MOST, BLOCKS_MOST = 4096, 32768  # of a call; struct terrace_keys


class Down(Exception):
    """The daemon cannot be reached now."""


_GONE = (terrace.Unavailable, terrace.Stale, terrace.Deadline)
_REFUSED = (terrace.Denied, terrace.Invalid, terrace.Unsupported)  # the daemon answers, and will not serve this engine


class Store:
    """The sessions of one process. layouts: {group: [terrace.Layout]}, one for each worker that has pages of its own."""

    def __init__(self, layouts: dict[int, Sequence[terrace.Layout]], address: Optional[str] = None,
                 tenant: Optional[str] = None, call_s: float = 0.25, engine: str = "vllm") -> None:
        self._layouts, self._address, self._tenant, self._engine = layouts, address, tenant, engine
        self.call_s = call_s
        self._lock = threading.Lock()
        self._sessions: Optional[dict[int, terrace.Session]] = None
        self._closed = threading.Event()
        self._trier: Optional[threading.Thread] = None
        self.generation = 0  # of the sessions: another daemon may have none of the blocks
        self._pause_s, self._up_at = RETRY_S, time.monotonic()
        self._refusal = ""  # that was logged last, and holds
        try:
            self._sessions = self._open(FIRST_S)
        except (terrace.Error, OSError) as e:
            self._down(e, None)

    @property
    def up(self) -> bool:
        """True while the daemon answers."""
        return self._sessions is not None

    def block_bytes(self, group: int) -> int:
        """Bytes of a group's block in all layouts."""
        return sum(layout.block_bytes for layout in self._layouts[group])

    def block_tokens(self, group: int) -> int:
        """Tokens of a group's block."""
        return self._layouts[group][0].block_tokens

    def pieces(self, group: int, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """The items of a group's keys in runs, each of which one call can take."""
        most = max(1, min(KEYS_MOST, BLOCKS_MOST // len(self._layouts[group])))
        for at in range(0, len(items), most):
            yield items[at:at + most]

    def _open(self, timeout: float) -> dict[int, terrace.Session]:
        client = terrace.connect(self._address, timeout=timeout)
        sessions = {}
        for group, layouts in self._layouts.items():
            # Rules of windows and states are vLLM's, which asks for single keys of such groups.
            sessions[group] = client.session(layouts, tenant=self._tenant, engine=self._engine, unchained_keys=len(self._layouts) > 1)
            if not sessions[group].borrows:
                raise terrace.Unavailable(terrace.Status.UNAVAILABLE, "the daemon lends no memory to this process: it must be on the same "
                                          "node and reached by its Unix socket")
        return sessions

    def _down(self, error: Exception, sessions: Optional[dict[int, terrace.Session]]) -> None:
        with self._lock:
            if sessions is not self._sessions:
                return  # another thread's call has failed before, and there may be new ones
            self._sessions = None
            if self._closed.is_set() or (self._trier is not None and self._trier.is_alive()):
                return
            steady = time.monotonic() - self._up_at >= STEADY_S
            self._pause_s = RETRY_S if steady or not self.generation else min(2 * self._pause_s, RETRY_MOST_S)
            if isinstance(error, _REFUSED):
                self._refused(error)
            else:
                logger.warning("Terrace does not answer (%s): the engine goes on without it, and tries it again every %g s",
                               error, self._pause_s)
            self._trier = threading.Thread(target=self._try, name="terrace-reopen", daemon=True)
            self._trier.start()

    def _refused(self, error: Exception) -> None:
        self._pause_s = min(2 * self._pause_s, REFUSED_MOST_S)
        if str(error) != self._refusal:
            self._refusal = str(error)
            logger.warning("Terrace refuses this engine (%s): the engine goes on without it, and tries it again, in the end "
                           "every %g s", error, REFUSED_MOST_S)

    def _reach(self) -> Optional[dict[int, terrace.Session]]:
        """New sessions of a daemon that answers, or None."""
        try:
            sessions = self._open(2.0)
            # A daemon that is stopped may still take connections.
            next(iter(sessions.values())).lookup([bytes(16)], timeout=2.0)
            return sessions
        except _REFUSED as e:
            self._refused(e)
            return None
        except (terrace.Error, OSError):
            if self._refusal:  # the daemon that refused has ended; the next may serve this engine
                self._refusal, self._pause_s = "", RETRY_S
            return None
        except Exception:  # without this thread the engine would never have Terrace again
            self._pause_s = min(2 * self._pause_s, RETRY_MOST_S)
            logger.exception("an attempt to reach Terrace failed; the next is in %g s", self._pause_s)
            return None

    def _try(self) -> None:
        while not self._closed.wait(self._pause_s):
            sessions = self._reach()
            if sessions is None:
                continue
            with self._lock:
                if not self._closed.is_set():
                    self.generation += 1
                    self._sessions = sessions
                    self._up_at, self._refusal = time.monotonic(), ""
                self._trier = None
            logger.warning("Terrace answers again")
            return

    def call(self, group: int, function: Callable[[terrace.Session], T], brief: bool = False) -> T:
        """function(session) of the group's session. Raises Down, or terrace.Error where the daemon refused this call alone. brief: the call
        has less time than call_s, and if it ends without an answer, Deadline, that says nothing of the daemon."""
        sessions = self._sessions
        if sessions is None:
            raise Down()
        try:
            return function(sessions[group])
        except _GONE as e:
            if brief and isinstance(e, terrace.Deadline):
                raise
            self._down(e, sessions)
            raise Down() from e

    def close(self) -> None:
        """Ends the trying, and the sessions once nothing uses them."""
        self._closed.set()
        with self._lock:
            self._sessions = None

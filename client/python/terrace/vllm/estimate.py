"""Load or recompute: running estimates of what computing tokens takes and of what loading bytes takes, and what
follows from them.

A rate is a mean that weighs the newest measure by a quarter. A disk's rate is forgotten after half a minute without a
load, so that a disk that was slow gets another chance; what is tried without a known rate may take a tenth of the
time that computing takes, and no longer. All methods may be called by any thread."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

SHARE_OF_NEW = 0.25
FORGET_S = 30.0
TRIAL_SHARE = 0.1  # of the time that computing takes, for a load whose rate is not known
UNKNOWN_COMPUTE_S = 0.05  # what a load may take while no step was measured


class Rate:
    """Units a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at = clock, 0.0
        self._rate: Optional[float] = None

    def add(self, units: float, seconds: float) -> None:
        """A measure: `units` took `seconds`."""
        if units <= 0 or seconds <= 0:
            return
        new = units / seconds
        self._rate = new if self._rate is None else self._rate + SHARE_OF_NEW * (new - self._rate)
        self._at = self._clock()

    def seconds(self, units: float, forget: Optional[float] = None) -> Optional[float]:
        """What `units` would take; None: not known."""
        if self._rate is None or (forget is not None and self._clock() - self._at > forget):
            return None
        return units / self._rate


class Estimate:
    """What is known of one engine and its store."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._compute, self._disk = Rate(clock), Rate(clock)

    def computed(self, tokens: int, seconds: float) -> None:
        """A step of the engine computed so many tokens."""
        with self._lock:
            self._compute.add(tokens, seconds)

    def loaded(self, disk_bytes: int, seconds: float) -> None:
        """So many bytes came from disks."""
        with self._lock:
            self._disk.add(disk_bytes, seconds)

    def compute_s(self, tokens: int) -> float:
        """What computing the tokens takes; UNKNOWN_COMPUTE_S while that is not known."""
        with self._lock:
            seconds = self._compute.seconds(tokens)
        return UNKNOWN_COMPUTE_S if seconds is None else seconds

    def disk_known(self) -> bool:
        """Whether a load from disks has been measured lately."""
        with self._lock:
            return self._disk.seconds(1, FORGET_S) is not None

    def budget_s(self, tokens: int, disk_bytes: int) -> float:
        """How long a load that spares the computing of so many tokens may be waited for; 0.0: do not load. Without disk_bytes the blocks are in
        memory, and the copy is always quicker than the computing."""
        compute = self.compute_s(tokens)
        if not disk_bytes:
            return compute
        with self._lock:
            load = self._disk.seconds(disk_bytes, FORGET_S)
        if load is None:
            return TRIAL_SHARE * compute
        return compute if load < compute else 0.0

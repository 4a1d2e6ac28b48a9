"""A promise of time on a machine that stalls: the promise stays what it is, and what the machine alone took is measured and taken off.

A thread that only sleeps shows it: each sleep that is too long by something was that much of a stall, of a busy processor, of one that was taken
away, or of a machine that stood still. A daemon that waits, or works on fewer processors than there are, makes no sleep longer.
"""

import threading
import time

NAP_S = 0.01


class Stalls:
    """What the machine stalled since the meter began, summed up; `with Stalls() as meter:`."""

    def __init__(self):
        self.lock, self.end = threading.Lock(), threading.Event()
        self.sum, self.due = 0.0, time.monotonic() + NAP_S
        self.thread = threading.Thread(target=self.nap, daemon=True)

    def nap(self):
        while not self.end.is_set():
            time.sleep(max(0.0, self.due - time.monotonic()))
            with self.lock:
                now = time.monotonic()
                self.sum += max(0.0, now - self.due)
                self.due = now + NAP_S

    def seconds(self):
        """That of the nap under way, too."""
        with self.lock:
            return self.sum + max(0.0, time.monotonic() - self.due)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()


def within(seconds, condition, what, at_most=10.0):
    """Waits until the condition holds, which must be within `seconds` and the stalls of that time, and within `at_most` in any case.

    Returns (the seconds that it took, those of them that the machine stalled).
    """
    begin = time.monotonic()
    with Stalls() as meter:
        while True:
            holds, took, stalled = condition(), time.monotonic() - begin, meter.seconds()
            if holds and took <= min(seconds + stalled, at_most):
                return took, stalled
            if holds or took > min(seconds + stalled, at_most):
                raise AssertionError("not within %g s (%.2f have passed, and in %.2f of them the machine stalled): %s" %
                                     (seconds, took, stalled, what))
            time.sleep(0.01)

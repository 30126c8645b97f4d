"""Wait for a condition that only polling can find: a socket that listens, a kernel state, the answer of a probe."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from railyard.core import watch
from railyard.core.errors import RailyardError

T = TypeVar("T")
POLL_S: Final = 0.005


def poll(check: Callable[[], T], within_s: float, poll_s: float = POLL_S) -> T:
    """Call `check` until its result is true or `within_s` are over, at least once; return its last result.

    ProcessMissing if a process that the run depends on died or is stopped.
    """
    started = looked = time.monotonic()
    while not (result := check()) and (now := time.monotonic()) < started + within_s:
        if now > looked + watch.STEP_S:
            watch.check()
            looked = now
        time.sleep(poll_s)
    return result


def sleep_until(end_s: float) -> None:
    """Wait until a time of the monotonic clock (s). ProcessMissing as soon as a process of the run is missing."""
    while (left_s := end_s - time.monotonic()) > 0:
        watch.check()
        time.sleep(min(left_s, watch.STEP_S))


def wait_until(
    check: Callable[[], T],
    awaited: str | Callable[[], str],
    within_s: float,
    poll_s: float = POLL_S,
    error: type[RailyardError] = RailyardError,
) -> T:
    """Call `check` until its result is true, and return that.

    `error` after `within_s`: "waited 5 s for WHAT". `awaited` is a phrase such as "rail0 to listen", or a function that
    makes it, for one with the last state.
    """
    result = poll(check, within_s, poll_s)
    if result:
        return result
    phrase = awaited if isinstance(awaited, str) else awaited()
    raise error(f"waited {within_s:g} s for {phrase}")

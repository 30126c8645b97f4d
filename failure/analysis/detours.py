"""How many detours are in force, by the controller's own word, and when the last of a fault's was withdrawn. Pure."""

from collections.abc import Sequence
from typing import Any, Final

Told = tuple[int, str, dict[str, Any]]
"""What a controller told: (monotonic ns, what, detail)."""
TOGETHER_NS: Final = 50_000_000
"""Acts closer than this were done as one."""


def in_force(events: Sequence[Told], at_ns: int | None = None) -> int:
    """How many detours there were at a moment, or are now; 0 before anything was rerouted."""
    counts = [count for told_ns, count in _counts(events) if at_ns is None or told_ns <= at_ns]
    return counts[-1] if counts else 0


def home_ms(events: Sequence[Told], repair_ns: int, until_ns: int | None, at_most: int) -> float | None:
    """From a repair until no more than so many detours are left, for good; None if that didn't come before `until`.

    0 if there were no more at the repair, and none came after it.
    """
    later = [(at, n) for at, n in _counts(events) if at > repair_ns and (until_ns is None or at < until_ns)]
    home = 0.0 if in_force(events, repair_ns) <= at_most else None
    for at, count in later:
        if count > at_most:
            home = None
        elif home is None:
            home = (at - repair_ns) / 1e6
    return home


def _counts(events: Sequence[Told]) -> list[tuple[int, int]]:
    return sorted((at, int(detail["detours"])) for at, what, detail in events if what == "rerouted")


def same_others(number: int, struck: Sequence[int], mended: Sequence[int], apart_ns: int) -> bool:
    """Whether what else was broken just before a fault was there, and nothing else, right after its repair too.

    `struck`, `mended`: when each fault was, ns, by number. Not so either if something was done within `apart_ns` before
    one of the two: its detours may have come or gone since.
    """
    begin, end = struck[number], mended[number]
    times = {n: times for n, times in enumerate(zip(struck, mended, strict=True)) if n != number}
    first_ns, last_ns = begin - TOGETHER_NS, end + TOGETHER_NS
    before = {n for n, (since, until) in times.items() if since < first_ns <= until}
    after = {n for n, (since, until) in times.items() if since <= last_ns < until}
    done = [at for both in times.values() for at in both]
    recent = any(act - apart_ns < at < act - TOGETHER_NS for at in done for act in (begin, end))
    return before == after and not recent

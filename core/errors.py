"""Errors by exit status.

RailyardError: 1. CheckFailed: 1, a check of the experiment failed. BadInput: 2, the user's input: field, value, what is
allowed. MissingRequirement: 3, the machine lacks something: what, and the command that installs it.
"""

import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

MAX_LINE: Final = 300  # characters of an error line
_OMITTED: Final = " ... "
MAX_NAMES: Final = 140  # characters of a list of names in it


class RailyardError(Exception):
    """Base of every error that the user gets in one line; `exit_status` is the program's."""

    exit_status = 1


class CheckFailed(RailyardError):
    """Failure of a check after a complete run."""


class BadInput(RailyardError):
    """A value that the user gave can't be used. Nothing has been built."""

    exit_status = 2

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field}: {value!r} {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class MissingRequirement(RailyardError):
    """The machine can't do it; `remedy` is what to type."""

    exit_status = 3

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.what = problem
        self.remedy = remedy


def unknown_name_hint(word: str, allowed: Iterable[str]) -> str:
    """Return `is not known: did you mean X? allowed are ...`, for the `allowed` part of a BadInput."""
    names = sorted(allowed)
    return f"is not known: {near_miss(word, names)}allowed are {first_names(names)}"


def near_miss(word: str, names: Iterable[str]) -> str:
    """Return `did you mean X? ` with the name that is most like a word; "" if none is."""
    by_lower_case = {name.lower(): name for name in names}
    close = get_close_matches(word.lower(), by_lower_case, n=1)
    if not close:
        return ""
    return f"did you mean {by_lower_case[close[0]]!r}? "


def first_names(names: Sequence[str], most: int = MAX_NAMES) -> str:
    """Return the first names, as `a, b and 12 more`. `most`: characters of the names and of what separates them."""
    shown: list[str] = []
    length = 0
    for name in names:
        length += len(name) + 2  # with what separates two
        if length > most:
            break
        shown.append(name)
    more = ""
    if len(shown) < len(names):
        more = f" and {len(names) - len(shown)} more"
    return f"{', '.join(shown)}{more}"


def nearest_multiples(count: int, step: int) -> str:
    """Return the multiples of `step` next to a count, for the `allowed` part of a BadInput: `768 or 1,024`."""
    below = count // step * step
    if not below:
        return f"{step:,}"
    return f"{below:,} or {below + step:,}"


def print_error(message: str, status: int) -> int:
    """Print a message on stderr, as `one_line`; return the exit status."""
    print(one_line(f"error: {message}"), file=sys.stderr)
    return status


def one_line(text: str) -> str:
    """Return text as one printable line of `MAX_LINE` characters at most, without its middle if need be.

    What is left out begins and ends between words, if there are any.
    """
    line = printable(" ".join(text.split()))
    if len(line) <= MAX_LINE:
        return line
    # the field is at the start, and what is allowed at the end
    half = (MAX_LINE - len(_OMITTED)) // 2
    start = line[: half + 1].rpartition(" ")[0] or line[:half]
    end = line[-half - 1 :].partition(" ")[2] or line[-half:]
    return f"{start}{_OMITTED}{end}"


def printable(text: str) -> str:
    """Return text with control characters, line breaks and halves of surrogate pairs as escapes: `\\x1b`."""
    return "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def nearest_divisors(count: int, total: int) -> str:
    """Return the divisors of `total` next to a count, for the `allowed` part of a BadInput: `8 or 12`."""
    # a number of any size may be given, and a near miss is what helps
    reach = 10_000
    start = min(count, total)
    below = next((n for n in range(start, max(start - reach, 0), -1) if total % n == 0), None)
    above = next((n for n in range(count, min(count + reach, total) + 1) if total % n == 0), None)
    return " or ".join(f"{n:,}" for n in (below, above) if n is not None)

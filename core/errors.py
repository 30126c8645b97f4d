"""Errors by exit status.

RailyardError: 1. CheckFailed: 1, a check of the experiment failed. BadInput: 2, the user's input: field, value, what is
allowed. MissingRequirement: 3, the machine lacks something: what, and the command that installs it.
"""

import sys
from collections.abc import Iterable
from difflib import get_close_matches


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
        self.field, self.value, self.allowed = field, value, allowed


class MissingRequirement(RailyardError):
    """The machine can't do it; `remedy` is what to type."""

    exit_status = 3

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what, self.remedy = what, remedy


def unknown_name_hint(word: str, known: Iterable[str]) -> str:
    """Return `is not known: did you mean X? (allowed: ...)`, for the `allowed` part of a BadInput."""
    names = sorted(known)
    lower = {name.lower(): name for name in names}
    close = get_close_matches(word.lower(), lower, n=1)
    hint = f"did you mean {lower[close[0]]!r}? " if close else ""
    return f"is not known: {hint}allowed are {', '.join(names)}"


def print_error(message: str, status: int) -> int:
    """Print one line to stderr; return the exit status."""
    print("error:", " ".join(message.split()), file=sys.stderr)
    return status

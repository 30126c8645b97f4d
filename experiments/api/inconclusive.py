"""Mark of an exception that says nothing about the fabric, since the machine was too busy to measure it."""

from typing import Final

# The mark is an attribute: exceptions can't be keys of a weak dictionary.
_KEY: Final = "railyard_inconclusive"


def mark(error: Exception, reason: str) -> None:
    """Mark an error with the reason; an empty one marks nothing, and the first one stays."""
    if reason:
        vars(error).setdefault(_KEY, reason)


def reason_of(error: BaseException | None) -> str:
    """Return the reason with which an error is marked; empty if it is not."""
    return str(vars(error).get(_KEY, "")) if error else ""

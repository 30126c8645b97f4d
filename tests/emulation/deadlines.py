"""Deadlines of tests: `--slow FACTOR` multiplies them."""

factor = 1.0
"""Set by conftest.py."""


def scaled(seconds: float) -> float:
    """Return a deadline for this machine, s."""
    return seconds * factor

"""Rates, sizes and times as people write them: `100Mbit`, `64KB`, `2MiB`, `20ms`.

Inside the code they are plain numbers: bit/s, bytes, seconds. A number without a unit is refused, since
half of all such numbers mean the other unit.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

RATES: Final = {"bit": 1, "kbit": 10**3, "Kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9, "Tbit": 10**12}
SIZES: Final = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
TIMES: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_NUMBER: Final = re.compile(r"\s*([+-]?[0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_WITH_ANY_UNIT: Final = re.compile(r"\s*([+-]?[0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ/]+)\s*")
_LONG_ENDINGS: Final = ("econds", "econd", "ecs", "ec", "utes", "ute", "s")  # of seconds and minutes
# the kernel and a parquet column can hold no larger number
_LARGEST: Final = 2.0**63


def _parse(
    text: object, units: dict[str, int] | dict[str, float], quantity: str, example: str, minimum: float = 0
) -> float:
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2] not in units:
        near_miss = _near_miss(text, units)
        meant = f"did you mean {near_miss}? " if near_miss else ""
        raise ValueError(f"is not a {quantity}: {meant}write a number and one of {', '.join(units)}, such as {example}")
    factor = units[match[2]]
    # by a whole number: 700 * 1e-3 isn't 0.7, 700 / 1000 is
    value = float(match[1]) * factor if factor >= 1 else float(match[1]) / round(1 / factor)
    if value <= 0 or value < minimum:
        raise ValueError(f"is not a {quantity} above zero, such as {example}")
    if value >= _LARGEST:
        raise ValueError(f"is too large for a {quantity}")
    return value


def _near_miss(text: object, units: Collection[str]) -> str:
    """Return the number with the unit that its spelling stands for: 20Mbps -> 20Mbit; "" if none does.

    Bits and bytes are never taken for each other.
    """
    match = _WITH_ANY_UNIT.fullmatch(text) if isinstance(text, str) else None
    if match is None or ("B" in match[2] and "bit" in units) or ("b" in match[2] and "B" in units):
        return ""
    word = match[2].removesuffix("/s").removesuffix("ps").lower().replace("µ", "u")
    stems = [word, f"{word}it", f"{word}bit", *(word.removesuffix(end) for end in _LONG_ENDINGS)]
    by_lower = {unit.lower(): unit for unit in reversed(list(units))}
    return next((match[1] + by_lower[stem] for stem in stems if stem in by_lower), "")


@dataclass(frozen=True, slots=True)
class Dimension:
    """A kind of quantity: its name in messages, and its units with their factors."""

    name: str
    units: Mapping[str, float]


DIMENSIONS: Final = (
    Dimension("a time", TIMES),
    Dimension("a size", SIZES),
    Dimension("a rate", RATES),
    Dimension("a frequency", {"1/s": 1.0, "/s": 1.0}),
    Dimension("a number", {"": 1.0, "%": 0.01}),
)
_QUANTITY: Final = re.compile(
    r"\s*+([+-]?+(?:[0-9][0-9_]*+(?:\.[0-9]++)?+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+)\s*+([^\s0-9.,][^\s]*+|1/s)?+\s*+"
)
_GROUPED: Final = re.compile(r"\s*+[+-]?+[0-9]{1,3}(?:,[0-9]{3}){2,}(?![0-9,])")


def dimension_of(unit: str) -> Dimension:
    """Return the dimension of a unit. ValueError, with all units, for a text that is none."""
    for dimension in DIMENSIONS:
        if unit in dimension.units:
            return dimension
    names = chain.from_iterable(dimension.units for dimension in DIMENSIONS)
    raise ValueError(f"{unit!r} is not a unit: allowed are {', '.join(filter(None, names))}")


def parse_quantity(text: str, unit: str) -> float:
    """Return the number of a text in `unit`: `2400 ms` in s is 2.4, `75%` in "" is 0.75. A bare number is in `unit`.

    ValueError for another text, for a unit of another dimension, and for a decimal comma. Commas may separate
    thousands only where they can't be decimal: 1,048,576 is a number, and 1,048 is not.
    """
    if _GROUPED.match(text):
        text = text.replace(",", "")
    if "," in text:
        raise ValueError("has a comma: write a decimal point, and no comma between thousands")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError("is not a number, with or without a unit")
    number = float(match[1])
    written = match[2] or ""
    if written.endswith("bit/s"):
        written = written.removesuffix("/s")
    if not written:
        return number
    expected = dimension_of(unit)
    actual = dimension_of(written)
    if actual is not expected:
        in_unit = f", in {unit}" if unit else ", without a unit"
        raise ValueError(f"is {actual.name}, and must be {expected.name}{in_unit}")
    return number * actual.units[written] / expected.units[unit]


def parse_rate(text: object) -> int:
    """`100Mbit` -> 100_000_000 bit/s."""
    return round(_parse(text, RATES, "rate", "100Mbit", minimum=1))


def parse_size(text: object) -> int:
    """`64KB` -> 64_000 bytes."""
    return round(_parse(text, SIZES, "size", "64KB", minimum=1))


def parse_time(text: object) -> float:
    """`20ms` -> 0.02 s."""
    return _parse(text, TIMES, "time", "20ms")


def _format(value: float, *steps: tuple[str, float], digits: int) -> str:
    name, factor = next((step for step in steps if value >= step[1]), steps[-1])
    scaled = value / factor
    # past the largest unit, %g would write an exponent
    if scaled >= 10**digits:
        return f"{scaled:.0f}{name}"
    return f"{scaled:.{digits}g}{name}"


def format_rate(bits_per_s: float, digits: int = 4) -> str:
    """100_000_000 -> `100Mbit`."""
    steps = (("Tbit", 1e12), ("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3), ("bit", 1.0))
    return _format(bits_per_s, *steps, digits=digits)


def format_size(size: float, digits: int = 4) -> str:
    """64_000 -> `64KB`."""
    return _format(size, ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3), ("B", 1.0), digits=digits)


def size_name(size: int) -> str:
    """2^26 -> `64MiB`. A size that is no whole number of MiB or KiB has a decimal unit."""
    for name, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor}{name}"
    return format_size(size)


def format_time(seconds: float, digits: int = 4) -> str:
    """0.02 -> `20ms`."""
    return _format(seconds, ("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), digits=digits)


# In a spec: parsed when read, and written back with every digit, so that a stored spec gives the same run again.
Rate = Annotated[int, BeforeValidator(parse_rate), PlainSerializer(lambda v: format_rate(v, 15), return_type=str)]
Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(lambda v: format_size(v, 15), return_type=str)]
Time = Annotated[float, BeforeValidator(parse_time), PlainSerializer(lambda v: format_time(v, 15), return_type=str)]


def time_between(shortest_s: float, longest_s: float = math.inf, reason: str = "") -> AfterValidator:
    """Return a validator of times in this range: `Annotated[Time, time_between(0.02, 1.0)]`.

    `reason`: why not less.
    """
    upper = " or more" if longest_s == math.inf else f" to {format_time(longest_s)}"
    allowed = f"must be {format_time(shortest_s)}{upper}"
    if reason:
        allowed += f": {reason}"

    def check(value: float) -> float:
        if not shortest_s <= value <= longest_s:
            raise ValueError(allowed)
        return value

    return AfterValidator(check)

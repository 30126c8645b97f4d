"""Numbers as people read them: four significant digits, a no-break space, the unit. `–` where there is none."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from railyard.core.errors import printable
from railyard.core.records import IntervalId

T = TypeVar("T")
_MARKS: Final = re.compile(r"([\\`*_\[\]<>|#])")  # what Markdown reads as markup
NOTHING: Final = "–"
_SPACE: Final = "\u00a0"
_SECONDS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES: Final = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B"))
_RATES: Final = ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))


def digits(value: float, count: int = 4) -> str:
    """1.0 -> `1.000`, 123.44 -> `123.4`, 12345 -> `12,345`: so that a column of like numbers lines up."""
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (count - 1):
        return f"{value:,.0f}"
    return f"{value:#.{count}g}".rstrip(".")


def or_dash(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return a function that shows a value like `show`, and None as a dash."""

    def show_or_dash(value: Any) -> str:
        if value is None:
            return NOTHING
        return show(value)

    return show_or_dash


def _step(value: float, steps: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """Return the largest unit that a value reaches, with its factor, or else the smallest one."""
    for step in steps:
        if abs(value) >= step[0]:
            return step
    return steps[-1]


def _scaled(value: float, steps: Sequence[tuple[float, str]]) -> str:
    factor, unit = _step(value, steps)
    if unit == "B" and value == int(value):
        return f"{int(value)}{_SPACE}{unit}"
    return f"{digits(value / factor)}{_SPACE}{unit}"


def seconds(value: float | None) -> str:
    """0.0123 -> `12.30 ms`."""
    if value is None:
        return NOTHING
    if value == 0:
        return f"0{_SPACE}s"
    return _scaled(value, _SECONDS)


size = or_dash(partial(_scaled, steps=_BYTES))  # 1_200_000 bytes -> `1.200 MB`
rate = or_dash(partial(_scaled, steps=_RATES))  # 1.2e9 bit/s -> `1.200 Gbit/s`
ratio = or_dash("{:.3f}".format)  # 1.0342 -> `1.034`
times = or_dash("{:.2f}x".format)  # 1.8432 -> `1.84x`


def percent(share: float | None, places: int = 1) -> str:
    """0.0831 -> `8.3%`."""
    if share is None:
        return NOTHING
    return f"{share:.{places}%}"


def interval(least: float | None, most: float | None) -> str:
    """1.1 and 1.3 -> `1.100 to 1.300`; a dash for a single value, or none."""
    if least is None or most is None or not least < most:
        return NOTHING
    return f"{ratio(least)} to {ratio(most)}"


def milliseconds(value: float | None) -> str:
    """12.34 -> `12.3 ms`; None is a step that never came before the repair."""
    if value is None:
        return "never"
    return f"{value:,.1f}{_SPACE}ms"


def quantity(value: float | None, unit: str) -> str:
    """A value of a measurement, by its unit: s, bit/s and B are scaled, a bare ratio gets three decimals."""
    if value is None:
        return NOTHING
    match unit:
        case "s":
            return seconds(value)
        case "bit/s":
            return rate(value)
        case "B" | "bytes":
            return size(value)
        case "" | "ratio":
            return ratio(value)
        case "1":
            return f"{value:,g}"
        case "share":
            # of any size, so with two digits instead of two places
            return f"{digits(value * 100, 2)}%"
        case "1/s":
            return f"{digits(value)}/s"
    return f"{digits(value)}{_SPACE}{unit}"


def short(text: str) -> str:
    """`500.0 KB` -> `500 KB`: for ticks, which are round."""
    return re.sub(r"(\.\d*?)0+(?=\D|$)", lambda m: m[1].rstrip("."), text)


def deviation(value: float, expected: float) -> str:
    """Return by how much a value is off: 1.02 of 1 -> `+2.00%`; a dash if nothing is expected."""
    if not expected:
        return NOTHING
    return f"{value / expected - 1:+z.2%}"


def change(value: float | None) -> str:
    """A ratio as what it adds: 1.083 -> `+8.3%`, 0.98 -> `-2.0%`."""
    if value is None:
        return NOTHING
    return f"{value - 1:+z.1%}"


def rows_with_room(rows: Sequence[T], most: int) -> Sequence[T]:
    """Return the first `most` rows, or all if just one more is there: its line is no longer than a note about it."""
    if len(rows) <= most + 1:
        return rows
    return rows[:most]


def how_often(count: int) -> str:
    """Return `once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def workload_label(interval: IntervalId) -> str:
    """Return what ran: `gpt`, `transfers, d0 90%`, `moe with two-at-once`, `link-down d0g1 (reroute on)`."""
    text = ", ".join(filter(None, (interval.workload, interval.scene)))
    if text and interval.script and interval.reroute == "off":
        return f"{text} with {interval.script} (reroute off)"
    if text and (interval.script or interval.part):
        return f"{text} with {interval.script or interval.part}"
    if text:
        return text
    faults = ": ".join(filter(None, (interval.script, interval.part)))
    if interval.reroute:
        return f"{faults} (reroute {interval.reroute})"
    return faults


def interval_label(interval: IntervalId, fabric: str = "") -> str:
    """Return fabric, what ran and the repeat; the fabric alone if nothing ran. `fabric`: its label beside others."""
    where = fabric or interval.fabric
    workload = workload_label(interval)
    if not workload:
        return where
    return f"{where}, {workload}, repeat {interval.repeat}"


def xml_text(text: str) -> str:
    """Return a text without characters that XML can't have."""
    characters: list[str] = []
    for character in text.replace("\u00a0", " "):
        is_allowed = character.isprintable() or character in "\n\t"
        characters.append(character if is_allowed else printable(character))
    return "".join(characters)


def markdown_cell(text: str) -> str:
    """Return a text that is no markup, in one line."""
    return _MARKS.sub(r"\\\1", xml_text(text).replace("\n", " ").replace("\t", " "))

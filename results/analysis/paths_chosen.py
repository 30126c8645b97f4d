"""Which share of the foreground's pairs went by which path, over time. Pure."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from railyard.results.analysis.intervals import MeasurementInterval

NONE: Final = "none"
_ORDER: Final = ("d", "r", "dr", "rd", "drd", "spine", NONE)


@dataclass(frozen=True, slots=True)
class Chosen:
    """`shares`: path -> its share of the pairs at each of `times_ns`, from then on; at each time they add up to 1."""

    times_ns: tuple[int, ...]
    shares: Mapping[str, tuple[float, ...]]


def path_shares_over_time(interval: MeasurementInterval, max_times: int) -> Chosen:
    """At `max_times` + 1 times or fewer: evenly over the interval. A pair with several paths counts as a part of each.

    Before its first choice a pair goes as it rests. Paths are in the order of their kind, then rail.
    """
    current_paths = {pair: paths_of(name) for pair, name in interval.default_paths.items()}
    count = Counter[str]()
    for paths in current_paths.values():
        count.update(_parts(paths, 1))
    step = max(1, (interval.end_ns - interval.begin_ns) // max_times)
    times = (*range(interval.begin_ns, interval.end_ns, step), interval.end_ns)
    applied, counts_over_time = 0, []
    for at in times:
        while applied < len(interval.choices) and interval.choices[applied].monotonic_ns <= at:
            choice = interval.choices[applied]
            pair, paths = (choice.src, choice.dst), paths_of(choice.paths)
            count.update(_parts(current_paths[pair], -1))
            count.update(_parts(paths, 1))
            current_paths[pair], applied = paths, applied + 1
        counts_over_time.append({name: parts for name, parts in count.items() if parts})
    names = sorted({name for parts in counts_over_time for name in parts}, key=_path_order)
    total_parts = _WHOLE * max(1, len(current_paths))
    return Chosen(
        times, {name: tuple(parts.get(name, 0) / total_parts for parts in counts_over_time) for name in names}
    )


_WHOLE: Final = 720_720
"""Parts of a pair: divided by any number up to 16 none is left over, so that sums stay exact."""


def _parts(paths: tuple[str, ...], sign: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in paths:
        found[path] = found.get(path, 0) + sign * (_WHOLE // len(paths))
    return found


def paths_of(paths_text: str) -> tuple[str, ...]:
    """`dr by rail 2 + drd by rail 4` -> both; nothing chosen is the path `none`."""
    return tuple(path for path in paths_text.split(" + ") if path) or (NONE,)


def rail_of(path: str) -> int:
    """Of `drd by rail 4`; 0 where the name has none."""
    found = re.search(r"by rail (\d+)$", path)
    return int(found[1]) if found else 0


def _path_order(path: str) -> tuple[int, int, str]:
    kind = path.partition(" ")[0]
    return (_ORDER.index(kind) if kind in _ORDER else len(_ORDER)), rail_of(path), path

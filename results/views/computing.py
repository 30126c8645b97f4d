"""Lines on the part of computing that an emulation keeps, with the full step by the formulas."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from railyard.results import format as fmt


def computing_lines(scales: Iterable[Mapping[str, Any]], compared: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each workload that keeps a part of its computing, with its full step on compared fabrics.

    With less computing, communication is a larger part of the step, so that fabrics look more different. `scales`: of
    each workload and fabric, as a run records them. `compared`: labels of a fabric and of its baseline.
    """
    by_workload: dict[str, dict[str, Mapping[str, Any]]] = {}
    for scale in scales:
        if float(scale["compute_kept"]) < 1:
            by_workload.setdefault(scale["workload"], {})[scale["fabric"]] = scale
    for workload, by_fabric in by_workload.items():
        first = next(iter(by_fabric.values()))
        line = f"{workload}: computing: {fmt.short(fmt.percent(first['compute_kept']))} kept"
        for label, baseline in compared:
            slow = by_fabric.get(label, {}).get("full_step_s")
            fast = by_fabric.get(baseline, {}).get("full_step_s")
            if slow and fast:
                platform = by_fabric[label]["platform"]
                line += f"; full step: {fmt.change(slow / fast)} on {label} by the formulas ({platform})"
        yield line

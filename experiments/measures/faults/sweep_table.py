"""Recovery from faults in the results of a sweep."""

from collections.abc import Sequence
from math import inf, isinf
from operator import itemgetter
from typing import Any, Final

import pandas as pd

from railyard.experiments.measures.faults.analysis import STEP_NAMES, STEPS
from railyard.results import format as fmt
from railyard.results.runs.records import VERDICTS
from railyard.results.views.table import Column, Table, text

_FAULT_KEYS: Final = ("fabric", "policy", "script", "fault", "target", "reroute")


def recoveries_table(recoveries: pd.DataFrame, axes: Sequence[str]) -> Table:
    """Return medians of the steps of the recovery from each fault, by the axes; None is never."""
    keys = [*axes, *_FAULT_KEYS]
    # a step that never came is longer than any other, so that the median is "never" if it is in most runs
    steps = recoveries[list(STEPS)].astype(float).fillna(inf)
    rows: list[dict[str, Any]] = []
    for values, group in recoveries.groupby(keys, sort=False, dropna=False):
        assert isinstance(values, tuple)
        row: dict[str, Any] = dict(zip(keys, values, strict=True))
        medians = steps.loc[group.index].median()
        for step in STEPS:
            row[step] = medians[step]
        row["n"] = len(group)
        row["verdict"] = max(group.verdict, key=VERDICTS.index)
        rows.append(row)
    columns = [text(key.rpartition(".")[2], itemgetter(key), str) for key in keys]
    columns += [Column("n", itemgetter("n"), str)]
    columns += [Column(STEP_NAMES[step], itemgetter(step), _step_text) for step in STEPS]
    columns += [text("verdict", itemgetter("verdict"))]
    table = Table(columns, rows, is_never_bad=lambda row: bool(row["reroute"] == "on"))
    return table.without_empty(("n", "verdict"))


def _step_text(milliseconds: float) -> str:
    return fmt.milliseconds(None if isinf(milliseconds) else milliseconds)

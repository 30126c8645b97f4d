"""Recovery from faults in the results of a sweep."""

from collections.abc import Sequence
from math import inf, isinf
from operator import itemgetter
from typing import Final

import pandas as pd

from railyard.experiments.measures.faults.analysis import STEP_NAMES, STEPS
from railyard.results import format as fmt
from railyard.results.runs.records import VERDICTS
from railyard.results.views.sweep import SEED, groups
from railyard.results.views.table import Column, Table, text

_FAULT_KEYS: Final = ("fabric", "policy", "script", "fault", "target", "reroute")


def recoveries_table(recoveries: pd.DataFrame, axes: Sequence[str]) -> Table:
    """Return medians of the steps of the recovery from each fault, by the axes apart from the seed; None is never."""
    keys = [*(axis for axis in axes if axis != SEED), *_FAULT_KEYS]
    steps = recoveries[list(STEPS)].astype(float).fillna(inf)
    found = [
        {
            **dict(zip(keys, values, strict=True)),
            **steps.loc[group.index].median().to_dict(),
            "n": len(group),
            "verdict": max(group.verdict, key=VERDICTS.index),
        }
        for values, group in groups(recoveries, keys)
    ]

    def shown(value: float) -> str:
        return fmt.milliseconds(None if isinf(value) else value)

    columns = [text(key.rpartition(".")[2], itemgetter(key), str) for key in keys]
    columns += [Column("n", itemgetter("n"), str)]
    columns += [Column(STEP_NAMES[step], itemgetter(step), shown) for step in STEPS]
    columns += [text("verdict", itemgetter("verdict"))]
    table = Table(columns, found, is_never_bad=lambda row: bool(row["reroute"] == "on"))
    return table.without_empty(("n", "verdict"))

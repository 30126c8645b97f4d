"""Placements in the results of a sweep: their order by the jobs' iterations, measured and predicted."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

import pandas as pd

from railyard.experiments.measures.jobs.records import TOGETHER
from railyard.results.runs.records import VERDICTS
from railyard.results.views.table import Table, text

_AXIS: Final = "placement"
# the column of a sweep's tables; the kernel imports no sweeps
_SEED: Final = "seed"
EQUAL: Final = 0.03
"""Predicted times that differ by less are equal: either order of their placements is as predicted."""


def placements_table(jobs: pd.DataFrame, axes: Sequence[str]) -> Table | None:
    """Return a row for each seed and combination of the other axes, with the placements from the best on.

    None without an axis of placements. `axes`: without the seed, since other tables take its mean.
    """
    # without the axis, jobs with several placements are different jobs of one run
    placements = [axis for axis in axes if axis.rpartition(".")[2] == _AXIS]
    if not placements:
        return None
    together = jobs[jobs["mode"] == TOGETHER]
    # runs of earlier versions have no mean over simulations
    predicted_s = pd.to_numeric(together["iteration_mean_s"]).fillna(together["iteration_predicted_s"])
    together = together.assign(predicted_s=predicted_s)
    keys = [*(axis for axis in axes if axis not in placements), "fabric"]
    # random placements differ by seed, and so does the order
    if _SEED in jobs:
        keys.insert(-1, _SEED)
    rows: list[dict[str, Any]] = []
    for values, group in together.groupby(keys, sort=False, dropna=False):
        row: dict[str, Any] = dict(zip(keys, values, strict=True))
        means = group.groupby(placements[0], sort=False)[["iteration_s", "predicted_s"]].mean()
        if len(means) < 2:
            continue
        measured = means["iteration_s"].sort_values()
        predicted = means["predicted_s"].sort_values()
        row["measured"] = ", ".join(map(str, measured.index))
        row["predicted"] = ", ".join(map(str, predicted.index))
        row["as predicted"] = "yes" if is_in_order(predicted[measured.index].tolist()) else "no"
        row["verdict"] = max(group.verdict, key=VERDICTS.index)
        rows.append(row)
    if not rows:
        return None
    columns = [text(key.rpartition(".")[2], itemgetter(key), str) for key in keys]
    columns += [text(key, itemgetter(key)) for key in ("measured", "predicted", "as predicted", "verdict")]
    return Table(columns, rows, title="Placements, best first")


def is_in_order(seconds: Sequence[float]) -> bool:
    """Return whether predicted times, in the measured order, rise or are equal."""
    longest_s = 0.0
    for predicted_s in seconds:
        if predicted_s < longest_s * (1 - EQUAL):
            return False
        longest_s = max(longest_s, predicted_s)
    return True

"""Placements of a sweep: their measured order beside the predicted one."""

import pandas as pd

from railyard.experiments.measures.jobs.sweep_table import is_in_order, placements_table


def frame(measured: dict[str, float], seed: int) -> pd.DataFrame:
    rows = []
    for placement, predicted_s in {"packed": 1.0, "spread": 2.0, "random": 2.02}.items():
        # without noise, all would take as long
        times = {"iteration_s": measured[placement], "iteration_predicted_s": 1.0, "iteration_mean_s": predicted_s}
        common = {"mode": "together", "fabric": "f", "placed_by": placement, "verdict": "ok", "placement": placement}
        rows.append({**common, **times, "seed": seed})
        rows.append({**common, **times, "seed": seed, "mode": "alone", "iteration_s": 9.0})
    return pd.DataFrame(rows)


def test_seeds_whose_order_is_as_predicted_are_named() -> None:
    right = frame({"packed": 1.1, "spread": 2.1, "random": 2.0}, 1)
    wrong = frame({"packed": 2.1, "spread": 2.0, "random": 3.0}, 2)
    table = placements_table(pd.concat([right, wrong], ignore_index=True), ["placement"])
    assert table is not None
    assert [(row["seed"], row["as predicted"]) for row in table.rows] == [(1, "yes"), (2, "no")]
    assert table.rows[0]["measured"] == "packed, random, spread"


def test_a_single_placement_has_no_order() -> None:
    one = frame({"packed": 1.0, "spread": 2.0, "random": 3.0}, 1).query("placed_by == 'packed'")
    assert placements_table(one, []) is None


def test_times_that_are_nearly_equal_have_any_order() -> None:
    assert is_in_order([1.0, 0.98, 2.0])
    assert not is_in_order([1.0, 0.95, 2.0])


def test_jobs_whose_placement_is_no_axis_are_not_ordered() -> None:
    runs = frame({"packed": 1.0, "spread": 2.0, "random": 3.0}, 1)
    assert placements_table(runs, []) is None


def test_jobs_with_given_gpus_count_for_each_placement() -> None:
    runs = frame({"packed": 1.0, "spread": 2.0, "random": 3.0}, 1)
    beside = runs.assign(placed_by="gpus")
    table = placements_table(pd.concat([runs, beside], ignore_index=True), ["placement"])
    assert table is not None
    assert [row["measured"] for row in table.rows] == ["packed, spread, random"]


def test_runs_without_a_mean_are_ordered_by_their_prediction() -> None:
    runs = frame({"packed": 1.0, "spread": 2.0, "random": 3.0}, 1)
    runs["iteration_predicted_s"] = runs.pop("iteration_mean_s")
    table = placements_table(runs.assign(iteration_mean_s=None), ["placement"])
    assert table is not None
    assert [row["predicted"] for row in table.rows] == ["packed, spread, random"]

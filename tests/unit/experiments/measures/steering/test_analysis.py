"""Results of a steered run: rows, checks, terminal output, and unknown values that are left out."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import inf
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.records import IntervalId
from railyard.experiments.measures.steering.analysis import (
    MeasurementInterval,
    PolicyRow,
    intervals,
    most_changed_pair,
    path_shares,
)
from railyard.experiments.measures.steering.records import CHOICES, HEALTH, Choice
from railyard.results.analysis.aggregate import pairs, slowdowns
from railyard.results.analysis.fidelity import judge
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Event, Measurement, Run
from tests.unit.sample_runs import PERIOD, SECOND, SETTLE, sample_run, steered_run
from tests.unit.shown import policy_rows, screen, summarise

POLICIES = ("dr", "health-drd", "oracle")
LIMIT = "route changes stay under the dwell limit"


def small(repeats: int = 1, policies: tuple[str, ...] = POLICIES, kinds: tuple[str, ...] = ("rail-only",)) -> Run:
    return steered_run(2, 4, repeats, policies, kinds)


def timed(run: Run, times: dict[str, list[float]]) -> Run:
    """The same with these times (s), a repeat each, twice as long as predicted."""
    run.measurements = [
        Measurement(
            IntervalId("rail-only", "transfers", policy, repeat=repeat), "", "completion_time", value, "s", value / 2
        )
        for policy, values in times.items()
        for repeat, value in enumerate(values)
    ]
    return run


def rows(run: Run) -> dict[str, PolicyRow]:
    (found,) = policy_rows(run).values()
    return {row.policy: row for row in found}


def test_policies_are_compared_by_repeat_in_spec_order() -> None:
    """Another repeat is other traffic: 10/2, 30/3 and 20/10 are 5, 10 and 2, whatever the medians' ratio is."""
    run = timed(small(3), {"oracle": [2, 3, 5], "dr": [10, 30, 20], "health-drd": [2, 3, 10]})
    found = rows(run)
    assert list(found) == list(POLICIES)
    row = found["health-drd"]
    assert (row.median, row.over_dr, row.over_oracle, row.ratio) == (3, 5, 1, 2)
    assert (found["dr"].over_dr, found["dr"].over_oracle, found["dr"].predicted) == (1, 5, 10)


@pytest.mark.parametrize(("policy", "doubtful"), [("dr", {"dr"}), ("health-drd", {"health-drd"})])
def test_policy_has_the_worst_verdict_of_its_own_times(policy: str, doubtful: set[str]) -> None:
    run = small(2)
    at = max(n for n, load in enumerate(run.loads) if load.policy == policy)
    run.loads[at] = replace(run.loads[at], cpu_busy=0.99)
    assert {name for name, row in rows(run).items() if row.verdict != "ok"} == doubtful
    shown = summarise(run)["headline"]["steering"]
    assert {row["policy"] for row in shown if row["verdict"] == "invalid"} == doubtful
    times = summarise(run)["headline"]["times"]
    of_times = {
        name.removeprefix("rail-only ")
        for row in times
        for name, spread in row["fabrics"].items()
        if row["phase"] == "" and spread["verdict"] == "invalid"
    }
    assert of_times == doubtful, "the table and summary.json agree"
    without_ratio = {name for name, row in rows(run).items() if row.over_dr is None}
    assert without_ratio == (set(POLICIES) if policy == "dr" else doubtful)


def test_a_policy_without_its_like_has_no_ratio() -> None:
    row = rows(timed(small(), {"health-drd": [3.0]}))["health-drd"]
    assert (row.over_dr, row.over_oracle) == (None, None)


def test_route_changes_count_during_the_foreground_alone() -> None:
    run = small(2)
    row = rows(run)["health-drd"]
    events = [s for s in intervals(run) if s.policy == "health-drd"]
    assert row.changes_per_s == pytest.approx(
        12 / sum((s.finished_ns - s.started_ns) / 1e9 for s in events)
    )  # 6 in each, of 12 in the interval
    assert (row.reaction_ms, row.worst_reaction_ms) == (median([7.5, 8.5, 12.5, 12.5]), 12.5)
    assert rows(run)["dr"].changes_per_s == 0
    assert rows(run)["dr"].reaction_ms is None


def test_first_choice_of_the_default_path_is_no_change() -> None:
    found = {s.policy: s for s in intervals(small())}
    assert set(found["dr"].changes().values()) == {0}
    assert found["health-drd"].changes() == {
        ("d0g0", "d1g1"): 3, ("d0g3", "d1g0"): 3, ("d0g0", "d1g0"): 3, ("d0g1", "d1g2"): 0, ("d0g2", "d1g3"): 0,
    }  # fmt: skip


@pytest.mark.parametrize(("policy", "first"), [("rd", "rd by rail 0"), ("spine", "spine"), ("dr", "dr by rail 1")])
def test_pair_without_a_choice_takes_the_fabrics_path(policy: str, first: str) -> None:
    run = small()
    run.fabrics = [replace(fabric, policy=policy) for fabric in run.fabrics]
    (interval, *_) = intervals(run)
    assert interval.default_paths["d0g0", "d1g1"] == first
    assert interval.default_paths["d0g0", "d1g0"] == "r by rail 0"


def test_every_interval_has_its_own_events() -> None:
    for interval in intervals(small(2)):
        (on,) = (e for e in interval.events if e.source == "background")  # its "off" comes after the last record
        assert on.what == "on"
        assert interval.begin_ns <= on.monotonic_ns <= interval.started_ns - SETTLE + PERIOD
        assert interval.finished_ns >= interval.health[-1].monotonic_ns


def flapping(gap_s: float, count: int) -> MeasurementInterval:
    """One pair that changes every `gap_s`."""
    run = small(policies=("health-drd",))
    where = IntervalId("rail-only", "transfers", "health-drd")
    begun = run.rows(HEALTH)[0].monotonic_ns
    run.rows(CHOICES)[:] = [
        Choice(where, begun + round(n * gap_s * SECOND), "d0g0", "d1g1", f"drd by rail {2 + n % 2}")
        for n in range(count)
    ]
    (interval,) = intervals(run)
    return interval


@given(gap=st.floats(0.01, 0.5), count=st.integers(1, 9), dwell=st.floats(0.05, 0.4))
def test_the_limit_is_one_and_one_more_a_dwell_time(gap: float, count: int, dwell: float) -> None:
    interval = flapping(gap, count)
    worst = most_changed_pair([interval], dwell)
    assert worst is not None
    assert (worst.pair, worst.changes) == (("d0g0", "d1g1"), count)
    assert worst.allowed == 1 + int((interval.end_ns - interval.begin_ns) / 1e9 / dwell)
    if gap >= dwell:
        assert worst.changes <= worst.allowed


def checked(run: Run) -> dict[str, bool]:
    return {c["name"]: c["passed"] for c in summarise(run)["checks"]}


def test_flapping_fails_the_run_and_names_the_pair() -> None:
    run = small()
    assert checked(run)[LIMIT] is True
    last = [choice for choice in run.rows(CHOICES) if choice.policy != "oracle"][-1]
    for n in range(1, 60):
        run.rows(CHOICES).append(replace(last, monotonic_ns=last.monotonic_ns - n, paths=f"drd by rail {n % 2}"))
    assert checked(run)[LIMIT] is False
    (message,) = (c["detail"] for c in summarise(run)["checks"] if c["name"] == LIMIT)
    assert f"{last.src} to {last.dst}" in message
    assert last.fabric in message


@pytest.mark.parametrize("change", [{"dwell": "none"}, {"dwell": "0s"}])
def test_without_a_dwell_time_there_is_no_limit(change: dict[str, str]) -> None:
    run = small()
    run.spec["routing"] |= change
    assert LIMIT not in checked(run)
    assert rows(run)["health-drd"].most_changed is None


def test_policy_slower_than_dr_does_not_fail_the_run() -> None:
    assert all(checked(timed(small(), {"dr": [1.0], "health-drd": [9.0], "oracle": [0.5]})).values())


def test_rail_ports_without_expected_bytes_are_not_judged() -> None:
    run = small()
    assert judge(run).verdict == "ok"
    run.bytes = [replace(c, rail_expected_bytes=c.rail_port_bytes // 2) for c in run.bytes]
    assert judge(run).verdict == "invalid"
    run.bytes = [replace(c, rail_expected_bytes=0) for c in run.bytes]
    del run.spec["routing"]
    run.links = [replace(run.links[0], fabric=f.label) for f in run.fabrics]
    assert judge(run).verdict == "invalid"  # without steering the rails must be idle, and were not


def test_links_that_are_calibrated_once_vouch_for_every_policy() -> None:
    run = small()
    run.links = [replace(link, measured_bps=link.expected_bps * 0.95) for link in run.links]
    assert set(judge(run).intervals.values()) == {"degraded"}
    run.links = []
    assert judge(run).reasons == ("rail-only: its links were not calibrated",)


def test_fabrics_are_compared_under_the_same_policy() -> None:
    run = small(kinds=("rail-only", "rail-optimized"))
    assert [(a.label, b.label) for a, b in pairs(run)] == [("rail-only", "rail-optimized")]
    assert {s.interval.policy for s in slowdowns(run, Analysis(run).rows)} == set(POLICIES)
    assert len(summarise(run)["headline"]["slowdown"]) == len(POLICIES) * 3  # the whole, and two phases


def test_the_summary_has_the_rows_as_plain_data() -> None:
    headline = json.loads(json.dumps(summarise(small(2, kinds=("rail-only", "rail-optimized")))["headline"]))
    assert [(r["fabric"], r["policy"]) for r in headline["steering"]] == [
        (kind, policy) for kind in ("rail-only", "rail-optimized") for policy in POLICIES
    ]
    row = headline["steering"][1]
    assert row["min"] <= row["median"] <= row["max"]
    assert (row["repeats"], row["most_changes_of_a_pair"], row["workload"]) == (2, 3, "transfers")
    assert summarise(sample_run(2, 2, 1))["headline"]["steering"] == []


@pytest.mark.parametrize(("width", "most_lines"), [(80, 60), (100, 42)])
def test_the_screen_has_a_line_a_policy(width: int, most_lines: int) -> None:
    parts = 2 if width == 80 else 1  # of the table
    run = steered_run(2, 4, 2, kinds=("rail-only", "rail-optimized"))
    lines = screen(run, width)
    assert len(lines) <= most_lines
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("health-drd ") for line in lines) == 2 * parts
    assert not any("…" in line and not line.startswith(("✓", "✗")) for line in lines)
    assert not any("rail-only health-drd" in line for line in lines if not line.startswith("✓"))
    row = next(line.split() for line in lines if line.startswith("health-drd "))
    assert "3" in row  # 3 changes of those allowed
    assert f"{rows(steered_run(2, 4, 2))['health-drd'].over_dr:.2f}" in row


def test_tables_that_the_screen_has_no_room_for_are_counted() -> None:
    run = steered_run(2, 4, 1, kinds=("rail-only",), workloads=("a", "b", "c", "d"))
    lines = screen(run)
    assert any("1 more such tables" in line for line in lines)
    assert len(lines) <= 42


def test_partial_runs_have_a_screen() -> None:
    changes: list[Callable[[Run], Any]] = [
        lambda run: run.measurements.clear(), lambda run: run.events.clear(), lambda run: run.rows(HEALTH).clear(),
        lambda run: run.rows(CHOICES).clear(), lambda run: run.flows.clear(), lambda run: run.fabrics.clear(),
    ]  # fmt: skip
    for change in changes:
        run = small()
        change(run)
        assert screen(run)[0].startswith("hot-rail")


def test_shares_of_paths_add_up_and_follow_the_choices() -> None:
    interval = next(s for s in intervals(small(policies=("health-spray",))))
    shares = path_shares(interval, 50)
    assert len(shares) <= 52
    assert shares.sum(axis="columns").to_list() == pytest.approx([1] * len(shares))
    first, last = shares.iloc[0], shares.iloc[-1]
    assert (first["dr by rail 0"], last["dr by rail 0"]) == (pytest.approx(1 / 5), 0)
    assert last["drd by rail 2"] == pytest.approx((0.5 + 0.5 + 1) / 5)  # two sprays of two, one of twice 2
    assert list(shares) == sorted(map(str, shares), key=lambda name: (["r", "dr", "drd"].index(name.split()[0]), name))


def test_pair_without_any_path_counts_as_none() -> None:
    interval = next(s for s in intervals(small(policies=("health-drd",))))
    last = replace(interval.choices[-1], paths="")
    shares = path_shares(replace(interval, choices=(*interval.choices[:-1], last)), 50)
    assert shares["none"].iloc[-1] == pytest.approx(1 / len(interval.default_paths))
    assert path_shares(replace(interval, choices=(), default_paths={}), 50).empty


def test_an_event_of_another_fabric_is_not_taken_for_ones_own() -> None:
    run = small(policies=("health-drd",))
    detail = {
        "fabric": "other health-drd",
        "policy": "health-drd",
        "repeat": 0,
        "routes": 9,
        "sources": 9,
        "ms": inf,
        "version": 1,
    }
    run.events.append(Event(run.rows(HEALTH)[10].monotonic_ns, "steering", "changed", detail))
    assert rows(run)["health-drd"].worst_reaction_ms == 12.5


def test_reaction_lasts_until_the_last_batch() -> None:
    run = small(policies=("health-drd",))
    changed = next(e for e in run.events if e.what == "changed" and e.detail["version"] == 1)
    assert rows(run)["health-drd"].reaction_ms == 10.0  # of 7.5 and 12.5
    for more in ({"ms": 30.0}, {"version": 99, "ms": None}):
        run.events.append(replace(changed, monotonic_ns=changed.monotonic_ns + 1, detail=changed.detail | more))
    row = rows(run)["health-drd"]
    assert (row.reaction_ms, row.worst_reaction_ms) == (median([30.0, 12.5]), 30.0)


def test_the_oracle_is_under_no_dwell_limit() -> None:
    run = small(policies=("oracle",))
    assert run.rows(CHOICES)
    assert "route changes stay under the dwell limit" not in checked(run)

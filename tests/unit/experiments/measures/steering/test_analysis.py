"""Results of a steered run: rows, checks, terminal output, and unknown values that are left out."""

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
    rail_evenness,
)
from railyard.experiments.measures.steering.checks import checks
from railyard.experiments.measures.steering.records import CHOICES, HEALTH, Choice, HealthSample
from railyard.results.analysis.fidelity import judge
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.slowdowns import pairs, slowdowns_of
from railyard.results.measured import Check, RecordKind
from railyard.results.runs.records import Event, Measurement, Run
from tests.unit.sample_runs import SECOND
from tests.unit.shown import policy_rows, screen, summarise
from tests.unit.steered_runs import PERIOD, SETTLE, steered_run

POLICIES = ("dr", "health-drd", "oracle")


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
    (policies,) = policy_rows(run).values()
    return {row.policy: row for row in policies}


def test_policies_are_compared_by_repeat_in_spec_order() -> None:
    """Another repeat is other traffic: 10/2, 30/3 and 20/10 are 5, 10 and 2, whatever the medians' ratio is."""
    by_policy = rows(timed(small(3), {"oracle": [2, 3, 5], "dr": [10, 30, 20], "health-drd": [2, 3, 10]}))
    assert list(by_policy) == list(POLICIES)
    row = by_policy["health-drd"]
    assert (row.median, row.over_dr, row.over_oracle, row.ratio) == (3, 5, 1, 2)
    assert (by_policy["dr"].over_dr, by_policy["dr"].over_oracle, by_policy["dr"].predicted) == (1, 5, 10)
    alone = rows(timed(small(), {"health-drd": [3.0]}))["health-drd"]
    assert (alone.over_dr, alone.over_oracle) == (None, None)


@pytest.mark.parametrize(("policy", "without_ratio"), [("dr", set(POLICIES)), ("health-drd", {"health-drd"})])
def test_policy_has_the_worst_verdict_of_its_own_times(policy: str, without_ratio: set[str]) -> None:
    run = small(2)
    at = max(n for n, load in enumerate(run.loads) if load.policy == policy)
    run.loads[at] = replace(run.loads[at], cpu_busy=0.99)
    by_policy = rows(run)
    assert {row.policy: row.verdict for row in by_policy.values()} == dict.fromkeys(POLICIES, "ok") | {
        policy: "invalid"
    }
    assert {row.policy for row in by_policy.values() if row.over_dr is None} == without_ratio
    # the table of times agrees
    whole = next(row for row in Analysis(run).times if not row.phase)
    assert whole.by_fabric[f"rail-only {policy}"].verdict == "invalid"


def test_route_changes_count_during_the_foreground_alone() -> None:
    run = small(2)
    seconds = [(each.finished_ns - each.started_ns) / 1e9 for each in intervals(run) if each.policy == "health-drd"]
    row = rows(run)["health-drd"]
    # 6 in each, of 12 in the interval
    assert row.changes_per_s == pytest.approx(12 / sum(seconds))
    assert (row.reaction_ms, row.worst_reaction_ms) == (median([7.5, 8.5, 12.5, 12.5]), 12.5)
    assert (rows(run)["dr"].changes_per_s, rows(run)["dr"].reaction_ms) == (0, None)


def test_first_choice_of_the_default_path_is_no_change() -> None:
    by_policy = {interval.policy: interval for interval in intervals(small())}
    assert set(by_policy["dr"].changes().values()) == {0}
    assert by_policy["health-drd"].changes() == {
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


def dwell_check(run: Run) -> Check:
    """Return the check of dwell times."""
    (check,) = checks(Analysis(run))
    return check


def test_flapping_fails_the_run_and_names_the_pair() -> None:
    run = small()
    assert dwell_check(run).passed
    last = [choice for choice in run.rows(CHOICES) if choice.policy != "oracle"][-1]
    for n in range(1, 60):
        run.rows(CHOICES).append(replace(last, monotonic_ns=last.monotonic_ns - n, paths=f"drd by rail {n % 2}"))
    check = dwell_check(run)
    assert not check.passed
    assert f"{last.src} to {last.dst}" in check.detail
    assert last.fabric in check.detail


@pytest.mark.parametrize("change", [{"dwell": "none"}, {"dwell": "0s"}])
def test_without_a_dwell_time_there_is_no_limit(change: dict[str, str]) -> None:
    run = small()
    run.spec["routing"] |= change
    assert list(checks(Analysis(run))) == []
    assert rows(run)["health-drd"].most_changed is None


def test_policy_slower_than_dr_does_not_fail_the_run() -> None:
    analysis = Analysis(timed(small(), {"dr": [1.0], "health-drd": [9.0], "oracle": [0.5]}))
    assert analysis.checks
    assert analysis.passed


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
    (reason,) = judge(run).reasons
    assert reason.startswith("rail-only: ")


def test_fabrics_are_compared_under_the_same_policy() -> None:
    run = small(kinds=("rail-only", "rail-optimized"))
    assert [(a.label, b.label) for a, b in pairs(run)] == [("rail-only", "rail-optimized")]
    assert {s.interval.policy for s in slowdowns_of(run, Analysis(run).rows)} == set(POLICIES)
    assert len(summarise(run)["headline"]["slowdown"]) == len(POLICIES) * 3  # the whole, and two phases


def test_the_screen_has_a_line_a_policy_and_counts_other_tables() -> None:
    lines = screen(steered_run(2, 4, 1, kinds=("rail-only",), workloads=("a", "b", "c", "d")))
    assert len(lines) <= 42
    assert max(map(len, lines)) <= 100
    assert len([line for line in lines if line.startswith("health-drd ")]) == 2
    assert any("1 more such tables" in line for line in lines)


@pytest.mark.parametrize("records", ["measurements", "events", "flows", "fabrics", HEALTH, CHOICES])
def test_partial_runs_have_a_screen(records: str | RecordKind[Any]) -> None:
    run = small()
    kept = getattr(run, records) if isinstance(records, str) else run.rows(records)
    kept.clear()
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


def test_evenness_is_jains_index_of_the_bytes_added() -> None:
    """Rails 0 and 1 get 0.3 and 0.1 beside their background of 0.5: (0.3 + 0.1)^2 / (4 (0.3^2 + 0.1^2)) = 0.4."""
    run = small(policies=("health-spray",))
    (interval,) = intervals(run)
    background = {0: 0.5, 1: 0.5, 2: 0.0, 3: 0.2}
    added = {0: 0.3, 1: 0.1, 2: 0.0, 3: 0.0}
    health: list[HealthSample] = []
    for sample in interval.health:
        if sample.element == "rail":
            load = background[sample.index]
            if sample.monotonic_ns > interval.started_ns:
                load += added[sample.index]
            health.append(replace(sample, load=load))
    even = replace(interval, health=tuple(health))
    assert rail_evenness(even) == pytest.approx(0.4)
    changed = Event(interval.started_ns + 1, "background", "off", {})
    assert rail_evenness(replace(even, events=(*interval.events, changed))) is None
    begin = [sample for sample in health if sample.monotonic_ns <= interval.started_ns]
    assert rail_evenness(replace(even, health=tuple(begin))) is None


def test_pair_without_any_path_counts_as_none() -> None:
    interval = next(s for s in intervals(small(policies=("health-drd",))))
    last = replace(interval.choices[-1], paths="")
    shares = path_shares(replace(interval, choices=(*interval.choices[:-1], last)), 50)
    assert shares["none"].iloc[-1] == pytest.approx(1 / len(interval.default_paths))
    assert path_shares(replace(interval, choices=(), default_paths={}), 50).empty


def test_an_event_of_another_fabric_is_not_taken_for_ones_own() -> None:
    run = small(policies=("health-drd",))
    detail = {"fabric": "other", "policy": "health-drd", "repeat": 0, "routes": 9, "ms": inf, "version": 1}
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
    assert list(checks(Analysis(run))) == []

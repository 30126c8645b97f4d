"""The verdict falls at its limits, says why in numbers, and is never better than its evidence."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.records import IntervalId
from railyard.experiments.measures.allreduce.records import LostRails, allreduce_interval
from railyard.results.analysis.fidelity import Judgement, judge
from railyard.results.runs.records import (
    ByteCheck,
    FabricRun,
    LinkCheck,
    Load,
    MachineSample,
    Measurement,
    Run,
    Verdict,
)
from tests.unit.replaced import replaced
from tests.unit.sample_runs import sample_run

GPT = IntervalId("rail-only", "gpt", "dr")
CALM = Load(GPT, 0.4, 0.01, 1.0, retransmits=0, segments=100_000, drops=0)
EXACT = ByteCheck(GPT, 10**6, 10**6, 0, 500_000, 500_000, 0)
TRUE_LINK = LinkCheck("rail-only", "rail", "d0g0:rail0", 1e8, 1e8)


def judged(load: Load = CALM, check: ByteCheck = EXACT, link: LinkCheck = TRUE_LINK, *rows: Measurement) -> Judgement:
    return judge(Run("r", {}, {}, "now", loads=[load], bytes=[check], links=[link], measurements=[*rows]))


LOADS: tuple[dict[str, Any], ...] = (
    {},
    {"cpu_busy": 0.85},
    {"cpu_busy": 0.86},
    {"cpu_busy": 0.98},
    {"cpu_foreign": 0.2},
    {"cpu_foreign": 0.5},
    {"lag_p99_ms": 6.0},
    {"lag_p99_ms": 51.0},
    {"lag_p99_ms": 17.0, "late_ms": 18.0},  # a frame takes 72 ms
    {"lag_p99_ms": 19.0, "late_ms": 18.0},
    {"lag_p99_ms": 51.0, "late_ms": 18.0},
    {"paused": 0.06, "late_ms": 18.0},
    {"cpu_stolen": 0.06},
    {"cpu_stolen": 0.45},
    {"cpu_throttled": 0.02},
    {"cpu_throttled": 0.2},
    {"cpu_resolution": 0.05, "cpu_busy": 0.98},
    {"cpu_resolution": 0.5},  # an interval of 20 ms
    {"cpu_resolution": 0.5, "cpu_busy": 1.0, "cpu_foreign": 0.8},
    {"cpu_resolution": 0.5, "cpu_foreign": 0.95},
    {"paused": 0.06},
    {"foreign_100ms": 0.6},
    {"pause_ms": 40.0},  # 1% of a workload's time
    {"pause_ms": 12.0, "transfers_faulted": True},
    {"pause_ms": 50.0, "transfers_faulted": True},
    {"retransmits": 100},
    {"retransmits": 200},
    {"retransmits": 2_100},
    {"drops": 200},
    {"drops": 2_100},
    {"drops": 200, "drops_node": "rail3", "drops_interface": "d2g3", "drops_most": 150},
    {"needless_retransmits": 1_000},
    {"needless_retransmits": 2_000},
    {"needless_retransmits": 9_000, "rerouted": True},
    {"retransmits": 9_000, "drops": 9_000, "transfers_faulted": True},
)


def test_load_above_its_limits_is_a_reason(data_regression: DataRegressionFixture) -> None:
    reasons: dict[str, str] = {}
    for change in LOADS:
        judgement = judged(replace(CALM, **change))
        assert judgement.intervals == {GPT: judgement.verdict}
        case = ", ".join(f"{name} {value}" for name, value in change.items())
        reasons[case or "calm"] = " ".join(judgement.reasons) or judgement.verdict
    data_regression.check(reasons)


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [(0.98e8, "ok"), (0.96e8, "degraded"), (1.04e8, "degraded"), (0.89e8, "invalid"), (1.2e8, "invalid")],
)
def test_links(measured: float, verdict: Verdict) -> None:
    assert judged(link=replace(TRUE_LINK, measured_bps=measured)).verdict == verdict


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"delivered_bytes": 10**6 - 1}, "invalid"),
        ({"delivered_bytes": 10**6 + 1}, "invalid"),
        ({"pairs_wrong": 2}, "invalid"),  # the totals may agree while two pairs don't
        ({"rail_port_bytes": 509_000}, "ok"),
        ({"rail_port_bytes": 511_000}, "degraded"),
        ({"rail_port_bytes": 489_000}, "degraded"),
        ({"rail_port_bytes": 560_000}, "invalid"),
        ({"rail_port_bytes": 10_000, "rail_expected_bytes": 0}, "ok"),  # 1% of what was sent within HB domains
        ({"rail_port_bytes": 200_000, "rail_expected_bytes": 0}, "invalid"),
    ],
)
def test_bytes(change: dict[str, Any], verdict: Verdict) -> None:
    assert judged(check=replace(EXACT, **change)).verdict == verdict


def test_bytes_lost_to_an_intended_fault_are_not_judged() -> None:
    assert judged(replace(CALM, transfers_faulted=True), replace(EXACT, delivered_bytes=5)).verdict == "ok"


def test_gaps_and_lost_rails_are_reasons(data_regression: DataRegressionFixture) -> None:
    lost = {policy: allreduce_interval("rail-only", policy, 2048) for policy in ("nezha", "mrib")}
    rails = Run("r", {}, {}, "now", loads=[replace(CALM, interval=interval) for interval in lost.values()])
    LostRails(lost["nezha"], ("a",), kept=False).add_to(rails)
    LostRails(lost["nezha"], ("a", "b"), kept=False).add_to(rails)
    judgements = {"no records": judge(Run("r", {}, {}, "now")), "rail lost": judge(rails)}
    LostRails(lost["mrib"], ("a", "b"), kept=True).add_to(rails)
    judgements["rail missing"] = judge(rails)
    assert judgements["rail lost"].intervals[lost["nezha"]] == "degraded"
    assert judgements["rail missing"].intervals[lost["mrib"]] == "invalid"
    links = [TRUE_LINK, replace(TRUE_LINK, link="d3g1:rail0", measured_bps=5e7)]
    judgements["one slow link"] = judge(Run("r", {}, {}, "now", links=links))
    whole = sample_run(2, 2, 1)
    judgements["whole"] = judge(whole)
    judgements["interrupted"] = judge(replace(whole, interrupted=True))
    whole.links = [link for link in whole.links if link.fabric == "rail-only"]
    whole.loads = [load for load in whole.loads if load.workload != "moe"]
    judgements["gaps"] = judge(whole)
    loads = [replaced(CALM, repeat=repeat, cpu_busy=busy) for repeat, busy in enumerate((0.9, 0.95, 0.88))]
    loads.append(replaced(CALM, repeat=3, lag_p99_ms=70.0))
    judgements["several reasons of a fabric"] = judge(Run("r", {}, {}, "now", loads=loads))
    data_regression.check({case: [judgement.verdict, *judgement.reasons] for case, judgement in judgements.items()})


def test_interval_verdict_includes_its_fabrics_links() -> None:
    run = sample_run(2, 2, 2)
    at = next(i for i, x in enumerate(run.loads) if (x.fabric, x.workload, x.repeat) == ("rail-only", "moe", 1))
    run.loads[at] = replace(run.loads[at], cpu_busy=0.99)
    run.links.append(LinkCheck("rail-optimized", "uplink", "rail0:spine0", 1e8, 0.95e8))
    intervals = judge(run).intervals
    bad = {key: verdict for key, verdict in intervals.items() if key.fabric == "rail-only" and verdict != "ok"}
    assert bad == {IntervalId("rail-only", "moe", "dr", repeat=1): "invalid"}
    assert {verdict for key, verdict in intervals.items() if key.fabric == "rail-optimized"} == {"degraded"}


def test_links_of_a_slow_build_count_for_its_own_intervals() -> None:
    loads = [replaced(CALM, workload=f"{times:g}x", dilation=times) for times in (1.0, 4.0, 6.0)]
    checks = {1.0: 1e8, 4.0: 0.8e8, 6.0: 0.95e8}
    links = [replace(TRUE_LINK, measured_bps=bps, dilation=times) for times, bps in checks.items()]
    judgement = judge(Run("r", {}, {}, "now", loads=loads, links=links))
    reported = {interval.workload: verdict for interval, verdict in judgement.intervals.items()}
    assert reported == {"1x": "ok", "4x": "invalid", "6x": "degraded"}
    assert judgement.verdict == "invalid"


def measured(value: float, predicted: float = 1.0, phase: str = "", most: float = 1.0) -> Measurement:
    return Measurement(GPT, phase, "completion_time", value, "s", predicted, 1.0, most)


@pytest.mark.parametrize(
    ("row", "verdict", "own"),
    [
        (measured(1.049), "ok", "ok"),
        (measured(1.06), "degraded", "degraded"),
        (measured(0.94), "degraded", "degraded"),
        (measured(1.12, most=1.08), "ok", "ok"),  # the term that Eq. 6 leaves out
        (measured(3.0, most=inf), "ok", "ok"),  # a bound
        (measured(0.94, most=inf), "degraded", "degraded"),
        (measured(0.075, 0.05, "pp"), "ok", "degraded"),  # its resolution is not known
        (replace(measured(0.075, 0.05, "pp"), frames=9.0), "degraded", "degraded"),
        (replace(measured(3.0), explained_least=0.0, explained_most=inf), "ok", "ok"),  # a mean over hashes
    ],
)
def test_row_that_deviates_unexplained_is_not_ok(row: Measurement, verdict: Verdict, own: Verdict) -> None:
    judgement = judged(CALM, EXACT, TRUE_LINK, row)
    assert (judgement.verdict, judgement.of_row(row)) == (verdict, own)
    assert ("unexplained" in " ".join(judgement.reasons)) == (verdict == "degraded")


@pytest.mark.parametrize(("value", "says_so"), [(1.2, True), (0.8, False)])
def test_slow_row_names_cores_that_were_busy(value: float, says_so: bool) -> None:
    """The mean load of an interval doesn't show that its bursts had all cores."""
    samples = [MachineSample(GPT, n * 10**8, 0.99 if n < 5 else 0.1, 0.0, 0.1) for n in range(20)]
    run = Run("r", {}, {}, "now", loads=[CALM], bytes=[EXACT], links=[TRUE_LINK], machine=samples)
    run.measurements.append(measured(value))
    reasons = " ".join(judge(run).reasons)
    assert ("0.50 s" in reasons) == says_so


@pytest.mark.parametrize(
    ("ratio", "credit", "shared", "own", "run"),
    [
        (1.02, 0.04, "", "ok", "ok"),
        (1.08, 0.04, "", "degraded", "degraded"),
        (1.08, 0.04, "dp", "not compared", "ok"),
        (1.04, 0.06, "", "below resolution", "ok"),
        (1.08, 0.06, "", "degraded", "degraded"),  # idle credit makes nothing slower
        (3.5, 0.45, "", "degraded", "degraded"),
        (3.5, 0.45, "dp", "below resolution", "ok"),
        (0.61, 0.45, "", "below resolution", "ok"),
        (0.61, 0.05, "", "invalid", "invalid"),
        (0.5, 0.45, "dp", "invalid", "invalid"),
        (0.5, 1.5, "", "below resolution", "ok"),
    ],
)
def test_row_is_compared_only_above_resolution(
    ratio: float, credit: float, shared: str, own: Verdict, run: Verdict
) -> None:
    row = replace(measured(ratio, phase="pp"), frames=7.0, credit_share=credit, shares_links_with=shared)
    judgement = judged(CALM, EXACT, TRUE_LINK, row)
    assert (judgement.of_row(row), judgement.verdict) == (own, run)
    judgement = judged(CALM, EXACT, TRUE_LINK, replace(row, phase=""))
    assert (judgement.verdict == "degraded") == (own in {"degraded", "below resolution"})


def test_late_threads_put_a_short_row_below_resolution() -> None:
    row = replace(measured(0.0104, 0.01, phase="pp"), frames=7.0)
    assert judged(replace(CALM, lag_p99_ms=0.1), EXACT, TRUE_LINK, row).of_row(row) == "ok"
    for value, verdict in ((0.0104, "below resolution"), (0.0112, "below resolution"), (0.0125, "degraded")):
        slower = replace(row, value=value)  # a thread is up to 10% late; 5% beyond that are not explained
        assert judged(replace(CALM, lag_p99_ms=1.0), EXACT, TRUE_LINK, slower).of_row(slower) == verdict


def test_a_pause_may_prolong_a_row_below_resolution() -> None:
    paused = replace(CALM, lag_p99_ms=1.0, pause_ms=8.0)
    for value, verdict in ((0.0181, "below resolution"), (0.0199, "degraded")):
        row = replace(measured(value, 0.01, "dp"), frames=7.0)
        assert judged(paused, EXACT, TRUE_LINK, row).of_row(row) == verdict
    # above resolution, no pause is an excuse
    row = replace(measured(0.118, 0.11, "dp"), frames=7.0)
    assert judged(paused, EXACT, TRUE_LINK, row).of_row(row) == "degraded"


def test_a_time_of_nothing_is_invalid() -> None:
    row = replace(measured(0.0), frames=7.0)
    assert judged(CALM, EXACT, TRUE_LINK, row).of_row(row) == "invalid"


def test_pause_of_the_machine_disturbs_its_interval() -> None:
    judgement = judged(load=replace(CALM, pause_ms=50.0, transfers_faulted=True))
    assert judgement.disturbed == {GPT}
    assert "50 ms" in judgement.machine_reason
    assert not judged(check=replace(EXACT, pairs_wrong=2)).disturbed
    both = judged(replace(CALM, cpu_busy=0.99), replace(EXACT, pairs_wrong=2))
    assert judged(replace(CALM, cpu_busy=0.99)).machine_reason
    assert both.machine_reason == "", "the run itself lost bytes"


def test_short_allreduce_is_marked_and_degrades_nothing() -> None:
    row = Measurement(GPT, "", "completion_time", 0.02, "s", 0.02, frames=4.0, credit_share=0.03)
    for dilation, verdict in ((1.0, "below resolution"), (4.0, "ok")):
        load = replace(CALM, lag_p99_ms=2.0, dilation=dilation)
        judgement = judged(load, EXACT, replace(TRUE_LINK, dilation=dilation), row)
        assert (judgement.of_row(row), judgement.verdict) == (verdict, "ok")


KINDS = {"rail-only": "dr", "rail-optimized": "spine"}
PHASES = ("", "a2a")


def compared_run(change: dict[tuple[str, int], dict[str, Any]] | None = None, times: Any = None) -> Run:
    """Three repeats of a whole and its phase on both fabrics, with their slowdown; `change` of loads, by place.

    `times`: measured over predicted by fabric; predicted are 1.08 and 1 s.
    """
    run, predicted = Run("r", {}, {}, "now"), {"rail-only": 1.08, "rail-optimized": 1.0}
    ratios = {"rail-only": 1.0, "rail-optimized": 1.0, **(times or {})}
    for kind, policy in KINDS.items():
        size = (4, 4, 100, 1200, 9000, "a100", 0, 0)
        run.fabrics.append(FabricRun(kind, policy, kind, *size, (), "kernel", 1.0, 1.0))
        run.links.append(replace(TRUE_LINK, fabric=kind))
        for repeat in range(3):
            where = IntervalId(kind, "moe", policy, repeat=repeat)
            run.loads.append(replace(CALM, interval=where, **(change or {}).get((kind, repeat), {})))
            run.bytes.append(replace(EXACT, interval=where))
            for phase in PHASES:
                metric, s = "completion_time" if phase else "iteration_time", predicted[kind]
                run.measurements.append(
                    Measurement(where, phase, metric, s * ratios[kind], "s", s, 1.0, 1.0, frames=99.0)
                )
    measured = 1.08 * ratios["rail-only"] / ratios["rail-optimized"]
    where = IntervalId("rail-only", "moe", "dr")
    run.measurements += [Measurement(where, phase, "slowdown", measured, "ratio", 1.08) for phase in PHASES]
    return run


def of_slowdown(run: Run) -> set[Verdict]:
    judgement = judge(run)
    return {judgement.of_row(m) for m in run.measurements if m.metric == "slowdown"}


@pytest.mark.parametrize(("kind", "repeat"), [("rail-only", 0), ("rail-only", 2), ("rail-optimized", 1)])
@pytest.mark.parametrize(("busy", "verdict"), [(0.99, "invalid"), (0.9, "degraded"), (0.5, "ok")])
def test_slowdown_has_the_worst_verdict_of_both_sides(kind: str, repeat: int, busy: float, verdict: Verdict) -> None:
    assert of_slowdown(compared_run({(kind, repeat): {"cpu_busy": busy}})) == {verdict}


def test_slowdown_off_its_formula_is_degraded_and_says_so() -> None:
    run = compared_run(times={"rail-only": 1.04, "rail-optimized": 0.975})
    judgement = judge(run)
    assert of_slowdown(run) == {"degraded"}
    assert judgement.verdict == "degraded"
    assert "1.067" in judgement.reasons[0]
    assert set(judgement.intervals.values()) == {"ok"}
    assert of_slowdown(compared_run(times={"rail-only": 1.04, "rail-optimized": 1.0})) == {"ok"}


def test_slowdown_of_times_with_explained_deviations_is_ok() -> None:
    """What explains the time on a fabric explains the comparison; a bound explains any on one side."""
    run = compared_run(times={"rail-optimized": 1.3})
    for most, verdict in ((1.3, "ok"), (inf, "ok"), (1.0, "degraded")):
        explained = [
            replace(m, explained_most=most, explained_least=1.0) if m.fabric == "rail-optimized" else m
            for m in run.measurements
        ]
        assert of_slowdown(replace(run, measurements=explained)) == {verdict}


def test_slowdown_of_a_row_below_resolution_is_not_compared() -> None:
    run = compared_run()
    run.measurements = [
        replace(m, credit_share=0.2) if m.phase and m.fabric == "rail-optimized" else m for m in run.measurements
    ]
    judgement = judge(run)
    verdicts = {m.phase: judgement.of_row(m) for m in run.measurements if m.metric == "slowdown"}
    assert verdicts == {"": "ok", "a2a": "below resolution"}


def test_rows_that_follow_from_a_time_have_its_verdict() -> None:
    time = replace(measured(1.0, phase="pp"), frames=7.0, credit_share=0.06)
    rows = [time, *(Measurement(GPT, phase, "projected_full_size", 9.0, "s") for phase in ("pp", "tp"))]
    judgement = judged(CALM, EXACT, TRUE_LINK, *rows)
    assert [judgement.of_row(row) for row in rows] == ["below resolution", "below resolution", "ok"]


def test_time_without_evidence_of_its_interval_is_not_ok() -> None:
    row, other = measured(1.0), replace(measured(1.0), interval=replace(GPT, repeat=1))
    run = Run("r", {}, {}, "now", loads=[CALM], links=[TRUE_LINK], measurements=[row, other])
    judgement = judge(run)
    assert [judgement.of_row(row), judgement.of_row(other)] == ["ok", "degraded"]
    assert judge(Run("r", {}, {}, "now", measurements=[row])).of_row(row) == "degraded"
    alone = replace(row, predicted=None)
    assert judge(Run("r", {}, {}, "now", measurements=[alone])).of_row(alone) == "invalid"


def test_row_of_gloo_has_the_verdict_of_its_ddp_run() -> None:
    ddp = IntervalId("two rails", "ddp", "nezha")
    row = Measurement(replace(ddp, policy="gloo", part="nezha"), "", "iteration_time", 1.0, "s")
    run = Run("r", {}, {}, "now", loads=[replace(CALM, interval=ddp, cpu_busy=0.99)], measurements=[row])
    assert judge(run).of_row(row) == "invalid"

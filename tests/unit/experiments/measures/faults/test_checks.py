"""Checks of faults: which runs pass them and which fail them, and the detail that each check gives."""

from dataclasses import replace
from typing import Any

from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.records import Recovered, Recovery
from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, RECOVERIES
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Run
from railyard.results.timeline import timeline
from tests.unit.replaced import replaced
from tests.unit.sample_runs import connectivity_check, recovery_run, sample_run
from tests.unit.shown import summarise


def result(run: Run, name: str) -> str:
    """Return the result of a run's check, by a part of its name, and its detail."""
    (check,) = [check for check in Analysis(run).checks if name in check.name]
    state = "passed" if check.passed else "failed"
    return f"{state}: {check.detail}"


def with_change(run: Run, number: int, **changes: Any) -> Run:
    """Return a run with another recovery in place of one, by its number."""
    rows = list(run.rows(RECOVERIES))
    rows[number] = replace(rows[number], **changes)
    return run.with_rows(RECOVERIES, rows)


def with_more(run: Run, *recoveries: Recovery) -> Run:
    return run.with_rows(RECOVERIES, [*run.rows(RECOVERIES), *recoveries])


def test_connectivity_checks_are_judged_as_stored(data_regression: DataRegressionFixture) -> None:
    run = recovery_run()
    due = run.rows(CONNECTIVITY_CHECKS)
    at = due[-1].monotonic_ns
    other = connectivity_check(at, "x", 0)
    wrong = [connectivity_check(at + n, f"inject link-down d0g{n}", 0, not_recovered=n) for n in (1, 3, 2)]
    forwarding = replace(other, forwarding_failed_parts=2)
    cases = {
        "all match": due,
        "pairs not recovered": [*due, *wrong],
        "unexpected answers": [replace(other, unexpected_answers=1)],
        "failed parts that forward": [forwarding],
        "failed parts that forward without rerouting": [replaced(forwarding, reroute="off")],
    }
    for missed in (16, 17, 32):
        cases[f"{missed} of 32 not done"] = [replace(c, answered=0, done=n >= missed) for n, c in enumerate(due)]
    runs = {case: run.with_rows(CONNECTIVITY_CHECKS, rows) for case, rows in cases.items()}
    data_regression.check({case: result(changed, "connectivity check") for case, changed in runs.items()})
    none_done = runs["32 of 32 not done"]
    assert {script["connectivity_checks_passed"] for script in summarise(none_done)["headline"]["scripts"]} == {0}
    slices = timeline(none_done).children["connectivity checks"].slices
    assert any(part.name.startswith("not done after") for part in slices)


def test_losses_are_judged_as_stored(data_regression: DataRegressionFixture) -> None:
    run = sample_run(2, 2, 1)
    scripts = recovery_run()
    storm = [n for n, r in enumerate(scripts.rows(RECOVERIES)) if r.script == "storm" and r.repeat == 0]
    first = min(storm, key=lambda n: scripts.rows(RECOVERIES)[n].t_repair)
    last = max(storm, key=lambda n: scripts.rows(RECOVERIES)[n].t_repair)
    away = next(n for n, r in enumerate(scripts.rows(RECOVERIES)) if r.script == "controller-away")
    early = with_change(scripts, first, probes_lost_after_repair=3)
    begun_ns = scripts.rows(RECOVERIES)[first].t_repair - 10**6
    crash = replace(run.rows(RECOVERIES)[0], fault="controller-crash", target="controller", probes_lost=0)
    crashes = [replaced(crash, source_side_probed=0, far_side_probed=3, repeat=n) for n in range(4)]
    storm_again = [r for r in scripts.rows(RECOVERIES) if r.script == "storm" and r.repeat == 1]
    kept = [r for r in scripts.rows(RECOVERIES) if r not in storm_again]
    lossy = [*kept, *(replace(r, lost_bytes=700) for r in storm_again)]
    data_regression.check({
        "no stream above its max-flow": result(run, "max-flow"),
        "stream above its max-flow": result(with_change(run, 0, above_max_flow=2), "max-flow"),
        "the same without rerouting": result(with_change(run, 1, above_max_flow=2), "max-flow"),
        "no probe lost on return": result(scripts, "while traffic returns"),
        "probes lost on the last return": result(
            with_change(scripts, last, probes_lost_after_repair=3), "while traffic returns"
        ),
        # what was lost while another fault was active may be due to that fault
        "probes lost beside another fault": result(
            with_change(early, last, t_fault=begun_ns), "while traffic returns"
        ),
        "no probe lost to a controller crash": result(with_more(run, *crashes), "controller"),
        "probe lost to a controller crash": result(with_more(run, *crashes[1:], replace(crashes[0], probes_lost=1)),
            "controller"),
        "connections lost beside a failed GPU": result(with_change(scripts, storm[0], connections_lost=2), "TCP"),
        "connections lost without a failed GPU": result(with_change(scripts, away, connections_lost=2), "TCP"),
        "bytes lost in a script count once": result(scripts.with_rows(RECOVERIES, lossy), "loses a byte"),
    })  # fmt: skip
    assert not any("controller" in check.name for check in Analysis(run).checks)


def test_recovery_is_judged_as_stored(data_regression: DataRegressionFixture) -> None:
    run = sample_run(2, 2, 1)
    row = run.rows(RECOVERIES)[0]
    away = replace(row, primary_path_ms=None)
    beside = (("controller-crash", "controller"), ("registry-crash", "registry"), ("link-gray", "d0g1"))
    unjudged = [replace(away, fault=fault, target=target) for fault, target in beside]
    never = replace(row, recovered=Recovered.NO, first_packet_ms=None, far_side_ms=None, source_side_ms=None)
    unprobed = replace(never, fault="gpu-hang", source_side_probed=0, far_side_probed=0)
    script = replaced(row, script="cut", goodput_ms=None, primary_path_ms=None, recovered=Recovered.NO)
    cut_off = with_more(run, replace(script, first_packet_ms=None))
    own_check = replaced(connectivity_check(script.t_fault, "x", 0), script="cut", policy=script.policy)
    data_regression.check({
        "return to the primary path": result(run, "primary path"),
        # other faults of a script may keep detours in use; a controller that crashed has none to withdraw
        "no return in scripts and from faults without detours": result(
            with_more(run, replaced(away, script="storm", repeat=9), *unjudged), "primary path"
        ),
        "no return": result(with_more(run, replace(away, fault="link-flapping")), "primary path"),
        "recovery": result(run, "recovers"),
        "faults that rerouting doesn't help against": result(
            with_more(run, replace(never, fault="link-gray"), replace(never, fault="link-slow")), "recovers"
        ),
        "unprobed fault without an effect": result(
            with_more(run, replace(unprobed, goodput_ms=0.0, recovered=Recovered.UNAFFECTED)), "recovers"
        ),
        "unprobed fault whose streams never came back": result(
            with_more(run, replace(unprobed, goodput_ms=None)), "recovers"
        ),
        "script beside a workload": result(with_more(run, script), "recovers"),
        "script beside a workload without a first packet": result(cut_off, "recovers"),
        "script with connectivity checks": result(cut_off.with_rows(CONNECTIVITY_CHECKS, [own_check]), "recovers"),
    })  # fmt: skip

"""Lines that `claims --run` prints before it runs anything."""

from railyard.experiments.sweep.claim_runs import AXIS, ClaimRun, plan_lines
from railyard.experiments.sweep.spec import Cell


def test_runs_to_do_are_listed_with_their_time() -> None:
    runs: dict[str, ClaimRun] = {}
    for name, seconds in (("idle", 120.0), ("hot-rail", 100.0), ("two-jobs -o seed=2", 20.0), ("unknown", None)):
        runs[name] = ClaimRun(Cell({AXIS: name}, {"name": name}), seconds)
    missing = [run.cell for name, run in runs.items() if name != "idle"]
    there, summary, *lines = plan_lines(runs, missing)
    assert there.startswith("1 of 4 ")
    assert there.endswith(": idle")
    assert ", about 2min, and 1 of" in summary
    assert lines == ["   100s  hot-rail", "    20s  two-jobs -o seed=2", "      -  unknown"]
    (there,) = plan_lines(runs, [])
    assert there.endswith(": idle, hot-rail, two-jobs -o seed=2, unknown")

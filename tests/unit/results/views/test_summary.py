"""The headline figures, the checks that decide the exit status, and the screen."""

import re
from dataclasses import replace
from typing import Any

import pytest

from railyard.core.records import IntervalId, Recovered
from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.experiments.measures.workloads.report.tables import times_table
from railyard.experiments.measures.workloads.report.terminal import terminal_times
from railyard.results import format as fmt
from railyard.results.analysis.fidelity import judge
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import FabricRun, Flow, LinkCheck, Load, Measurement, Run
from railyard.results.views import ci, report
from tests.unit.replaced import replaced
from tests.unit.sample_runs import FAULTS, sample_run
from tests.unit.shown import screen, summarise


def two_fabrics() -> Run:
    """All-to-all: 1.2, 1.0 and 1.1 s on rail-only, 1.0 s on rail-optimized; predicted 1.08 and 1.0; C_S/C_F = 1/12."""
    run = Run("r", {}, {}, "now")
    for kind, policy, values, predicted in (
        ("rail-only", "dr", (1.2, 1.0, 1.1), 1.08),
        ("rail-optimized", "spine", (1.0, 1.0, 1.0), 1.0),
    ):
        size = (4, 4, 100, 1200, 9000, "a100", 0, 0)
        run.fabrics.append(FabricRun(kind, policy, kind, *size, (), "kernel", 1.0, 1.0))
        for repeat, value in enumerate(values):
            interval = IntervalId(kind, "moe", policy, repeat=repeat)
            run.measurements.append(Measurement(interval, "a2a", "completion_time", value, "s", predicted))
            run.loads.append(Load(interval, 0.4, 0.01, 1.0, retransmits=0, segments=100_000, drops=0))
        run.links.append(LinkCheck(kind, "rail", "d0g0:rail0", 100, 100))
        run.flows.append(Flow(IntervalId(kind, "moe", policy), "a2a", "EP", "d0g0", "d1g1", 8, 8, 0, 9, "all-to-all"))
    return run


def test_times_are_medians_beside_the_prediction() -> None:
    headline = summarise(two_fabrics())["headline"]
    (slow,) = headline["slowdown"]
    assert (slow["of"], slow["over"]) == ("rail-only", "rail-optimized")
    assert (slow["measured"], slow["predicted"], slow["nominal_cs_over_cf"]) == (1.1, 1.08, pytest.approx(1 / 12))
    (row,) = headline["times"]
    assert row["kinds"] == ["EP"]
    assert row["fabrics"]["rail-only"] == {
        "median": 1.1, "min": 1.0, "max": 1.2, "repeats": 3, "predicted": 1.08, "ratio": 1.1 / 1.08,
        "verdict": "ok", "predicted_with_latency": None, "not_compared": "",
    }  # fmt: skip


def test_terminal_shows_the_ratio_with_latency_if_known() -> None:
    run = two_fabrics()
    old = terminal_times(Analysis(run).times, ["rail-only"], ())
    run.measurements = [replace(m, predicted_with_latency=1.1 * (m.predicted or 0)) for m in run.measurements]
    new = terminal_times(Analysis(run).times, ["rail-only"], ())
    assert [column.title for column in old.columns] == ["workload", "rail-only", "m/p"]
    assert new.cells == (("moe a2a", fmt.seconds(1.1), "1.019", "0.926"),)


def test_a_time_without_a_prediction_shows_the_reason() -> None:
    run = two_fabrics()
    reason = "computes in between"
    run.measurements = [replace(m, predicted=None, not_compared=reason) for m in run.measurements]
    analysis = Analysis(run)
    (row,) = analysis.times
    assert row.by_fabric["rail-only"].verdict == "not compared"
    assert terminal_times(analysis.times, ["rail-only"], ()).cells[0][2] == "not compared"
    assert times_table(analysis.times, ["rail-only"], ()).cells[0][-1] == reason
    assert summarise(run)["headline"]["times"][0]["fabrics"]["rail-only"]["not_compared"] == reason
    assert judge(run).verdict == "ok"


def test_the_part_of_computing_that_is_kept_is_shown() -> None:
    run = two_fabrics()
    scaled = {"workload": "moe", "platform": "a100", "compute_kept": 0.02, "factors": {}}
    seconds = {"rail-only": 1.009, "rail-optimized": 1.0}
    run.scale = [{**scaled, "fabric": fabric, "full_step_s": s} for fabric, s in seconds.items()]
    (line,) = summarise(run)["headline"]["computing"]
    assert line in screen(run)
    assert re.match(r"moe: computing: 2% kept; full step: \+0\.9% on rail-only", line)


def test_values_from_an_invalid_interval_are_marked() -> None:
    """One of the three repeats on the other fabric; the median of its times is in no agreement with theory."""
    run = two_fabrics()
    assert summarise(run)["agreement"] == {"compared": 2, "within": 2, "outliers": [], "invalid": 0}
    run.loads[-1] = replace(run.loads[-1], cpu_busy=0.99)
    summary = summarise(run)
    (slow,), (times,) = summary["headline"]["slowdown"], summary["headline"]["times"]
    assert slow["verdict"] == "invalid"
    assert [times["fabrics"][name]["verdict"] for name in ("rail-only", "rail-optimized")] == ["ok", "invalid"]
    assert summary["agreement"] == {"compared": 1, "within": 1, "outliers": [], "invalid": 1}
    agreement = Analysis(run).agreement
    assert agreement.text == "1 of 2 within 0.97-1.05; 1 invalid, not compared"
    assert agreement.verdict == "invalid", "no green box"
    assert not any("slower by" in line for line in screen(run))


def test_ratios_of_invalid_rows_are_numbers_in_data_files_alone() -> None:
    """Times on rail-optimized are 1.337 of their prediction and invalid; 1.122, 1.333 and -17.7% follow from them."""
    run = two_fabrics()
    for number, row in enumerate(run.measurements):
        if row.fabric == "rail-optimized":
            run.measurements[number] = replace(row, value=1.337, predicted_with_latency=1.1916, explained_least=1.0)
            run.loads[number] = replace(run.loads[number], cpu_busy=0.99)
    goodput = Measurement(IntervalId("rail-optimized", "moe", "spine"), "", "throughput", 2.0, "1/s", 1.5)
    run.measurements.append(goodput)
    analysis = Analysis(run)
    terminal = "\n".join(screen(run, 160))
    page = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", report.render(analysis), flags=re.DOTALL)
    junit, markdown = ci.junit(analysis).decode(), ci.markdown(analysis).decode()
    for view in (terminal, page, junit, markdown):
        for ratio in ("1.337 of its", ">1.337<", " 1.337 ", "1.122", "1.333", "-17.7%", "−17.7%"):
            assert ratio not in view
    assert re.search(
        r"moe a2a +1.100 s +1.019 +– +1.337 s +invalid +– +invalid +\+8.0%", terminal.replace("\u00a0", " ")
    )
    (slowdown,) = analysis.slowdowns
    assert f"fabrics not compared: moe a2a, since {slowdown.not_compared}" in terminal
    assert f"not compared, since {slowdown.not_compared}." in page
    summary = report.summarise(analysis)
    (times,), (slow,) = summary["headline"]["times"], summary["headline"]["slowdown"]
    spread = times["fabrics"]["rail-optimized"]
    assert (spread["ratio"], spread["verdict"]) == (1.337, "invalid")
    assert (slow["measured"], slow["verdict"]) == (1.1 / 1.337, "invalid")


def test_fabrics_of_different_rates_are_not_compared() -> None:
    run = two_fabrics()
    run.fabrics[1] = replace(run.fabrics[1], rail_bps=200)
    assert summarise(run)["headline"]["slowdown"] == []


def test_one_fabric_with_two_policies_is_two_columns() -> None:
    run = two_fabrics()
    run.measurements.append(
        Measurement(IntervalId("rail-optimized", "moe", "pxn"), "a2a", "completion_time", 1.3, "s", 1.2)
    )
    (row,) = summarise(run)["headline"]["times"]
    assert list(row["fabrics"]) == ["rail-only", "rail-optimized spine", "rail-optimized pxn"]


def check(run: Run, name: str) -> bool:
    found: list[dict[str, Any]] = [c for c in summarise(run)["checks"] if name in c["name"]]
    assert len(found) == 1
    return bool(found[0]["passed"])


def test_each_check_can_fail() -> None:
    run = sample_run(2, 2, 1)
    run.bytes[0] = replace(run.bytes[0], pairs_wrong=1)
    assert not check(run, "every byte delivered")
    assert not check(run, "believable")
    assert check(run, "within its rails")
    dense = next(i for i, c in enumerate(run.bytes) if c.workload == "gpt")
    run.bytes[dense] = replace(run.bytes[dense], cross_rail_bytes=1)
    assert not check(run, "within its rails")
    on = next(i for i, r in enumerate(run.rows(RECOVERIES)) if r.reroute == "on" and r.fault == "link-down")
    run.rows(RECOVERIES)[on] = replace(run.rows(RECOVERIES)[on], recovered=Recovered.NO)
    assert not check(run, "recovers")
    assert check(run, "primary path")
    run.rows(RECOVERIES)[on] = replace(run.rows(RECOVERIES)[on], primary_path_ms=None)
    assert not check(run, "primary path")
    assert check(run, "TCP connections")
    run.rows(RECOVERIES)[on] = replace(run.rows(RECOVERIES)[on], connections_lost=1)
    assert not check(run, "TCP connections")
    assert check(run, "loses a byte")
    run.rows(RECOVERIES)[on] = replace(run.rows(RECOVERIES)[on], lost_bytes=1)
    assert not check(run, "loses a byte")
    assert summarise(run)["passed"] is False


def test_moe_may_cross_rails_and_reroute_off_need_not_recover() -> None:
    run = sample_run(2, 2, 1)
    assert any(c.cross_rail_bytes for c in run.bytes if c.workload == "moe")
    assert any(not r.recovered for r in run.rows(RECOVERIES) if r.reroute == "off")
    assert judge(run).verdict == "ok"
    assert summarise(run)["passed"] is True


def cut(lines: list[str]) -> list[str]:
    """Lines that end with an ellipsis, which nothing may; lines that begin with one count what is in the report."""
    return [line for line in lines if "…" in line and not line.strip().startswith("… ")]


def test_the_summary_fits_a_screen_whatever_went_wrong() -> None:
    run = sample_run(4, 4, 3)
    fine = screen(run)
    assert any("all-to-all" in line for line in fine)
    assert any("switch-crash" in line and "never" in line for line in fine)
    run.loads = [replace(x, cpu_busy=0.99, cpu_foreign=0.9, lag_p99_ms=90, drops=10**6) for x in run.loads]
    run.records[RECOVERIES.name] = [
        replace(r, recovered=Recovered.NO, connections_lost=9) for r in run.rows(RECOVERIES)
    ]
    run.measurements += [replace(m, phase=f"{m.phase} {i}") for m in run.measurements for i in range(5)]
    run.interrupted = True
    worst = screen(run)
    for lines in (fine, worst):
        assert len(lines) <= 60  # with the blocks of tables that 100 columns have no room for
        assert max(map(len, lines)) <= 100
        assert not cut(lines)
    assert "interrupted" in worst[0]
    assert "invalid" in worst[0]
    assert any("… and " in line for line in worst)
    assert any("more in report.html" in line for line in worst)


def test_a_reason_is_one_whole_line_without_a_terminal() -> None:
    run = sample_run(2, 2, 1)
    run.loads = [replace(x, cpu_foreign=0.9) for x in run.loads]
    reason = next(text for text in Analysis(run).judgement.reasons if "rail-only, gpt" in text)
    assert len(reason) > 80
    for is_terminal, lines in ((False, 1), (True, 2)):
        shown = screen(run, 80, is_terminal)
        (at,) = (
            n
            for n, line in enumerate(shown)
            if line.startswith("  invalid: rail-only, gpt") and "other programs" in line
        )
        assert " ".join(" ".join(shown[at : at + lines]).split()) == reason


def test_four_fabrics_fit_the_screen_too() -> None:
    run = sample_run(2, 2, 1)
    for old, new in (("rail-only", "rail-only-h100"), ("rail-optimized", "rail-optimized-h100")):
        run.fabrics += [replace(f, label=new, hb_bps=9) for f in run.fabrics if f.label == old]
        run.measurements += [replaced(m, fabric=new) for m in run.measurements if m.fabric == old]
        run.records[RECOVERIES.name] += [replaced(r, fabric=new) for r in run.rows(RECOVERIES) if r.fabric == old]
    lines = screen(run)
    faults = [line for line in lines if line.startswith(tuple(kind for kind, _, _ in FAULTS))]
    assert len(faults) == 2 * 4 * (len(FAULTS) + 1)  # all of them, a cable's two sides apart, in two blocks
    assert len(lines) - len(faults) <= 45
    assert max(map(len, lines)) <= 100
    assert not cut(lines)
    assert any(line.startswith("moe all-to-all: rail-only slower by +") for line in lines)
    assert any(line.startswith("moe all-to-all: rail-only-h100 slower by +") for line in lines)
    heading = next(line.split() for line in lines if line.startswith("workload"))
    assert heading == ["workload", "fabric", "measured", "predicted", "m/p"], "no fabric without its prediction"


@pytest.mark.parametrize("width", [120, 100, 80])
def test_no_cell_of_a_table_is_cut(width: int) -> None:
    run = sample_run(2, 2, 1)
    for name in ("measurements", "loads", "bytes"):
        records = getattr(run, name)
        records[:] = [replaced(r, workload=f"{r.workload}-145.6b") if r.workload else r for r in records]
    run.flows = []
    lines = screen(run, width)
    assert max(map(len, lines)) <= width
    assert not cut(lines)
    assert any("gpt-145.6b TP" in line for line in lines)
    assert any("switch-crash" in line and "rail-optimized" in line for line in lines)
    headings = [line for line in lines if line.startswith("workload")]
    assert any("difference" in heading and "formula" in heading for heading in headings)


def test_crash_that_affects_no_other_gpu_is_not_recovered() -> None:
    run = sample_run(2, 2, 1)
    run.records[RECOVERIES.name] = [
        replace(r, probes_lost=0, first_packet_ms=0.0, goodput_ms=0.0, reroute_ms=None)
        for r in run.rows(RECOVERIES)
        if r.fault == "gpu-crash" and r.fabric == "rail-optimized"
    ]
    lines = screen(run)
    (row,) = (line for line in lines if line.startswith("gpu-crash"))
    assert not re.search(r"\b0\.0\b|never", row)
    assert "no probe lost  did not fall" in row


def test_nominal_is_not_shown_where_fabrics_carry_alike() -> None:
    run = two_fabrics()
    assert any("nominal C_S/C_F" in line for line in screen(run))
    run.measurements = [replace(m, predicted=1.0) for m in run.measurements]
    assert not any("nominal C_S/C_F" in line for line in screen(run))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (fmt.seconds(0.0123456), "12.35 ms"), (fmt.seconds(94.2), "94.20 s"), (fmt.seconds(0), "0 s"),
        (fmt.size(1_200_000), "1.200 MB"), (fmt.size(12), "12 B"), (fmt.rate(1e8), "100.0 Mbit/s"),
        (fmt.digits(125_000.0), "125,000"), (fmt.change(1.083), "+8.3%"), (fmt.milliseconds(None), "never"),
        (fmt.seconds(None), "–"), (fmt.short("500.0 KB"), "500 KB"), (fmt.short("100 ms"), "100 ms"),
        (fmt.short("2.050 s"), "2.05 s"), (fmt.quantity(3.0, "flows"), "3.000 flows"),
    ],
)  # fmt: skip
def test_numbers_are_formatted_with_units(text: str, wanted: str) -> None:
    assert text.replace("\u00a0", " ") == wanted

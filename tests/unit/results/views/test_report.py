"""The page stands alone, its figures show what was delivered, and partial runs have one too."""

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.records import IntervalId, Recovered
from railyard.experiments.measures.faults import plot as recovery
from railyard.experiments.measures.faults import tables as faults
from railyard.experiments.measures.faults.analysis import rows_of_faults
from railyard.experiments.measures.faults.records import GOODPUT, RECOVERIES
from railyard.experiments.measures.steering.records import CHOICES, HEALTH
from railyard.experiments.measures.workloads.report import plots as plot_times
from railyard.experiments.measures.workloads.report import traffic_plots
from railyard.experiments.measures.workloads.report.tables import others_table
from railyard.experiments.measures.workloads.report.traffic import Grid, matrix
from railyard.results.analysis.fidelity import judge
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.plots import fabric as plot_fabric
from railyard.results.plots import style
from railyard.results.runs.records import FabricRun, Flow, LinkCheck, Measurement, Run
from railyard.results.views.sections import conditions
from tests.figures import as_text
from tests.unit import shown
from tests.unit.replaced import replaced
from tests.unit.sample_runs import sample_run
from tests.unit.steered_runs import steered_run


@pytest.fixture(scope="module")
def page() -> str:
    return shown.render(sample_run(4, 4, 2))


def test_page_of_16_gpus_is_under_400_kilobytes(page: str) -> None:
    assert len(page.encode()) < 400_000


class Tags(HTMLParser):
    """Counts ids, and keeps what could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: Counter[str] = Counter()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids[value or ""] += 1
            if name in ("src", "href", "xlink:href", "srcset", "data") and tag != "a":
                self.loads.append(value or "")
        if tag in ("link", "iframe", "object"):
            self.loads.append(tag)


def test_the_page_loads_nothing_and_its_ids_are_its_own(page: str) -> None:
    tags = Tags()
    tags.feed(page)
    assert [x for x in tags.loads if not x.startswith(("#", "data:image/png;base64,"))] == []
    assert [name for name, count in tags.ids.items() if count > 1] == []
    used = set(re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', page))
    assert used
    assert used <= set(tags.ids)
    assert "@import" not in page


def test_every_figure_is_valid_xml_with_a_text_alternative(page: str) -> None:
    figures = re.findall(r"<svg .*?</svg>", page, flags=re.DOTALL)
    assert len(figures) >= 11
    for figure in figures:
        root = ElementTree.fromstring(figure)
        assert root.get("role") == "img"
        assert len(root.get("aria-label", "")) > 40


def test_names_from_users_are_text_and_not_html() -> None:
    run = sample_run(2, 2, 1)
    run.records[GOODPUT.name] = []
    run.spec["title"] = "<script>alert(1)</script>"
    run.measurements = [replaced(m, workload="a<b>&'\"\\1") for m in run.measurements]
    run.flows = [replaced(f, workload="a<b>&'\"\\1") for f in run.flows]
    html = shown.render(run)
    assert "<script>alert" not in html
    assert "<b>" not in html
    for figure in re.findall(r"<svg .*?</svg>", html, flags=re.DOTALL):
        ElementTree.fromstring(figure)


@pytest.mark.usefixtures("figures_as_text")
def test_partial_runs_have_a_page() -> None:
    empty = Run("stopped", {}, {}, "now", interrupted=True)
    assert "Fidelity: invalid, interrupted" in shown.render(empty)
    partial_runs = {
        ("flows", "recoveries", "loads"): sample_run(2, 2, 1),
        ("measurements", "goodput", "links"): sample_run(2, 2, 1),
        ("fabrics", "goodput", "bytes"): sample_run(2, 2, 1),
        ("measurements", "health", "events"): steered_run(2, 4, 1, ("dr", "health-drd", "oracle")),
        ("choices", "flows", "fabrics", "links"): steered_run(2, 4, 1, ("dr", "health-drd", "oracle")),
    }
    for parts, run in partial_runs.items():
        for part in parts:
            rows = run.records[part] if part in run.records else getattr(run, part)
            rows.clear()
        assert "Fidelity:" in shown.render(run)


def test_the_load_table_shows_all_that_a_verdict_rests_on() -> None:
    run = sample_run(2, 2, 1)
    evidence = {"cpu_stolen": 0.031, "cpu_throttled": 0.042, "paused": 0.053, "pause_ms": 64.5}
    worst = {"busy_100ms": 0.271, "foreign_100ms": 0.282, "stolen_100ms": 0.293}
    run.loads = [replaced(load, **evidence, **worst) for load in run.loads]
    table = conditions.loads_table(Analysis(run))
    shown_cells = {text.replace("\u00a0", " ") for text in table.cells[0]}
    assert {"3.1%", "4.2%", "5.3%", "64.5 ms", "27.1%", "28.2%", "29.3%"} <= shown_cells


def test_links_table_has_the_median_and_the_worst() -> None:
    links = [LinkCheck("f", "rail", f"l{n}", 100.0, bps) for n, bps in enumerate((99.0, 90.0, 102.0))]
    (row,) = conditions.links_table(links).cells
    assert [cell.replace("\u00a0", " ") for cell in row[2:]] == [
        "3",
        "100.0 bit/s",
        "99.00 bit/s",
        "-1.00%",
        "-10.00%",
    ]


def test_same_data_give_the_same_figure() -> None:
    """Golden files compare the rest of the page."""
    assert plot_fabric.draw(fabric_of("rail-only")) == plot_fabric.draw(fabric_of("rail-only"))


@pytest.mark.usefixtures("figures_as_text")
def test_several_pairs_of_fabrics_have_a_slowdown_table() -> None:
    run = sample_run(2, 2, 1)
    run.flows, run.records[GOODPUT.name] = list({(f.interval, f.phase): f for f in run.flows}.values()), []
    run.fabrics += [replace(f, label=f"{f.label}-h100", hb_bps=9 * f.rail_bps) for f in run.fabrics]
    run.measurements += [replaced(m, fabric=f"{m.fabric}-h100") for m in run.measurements]
    html = shown.render(run)
    assert "rail-only slower by" not in html
    assert "<td>rail-only-h100</td><td>rail-optimized-h100</td>" in html
    assert ">8.3%</td>" in html
    assert ">11.1%</td>" in html


def flow(src: str, dst: str, delivered: int, kind: str = "EP", repeat: int = 0) -> Flow:
    return Flow(IntervalId("rail-only", "w", "dr", repeat=repeat), "p", kind, src, dst, delivered, delivered, 0, 1)


def test_the_matrix_is_delivered_bytes_of_one_repeat() -> None:
    flows = [
        flow("d0g1", "d1g0", 5),
        flow("d0g1", "d1g0", 7),
        flow("d1g1", "d0g0", 2),
        flow("d0g1", "d1g0", 5, repeat=1),
    ]
    wanted = np.zeros((4, 4))
    wanted[1, 2], wanted[3, 0] = 12, 2
    assert (matrix(flows, Grid(2, 2)) == wanted).all()


def test_the_caption_tells_domains_rails_and_silence_apart() -> None:
    flows = [flow("d0g0", "d0g1", 50), flow("d0g0", "d1g0", 30), flow("d0g0", "d1g1", 20)]
    message = traffic_plots.pair_shares(flows, Grid(2, 2))
    assert "50.0% within HB domains, 30.0% within rails, 20.0% across both" in message
    assert "75.0% of GPU pairs carry nothing" in message  # 3 of 12 ordered pairs carry


def test_heatmaps_work_for_any_size_and_any_bytes() -> None:
    for domains, rails in ((4, 4), (20, 8)):
        last = f"d{domains - 1}g{rails - 1}"
        plot = traffic_plots.heatmap([flow("d0g0", last, 9), flow(last, "d0g0", 900)], Grid(domains, rails), "w")
        ElementTree.fromstring(plot.svg)
        assert f"{domains * rails} GPUs" in plot.alt
    for flows in ([], [flow("d0g0", "d0g1", 0)], [flow("d0g0", "d0g1", 7)]):
        ElementTree.fromstring(traffic_plots.heatmap(flows, Grid(2, 2), "w").svg)


@pytest.mark.usefixtures("figures_as_text")
def test_fabrics_that_delivered_alike_share_a_heatmap() -> None:
    run = sample_run(2, 2, 1)
    run.records[GOODPUT.name], run.measurements = [], []
    together = shown.render(run)
    at = next(i for i, f in enumerate(run.flows) if f.workload == "moe" and f.fabric == "rail-only")
    run.flows[at] = replace(run.flows[at], delivered=1)
    apart = shown.render(run)
    heatmaps = [re.findall(r"Heatmap of moe on ([a-z-]+(?: and [a-z-]+)?)[:,]", html) for html in (together, apart)]
    assert list(map(set, heatmaps)) == [{"rail-only and rail-optimized"}, {"rail-only", "rail-optimized"}]


def test_fabrics_of_equal_scale_share_one_table() -> None:
    run = sample_run(2, 2, 1)
    gpt, moe = conditions.scale_parts(run.scale)
    assert (gpt["workload"], gpt["fabrics"]) == ("gpt", ["rail-only", "rail-optimized"])
    rows = [[cell.replace("\u00a0", " ") for cell in row] for row in gpt["table"].cells]
    assert [row[1:] for row in rows] == [
        ["1,536", "16", "÷ 96"],
        ["10", "10", "same"],
        ["200 Gbit/s", "99.2 Mbit/s", "÷ 2,016"],
        ["1", "4.735", "× 4.735"],
        ["100%", "10%", "÷ 10"],
    ]
    assert [row[0] for row in rows][:2] == ["GPUs", "layers per stage"]
    assert moe["table"].cells[0][1] == "128"
    run.scale[1] |= {"compute_kept": 0.5}
    assert [part["fabrics"] for part in conditions.scale_parts(run.scale)[1:]] == [["rail-only"], ["rail-optimized"]]
    places = (("all-to-all", "a"), ("all-to-all", "b"), ("all-to-all 2", "a"))
    parts = conditions.scale_parts({**run.scale[0], "workload": name, "fabric": fabric} for name, fabric in places)
    assert [(part["workload"], part["fabrics"]) for part in parts] == [
        ("all-to-all", ["a", "b"]),
        ("all-to-all 2", ["a"]),
    ]


@pytest.mark.usefixtures("figures_as_text")
def test_projections_say_that_computing_was_left_out(page: str) -> None:
    message = "share of their computing"
    assert message in page
    run = sample_run(2, 2, 1)
    run.records[GOODPUT.name], run.flows, run.records[RECOVERIES.name] = [], [], []
    run.scale = [{**scaled, "compute_kept": 1.0} for scaled in run.scale]
    assert message not in shown.render(run)


def test_projected_times_are_in_the_projections_table_alone() -> None:
    def row(phase: str, metric: str, value: float, fabric: str = "rail-only") -> Measurement:
        return Measurement(IntervalId(fabric, "w", "dr"), phase, metric, value, "s")

    run = Run("r", {}, {}, "now")
    run.measurements = [
        row("", "iteration_time", 4.0), row("", "projected_same_shape", 2.0), row("", "projected_full_size", 8.0),
        row("p", "completion_time", 0.5), row("p", "projected_same_shape", 0.25),
        row("q", "completion_time", 0.5), row("", "throughput", 7.0),
        row("", "iteration_time", 3.0, "other"), row("", "projected_same_shape", 1.5, "other"),
    ]  # fmt: skip
    rows = Analysis(run).rows
    table = conditions.projections_table(rows, ["rail-only", "other"])
    assert [column.title for column in table.shown[2:5]] == ["emulated", "same shape", "full size"]
    assert [c.group for c in table.columns] == ["", "", *["rail-only"] * 4, *["other"] * 4]
    assert [tuple(c.replace("\u00a0", " ") for c in r) for r in table.cells] == [
        ("w", "iteration", "4.000 s", "2.000 s", "8.000 s", "invalid", "3.000 s", "1.500 s", "–", "invalid"),
        ("w", "p", "500.0 ms", "250.0 ms", "–", "invalid", "–", "–", "–", "–"),
    ]
    others = others_table(rows)
    assert [column.title for column in others.shown[:2]] == ["workload", "metric"]  # no phase, so no column for it
    assert [r[1] for r in others.cells] == ["throughput"]
    assert not conditions.projections_table((), []).rows


def test_crash_that_affects_no_other_gpu_shows_no_time() -> None:
    one = next(r for r in sample_run(2, 2, 1).rows(RECOVERIES) if r.fault == "gpu-crash" and r.reroute == "on")
    alone = replace(one, first_packet_ms=0.0, goodput_ms=0.0, goodput_after_repair_ms=0.0, probes_lost=0)
    alone = replace(alone, primary_path_ms=0.0, recovered=Recovered.UNAFFECTED)
    run = Run("r", {}, {}, "now")
    run.records[RECOVERIES.name] = [alone]
    (first,) = faults.first_packets_table(rows_of_faults(run), judge(run)).cells
    assert first[6:] == ("no probe lost", "–", "–", "")
    (steps,) = faults.steps_table(rows_of_faults(run)).cells
    assert (steps[3], *steps[7:10]) == ("unaffected", "did not fall", "did not fall", "–")
    assert "withdrawn, reroute on" not in recovery.recovery(rows_of_faults(run), (), "f").svg
    run.records[RECOVERIES.name] = [alone, replaced(one, repeat=1)]
    (mixed,) = faults.first_packets_table(rows_of_faults(run), judge(run)).cells
    assert mixed[6].endswith("ms")
    first, second = faults.repeats_table(rows_of_faults(run)).cells
    assert first[7] == "no probe lost"
    assert second[7].endswith("ms")


def test_a_panel_that_no_flow_crossed_says_so() -> None:
    run = sample_run(2, 2, 1)
    traces = [t for t in run.rows(GOODPUT) if t.fault == "gpu-crash"]
    assert "no flow crossed" not in recovery.recovery([], traces, "f").svg
    quiet = [replace(t, affected_bps=tuple(0.0 for _ in t.bps)) for t in traces]
    assert recovery.recovery([], quiet, "f").svg.count("no flow crossed") >= 2


def test_drawn_fabrics_name_their_switches(data_regression: DataRegressionFixture) -> None:
    sample = fabric_of("rail-only")
    optical = replace(sample, switches=(*sample.switches, "ocs0", "ocs1"))
    fabrics = {
        "rail-only": sample,
        "rail-optimized": fabric_of("rail-optimized"),
        "one switch": replace(sample, kind="single-switch", switches=("switch0",)),
        "two planes": replace(sample, kind="dual-plane"),
        "optics for all domains": replace(optical, optics=("rail", "hb")),
        "optics that were not recorded": optical,
        "optics of each domain": replace(optical, optics=("rail",)),
        "optics of more domains than have room for names": replace(optical, optics=("rail",), domains=16),
        "more GPUs than are drawn": replace(sample, domains=128, rails=32),
    }
    drawn: dict[str, dict[str, str]] = {}
    for case, fabric in fabrics.items():
        plot = plot_fabric.draw(fabric)
        assert len(plot.svg) < 400_000
        names = re.findall(r">((?:rail|spine|switch|ocs)\d\w*)<", plot.svg)
        drawn[case] = {"caption": plot.caption.replace("\u00a0", " "), "switches": ", ".join(sorted(names))}
    data_regression.check(drawn)


def fabric_of(kind: str) -> FabricRun:
    return next(f for f in sample_run(2, 2, 1).fabrics if f.kind == kind)


def test_times_without_a_prediction_have_bars_but_no_ratios() -> None:
    run = sample_run(2, 2, 1)
    run.measurements = [replace(m, predicted=None) for m in run.measurements]
    rows = Analysis(run).times
    assert plot_times.ratios(rows, ["rail-only", "rail-optimized"]) is None
    assert "predicted" not in plot_times.completion(rows, ["rail-only", "rail-optimized"], "w").alt


@pytest.fixture(scope="module")
def steered() -> str:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(style, "finish", as_text)
        return shown.render(steered_run(2, 4, 2, kinds=("rail-only", "rail-optimized")))


def test_steered_run_has_charts_by_fabric_and_over_time(steered: str) -> None:
    for kind in ("rail-only", "rail-optimized"):
        assert steered.count(f"Times of transfers on {kind} by policy") == 1
        assert steered.count(f"Heatmap of transfers on {kind}") <= 1
        assert steered.count(f"Drawing of the {kind} fabric") == 1
    drawn = re.findall(r"over time of transfers on (\S+) under (\S+)\.", steered)
    assert drawn == [("rail-only", p) for p in ("health", "health-drd", "health-spray", "health-best")]
    assert re.findall(r"Not drawn: transfers on (\S+) under ([\w-]+), ([\w-]+)", steered)[0] == (
        "rail-optimized",
        "health",
        "health-drd",
    )
    assert "Background: rails 0, 1: 90%" in steered
    assert steered.count("Heatmap of transfers") == 1, "both fabrics delivered alike under every policy"


@pytest.mark.usefixtures("figures_as_text")
def test_steered_page_lists_policies_in_rows(steered: str) -> None:
    tags = Tags()
    tags.feed(steered)
    assert [name for name, count in tags.ids.items() if count > 1] == []
    assert "Over what is varied" not in steered
    assert "Measured over predicted" not in steered
    assert "nominal" not in re.sub(r'<section id="reading">.*', "", steered, flags=re.DOTALL)
    assert "<td>health-drd</td>" in steered
    assert '<section id="policies">' not in shown.render(sample_run(2, 2, 1))


@pytest.mark.usefixtures("figures_as_text")
def test_at_most_six_policies_are_drawn_with_plugin_ones() -> None:
    names = ("dr", "mine", *(f"health-{n}" for n in range(7)))
    html = shown.render(steered_run(2, 4, 1, names))
    drawn = re.findall(r"over time of transfers on rail-only under (\S+)\.", html)
    assert drawn == ["mine", *(f"health-{n}" for n in range(5))]
    assert "under health-5, health-6." in html


@pytest.mark.usefixtures("figures_as_text")
def test_fabrics_that_steered_runs_vary_are_a_sweep_a_policy() -> None:
    run = steered_run(2, 4, 1, ("dr", "health-drd"))
    assert "Over what is varied" not in shown.render(run)
    whole = [m for m in run.measurements if not m.phase]
    run.spec["fabrics"] = [{"kind": "rail-only", "domains": 2, "rails": k} for k in (2, 4, 8)]
    run.fabrics = [replace(f, label=f"f{k}", rails=k) for k in (2, 4, 8) for f in run.fabrics]
    run.measurements = [replaced(m, fabric=f"f{k}", value=float(k)) for k in (2, 4, 8) for m in whole]
    run.flows, run.events = [], []
    run.rows(CHOICES).clear()
    run.rows(HEALTH).clear()
    message = "predicted \\S+ s, f4 \\S+ 4.000 s".replace(" s", "\xa0s")
    assert re.findall(rf"(rail-only [a-z-]+): f2 \S+ 2\.000\xa0s, {message}", shown.render(run)) == [
        "rail-only dr", "rail-only health-drd",
    ]  # fmt: skip


@pytest.mark.parametrize(("ratio", "message"), [(0.0, "×\xa00"), (1 / 96, "÷\xa096"), (4.735, "×\xa04.735")])
def test_scale_factor_reads_as_multiple_or_fraction(ratio: float, message: str) -> None:
    assert conditions.factor_text(ratio) == message

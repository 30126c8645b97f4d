"""Sweeps: what counts as one, its figure, its predictions and its report."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from railyard.core.records import IntervalId
from railyard.experiments.measures.faults.records import GOODPUT, RECOVERIES
from railyard.experiments.measures.workloads.predict import predict
from railyard.experiments.measures.workloads.spec import workload_labels
from railyard.results.analysis.aggregate import Spread
from railyard.results.plots import style, sweep
from railyard.results.plots.sweep import Curve, Named, curves
from railyard.results.runs.records import Measurement
from tests.unit import shown
from tests.unit.loaded_experiments import load
from tests.unit.sample_runs import sample_run

JOB: list[Named] = [("job", {"kind": "gpt", "model": "gpt-3"})]


def fabrics(*traits: Mapping[str, Any]) -> list[Named]:
    return [(f"f{i}", {"kind": "rail-only", "domains": 4, "rails": 4, **t}) for i, t in enumerate(traits)]


def curves_of(named: list[Named]) -> tuple[Curve, ...]:
    """With a time for everything."""
    return curves(named, JOB, {(name, "job", ""): Spread((), 1.0) for name, _ in named})


def places(curve: Curve, line: str = "rail-only") -> list[tuple[str, float]]:
    return [(place.name, place.x) for place, _ in curve.phases[""][line]]


def test_places_are_in_the_order_of_the_varied_key() -> None:
    (curve,) = curves_of(fabrics({"hb_rate": "1.2Gbit"}, {"hb_rate": "60Mbit"}, {"hb_rate": "240Mbit"}))
    assert (curve.title, curve.axis) == ("job", "rate into the HB domain")
    assert places(curve) == [("f1", 6e7), ("f2", 2.4e8), ("f0", 1.2e9)]


def test_domains_times_rails_is_one_trait() -> None:
    grids = [{"domains": d, "rails": k} for d, k in ((8, 2), (4, 4), (2, 8))]
    (curve,) = curves_of(fabrics(*grids))
    assert places(curve) == [("f0", 2), ("f1", 4), ("f2", 8)]


@pytest.mark.parametrize(
    "traits",
    [
        [{"rails": 2}, {"rails": 4}],
        [{"rails": 2, "hb_rate": "1Gbit"}, {"rails": 4, "hb_rate": "2Gbit"}, {"rails": 8, "hb_rate": "3Gbit"}],
        [{"rails": 2}, {"rails": 4}, {"rails": 4}],
        [{"platform": "a100"}, {"platform": "h100"}, {"platform": "gh200"}],
        [{"hb_rate": "auto"}, {"hb_rate": "1Gbit"}, {"hb_rate": "2Gbit"}],
        [{"kind": "rail-only", "rails": 2}, {"kind": "rail-only", "rails": 4}, {"kind": "rail-optimized", "rails": 8}],
    ],
    ids=["two", "two traits", "the same twice", "no number", "auto", "two kinds"],
)
def test_fabrics_that_are_no_sweep_have_no_curve(traits: list[Mapping[str, Any]]) -> None:
    assert curves_of(fabrics(*traits)) == ()


def test_kinds_that_sweep_the_same_share_their_axes() -> None:
    kinds = [{"kind": kind, "rails": k} for kind in ("rail-only", "rail-optimized") for k in (2, 4, 8)]
    (curve,) = curves_of(fabrics(*kinds))
    assert list(curve.phases[""]) == ["rail-only", "rail-optimized"]


def test_swept_workloads_have_a_line_a_fabric() -> None:
    spec = load("sweep-batch")
    workloads = list(zip(workload_labels(spec), spec.resolved()["workloads"], strict=True))
    timed = {("only", name, ""): Spread((float(i),), None) for i, (name, _) in enumerate(workloads)}
    (curve,) = curves([("only", {"kind": "rail-only"})], workloads, timed)
    assert (curve.title, curve.axis) == ("gpt-145.6b", "global batch, sequences")
    assert [(p.x, s.median) for p, s in curve.phases[""]["only"]] == [(8, 0), (16, 1), (32, 2), (64, 3)]


def test_every_phase_has_axes_of_its_own_and_the_same_ends() -> None:
    """Milliseconds show beside seconds, and a phase that isn't everywhere stands below the whole's points."""
    named = fabrics({"rails": 2}, {"rails": 4}, {"rails": 8})
    timed = {(name, "job", ""): Spread((8.0, 9.0, 12.0), 7.0) for name, _ in named}
    timed |= {(name, "job", "tp"): Spread((), 0.002) for name, _ in named[:2]}
    (curve,) = curves(named, JOB, timed)
    figure = style.new_figure(style.WIDTH, sweep.height(curve))
    sweep.draw(figure, curve)
    whole, phase = figure.axes
    assert whole.get_ylim()[1] > 12
    assert phase.get_ylim()[1] < 0.003
    assert whole.get_xlim() == phase.get_xlim()
    bars = [np.asarray(line.get_ydata()).tolist() for line in whole.lines if line.get_marker() == "_"]
    assert bars == [pytest.approx([8, 12])] * 3
    assert sweep.covers((curve,), timed)
    assert not sweep.covers((curve,), timed | {("other", "job", ""): Spread((), 1.0)})


def test_a_prediction_that_is_no_sweep_has_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    real = sweep.draw

    def draw(figure: Any, curve: Curve) -> None:
        drawn.append(curve.title)
        real(figure, curve)

    monkeypatch.setattr(sweep, "draw", draw)
    for name in ("sweep-domain-size", "moe-slowdown"):
        spec = load(name)
        assert predict(spec).to_png().startswith(b"\x89PNG")
    assert drawn == ["gpt-145.6b"]


def test_points_of_a_curve_have_tooltips_and_their_series() -> None:
    named = fabrics({"hb_rate": "1.2Gbit"}, {"hb_rate": "60Mbit"}, {"hb_rate": "240Mbit"})
    (curve,) = curves(named, JOB, {(name, "job", ""): Spread((1.0, 3.0), 1.5) for name, _ in named})
    svg = sweep.plot(curve, "sweep").svg.replace("\u00a0", " ")
    tips = Counter(title.partition(": ")[2] for title in re.findall(r"<title>([^<]*)</title>", svg))
    assert tips == {"predicted 1.500 s": 3, "2.000 s, 1.000 s to 3.000 s": 3}
    assert 'data-series="rail-only"' in svg


@pytest.mark.usefixtures("figures_as_text")
def test_the_report_has_the_curve_as_measured() -> None:
    run = sample_run(2, 2, 1)
    assert "Over what is varied" not in shown.render(run)
    only = run.fabrics[0]
    run.spec["fabrics"] = [{"kind": "rail-only", "domains": 2, "rails": k} for k in (2, 4, 8)]
    run.spec["workloads"] = [{"kind": "gpt"}]
    run.fabrics = [replace(only, label=f"f{k}", rails=k) for k in (2, 4, 8)]
    run.measurements = [
        Measurement(IntervalId(f"f{k}", "gpt", only.policy), "", "iteration_time", k / 4, "s", k / 5) for k in (2, 4, 8)
    ]
    run.flows, run.records[RECOVERIES.name], run.records[GOODPUT.name] = [], [], []
    page = shown.render(run)
    assert "Over what is varied" in page
    message = re.search(r"gpt over GPUs in an HB domain \(domains x rails\)\. ([^;\"]*)", page)
    assert message
    assert message[1].startswith(
        "rail-only: f2 500.0\xa0ms, predicted 400.0\xa0ms, f4 1.000\xa0s, predicted 800.0\xa0ms"
    )

"""The first screen of the report: result cards, agreement with theory, checks, and what was changed for the run."""

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.records import IntervalId
from railyard.experiments.measures.faults.records import GOODPUT, RECOVERIES
from railyard.experiments.measures.workloads.report.formulas import formulas
from railyard.experiments.spec.loading import apply, command_line, read
from railyard.results.analysis.aggregate import Row, Spread
from railyard.results.analysis.agreement import FAITHFUL_RATIO, agreement_of
from railyard.results.runs.records import LIVE, Event
from railyard.results.views.report import SPREAD_UNKNOWN
from railyard.workloads.collectives.all_to_all_direct import all_to_all_direct_s
from railyard.workloads.collectives.all_to_all_two_phase import all_to_all_two_phase_s
from tests.unit import shown
from tests.unit.sample_runs import sample_run

pytestmark = pytest.mark.usefixtures("figures_as_text")

_CARD = re.compile(r"<li><span class=\"name\">(.*?)</span><span class=\"value\">(.*?)</span>(.*?)</li>", re.DOTALL)


@pytest.fixture(scope="module")
def page() -> str:
    run = sample_run(2, 2, 3)
    run.records[GOODPUT.name], run.flows = [], []  # fewer figures to draw
    return shown.render(run)


def test_card_of_one_run_has_no_spread() -> None:
    run = sample_run(2, 2, 1)
    run.records[GOODPUT.name], run.flows, run.records[RECOVERIES.name] = [], [], []
    cards = _CARD.findall(shown.render(run))
    assert cards
    assert all(SPREAD_UNKNOWN in rest for _, _, rest in cards)


@pytest.fixture(scope="module")
def clicked() -> str:
    """The page of a run with --live control that measured times alone."""
    run = sample_run(2, 2, 1)
    run.records[GOODPUT.name], run.records[RECOVERIES.name] = [], []
    formula = "Eq. 3: y·(x−1)·D/C_F = 2·(2−1)·1 MB/(9 MB/s) = 0.222 s"
    run.measurements = [replace(m, formula=formula if m.phase == "all-to-all" else "") for m in run.measurements]
    run.events.append(Event(1, LIVE, "link-down", {}))
    run.provenance["live_page"] = "live.html"
    return shown.render(run)


def test_header_of_an_interactive_run_says_so(page: str, clicked: str) -> None:
    header = clicked[clicked.index("<header>") : clicked.index("</header>")]
    assert ", interactive</strong>" in header
    assert "changed by hand" in header
    assert "interactive" not in page


def test_only_the_recorded_page_is_another_file(clicked: str) -> None:
    """The records of a folder may be anyone's: a recorded page of another name is no link."""
    assert '<a href="live.html">live.html</a>.' in clicked
    run = sample_run(2, 2, 1)
    run.provenance["live_page"] = "javascript:alert(1)//live.html"
    run.records[GOODPUT.name], run.flows, run.records[RECOVERIES.name] = [], [], []
    text = shown.render(run)
    assert "no other file." in text
    assert 'src="javascript' not in text
    assert 'href="javascript' not in text


def test_reading_explains_measured_quantities_only(page: str, clicked: str) -> None:
    titles = {
        name: re.findall(r"<tr><td>(\w+)", text[text.index('id="reading"') :])
        for name, text in (("page", page), ("clicked", clicked))
    }
    assert {"Detected", "First", "Goodput"} <= {*titles["page"]}
    assert not {"Detected", "First", "Goodput"} & {*titles["clicked"]}
    assert {"All", "Training"} <= {*titles["clicked"]}


def test_failed_checks_are_first_and_open(page: str) -> None:
    assert re.search(r"<details><summary>Checks: (\d+) of \1 passed</summary>", page)
    run = sample_run(2, 2, 1)
    run.records[GOODPUT.name], run.flows = [], []
    run.bytes[0] = replace(run.bytes[0], pairs_wrong=3)
    html = shown.render(run)
    assert "<details open><summary>Checks:" in html
    marks = re.findall(r'<li><span class="(pass|fail)">', html)
    assert marks == sorted(marks)
    assert "for every pair – failed" in html


def test_changed_experiment_is_marked_and_repeatable() -> None:
    run = sample_run(2, 2, 1)
    run.records[GOODPUT.name], run.flows, run.records[RECOVERIES.name] = [], [], []
    assert "(modified)" not in shown.render(run)
    run.provenance["command"] = command_line("quickstart", ["domains=8", "workloads.0.duration=2s"], 7)
    html = shown.render(run)
    assert re.search(r"<h1>[^<]+ \(modified\)</h1>", html)
    duration = read("quickstart")["workloads"][0]["duration"]
    for line in ("fabrics.0.domains: 4 → 8", f"workloads.0.duration: {duration} → 2s", "seed: 1 → 7"):
        assert f"<li>{line}</li>" in html
    assert "run quickstart -o domains=8 -o workloads.0.duration=2s --seed 7</code>" in html
    assert command_line("quickstart") == command_line("quickstart", ["domains=4"]) == {}
    assert command_line("quickstart", ["reroute=[on]"])["changed"] == ["reroute.1: off → removed"]


@given(st.sampled_from(["seed=9", "repeats=2", "domains=2", "mtu=1500", "workloads.1.duration=1s", "reroute=[on]"]))
def test_every_override_is_one_changed_line_per_key(override: str) -> None:
    changed = command_line("quickstart", [override])["changed"]
    data, other = read("quickstart"), apply(read("quickstart"), [override])
    assert changed
    assert data != other
    assert all(re.fullmatch(r"[a-z_.0-9]+: .+ → .+", line) for line in changed)


_SPREADS = st.tuples(st.floats(0.5, 2), st.sampled_from(["ok", "degraded", "not compared"]), st.booleans())


@given(st.lists(_SPREADS, max_size=8))
def test_agreement_counts_rows_within_the_band(cases: list[tuple[float, str, bool]]) -> None:
    spreads = {
        f"fabric {n}": Spread((ratio,), 1.0 if known else None, verdict)  # type: ignore[arg-type]
        for n, (ratio, verdict, known) in enumerate(cases)
    }
    found = agreement_of([Row(IntervalId("f", "w"), "", "completion_time", "s", (), spreads)])
    compared = [ratio for ratio, verdict, known in cases if known and verdict != "not compared"]
    outside = [ratio for ratio in compared if not FAITHFUL_RATIO[0] <= ratio <= FAITHFUL_RATIO[1]]
    assert found.compared == len(compared)
    assert sorted(o.ratio for o in found.outliers) == sorted(outside)
    plain = found.as_dict()
    assert plain["within"] == len(compared) - len(outside)
    if outside:
        assert f"{len(compared) - len(outside)} of {len(compared)} within 0.97-1.05, worst " in found.text


def test_agreement_of_invalid_times_alone_is_no_count() -> None:
    spreads = {f"fabric {n}": Spread((1.0,), 1.0, "invalid") for n in range(10)}
    found = agreement_of([Row(IntervalId("f", "w"), "", "completion_time", "s", (), spreads)])
    assert found.text == "not compared: all 10 times are invalid"
    assert found.verdict == "invalid"


def test_formula_of_an_all_to_all_has_the_values_of_the_run() -> None:
    run = sample_run(2, 3, 1)
    *fabrics, cost = formulas(run)
    assert [line.partition(":")[0] for line in fabrics] == [f.label for f in run.fabrics]
    share = float(cost.rpartition("= ")[2].rstrip("%")) / 100
    grid = (3, 2, run.fabrics[0].hb_bps, run.fabrics[0].rail_bps)
    assert abs(share - (all_to_all_two_phase_s(1.0, *grid) / all_to_all_direct_s(1.0, *grid) - 1)) < 0.001


def test_only_the_script_of_the_page_may_run(page: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'" in page

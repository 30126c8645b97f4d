"""Claims of the papers: every entry refers to something that exists, and stored numbers are those computed now."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from railyard.core.errors import BadInput
from railyard.experiments.spec import loading
from railyard.results.published.catalogue import FIGURES
from railyard.results.published.claims import computed, measured, page
from railyard.results.published.claims.definition import PublishedClaim, papers
from railyard.results.published.claims.marks import JudgedClaim, judged
from railyard.results.published.claims.measured import Measurement

PROJECT = Path(__file__).parents[5]
MEASURED = Measurement("slow", "2026-11-29", "abcdef12", "ok", 3, 8.0, 7.5, 8.5)


def entry(**keys: Any) -> PublishedClaim:
    how = {"experiment": "moe-slowdown", "rows": {"metric": "slowdown"}, "expected": 8.0, "within": 1.0, "why": "noise"}
    data = {"id": "slow", "claim": "It is slower.", "where": "IV", "published": "8%", "measured": how, **keys}
    return PublishedClaim.model_validate(data)


def mark(measurement: Measurement | None, **keys: Any) -> str:
    claim = entry(**keys)
    numbers = computed.numbers_of(claim.computed) if claim.computed else ()
    return JudgedClaim("paper", claim, numbers, measurement).mark


def test_there_are_many_claims_with_a_mark_and_a_command() -> None:
    claims = list(judged(papers(), {}))
    assert len(papers()) == 5
    assert len(claims) >= 60
    assert all(claim.claim.commands for claim in claims)
    ids = [claim.claim.id for claim in claims]
    assert len(set(ids)) == len(ids)


def test_commands_name_figures_and_experiments_that_exist() -> None:
    for claim in judged(papers(), {}):
        for command in claim.claim.commands:
            verb, name, *_ = command.split()
            assert verb in ("predict", "run", "dry-run")
            assert name in FIGURES or name in loading.names(), command


def test_experiments_of_claims_take_their_options() -> None:
    for paper in papers().values():
        for claim in paper.claims:
            if claim.measured:
                name = claim.measured.experiment
                loading.make(loading.read(name), name, claim.measured.options)


def test_stored_numbers_equal_computed_numbers() -> None:
    """Else a mark would be of another version. Remedy: python -m railyard.results.published.claims.page."""
    assert computed.to_csv(computed.computed_rows(computed.figures_of_claims())) == computed.FILE.read_text("utf-8")


def test_the_page_has_the_marks_of_today() -> None:
    assert page.page() == (PROJECT / page.PAGE).read_text("utf-8")


def test_stored_measurements_are_of_valid_runs() -> None:
    measured_ids = set()
    for paper in papers().values():
        measured_ids |= {claim.id for claim in paper.claims if claim.measured}
    for name, measurement in measured.read().items():
        assert name in measured_ids
        assert measurement.verdict != "invalid"


def test_a_differing_part_makes_a_claim_differ() -> None:
    agreeing = {"figure": "table2"}
    differing = {"figure": "fig5"}
    assert mark(MEASURED) == "reproduced"
    assert mark(MEASURED._replace(median=9.1)) == "differs"
    assert mark(MEASURED, computed=agreeing) == "reproduced"
    assert mark(MEASURED, computed=differing) == "differs"
    assert mark(None, computed=agreeing) == "reproduced"
    assert mark(None) == "not measured"
    assert mark(MEASURED, not_reproducible="No such machine.") == "not reproducible"


def test_an_invalid_measurement_never_changes_a_mark() -> None:
    paper = next(iter(papers().values())).model_copy(update={"claims": (entry(),)})
    invalid = MEASURED._replace(verdict="invalid")
    assert [claim.mark for claim in judged({"paper": paper}, {"slow": invalid})] == ["not measured"]
    assert [claim.mark for claim in judged({"paper": paper}, {"slow": MEASURED})] == ["reproduced"]


def run_folder(folder: Path, verdict: str, rows: list[dict[str, object]]) -> Path:
    folder.mkdir()
    gain = {"quantity": "gain", "comparison": "at least", "value": 1.9, "verdict": "ok", "measured": {"n": 1}}
    time = {"quantity": "time", "comparison": "at most", "value": 40.0, "verdict": "ok", "measured": {"n": 1}}
    targets = [
        gain,
        {**gain, "value": 2.0},
        {**gain, "value": 1.0, "verdict": "invalid"},
        time,
        {**time, "value": None},
        {**time, "quantity": "other", "value": None, "measured": None},
    ]
    summary = {
        "verdict": verdict,
        "reasons": ["the cores were busy"],
        "started_utc": "2026-11-29T10:00:00",
        "headline": {"targets": targets, "spine_condition": {"agrees_pct": 75, "agrees_p99_pct": None}},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "provenance.json").write_text(json.dumps({"git_commit": "0123456789abcdef"}))
    pd.DataFrame(rows).to_csv(folder / "results.csv", index=False)
    return folder


ROWS: list[dict[str, object]] = [
    {"metric": "slowdown", "policy": "dr", "value": 1.07, "verdict": "ok"},
    {"metric": "slowdown", "policy": "dr", "value": 1.09, "verdict": "ok"},
    {"metric": "slowdown", "policy": "dr", "value": 3.0, "verdict": "invalid"},
    {"metric": "slowdown", "policy": "health", "value": 0.54, "verdict": "ok"},
]


def measure(claim: PublishedClaim, folder: Path) -> Measurement:
    return measured.measure(claim, run_folder(folder / "run", "degraded", ROWS))


def test_the_median_of_valid_rows_is_measured(tmp_path: Path) -> None:
    how = {"experiment": "moe-slowdown", "rows": {"metric": "slowdown", "policy": "dr"}, "percent": True}
    measurement = measure(entry(measured={**how, "expected": 8.0, "why": "noise"}), tmp_path)
    assert measurement[:5] == ("slow", "2026-11-29", "01234567", "degraded", 2)
    assert measurement[5:] == pytest.approx((8.0, 7.0, 9.0))


def test_rows_are_set_against_other_rows(tmp_path: Path) -> None:
    how = {"experiment": "hot-domain", "rows": {"metric": "slowdown", "policy": "health"}, "over": {"policy": "dr"}}
    assert measure(entry(measured={**how, "expected": 2.0, "why": "noise"}), tmp_path).median == pytest.approx(2.0)


def test_a_median_hides_no_group_of_rows(tmp_path: Path) -> None:
    """Two of three repeats of one job are slow, so that the median of both jobs' rows isn't."""
    slowdowns = {"even": (1.0, 1.0, 1.0), "odd": (1.0, 1.2, 1.2)}
    rows: list[dict[str, object]] = []
    for job, values in slowdowns.items():
        rows += [{"metric": "job_slowdown", "phase": job, "value": value, "verdict": "ok"} for value in values]
    how = {"experiment": "two-jobs", "rows": {"metric": "job_slowdown"}, "expected": 1, "within": 0.1, "why": "noise"}
    folder = run_folder(tmp_path / "run", "ok", rows)
    assert measured.measure(entry(measured=how), folder).median == 1
    assert measured.measure(entry(measured={**how, "each": "phase"}), folder)[4:] == (3, 1.2, 1.0, 1.2)
    rows += [{"metric": "job_slowdown", "phase": "third", "value": 1, "verdict": "invalid"}]
    pd.DataFrame(rows).to_csv(folder / "results.csv", index=False)
    with pytest.raises(BadInput, match="no valid value"):
        measured.measure(entry(measured={**how, "each": "phase"}), folder)


def test_a_measured_difference_has_its_reason() -> None:
    claim = JudgedClaim("paper", entry(), (), MEASURED._replace(median=9.1))
    assert claim.reason == "measured, to be 7.000 to 9.000: noise"
    assert JudgedClaim("paper", entry(), (), MEASURED).reason == ""
    assert JudgedClaim("paper", entry(), (), None).measured_text == "not yet"


def test_a_target_is_measured(tmp_path: Path) -> None:
    how = {"experiment": "multirail-bench", "target": "gain", "expected": 1.8, "bound": "at least", "why": "noise"}
    claim = entry(measured=how)
    assert measure(claim, tmp_path).median == 1.9
    assert claim.measured
    assert claim.measured.agrees(1.9)
    assert not claim.measured.agrees(1.7)


def test_a_number_of_the_headline_is_measured(tmp_path: Path) -> None:
    how = {"experiment": "hot-domain", "expected": 100, "why": "always"}
    claim = entry(measured={**how, "headline": "spine_condition.agrees_pct"})
    assert measure(claim, tmp_path).median == 75
    for number, missing in enumerate(("spine_condition.agrees_p99_pct", "other.agrees_pct")):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(BadInput, match=missing):
            measure(entry(measured={**how, "headline": missing}), tmp_path / str(number))


def test_a_target_never_reached_differs(tmp_path: Path) -> None:
    """The worst of all fabrics counts."""
    how = {"experiment": "plane-crash", "target": "time", "expected": 100, "bound": "at most", "why": "noise"}
    claim = entry(measured=how)
    measurement = measure(claim, tmp_path)
    assert measurement.median == float("inf")
    assert JudgedClaim("paper", claim, (), measurement).mark == "differs"
    unmeasured = entry(measured={**how, "target": "other"})
    with pytest.raises(BadInput, match="no valid value of the target 'other'"):
        measured.measure(unmeasured, tmp_path / "run")


@pytest.mark.parametrize(
    ("verdict", "rows", "message"),
    [
        ("invalid", ROWS, "invalid run.*cores were busy"),
        ("ok", ROWS[2:3], "no valid value .*metric=slowdown"),
    ],
)
def test_runs_that_say_nothing_are_refused(
    tmp_path: Path, verdict: str, rows: list[dict[str, object]], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        measured.measure(entry(), run_folder(tmp_path / "run", verdict, rows))


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no whole folder"):
        measured.measure(entry(), tmp_path)


def test_measurements_are_read_as_written(tmp_path: Path) -> None:
    file = tmp_path / measured.NAME
    assert measured.read(file) == {}
    file.write_text(measured.to_csv({"slow": MEASURED}))
    assert measured.read(file) == {"slow": MEASURED}


def test_measurements_of_other_versions_are_named() -> None:
    other = MEASURED._replace(claim="old", version="01234567")
    line = measured.of_other_versions([MEASURED, other], MEASURED.version)
    assert "old (01234567)" in line
    assert "slow" not in line
    assert not measured.of_other_versions([MEASURED], MEASURED.version)
    assert measured.version(None) == "no commit"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rows": "x"}, "invalid literal"),
        ({"median": "nan"}, "slow has no number"),
        ({"verdict": "great"}, "verdict 'great' is none of ok, degraded, invalid"),
        ({"date": "a,b,c,d"}, "."),
    ],
)
def test_damaged_tables_are_refused_in_a_line(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    row = {key: str(value) for key, value in MEASURED._asdict().items()} | changed
    file = tmp_path / measured.NAME
    file.write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    with pytest.raises(BadInput, match=message):
        measured.read(file)
    file.write_bytes(b"\xfa\x00")
    with pytest.raises(BadInput, match="no table of measured claims"):
        measured.read(file)

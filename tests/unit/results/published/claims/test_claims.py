"""Claims of the papers: every entry refers to something that exists, and stored numbers are those computed now."""

import json
import shlex
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from railyard.core.errors import BadInput
from railyard.experiments.spec import loading
from railyard.results.published.catalogue import FIGURES
from railyard.results.published.claims import computed, measured, page
from railyard.results.published.claims.definition import Measured, PublishedClaim, papers
from railyard.results.published.claims.marks import JudgedClaim, judged
from railyard.results.published.claims.measured import MeasuredClaim

PROJECT = Path(__file__).parents[5]
HOW: dict[str, Any] = {
    "experiment": "moe-slowdown",
    "rows": {"metric": "slowdown"},
    "expected": 8.0,
    "within": 1.0,
    "why": "noise",
}
QUANTITY = Measured.model_validate(HOW).quantity
MEASURED = MeasuredClaim("slow", QUANTITY, "2026-11-29", "abcdef12", "ok", 3, 8.0, 7.5, 8.5)
OUTSIDE = MEASURED._replace(median=9.2, least=9.1, most=9.5)
UNCLEAR = MEASURED._replace(most=10.1)


def entry(**keys: Any) -> PublishedClaim:
    data = {"id": "slow", "claim": "It is slower.", "where": "IV", "published": "8%", "measured": HOW, **keys}
    return PublishedClaim.model_validate(data)


def mark(measurement: MeasuredClaim | None, **keys: Any) -> str:
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
                words = shlex.split(claim.measured.command)
                assert words[1:] == [name, *(word for option in claim.measured.options for word in ("-o", option))]


def test_stored_numbers_equal_computed_numbers() -> None:
    """Else a mark would be of another version. Remedy: python -m railyard.results.published.claims.page."""
    assert computed.to_csv(computed.computed_rows(computed.figures_of_claims())) == computed.FILE.read_text("utf-8")


def test_the_page_has_the_marks_of_today() -> None:
    assert page.page() == (PROJECT / page.PAGE).read_text("utf-8")


def test_stored_measurements_are_of_quantities_of_claims() -> None:
    """A claim that is measured in another way now has to be measured again."""
    assert measured.unused(measured.read()) == {}


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        ({"expected": 9.0, "within": 0.5, "bound": "at most", "unit": "%", "why": "other"}, True),
        ({"rows": {"metric": "time"}}, False),
        ({"each": "fabric"}, False),
        ({"options": ["repeats=5"]}, False),
        ({"percent": True}, False),
    ],
)
def test_a_measurement_holds_for_the_same_quantity_alone(changed: dict[str, Any], is_same: bool) -> None:
    how = {**HOW, **changed}
    assert (Measured.model_validate(how).quantity == QUANTITY) == is_same
    paper = next(iter(papers().values())).model_copy(update={"claims": (entry(measured=how),)})
    (claim,) = judged({"paper": paper}, {"slow": MEASURED})
    assert (claim.measurement is MEASURED) == is_same


def test_a_differing_part_makes_a_claim_differ() -> None:
    agreeing = {"figure": "table2"}
    differing = {"figure": "fig5"}
    assert mark(MEASURED) == "reproduced"
    assert mark(OUTSIDE) == "differs"
    assert mark(MEASURED, computed=agreeing) == "reproduced"
    assert mark(MEASURED, computed=differing) == "differs"
    assert mark(None, computed=agreeing) == "reproduced"
    assert mark(None) == "not measured"
    assert mark(MEASURED, not_reproducible="No such machine.") == "not reproducible"
    assert mark(UNCLEAR, computed=agreeing) == "unclear"
    assert mark(UNCLEAR, computed=differing) == "differs"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((8.0, 6.0, 10.0), "reproduced"),  # twice the tolerance
        ((8.9, 7.5, 10.1), "unclear"),
        ((8.0, 5.9, 8.5), "unclear"),
        ((9.1, 8.9, 9.5), "unclear"),
        ((9.2, 9.1, 9.5), "differs"),
        ((6.5, 6.0, 6.9), "differs"),
    ],
)
def test_mark_follows_from_the_spread_in_both_directions(values: tuple[float, float, float], expected: str) -> None:
    """The tolerance is 7 to 9."""
    median, least, most = values
    assert mark(MEASURED._replace(median=median, least=least, most=most)) == expected


@pytest.mark.parametrize(
    ("limits", "values", "expected"),
    [
        ({"bound": "at least"}, (8.5, 8.0, 9.0), "reproduced"),
        ({"bound": "at least"}, (8.5, 7.9, 9.0), "unclear"),
        ({"bound": "at least"}, (7.9, 7.0, 8.0), "unclear"),
        ({"bound": "at least"}, (7.5, 7.0, 7.9), "differs"),
        ({"bound": "at most", "within": 1}, (8.5, 2.0, 10.0), "reproduced"),
        ({"bound": "at most", "within": 1}, (8.5, 2.0, 10.1), "unclear"),
        ({"bound": "at most", "within": 1}, (inf, inf, inf), "differs"),
        ({}, (8.0, 8.0, 8.0), "reproduced"),
        ({}, (8.0, 8.0, 8.1), "differs"),
    ],
)
def test_bounds_and_exact_claims_are_judged_by_their_spread(
    limits: dict[str, Any], values: tuple[float, float, float], expected: str
) -> None:
    how = {"experiment": "moe-slowdown", "rows": {"metric": "slowdown"}, "expected": 8.0, "why": "noise", **limits}
    median, least, most = values
    assert mark(MEASURED._replace(median=median, least=least, most=most), measured=how) == expected


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
        "headline": {
            "targets": targets,
            "recovery_targets": [{**time, "quantity": "recovery"}],
            "spine_condition": {"agrees_pct": 75, "agrees_p99_pct": None, "ratios": [1.0, 0.9, 1.2]},
        },
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


def measure(claim: PublishedClaim, folder: Path) -> MeasuredClaim:
    return measured.measure(claim, run_folder(folder / "run", "degraded", ROWS))


def test_the_median_of_valid_rows_is_measured(tmp_path: Path) -> None:
    how = {"experiment": "moe-slowdown", "rows": {"metric": "slowdown", "policy": "dr"}, "percent": True}
    measurement = measure(entry(measured={**how, "expected": 8.0, "why": "noise"}), tmp_path)
    assert (measurement.claim, *measurement[2:-3]) == ("slow", "2026-11-29", "01234567", "degraded", 2)
    assert measurement[-3:] == pytest.approx((8.0, 7.0, 9.0))


def test_rows_are_set_against_other_rows(tmp_path: Path) -> None:
    how = {"experiment": "hot-domain", "rows": {"metric": "slowdown", "policy": "health"}, "over": {"policy": "dr"}}
    assert measure(entry(measured={**how, "expected": 2.0, "why": "noise"}), tmp_path).median == pytest.approx(2.0)


def test_a_row_is_set_against_its_own_repeat(tmp_path: Path) -> None:
    """The second repeat took twice as long under both policies, so that no repeat says anything but 1.1 times."""
    rows: list[dict[str, object]] = []
    for policy, factor in (("dr", 1.1), ("health", 1.0)):
        for repeat, seconds in enumerate((1.0, 2.0, 1.0)):
            rows.append({"metric": "time", "policy": policy, "repeat": repeat, "value": factor * seconds})
    rows[-1]["verdict"] = "invalid"
    how = {"experiment": "hot-domain", "rows": {"metric": "time", "policy": "health"}, "over": {"policy": "dr"}}
    claim = entry(measured={**how, "expected": 10, "percent": True, "why": "noise"})
    measurement = measured.measure(claim, run_folder(tmp_path / "run", "ok", rows))
    assert measurement[-4:] == pytest.approx((2, 10, 10, 10))


def test_a_value_is_divided_by_that_of_another_column(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", "ok", [])
    (folder / "replacement.csv").write_text("case,before_s,after_s\nserver,0.5,0.6\nserver,0.5,0.5\nother,1,9\n")
    how = {"experiment": "gpu-failures", "table": "replacement.csv", "rows": {"case": "server"}, "column": "after_s"}
    claim = entry(measured={**how, "per": "before_s", "expected": 1, "why": "noise"})
    assert measured.measure(claim, folder)[-4:] == pytest.approx((2, 1.1, 1.0, 1.2))


def test_a_median_hides_no_group_of_rows(tmp_path: Path) -> None:
    """Two of three repeats of one job are slow, so that the median of both jobs' rows isn't."""
    slowdowns = {"even": (1.0, 1.0, 1.0), "odd": (1.0, 1.2, 1.2)}
    rows: list[dict[str, object]] = []
    for job, values in slowdowns.items():
        rows += [{"metric": "job_slowdown", "phase": job, "value": value, "verdict": "ok"} for value in values]
    how = {"experiment": "two-jobs", "rows": {"metric": "job_slowdown"}, "expected": 1, "within": 0.1, "why": "noise"}
    folder = run_folder(tmp_path / "run", "ok", rows)
    assert measured.measure(entry(measured=how), folder).median == 1
    assert measured.measure(entry(measured={**how, "each": "phase"}), folder)[-4:] == (3, 1.2, 1.0, 1.2)
    rows += [{"metric": "job_slowdown", "phase": "third", "value": 1, "verdict": "invalid"}]
    pd.DataFrame(rows).to_csv(folder / "results.csv", index=False)
    with pytest.raises(BadInput, match="no valid value"):
        measured.measure(entry(measured={**how, "each": "phase"}), folder)


def test_a_measured_difference_has_its_reason() -> None:
    claim = JudgedClaim("paper", entry(), (), OUTSIDE)
    assert claim.reason.endswith(" differs, expected 7.000 to 9.000: noise")
    assert "unclear with 7.500 to 10.10, expected" in JudgedClaim("paper", entry(), (), UNCLEAR).reason
    assert JudgedClaim("paper", entry(note="as V"), (), MEASURED).reason == "as V"
    assert JudgedClaim("paper", entry(), (), MEASURED).reason == ""
    assert JudgedClaim("paper", entry(), (), None).measured_text == "no stored run"


def test_a_target_is_measured(tmp_path: Path) -> None:
    how = {"experiment": "multirail-bench", "target": "gain", "expected": 1.8, "bound": "at least", "why": "noise"}
    assert measure(entry(measured=how), tmp_path).median == 1.9


def test_a_number_of_the_headline_is_measured(tmp_path: Path) -> None:
    how = {"experiment": "hot-domain", "expected": 100, "why": "always"}
    claim = entry(measured={**how, "headline": "spine_condition.agrees_pct"})
    assert measure(claim, tmp_path).median == 75
    ratios = entry(measured={**how, "headline": "spine_condition.ratios"})
    assert measured.measure(ratios, tmp_path / "run")[-4:] == (3, 1.0, 0.9, 1.2)
    for number, missing in enumerate(("spine_condition.agrees_p99_pct", "other.agrees_pct")):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(BadInput, match=missing):
            measure(entry(measured={**how, "headline": missing}), tmp_path / str(number))


def test_a_target_never_reached_differs(tmp_path: Path) -> None:
    """The worst of all fabrics counts."""
    how = {"experiment": "plane-crash", "target": "time", "expected": 100, "bound": "at most", "why": "noise"}
    claim = entry(measured=how)
    measurement = measure(claim, tmp_path)
    assert measurement.median == inf
    assert measurement.as_dict()["median"] is None
    judgement = JudgedClaim("paper", claim, (), measurement)
    assert judgement.mark == "differs"
    assert judgement.measured_text.startswith("never, degraded")
    recovery = entry(measured={**how, "target": "recovery"})
    assert measured.measure(recovery, tmp_path / "run").median == 40
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
    folder = run_folder(tmp_path / "run", "ok", ROWS)
    (folder / "results.csv").write_text("metric,value\nslowdown,fast\n")
    with pytest.raises(BadInput, match=r"no whole folder.*'fast'"):
        measured.measure(entry(), folder)
    for text in ("{}", "[]", '{"verdict": "ok"}'):
        (folder / "summary.json").write_text(text)
        with pytest.raises(BadInput, match="no whole folder"):
            measured.measure(entry(), folder)


def test_a_run_that_did_not_end_is_refused(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", "ok", ROWS)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "complete": False}))
    with pytest.raises(BadInput, match="did not end"):
        measured.measure(entry(), folder)


def test_a_claim_is_obtained_as_its_twin() -> None:
    """Its own measurement comes first."""
    claims = {claim.id: claim for paper in papers().values() for claim in paper.claims}
    twin = claims["same-performance-dense"]
    claim = claims["spine-free-same-performance"]
    assert claim.measured == twin.measured
    assert claim.commands == twin.commands
    assert twin.measured
    of_twin = MEASURED._replace(quantity=twin.measured.quantity)
    own = of_twin._replace(median=9.2)
    measurements = {twin.id: of_twin}
    paper = papers()["spine-free"].model_copy(update={"claims": (claim,)})
    (judgement,) = judged({"spine-free": paper}, measurements)
    assert judgement.measurement == of_twin
    measurements[claim.id] = own
    (judgement,) = judged({"spine-free": paper}, measurements)
    assert judgement.measurement == own


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
        ({"verdict": "great"}, "verdict 'great' is not ok or degraded"),
        ({"verdict": "invalid"}, "verdict 'invalid' is not ok or degraded"),
        ({"rows": "0"}, "slow has no rows"),
        ({"least": "8.1"}, "no median between"),
        ({"other": "1"}, "columns are not claim, quantity, date"),
        ({"date": "a,b,c,d"}, "."),
    ],
)
def test_damaged_tables_are_refused_in_a_line(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    row = {key: str(value) for key, value in MEASURED._asdict().items()} | changed
    file = tmp_path / measured.NAME
    file.write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    with pytest.raises(BadInput, match=message):
        measured.read(file)
    lines = measured.to_csv({"slow": MEASURED}).splitlines()
    file.write_text("\n".join([*lines, lines[-1]]))
    with pytest.raises(BadInput, match="slow is there twice"):
        measured.read(file)
    file.write_bytes(b"\xfa\x00")
    with pytest.raises(BadInput, match="no table of measured claims"):
        measured.read(file)

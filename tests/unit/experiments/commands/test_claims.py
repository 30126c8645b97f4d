"""`claims`: the table, one paper, one claim, and what is refused."""

import json
from math import inf
from pathlib import Path

import pytest

from railyard.experiments import cli
from railyard.results.published.claims import measured
from railyard.results.published.claims.definition import claims_by_id
from railyard.results.published.claims.measured import MeasuredClaim


def result_of(claim_id: str, value: float) -> MeasuredClaim:
    """Return a measurement of a claim as it is now, by another version of Railyard."""
    how = claims_by_id()[claim_id].measured
    assert how
    return MeasuredClaim(claim_id, how.quantity, "2026-11-30", "0badc0de", "ok", 1, value, value, value)


def test_a_paper_is_listed_with_commands_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["claims", "health-routing-2"]) == 0
    output = capsys.readouterr().out
    assert "Remote Rail Theorem" in output
    assert "remote-rail-theorem: predict health" in output
    assert "≠ condition-names-latency: the article takes" in output


def test_a_mark_chooses_claims(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["claims", "nezha", "--mark", "differs", "--json"]) == 0
    claims = json.loads(capsys.readouterr().out)
    assert claims
    assert {claim["mark"] for claim in claims} == {"differs"}


def test_results_of_the_user_take_their_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = result_of("two-step-all-to-all", 1.2)
    rows = {result.claim: result, "log": result._replace(claim="log"), "over-gloo": result._replace(claim="over-gloo")}
    (tmp_path / measured.NAME).write_text(measured.to_csv(rows))
    assert cli.main(["claims", "log-k", "two-step-all-to-all", "--out", str(tmp_path), "--json"]) == 0
    printed = capsys.readouterr()
    _, claim = json.loads(printed.out)
    assert (claim["mark"], claim["measured"]["version"]) == ("differs", "0badc0de")
    assert "log (no claim" in printed.err
    assert "over-gloo (measured" in printed.err
    assert "two-step-all-to-all (0badc0de)" in printed.err


def test_json_of_a_time_that_never_came_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    never = result_of("plane-crash-goodput", inf)
    (tmp_path / measured.NAME).write_text(measured.to_csv({never.claim: never}))
    assert cli.main(["claims", never.claim, "--out", str(tmp_path), "--json"]) == 0
    (claim,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (claim["mark"], claim["measured"]["median"]) == ("differs", None)
    assert cli.main(["claims", never.claim, "--out", str(tmp_path)]) == 0
    assert "never" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["rail-onyl"], ["error: claims: 'rail-onyl'", "'rail-only'", "papers are health-routing-1,", " more"]),
        (["slowdown-a10"], ["'slowdown-a100'", "claims are "]),
        (["nezha", "log-k", "over-glo"], ["'over-glo'", "'over-gloo'"]),
        (["--mark", "wrong"], ["error: --mark: 'wrong'", "unclear"]),
    ],
)
def test_unknown_papers_and_marks_are_refused(
    words: list[str], messages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["claims", *words]) == 2
    error = capsys.readouterr().err
    assert [message for message in messages if message not in error] == []

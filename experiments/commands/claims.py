"""`claims`: every claim of the papers, what is computed and measured of it, and whether they agree."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from railyard.core.errors import BadInput, print_error
from railyard.experiments.options import completion, console
from railyard.results.published.claims import measured
from railyard.results.published.claims.definition import Paper, chosen, names_of_claims, with_claims
from railyard.results.published.claims.marks import MARKS, SYMBOLS, JudgedClaim, judged
from railyard.results.published.claims.measured import MeasuredClaim

PURPOSE = "Compute and check, without packets"
COLUMNS: Final = ("", "claim", "where", "paper", "computed", "measured")


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAPER|CLAIM]...",
            show_default=False,
            help="Papers, and claims by their ids.",
            autocompletion=completion(names_of_claims),
        ),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Run what is measured on packets, as root, and keep the results in --out.")
    ] = False,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder of runs and of their results, claims/measured.csv.")
    ] = Path("claims"),
    only: Annotated[
        str,
        typer.Option(
            "--mark", metavar="MARK", show_default=False, help="List only claims with this mark: differs, unclear, ..."
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the claims as JSON.")] = False,
) -> int:
    """List what the papers claim, with what Railyard computes and measures of it, and whether they agree.

    ✓ reproduced, ≠ differs, ± unclear, – not reproducible, with the reason, ? neither computed nor measured. Where
    the measured column says "no stored run", the mark is of the computed value alone. With papers or
    claims, the commands that show each of them are listed too.

    A measurement agrees if its median is within the tolerance of the claim and no repeat is off by more than twice the
    tolerance. It differs if its median, its least and its greatest repeat are all outside the tolerance; between these
    it is unclear.

    `claims --run` measures those that need packets, in one sweep of experiments; a run that is there is not run again.
    It first prints how many experiments it runs, and about how long they take. With `--mark` it measures the claims of
    this mark alone.
    """
    papers = chosen(names or ())
    if only:
        papers = _of_mark(papers, only, out / measured.NAME)
    problems: list[str] = []
    if run:
        # a table alone needs none of what runs experiments, which takes a second to load
        from railyard.experiments.sweep.claim_runs import run_claims

        problems = run_claims(papers, out)
    # a user's own results take the place of those that come with Railyard
    file = out / measured.NAME
    results_of_user = measured.read(file)
    claims = list(judged(papers, {**measured.read(), **_used(results_of_user)}))
    _print_note(measured.unused_text(measured.unused(results_of_user), file))
    if not run:
        _name_other_versions(claims, results_of_user)
    if as_json:
        print(json.dumps([claim.as_dict() for claim in claims], indent=1, allow_nan=False))
        return _status(problems)
    screen = console()
    for name in papers:
        _print_paper(papers[name], [claim for claim in claims if claim.paper == name], screen, bool(names))
    _print_counts(claims, screen)
    return _status(problems)


def _of_mark(papers: Mapping[str, Paper], mark: str, file: Path) -> dict[str, Paper]:
    """Return the papers with the claims that have a mark. `file`: the user's results. BadInput for no mark."""
    if mark not in MARKS:
        raise BadInput("--mark", mark, f"must be one of {', '.join(MARKS)}")
    measurements = {**measured.read(), **_used(measured.read(file))}
    return with_claims(papers, {claim.claim.id for claim in judged(papers, measurements) if claim.mark == mark})


def _used(results: Mapping[str, MeasuredClaim]) -> dict[str, MeasuredClaim]:
    """Return the results that say something of a claim: others must not take the place of those of Railyard."""
    ignored = measured.unused(results)
    return {claim_id: result for claim_id, result in results.items() if claim_id not in ignored}


def _print_note(note: str) -> None:
    """Print a note on the user's results; nothing for an empty one."""
    if note:
        console(stderr=True).print(f"note: {note}", highlight=False, soft_wrap=True)


def _name_other_versions(claims: Sequence[JudgedClaim], results_of_user: Mapping[str, MeasuredClaim]) -> None:
    """Print a line on the user's results that another version of Railyard measured, if claims have any."""
    shown: list[MeasuredClaim] = []
    for claim in claims:
        if claim.measurement and claim.measurement in results_of_user.values():
            shown.append(claim.measurement)
    if not shown:
        return
    # git takes longer to start than the table to print
    from railyard.core.provenance import git_commit

    _print_note(measured.of_other_versions(shown, measured.version(git_commit())))


def _status(problems: Sequence[str]) -> int:
    """Print what could not be measured; return the exit status."""
    for problem in problems:
        print_error(problem, 1)
    return 1 if problems else 0


def _print_counts(claims: Sequence[JudgedClaim], screen: Console) -> None:
    """Print how many claims there are, and how many have each mark."""
    marks = Counter(claim.mark for claim in claims)
    counts = ", ".join(f"{marks[mark]} {mark}" for mark in MARKS if marks[mark])
    noun = "claim" if len(claims) == 1 else "claims"
    screen.print(f"{len(claims)} {noun}: {counts}", highlight=False)


def _print_paper(paper: Paper, claims: Sequence[JudgedClaim], screen: Console, with_commands: bool) -> None:
    """Print a table of a paper's claims, then reasons and commands. `with_commands`: of each claim."""
    if not claims:
        return
    table = Table(*COLUMNS, box=None, padding=(0, 1), title=paper.title, title_justify="left", pad_edge=False)
    for claim in claims:
        table.add_row(
            SYMBOLS[claim.mark], claim.claim.claim, claim.claim.where, claim.claim.published,
            claim.computed_text, claim.measured_text,
        )  # fmt: skip
    screen.print(table)
    # in the table they would make rows that fill a screen
    for claim in claims:
        if claim.reason:
            screen.print(f"{SYMBOLS[claim.mark]} {claim.claim.id}: {claim.reason}", style="dim", highlight=False)
        if with_commands:
            screen.print(f"  {claim.claim.id}: {'; '.join(claim.claim.commands)}", highlight=False, soft_wrap=True)
    screen.print()

"""The page docs/claims.md: every claim with its mark. `python -m railyard.results.published.claims.page` writes it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from railyard.core.installation import PROJECT
from railyard.results.published.claims import computed
from railyard.results.published.claims.definition import papers
from railyard.results.published.claims.marks import MARKS, SYMBOLS, JudgedClaim, Mark, judged
from railyard.results.published.claims.measured import read

PAGE: Final = Path("docs/claims.md")
HEAD: Final = """# The papers' claims

What five papers claim, in a sentence each, and what Railyard makes of it. *Computed* is a formula, a simulation or a
count. *Measured* is a run with real packets on an emulated fabric: the median (least to greatest, number of repeats),
the verdict of the run unless it is ok, date and commit. Recovery times are those of the worst repeat. A run is
`degraded` if the machine was somewhat disturbed; an invalid run is never kept. What a paper calls 84% more or faster is
1.84 times here.

| mark | means |
|---|---|
| ✓ | reproduced: what is computed and what is measured agree with the paper, within the stated tolerance; \
where the measured column says "no stored run", that is of what is computed alone |
| ≠ | differs: one of them doesn't |
| ± | unclear: some repeats of a measurement agree with the paper, and others do not |
| – | not reproducible, or no test, since what is computed was fitted to the number: the reason is below the table |
| ? | nothing of it is computed, and no run is stored; [measurements.md](measurements.md) may have an earlier one |

**Tolerances.** [published.md](published.md#tolerances) has those of what is computed. Each measured claim has its own,
with the reason for it, in the paper's file in `results/published/claims/`. Where a paper gives no number
("negligible", "near-optimal"), the bar is Railyard's own. A number that is better than the paper's differs like one
that is worse, unless the paper gives a bound. An error of a paper's own model counts as a bound: a smaller error
agrees.

**Scope.** A row for every statement with a number, an equation or a comparison. Numbers that a paper cites from others,
prices, rates of data sheets, definitions and what describes the authors' own machines are inputs, and have no row.

**Spread.** A measurement agrees if its median is within the tolerance and no repeat is off by more than twice the
tolerance. It differs if its median, its least and its greatest repeat are all outside the tolerance. Between these it
is unclear. A claim without a tolerance, such as that no byte is lost, differs if one repeat contradicts it. A single
value has no spread, and is judged alone.

**Commands.** `script/run claims` prints this table. With names of papers and of claims, as many as you like
(`script/run claims health-routing-1 slowdown-a100`), it also prints the commands that show each claim, which follow
`script/run`; a figure of `predict` takes seconds and no root. `--mark differs` chooses a mark, and `--json` has every
number with its note. With `--run`, as root, it first measures what needs packets, into a folder of its own: it prints
which experiments it runs and about how long they take, which is hours for all papers, and does not run again those that
are there; with `--mark "not measured"` it measures claims of this mark alone. Adding a claim is adding an entry to the
paper's file. [published.md](published.md) describes the figures and what they assume where a paper says nothing;
[measurements.md](measurements.md) has further runs.
"""


def page() -> str:
    """Return the page's Markdown."""
    claims = list(judged(papers(), read()))
    marks = Counter(claim.mark for claim in claims)
    counts = ", ".join(f"{marks[mark]} {mark}" for mark in MARKS)
    unmarked: tuple[Mark, ...] = ("not reproducible", "not measured")
    computed_alone = 0
    for claim in claims:
        computed_alone += claim.measurement is None and claim.mark not in unmarked
    parts = [HEAD, f"{len(claims)} claims: {counts}. {computed_alone} are marked by what is computed alone.\n"]
    for name, paper in papers().items():
        parts.append(f"## {paper.title}\n")
        parts.append("\n".join(_table([claim for claim in claims if claim.paper == name])) + "\n")
    return "\n".join(parts)


def _table(claims: Sequence[JudgedClaim]) -> Iterator[str]:
    """Yield the lines of a paper's table, and of the reasons below it."""
    yield "| | claim | where | paper | computed | measured | command |"
    yield "|---|---|---|---|---|---|---|"
    for claim in claims:
        commands = ", ".join(f"`{command}`" for command in claim.claim.commands)
        cells = (claim.claim.claim, claim.claim.where, claim.claim.published, claim.computed_text, claim.measured_text)
        yield f"| {SYMBOLS[claim.mark]} | {' | '.join(cells)} | {commands} |"
    reasons = [claim for claim in claims if claim.reason]
    if reasons:
        yield ""
    for claim in reasons:
        yield f"- {SYMBOLS[claim.mark]} *{claim.claim.id}*: {claim.reason}"


def main() -> None:
    """Write computed.csv and the page anew."""
    computed.FILE.write_text(computed.to_csv(computed.computed_rows(computed.figures_of_claims())), "utf-8")
    # the page is of what was just computed
    computed.stored.cache_clear()
    (PROJECT / PAGE).write_text(page(), "utf-8")


if __name__ == "__main__":
    main()

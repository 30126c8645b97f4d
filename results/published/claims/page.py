"""The page docs/claims.md: every claim with its mark. `python -m railyard.results.published.claims.page` writes it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from railyard.core.installation import PROJECT
from railyard.results.published.claims import computed
from railyard.results.published.claims.definition import papers
from railyard.results.published.claims.marks import MARKS, SYMBOLS, JudgedClaim, judged
from railyard.results.published.claims.measured import read

PAGE: Final = Path("docs/claims.md")
HEAD: Final = """# The papers' claims

`script/run claims` prints this table. With the name of a paper (`script/run claims nezha`) or of a claim it also prints
the commands that show each claim. With `--run`, as root, it first measures those that need packets. Numbers and
tolerances of what is computed are those of the figures of `predict` ([published.md](published.md)).

| mark | means |
|---|---|
| ✓ | reproduced: what is computed and what is measured agree with the paper, within the stated tolerance; \
where the measured column says "not yet", that is of what is computed alone |
| ≠ | differs: one of them doesn't |
| – | not reproducible, for the reason below the table |
| ? | nothing of it is computed, and it is not yet measured on packets |
"""


def page() -> str:
    """Return the page's Markdown."""
    claims = list(judged(papers(), read()))
    marks = Counter(claim.mark for claim in claims)
    counts = ", ".join(f"{marks[mark]} {mark}" for mark in MARKS)
    parts = [HEAD, f"{len(claims)} claims: {counts}.\n"]
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

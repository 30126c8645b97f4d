"""Numbers of the papers as the figures of `predict` compute them, kept in computed.csv.

All figures together take several seconds, so a table of claims reads the file. `computed_rows` computes it anew, and a
test compares.
"""

import csv
import io
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from railyard.core.installation import data_file
from railyard.results.published.catalogue import FIGURES, Claim
from railyard.results.published.claims.definition import Computed, papers

FILE: Final = data_file("results/published/claims") / "computed.csv"


class ComputedClaim(NamedTuple):
    """A number of a figure: the paper's and ours, in `unit`, and whether they agree."""

    figure: str
    quantity: str
    published: float
    ours: float
    unit: str
    agrees: bool
    note: str


def quantity(claim: Claim) -> str:
    """Return what a claim is called: its quantity and unit, and whose number it is if no paper states it."""
    stated = "" if claim.stated == "published" else f", {claim.stated}"
    return f"{claim.what} ({claim.unit}{stated})"


def computed_rows(figures: Sequence[str]) -> list[ComputedClaim]:
    """Compute the claims of these figures."""
    rows: list[ComputedClaim] = []
    for name in figures:
        for claim in FIGURES[name]().claims:
            rows.append(
                ComputedClaim(name, quantity(claim), claim.published, claim.ours, claim.unit, claim.agrees, claim.note)
            )
    return rows


def figures_of_claims() -> list[str]:
    """Return the figures that claims refer to, in their order."""
    used: set[str] = set()
    for paper in papers().values():
        used |= {claim.computed.figure for claim in paper.claims if claim.computed}
    return [name for name in FIGURES if name in used]


def to_csv(rows: Sequence[ComputedClaim]) -> str:
    """Return rows as the file has them, with numbers of six digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ComputedClaim._fields)
    for row in rows:
        numbers = (f"{row.published:.6g}", f"{row.ours:.6g}")
        writer.writerow([row.figure, row.quantity, *numbers, row.unit, row.agrees, row.note])
    return text.getvalue()


@cache
def stored() -> tuple[ComputedClaim, ...]:
    """Return the rows of the file."""
    rows: list[ComputedClaim] = []
    with FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            numbers = (float(row["published"]), float(row["ours"]))
            rows.append(
                ComputedClaim(
                    row["figure"], row["quantity"], *numbers, row["unit"], row["agrees"] == "True", row["note"]
                )
            )
    return tuple(rows)


def numbers_of(computed: Computed) -> tuple[ComputedClaim, ...]:
    """Return the stored numbers that a claim consists of. ValueError if one of them isn't there."""
    # a claim of a figure that was renamed would else be "not measured", as if it were still to come
    rows = [row for row in stored() if row.figure == computed.figure]
    if computed.quantities:
        missing = set(computed.quantities) - {row.quantity for row in rows}
        if missing:
            raise ValueError(f"figure {computed.figure} has no {', '.join(sorted(missing))}")
        rows = [row for row in rows if row.quantity in computed.quantities]
    if not rows:
        raise ValueError(f"figure {computed.figure} has no claims")
    return tuple(rows)

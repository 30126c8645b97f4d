"""Numbers of the papers as runs measured them, kept in measured.csv: the last run of each claim, with its verdict.

An invalid run says nothing, so it is never kept.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import inf, isfinite, isnan
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from railyard.core.errors import BadInput, near_miss
from railyard.core.installation import data_file
from railyard.results.published.claims.definition import Measured, PublishedClaim, claims_by_id

NAME: Final = "measured.csv"
FILE: Final = data_file("results/published/claims") / NAME
INVALID: Final = "invalid"
KEPT_VERDICTS: Final = ("ok", "degraded")
VERSION_DIGITS: Final = 8  # of a commit
TARGETS: Final = ("targets", "recovery_targets")
"""Parts of the headline of summary.json that have targets: those of allreduces, and those of recovery from faults."""
PLACE: Final = ("fabric", "workload", "phase", "scene", "script", "reroute", "repeat")
"""Columns that say where and when a row was measured. The policy isn't one: a fabric's may be one of its own."""
_DAMAGE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError, csv.Error)
"""Errors of a folder whose files are missing, or are not those of a run."""


class MeasuredClaim(NamedTuple):
    """A claim as measured: the median of its rows, the least and the most; when, and by which commit of Railyard.

    `quantity`: that of the claim's `Measured` when it was measured.
    """

    claim: str
    quantity: str
    date: str
    version: str
    verdict: str
    rows: int
    median: float
    least: float
    most: float

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data. JSON has no infinity: a number of what never came is None."""
        plain = self._asdict()
        for name in ("median", "least", "most"):
            if not isfinite(plain[name]):
                plain[name] = None
        return plain


def measure(claim: PublishedClaim, folder: Path) -> MeasuredClaim:
    """Return what a run's folder says of a claim.

    BadInput if the run is invalid, did not end, is damaged, or has no such values.
    """
    if claim.measured is None:
        raise BadInput("claim", claim.id, "is not measured on packets")
    try:
        return _measurement(claim.id, claim.measured, folder)
    except _DAMAGE as error:
        problem = f"is no whole folder of a run: {type(error).__name__}: {error}"
        raise BadInput(f"claim {claim.id}", str(folder), problem) from error


def _measurement(claim_id: str, measured: Measured, folder: Path) -> MeasuredClaim:
    """Return what a run's folder says. BadInput if that is nothing, an error of _DAMAGE if it is no run's."""
    field = f"claim {claim_id}"
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    provenance = json.loads((folder / "provenance.json").read_text("utf-8"))
    if summary["verdict"] == INVALID:
        reason = next(iter(summary["reasons"]), "no reason was recorded")
        raise BadInput(field, str(folder), f"is of an invalid run, which says nothing: {reason}")
    # None: its records were not verified
    if summary.get("complete") is False:
        raise BadInput(field, str(folder), "is of a run that did not end, or of which records are damaged")
    values = _values(measured, folder, summary)
    if not values:
        raise BadInput(field, str(folder), f"has no valid value of {_quantity_text(measured)}")
    date = str(summary["started_utc"])[:10]
    measured_by = version(provenance.get("git_commit"))
    spread = (median(values), min(values), max(values))
    return MeasuredClaim(claim_id, measured.quantity, date, measured_by, summary["verdict"], len(values), *spread)


def _quantity_text(measured: Measured) -> str:
    """Return what is looked for, for messages."""
    if measured.target:
        return f"the target {measured.target!r}"
    if measured.headline:
        return f"{measured.headline} in the headline of summary.json"
    rows = ", ".join(f"{key}={value}" for key, value in measured.rows.items())
    return f"{measured.column} in {measured.table} with {rows}"


def _values(measured: Measured, folder: Path, summary: Mapping[str, Any]) -> list[float]:
    """Return the values that a run has of a quantity: one for each repeat, or the worst one of a target."""
    if measured.target:
        return _of_target(measured.target, summary["headline"])
    if measured.headline:
        return _of_headline(measured.headline, summary["headline"])
    # pandas takes longer to load than a table of claims to print
    with (folder / measured.table).open(encoding="utf-8", newline="") as opened:
        return _of_rows(measured, list(csv.DictReader(opened)))


def _of_target(target: str, headline: Mapping[str, Any]) -> list[float]:
    """Return the worst value of a target over the fabrics of the run; none if it was not measured, or not validly.

    Infinite for what never came: it must not count as if nothing had been measured.
    """
    entries: list[Mapping[str, Any]] = []
    for key in TARGETS:
        entries += headline.get(key, ())
    values: list[float] = []
    worst = max
    for entry in entries:
        if entry["quantity"] != target or entry["verdict"] == INVALID:
            continue
        if entry["comparison"] == "at least":
            worst = min
        if entry["value"] is not None:
            values.append(float(entry["value"]))
        elif entry["measured"]:
            values.append(inf)
    return [worst(values)] if values else []


def _of_headline(key: str, headline: Mapping[str, Any]) -> list[float]:
    """Return a number of the headline by its keys, joined by dots, or a list of one for each repeat; none without."""
    value: Any = headline
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return []
    if isinstance(value, list):
        return [float(number) for number in value]
    return [float(value)]


def _of_rows(measured: Measured, table: Sequence[Mapping[str, str]]) -> list[float]:
    """Return the values of the rows that count; with `each`, of the group of rows whose median agrees least.

    None if one of the groups has no valid value: the rest says nothing of it.
    """
    if not measured.each:
        return _of_group(measured, table)
    names = {row.get(measured.each, "") for row in table if _is_meant(row, measured.rows)}
    groups: list[list[float]] = []
    for name in sorted(names):
        rows = [row for row in table if row.get(measured.each, "") == name]
        groups.append(_of_group(measured, rows))
    if not groups or not all(groups):
        return []
    return max(groups, key=lambda values: measured.difference(median(values)))


def _of_group(measured: Measured, table: Sequence[Mapping[str, str]]) -> list[float]:
    """Return the values of the rows that count; with `over`, those of the other rows divided by them."""
    rows = _valid(table, measured.rows, measured.column)
    values: list[float] = []
    if measured.over:
        compared_rows = _valid(table, {**measured.rows, **measured.over}, measured.column)
        for row, compared_row in product(rows, compared_rows):
            # repeats differ by their seed, and in the load of the machine
            if _place(measured, row) == _place(measured, compared_row):
                values.append(_value(measured, compared_row) / _value(measured, row))
    else:
        values = [_value(measured, row) for row in rows]
    if measured.percent:
        values = [100 * (value - 1) for value in values]
    return values


def _place(measured: Measured, row: Mapping[str, str]) -> list[str]:
    """Return where and when a row was measured, without what `over` changes."""
    return [row.get(column, "") for column in PLACE if column not in measured.over]


def _value(measured: Measured, row: Mapping[str, str]) -> float:
    """Return the value of a row, divided by that of the column `per` if there is one."""
    value = float(row[measured.column])
    if measured.per:
        value /= float(row[measured.per])
    return value


def _valid(table: Sequence[Mapping[str, str]], rows: Mapping[str, str], column: str) -> list[Mapping[str, str]]:
    """Return the rows with these values, but not the invalid ones and those without a value in the column."""
    # a degraded row counts, and the run's verdict stands beside the value
    return [row for row in table if _is_meant(row, rows) and row.get(column) and row.get("verdict") != INVALID]


def _is_meant(row: Mapping[str, str], values: Mapping[str, str]) -> bool:
    """Return whether a row has all these values."""
    return all(row.get(key) == value for key, value in values.items())


def read(file: Path = FILE) -> dict[str, MeasuredClaim]:
    """Return the stored measurements by the id of their claim; none if there is no file. BadInput for a damaged one."""
    if not file.exists():
        return {}
    measurements: dict[str, MeasuredClaim] = {}
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            table = csv.DictReader(opened)
            if tuple(table.fieldnames or ()) != MeasuredClaim._fields:
                raise ValueError(f"its columns are not {', '.join(MeasuredClaim._fields)}")
            for row in table:
                measurement = _measurement_of(row)
                if measurement.claim in measurements:
                    raise ValueError(f"{measurement.claim} is there twice")
                measurements[measurement.claim] = measurement
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        allowed = f"is no table of measured claims, as claims --run writes it: {type(error).__name__}: {error}"
        raise BadInput("--out", str(file), allowed) from error
    return measurements


def _measurement_of(row: Mapping[str, str]) -> MeasuredClaim:
    """Return a row of the file. ValueError or TypeError for one that isn't a measurement of a valid run."""
    if row["verdict"] not in KEPT_VERDICTS:
        allowed = " or ".join(KEPT_VERDICTS)
        raise ValueError(f"{row['claim']}: verdict {row['verdict']!r} is not {allowed}")
    numbers = (float(row["median"]), float(row["least"]), float(row["most"]))
    if any(isnan(number) for number in numbers):
        raise ValueError(f"{row['claim']} has no number")
    middle, least, most = numbers
    rows = int(row["rows"])
    if rows < 1 or not least <= middle <= most:
        raise ValueError(f"{row['claim']} has no rows, or no median between the least and the most")
    return MeasuredClaim(row["claim"], row["quantity"], row["date"], row["version"], row["verdict"], rows, *numbers)


def to_csv(measurements: Mapping[str, MeasuredClaim]) -> str:
    """Return measurements as the file has them, by claim."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(MeasuredClaim._fields)
    for _, measurement in sorted(measurements.items()):
        numbers = (f"{number:.6g}" for number in (measurement.median, measurement.least, measurement.most))
        writer.writerow([*measurement[:-3], *numbers])
    return text.getvalue()


def version(commit: object) -> str:
    """Return what a measurement has of the commit of Railyard; an installed package has none."""
    return str(commit or "")[:VERSION_DIGITS] or "no commit"


def of_other_versions(measurements: Iterable[MeasuredClaim], current: str) -> str:
    """Return a line that names the measurements of other versions than the current one; "" if there are none."""
    outdated = [
        f"{measurement.claim} ({measurement.version})" for measurement in measurements if measurement.version != current
    ]
    if not outdated:
        return ""
    return f"measured by another version than {current}: {', '.join(outdated)}"


def unused(measurements: Mapping[str, MeasuredClaim]) -> dict[str, str]:
    """Return the ids of measurements that say nothing of a claim as it is now, with the reason.

    A claim may have been renamed or deleted since it was measured, or is measured in another way now.
    """
    claims = claims_by_id()
    measured_ids = [claim.id for claim in claims.values() if claim.measured]
    reasons: dict[str, str] = {}
    for claim_id, measurement in measurements.items():
        claim = claims.get(claim_id)
        if not claim:
            reasons[claim_id] = near_miss(claim_id, measured_ids).strip() or "no claim has this id"
        elif not claim.measured:
            reasons[claim_id] = "not measured on packets"
        elif claim.measured.quantity != measurement.quantity:
            reasons[claim_id] = "measured in another way now"
    return reasons


def unused_text(reasons: Mapping[str, str], file: Path) -> str:
    """Return a line that names the unused rows of a file; "" if there are none."""
    if not reasons:
        return ""
    ignored = ", ".join(f"{claim_id} ({reason})" for claim_id, reason in reasons.items())
    return f"{file}: rows that no claim uses are ignored: {ignored}; measure again, or delete them"

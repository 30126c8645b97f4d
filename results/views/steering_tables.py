"""Tables of what each policy made of a workload, for the terminal and the report."""

from collections.abc import Mapping, Sequence
from functools import partial

from railyard.results.analysis.aggregate import Row
from railyard.results.analysis.steering import (
    BASELINE_POLICY,
    ORACLE_POLICY,
    FabricWorkload,
    MostChangedPair,
    PolicyRow,
)
from railyard.results.plots.times import label
from railyard.results.views import format as fmt
from railyard.results.views.table import Column, Table, text


def policies_table(rows: Sequence[PolicyRow], title: str = "", more: int = 0) -> Table:
    """Return a row a policy. On the terminal `more` rows are in the report."""
    columns = (
        text("policy", lambda r: r.policy),
        Column("median", lambda r: r.median, unit="s"),
        Column("least", lambda r: min(r.times), unit="s", drop=2),
        Column("most", lambda r: max(r.times), unit="s", drop=2),
        Column("predicted", lambda r: r.predicted, unit="s", drop=None),
        Column("m/p", lambda r: r.ratio, unit="ratio", drop=3, style="dim"),
        Column(
            f"{BASELINE_POLICY} / this", lambda r: r.over_dr, _times, short=f"{BASELINE_POLICY} /\nthis", style="bold"
        ),
        Column(f"this / {ORACLE_POLICY}", lambda r: r.over_oracle, _times, short=f"this /\n{ORACLE_POLICY}"),
        Column("route changes a second", lambda r: r.changes_per_s, _tenths, short="routes\n/ s"),
        Column("most of a pair", lambda r: r.most_changed, _most_changed_text, short="most of\na pair", drop=1),
        Column("ms to routes", lambda r: r.reaction_ms, _tenths, short="ms to\nroutes"),
        Column("worst", lambda r: r.worst_reaction_ms, _tenths, drop=2),
    )
    return Table(columns, rows, title, more=more)


def phases_table(timed: Sequence[Row], fabric_workload: FabricWorkload, labels: Mapping[str, str]) -> Table | None:
    """Medians: phases down, policies (by the label that their records carry) across. None without phases."""
    phases = [r for r in timed if r.work == fabric_workload[1] and r.phase]
    shown = {name: policy for name, policy in labels.items() if any(name in r.by_fabric for r in phases)}
    if not shown:
        return None
    policies = [Column(policy, partial(_median, name), unit="s") for name, policy in shown.items()]
    return Table([text("phase", label), *policies], phases)


def _median(fabric: str, row: Row) -> float | None:
    return row.by_fabric[fabric].median if fabric in row.by_fabric else None


def _times(ratio: float | None) -> str:
    return fmt.NOTHING if ratio is None else f"{ratio:.2f}"


def _tenths(value: float | None) -> str:
    return fmt.NOTHING if value is None else f"{value:.1f}"


def _most_changed_text(found: MostChangedPair | None) -> str:
    return fmt.NOTHING if found is None else f"{found.changes} of {found.allowed}"

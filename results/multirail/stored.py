"""A multi-rail run's records as JSON, and back; and as rows of results.csv."""

import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any, Final, TypeVar

from railyard.core.records import IntervalId
from railyard.results.analysis.allreduce import by_fabric, outcomes, size_name
from railyard.results.runs.allreduce import (
    Cut,
    DdpRun,
    LostRails,
    Multirail,
    NicRate,
    Point,
    Rails,
    Skipped,
    Training,
)

MIN_SAMPLES_FOR_P99: Final = 100
"""Operations: of fewer, one in a hundred is less than one."""
Row = TypeVar("Row")
_KINDS: Final[dict[str, type]] = {
    "fabrics": Rails,
    "points": Point,
    "cuts": Cut,
    "rates": NicRate,
    "trainings": Training,
    "lessons": DdpRun,
    "skipped": Skipped,
    "lost": LostRails,
}
_DEFAULTS: Final[dict[str, Any]] = {"lost": []}
"""What older runs don't have."""


def to_json(found: Multirail) -> bytes:
    """A line a record would be long: one object, a list a kind."""
    data = {f.name: [asdict(row) for row in getattr(found, f.name)] for f in fields(found)}
    return (json.dumps(data, separators=(",", ":"), ensure_ascii=False) + "\n").encode()


def from_json(data: bytes) -> Multirail:
    """What `to_json` wrote. KeyError or TypeError if it isn't that."""
    plain: dict[str, Any] = _DEFAULTS | json.loads(data)
    return Multirail(**{name: _rows(kind, plain[name]) for name, kind in _KINDS.items()})


def _rows(kind: type[Row], rows: list[dict[str, Any]]) -> list[Row]:
    """Lists become the tuples that they were."""
    if kind is Point:  # what older runs have in its place
        rows = [{"typical_s" if k == "median_s" else k: v for k, v in row.items()} for row in rows]
    return [kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}) for row in rows]


Cells = tuple[IntervalId, str, str, float, str, float | None]
"""Those of railyard.results.runs.records.Measurement, in its order."""


def cells(found: Multirail) -> Iterator[Cells]:
    """Every row of results.csv."""
    rails = {one.label: one for one in found.fabrics}
    for p in found.points:
        where = rails[p.fabric]
        workload = f"allreduce {size_name(p.size)}, {where.nodes} nodes, {where.mix}"
        what = (IntervalId(p.fabric, workload, p.policy, repeat=p.repeat), "")
        yield (*what, "completion_time", p.mean_s, "s", p.predicted_s)
        if p.measured >= MIN_SAMPLES_FOR_P99:
            yield (*what, "completion_time_p99", p.p99_s, "s", None)
        yield (*what, "throughput", 8 * p.size / p.mean_s, "bit/s", _rate(p))
        for name, share in zip(where.names, p.shares, strict=False) if p.policy != "virtual" else ():
            yield (*what, f"share_{name}", share, "share", None)
    for t in found.trainings:
        where = rails[t.fabric]
        what = (IntervalId(t.fabric, f"{t.name}, {where.nodes} nodes, {where.mix}", t.policy, repeat=t.repeat), "")
        yield (*what, "iteration_time", t.step_s, "s", t.predicted_s)
        yield (*what, "samples_per_s", t.samples_per_s, "1/s", None)
    for ddp_run in found.lessons:
        where = rails[ddp_run.fabric]
        workload = f"DDP with {size_name(ddp_run.bytes)} of gradients, {where.nodes} nodes, {where.mix}"
        for policy, step_s in (("gloo", ddp_run.gloo_step_s), (ddp_run.policy, ddp_run.step_s)):
            interval = IntervalId(ddp_run.fabric, workload, policy, repeat=ddp_run.repeat)
            yield (interval, "", "iteration_time", step_s, "s", None)
    for c in found.cuts:
        workload = f"allreduce {size_name(c.size)}"
        what = (IntervalId(c.fabric, workload, c.policy, script=c.fault, repeat=c.repeat), "")
        for metric, value in (("detect", c.detect_ms), ("migrate", c.migrate_ms), ("home", c.home_ms)):
            if value is not None:
                yield (*what, f"{metric}_time", value / 1e3, "s", None)


def _rate(point: Point) -> float | None:
    """As measured throughput is: of the paper's size, over a time that is the paper's too."""
    return 8 * point.size / point.predicted_s if point.predicted_s else None


def headline(found: Multirail) -> dict[str, Any]:
    """For summary.json: seconds by fabric, policy and size in bytes; and every bar."""
    target_rows = [
        {
            "what": o.target.what, "fabric": o.fabric, "way": o.target.comparison,
            "limit": o.target.limit, "unit": o.target.unit, "value": o.value, "of": o.where, "met": o.met,
        }
        for o in outcomes(found)
    ]  # fmt: skip
    return {
        "seconds": {m.rails.label: m.seconds for m in by_fabric(found)},
        "bars": target_rows,
        "skipped": [asdict(row) for row in found.skipped],
    }

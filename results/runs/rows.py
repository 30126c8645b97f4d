"""Records as rows of CSV, Parquet and JSON, and back: the columns and their types are those of the dataclass.

The identity of a record's interval is flattened: its fields are columns as the record's own.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import fields
from types import UnionType
from typing import Any, Final, TypeVar, get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from railyard.core.records import INTERVAL_FIELDS, IntervalId

Row = TypeVar("Row")
Plain = dict[str, Any]
"""Column -> value."""
COLUMN_NAMES: Final = {
    "source_ms": "source_side_ms",
    "far_ms": "far_side_ms",
    "far_probed": "far_side_probed",
    "source_probed": "source_side_probed",
    "back_ms": "goodput_after_repair_ms",
    "home_ms": "primary_path_ms",
    "return_lost": "probes_lost_after_repair",
    "too_fast": "above_max_flow",
    "act": "last_event",
    "carried": "forwarding_failed_parts",
    "wrong": "mismatches",
    "impossible": "unexpected_answers",
    "taken": "done",
    "way": "method",
    "light_off_ms": "optical_links_down_ms",
    "taken_over_ms": "replaced_ms",
    "state_ms": "state_transfer_ms",
    "state_predicted_ms": "state_transfer_predicted_ms",
}
"""A record's field -> its column in CSV files and key in summary.json. Readers accept the field's name too."""
_FIELDS: Final = {column: field for field, column in COLUMN_NAMES.items()}
_ARROW: Final = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def columns_of(kind: type) -> dict[str, type]:
    """Return each column with its plain type; `float | None` is float."""
    hints = get_type_hints(kind)
    plain = {f.name: hints[f.name] for f in fields(kind)}
    if "interval" in plain:
        del plain["interval"]
        plain = {**dict.fromkeys(INTERVAL_FIELDS, str), "repeat": int, **plain}
    return {n: get_args(t)[0] if isinstance(t, UnionType) else t for n, t in plain.items()}


def to_plain(row: object) -> Plain:
    """Return a record as one flat row."""
    return {name: _cell(row, name) for name in columns_of(type(row))}


def _cell(row: object, name: str) -> object:
    return getattr(row.interval if name in INTERVAL_FIELDS and hasattr(row, "interval") else row, name)


def from_plain(kind: type[Row], rows: Iterable[Plain]) -> list[Row]:
    """Return the records of flat rows; lists become tuples, missing columns get the dataclass's defaults."""
    own = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    known: dict[IntervalId, IntervalId] = {}  # one object for each interval, however many rows it has
    found = []
    for row in rows:
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items() if k in own}
        if "interval" in own:
            interval = IntervalId.of(row)
            values["interval"] = known.setdefault(interval, interval)
        found.append(kind(**values))
    return found


def to_csv(columns: Sequence[str], rows: Sequence[object]) -> bytes:
    """Return the columns of these fields. None is an empty cell; floats have every digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([COLUMN_NAMES.get(name, name) for name in columns])
    writer.writerows([_cell(row, name) for name in columns] for row in rows)
    return text.getvalue().encode()


def from_csv(kind: type, data: str) -> list[Plain]:
    """Return rows that `to_csv` wrote, whatever the order of its columns; those that `kind` doesn't have stay text."""
    types, found = columns_of(kind), []
    for raw in csv.DictReader(io.StringIO(data)):
        named = {_FIELDS.get(column, column): text for column, text in raw.items()}
        found.append({name: _value(types.get(name, str), text) for name, text in named.items()})
    return found


def _value(kind: type, text: str) -> object:
    if text == "" and kind is not str:
        return None
    return text == "True" if kind is bool else kind(text)


def to_parquet(kind: type, rows: Sequence[object], extra: Sequence[str] = ()) -> bytes:
    """`extra`: properties to store beside the fields, as floats."""
    types = {**columns_of(kind), **dict.fromkeys(extra, float)}
    arrays = [pa.array([_cell(row, name) for row in rows], _ARROW[t]) for name, t in types.items()]
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays, names=list(types)), sink, compression="zstd")
    return sink.getvalue()


def from_parquet(data: bytes) -> list[Plain]:
    """Return the rows of a file that `to_parquet` wrote."""
    found: list[Plain] = pq.read_table(io.BytesIO(data)).to_pylist()
    return found

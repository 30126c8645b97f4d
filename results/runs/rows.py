"""Record rows as CSV, Parquet and JSON, and back: the columns and their types are those of the dataclass."""

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from types import UnionType
from typing import Any, Final, TypeVar, get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

Row = TypeVar("Row")
_ARROW: Final = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def _types(kind: type) -> dict[str, type]:
    """Field -> its plain type; `float | None` is float."""
    hints = get_type_hints(kind)
    plain = {f.name: hints[f.name] for f in fields(kind)}
    return {n: get_args(t)[0] if isinstance(t, UnionType) else t for n, t in plain.items()}


def to_csv(columns: Sequence[str], rows: Sequence[object]) -> bytes:
    """None is an empty field; floats have every digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([getattr(row, name) for name in columns] for row in rows)
    return text.getvalue().encode()


def from_csv(kind: type[Row], data: str) -> list[Row]:
    """Rows that `to_csv` wrote, whatever the order of its columns."""
    types = _types(kind)
    return [kind(**{n: _value(types[n], raw[n]) for n in types}) for raw in csv.DictReader(io.StringIO(data))]


def _value(kind: type, text: str) -> object:
    if text == "" and kind is not str:
        return None
    return text == "True" if kind is bool else kind(text)


def to_parquet(kind: type, rows: Sequence[object], extra: Sequence[str] = ()) -> bytes:
    """`extra`: properties to store beside the fields, as floats."""
    types = {**_types(kind), **dict.fromkeys(extra, float)}
    arrays = [pa.array([getattr(row, name) for row in rows], _ARROW[t]) for name, t in types.items()]
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays, names=list(types)), sink, compression="zstd")
    return sink.getvalue()


def from_parquet(kind: type[Row], data: bytes) -> list[Row]:
    """Rows that `to_parquet` wrote; extra columns are left aside."""
    names = list(_types(kind))
    columns = pq.read_table(io.BytesIO(data), columns=names).to_pydict()
    return [kind(*values) for values in zip(*(columns[name] for name in names), strict=True)]


def from_plain(kind: type[Row], rows: Sequence[dict[str, Any]]) -> list[Row]:
    """Rows from JSON, whose lists become the tuples that they were."""
    return [kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}) for row in rows]

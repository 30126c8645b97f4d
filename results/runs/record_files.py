"""Records as rows of CSV, JSON, JSON lines and Parquet: written, and read back with a check of every value.

The identity of a record's interval is flattened: its fields are columns as the record's own.
"""

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from railyard.core.errors import BadInput
from railyard.core.records import INTERVAL_FIELDS, IntervalId

Row = TypeVar("Row")
Plain = dict[str, Any]  # column -> value
# each row of a table takes a kilobyte of memory
MOST_ROWS: Final = 5_000_000
MOST_MEMORY_BYTES: Final = 1_500_000_000
"""Most memory that a text may take when it is read: a few bytes of it can be an object of a hundred."""
_VALUE_BYTES: Final = 40  # of a number in a list
_STRING_BYTES: Final = 55  # beside its characters
_LIST_BYTES: Final = 100
_OBJECT_BYTES: Final = 200
# of a member of an object; the names are shared by all lines
_MEMBER_BYTES: Final = 65
# a cell of CSV is a value in its row's dictionary
_CELL_BYTES: Final = 150
_ROW_BYTES: Final = 1000
# a compressed file has a measured value in each row, so it can't have many rows per byte
_ROWS_PER_BYTE: Final = 4
_FEW_ROWS: Final = 10_000
_ARROW: Final = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def columns_of(kind: type) -> dict[str, type]:
    """Return each column with its plain type; `float | None` is float."""
    columns: dict[str, type] = {}
    for name, hint in _column_hints(kind).items():
        columns[name] = get_args(hint)[0] if isinstance(hint, UnionType) else hint
    return columns


def _column_hints(kind: type) -> dict[str, Any]:
    """Return the type hint of each column: those of the interval first, then the fields of the record."""
    hints = get_type_hints(kind)
    columns: dict[str, Any] = {f.name: hints[f.name] for f in fields(kind)}
    if columns.pop("interval", None):
        return {**dict.fromkeys(INTERVAL_FIELDS, str), "repeat": int, **columns}
    return columns


def to_plain(row: object, columns: Sequence[str] = ()) -> Plain:
    """Return a record as one flat row, of all `columns` of its kind or of these."""
    interval = getattr(row, "interval", row)
    plain: Plain = {}
    for name in columns or columns_of(type(row)):
        plain[name] = getattr(interval if name in INTERVAL_FIELDS else row, name)
    return plain


def from_plain(kind: type[Row], rows: Iterable[Plain], file: str = "") -> list[Row]:
    """Return the records of flat rows; lists become tuples, missing columns get the dataclass's defaults.

    With `file`, its name for messages, the types of all values are checked. BadInput if one differs.
    """
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    if file and not isinstance(rows, list):
        raise BadInput(file, str(rows)[:40], "must be a list")
    state_columns = _states_of(kind)  # type: ignore[arg-type]
    # rows of one interval share one object: a run may have a million of them
    intervals: dict[IntervalId, IntervalId] = {}
    records: list[Row] = []
    for number, row in enumerate(rows, 1):
        if file:
            check_row(row, kind, f"{file}, row {number}")
        values: Plain = {}
        for name in names.intersection(row):
            value = row[name]
            values[name] = tuple(value) if isinstance(value, list) else value
        for name, states in state_columns.items():
            if name in values:
                values[name] = states(str(values[name]))
        if "interval" in names:
            interval = IntervalId.of(row)
            values["interval"] = intervals.setdefault(interval, interval)
        records.append(kind(**values))
    return records


@cache
def _states_of(kind: type) -> dict[str, type[StrEnum]]:
    """Return the columns that hold a state, with all states."""
    return {name: plain for name, plain in columns_of(kind).items() if issubclass(plain, StrEnum)}


@cache
def _allowed_types(kind: type) -> dict[str, tuple[type, ...]]:
    """Return the types that a column of plain data may have; any number is a number."""
    plain: dict[Any, tuple[type, ...]] = {
        int: (int, float),
        float: (int, float),
        tuple: (list, tuple),
        **dict.fromkeys(_states_of(kind).values(), (str,)),
    }
    allowed: dict[str, tuple[type, ...]] = {}
    for name, hint in _column_hints(kind).items():
        types: list[type] = []
        for part in get_args(hint) if isinstance(hint, UnionType) else (hint,):
            origin = get_origin(part) or part
            types += plain.get(origin, (origin,))
        allowed[name] = tuple(types)
    return allowed


def check_row(row: Plain, kind: type, where: str) -> None:
    """BadInput if a row lacks a column that every record of `kind` has, or a value is of another type."""
    allowed = _allowed_types(kind)
    if not isinstance(row, dict):
        raise BadInput(where, str(row)[:40], f"must be a row of columns: {', '.join(allowed)}")
    for name in _required_columns(kind):
        if name not in row:
            raise BadInput(where, name, "is a column that is missing")
    for name, value in row.items():
        if name in allowed and not isinstance(value, allowed[name]):
            names = ["empty" if allowed_type is NoneType else allowed_type.__name__ for allowed_type in allowed[name]]
            raise BadInput(f"{where}, column {name}", str(value)[:40], f"must be {' or '.join(names)}")


@cache
def _required_columns(kind: type) -> tuple[str, ...]:
    """Return the fields without a default, apart from the interval: each of its fields has one."""
    required: list[str] = []
    for column in fields(kind):
        has_default = column.default is not MISSING or column.default_factory is not MISSING
        if column.name != "interval" and not has_default:
            required.append(column.name)
    return tuple(required)


def to_csv(columns: Sequence[str], rows: Sequence[object]) -> bytes:
    """Return the columns of these fields. None is an empty cell; floats have every digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(to_plain(row, columns).values())
    return text.getvalue().encode()


def from_csv(data: bytes, file: str, kind: type) -> list[Plain]:
    """Return rows that `to_csv` wrote, whatever the order of its columns; those that `kind` doesn't have stay text.

    BadInput with line and column if it isn't such a table.
    """
    _refuse_above(2 * len(data) + _CELL_BYTES * (data.count(b",") + data.count(b"\n")), len(data), file)
    types = columns_of(kind)
    rows: list[Plain] = []
    reader = csv.reader(io.StringIO(text_of(data, file), newline=""), strict=True)
    try:
        header = next(reader, [])
        if not header:
            raise BadInput(file, "", "is empty, without a header")
        for cells in filter(None, reader):
            where = f"{file}, line {reader.line_num}"
            if len(cells) != len(header):
                raise BadInput(where, f"{len(cells)} cells", f"must be {len(header)}, as in the header")
            row: Plain = {}
            rows.append(row)
            for name, cell in zip(header, cells, strict=True):
                try:
                    row[name] = _cell_value(types.get(name, str), cell)
                except (ValueError, KeyError, TypeError):
                    expected = f"must be {types[name].__name__}"
                    raise BadInput(f"{where}, column {name}", cell[:40], expected) from None
    except csv.Error as error:
        raise BadInput(f"{file}, line {reader.line_num}", str(error), "is no CSV") from error
    return rows


def _cell_value(kind: type, text: str) -> object:
    """Return the value of a cell; None if it is empty. ValueError or KeyError if its text is of another type."""
    if text == "" and kind is not str:
        return None
    if kind is bool:
        return {"True": True, "False": False}[text]
    return kind(text)


def from_json(data: bytes, file: str, line: int = 0) -> dict[str, Any]:
    """Return the object of a JSON text. BadInput with line and column if it is none.

    `line`: its number, if it is a line of the file.
    """
    if line:
        place = f"{file}, line {line}"
        hook = _with_shared_names
    else:
        check_memory(data, file)
        place = file
        hook = None
    try:
        content = json.loads(text_of(data, file), object_pairs_hook=hook)
    except json.JSONDecodeError as error:
        where = f"{file}, line {line or error.lineno}, column {error.colno}"
        raise BadInput(where, error.doc[error.pos : error.pos + 20], f"is no JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        # thousands of brackets exceed the depth of recursion, thousands of digits Python's limit for numbers
        raise BadInput(file, str(error)[:60], "is no JSON that can be read") from error
    if not isinstance(content, dict):
        raise BadInput(place, str(content)[:40], "must be a JSON object")
    return content


def from_json_lines(data: bytes, file: str) -> list[Plain]:
    """Return the object of each line. BadInput if they would take too much memory."""
    check_memory(data, file)
    return [from_json(line, file, line=number) for number, line in enumerate(io.BytesIO(data), 1)]


def check_memory(data: bytes, file: str) -> None:
    """BadInput if a JSON text may take more than `MOST_MEMORY_BYTES` when it is read, by what it is made of."""
    members = data.count(b":")
    strings = max(0, data.count(b'"') // 2 - members)
    memory_bytes = 2 * len(data) + _STRING_BYTES * strings + _MEMBER_BYTES * members + _VALUE_BYTES * data.count(b",")
    memory_bytes += _LIST_BYTES * data.count(b"[") + _OBJECT_BYTES * data.count(b"{")
    _refuse_above(memory_bytes, len(data), file)


def _refuse_above(memory_bytes: int, size: int, file: str) -> None:
    if memory_bytes > MOST_MEMORY_BYTES:
        most = f"{MOST_MEMORY_BYTES / 1e9:.1f} GB or less can be read"
        raise BadInput(file, f"{size:,} bytes", f"may take {memory_bytes / 1e9:.1f} GB of memory: {most}")


def _with_shared_names(members: list[tuple[str, Any]]) -> Plain:
    """Return an object whose names are the same strings in all lines."""
    return {sys.intern(name): value for name, value in members}


def to_json(data: object, indent: int | None = 2) -> bytes:
    """A line (or with `indent` a page) of JSON; what JSON doesn't know, such as a path, is written as its text."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(data, indent=indent, separators=separators, ensure_ascii=False, default=str)
    return f"{text}\n".encode()


def text_of(data: bytes, file: str) -> str:
    """Return the text of a file. BadInput with the line if it is not in UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{file}, line {line}", data[error.start : error.start + 4], "is no text in UTF-8") from error


def from_parquet(data: bytes, file: str) -> list[Plain]:
    """Return the rows of a table. BadInput if it is none, or too large: a few bytes can stand for gigabytes of rows."""
    try:
        schema = pq.ParquetFile(pa.BufferReader(data)).schema_arrow
        texts = _text_columns(schema, file)
        # a dictionary holds each distinct text once, so that a text repeated a million times is measured before it
        # takes memory
        parquet = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts)
        rows = parquet.metadata.num_rows
        if rows > min(MOST_ROWS, _FEW_ROWS + _ROWS_PER_BYTE * len(data)):
            raise BadInput(file, f"{rows} rows", f"must be {MOST_ROWS:,} or less, and fewer in a file as small as this")
        most_bytes = _ROW_BYTES * (rows + _FEW_ROWS)
        size_bytes = 0
        for group in range(parquet.metadata.num_row_groups):
            size_bytes += parquet.metadata.row_group(group).total_byte_size
        if size_bytes > most_bytes:
            raise BadInput(file, f"{rows} rows", f"must have {_ROW_BYTES} bytes or fewer each")
        table = parquet.read()
        if sum(_text_bytes(table.column(name)) for name in texts) > most_bytes:
            raise BadInput(file, f"{rows} rows", f"must have {_ROW_BYTES} bytes or fewer each")
        return table.cast(schema).to_pylist()  # type: ignore[no-any-return]
    except (pa.ArrowException, ValueError, KeyError, OSError, OverflowError, MemoryError) as error:
        raise BadInput(file, str(error).partition("\n")[0][:60], "is no Parquet file that can be read") from error


def _text_columns(schema: "pa.Schema", file: str) -> list[str]:
    """Return the columns of text. BadInput if a column is of a type that no record has, such as a list."""
    texts: list[str] = []
    for column in schema:
        if pa.types.is_string(column.type):
            texts.append(column.name)
        elif not pa.types.is_primitive(column.type) and not pa.types.is_null(column.type):
            raise BadInput(f"{file}, column {column.name[:40]}", str(column.type)[:40], "is no type of a record")
    return texts


def _text_bytes(column: "pa.ChunkedArray") -> int:
    """Return the bytes of all texts of a column, of which the distinct ones were read."""
    size_bytes = 0
    for chunk in column.chunks:
        lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
        size_bytes += pc.sum(lengths).as_py() or 0
    return size_bytes


def to_parquet(kind: type, rows: Sequence[object], extra: Mapping[str, type] | None = None) -> bytes:
    """Return a table of the fields, and of the `extra` attributes of the rows with their types."""
    types = {**columns_of(kind), **(extra or {})}
    schema = pa.schema([(name, _ARROW[t]) for name, t in types.items()])
    sink = io.BytesIO()
    plain = [to_plain(row, list(types)) for row in rows]
    pq.write_table(pa.Table.from_pylist(plain, schema=schema), sink, compression="zstd")
    return sink.getvalue()

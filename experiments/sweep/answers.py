"""Answers of a machine's worker: JSON that is checked, from every sender.

Everyone who can join the scheduler can be a worker, so the process that calls `sweep --on` reads an answer as data: no
pickle, a bounded size, and fields of these types. What a text says is the worker's word all the same.
"""

import io
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Any, Final

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from railyard.core.errors import RailyardError, printable
from railyard.core.safe_files import MOST_BYTES

MOST_ANSWER_BYTES: Final = 2 * MOST_BYTES  # as JSON with base64
MOST_FILES: Final = 10_000  # of a run's folder
MOST_DEPTH: Final = 8  # of folders in it
MOST_NAME: Final = 200  # bytes
MOST_LINE: Final = 300
_PICKLE: Final = "pickle.find_class"
_MACHINE: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"  # names a folder
_Line = Annotated[str, Field(max_length=MOST_LINE * 10), AfterValidator(printable)]
_Nanoseconds = Annotated[int, Field(ge=0, lt=2**63)]


class BadAnswer(RailyardError):
    """An answer that is none of a worker of this version: its first fault, in a line."""


class Facts(TypedDict):
    """A machine: its name, kernel, cores, and the version of Railyard on it."""

    machine: Annotated[str, StringConstraints(pattern=_MACHINE)]
    kernel: _Line
    cores: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    version: _Line


@dataclass(frozen=True, config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", extra="forbid"))
class Outcome:
    """A run that has ended: its exit status, last line on stderr, CLOCK_MONOTONIC times, machine, and tarred folder."""

    status: Annotated[int, Field(ge=0, le=255)]
    line: _Line
    start_ns: _Nanoseconds
    end_ns: _Nanoseconds
    machine: Facts
    folder: Annotated[bytes, Field(max_length=MOST_BYTES)] | None


FACTS: Final = TypeAdapter(Facts)
OUTCOME: Final = TypeAdapter(Outcome)


def read(adapter: TypeAdapter[Any], answer: object) -> Any:
    """Return the answer of a worker as what it should be. BadAnswer names the first fault."""
    if not isinstance(answer, bytes):
        raise BadAnswer(f"its answer is {type(answer).__name__}, and must be bytes")
    if len(answer) > MOST_ANSWER_BYTES:
        raise BadAnswer(f"its answer has {len(answer):,} bytes, more than {MOST_ANSWER_BYTES:,}")
    try:
        return adapter.validate_json(answer)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "JSON"
        raise BadAnswer(printable(f"its answer is no run's: {field}: {first['msg']}"[:MOST_LINE])) from error


def files(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file in a tarred folder. BadAnswer for anything that leads out of it."""
    names = set[PurePosixPath]()
    folders = set[PurePosixPath]()
    try:
        # no compression, so an archive can't unpack to more than its size
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for member in tar:
                if member.isdir():
                    continue
                path = PurePosixPath(member.name)
                is_plain = member.isfile() and not member.issparse() and _is_below(path)
                if not is_plain or path in names | folders or not names.isdisjoint(path.parents):
                    raise BadAnswer(f"its folder has {printable(member.name[:100])!r}, which is no file in it")
                names.add(path)
                folders.update(path.parents)
                if len(names) > MOST_FILES:
                    raise BadAnswer(f"its folder has more than {MOST_FILES:,} files")
                file = tar.extractfile(member)
                yield str(path), file.read() if file else b""
    except (tarfile.TarError, OSError, ValueError, EOFError, OverflowError) as error:
        raise BadAnswer(printable(f"its folder is no tar archive: {error}"[:MOST_LINE])) from error


def _is_below(path: PurePosixPath) -> bool:
    is_short = 0 < len(path.parts) <= MOST_DEPTH and all(len(os.fsencode(part)) <= MOST_NAME for part in path.parts)
    return is_short and not path.is_absolute() and ".." not in path.parts and str(path).isprintable()


class Refused(TypeError):
    """A pickle that would have called something."""


def refuse_pickles() -> None:
    """Let no pickle make or call anything in this process from now on, but bytes; plain data can't do anything.

    Dask pickles exceptions, warnings and some of its messages, and no option turns off that a client reads them. The
    interpreter asks before an unpickler finds a class or a function, in C and in Python, for every caller.
    """
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == _PICKLE and arguments != ("builtins", "bytes"):
        raise Refused("this process reads no pickles of others")

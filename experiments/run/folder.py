"""The folder that a run writes: checked before anything is built, and made at the last moment."""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.safe_files import Folder
from railyard.core.sandbox.hidden import check_visible
from railyard.core.units import format_size

MIN_FREE_BYTES: Final = 50_000_000  # more than flows.parquet and the report of a long run
NOT_EMPTY: Final = "exists and is not empty: choose another folder, or move this one away"


def default_choices(name: str) -> tuple[Path, ...]:
    """runs/<utc time>-<name>, and with a number for runs of the same second; without those that are there already."""
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{name}"
    paths = [Path("runs", stem if n == 1 else f"{stem}-{n}") for n in range(1, 100)]
    return tuple(path for path in paths if not path.exists()) or (paths[-1],)


def check(out: Path) -> None:
    """BadInput or MissingRequirement if a run can't write there without losing anything."""
    with reporting_path_errors("--out", out):
        check_visible("--out", out)
        if out.is_symlink() and not out.exists():
            raise BadInput("--out", str(out), "is a link to nowhere: choose another folder")
        if out.exists() and not out.is_dir():
            raise BadInput("--out", str(out), "exists and is no folder: choose another")
        if out.is_dir() and any(out.iterdir()):
            raise BadInput("--out", str(out), NOT_EMPTY)
        there = next(path for path in (out, *out.absolute().parents) if path.exists())
        if not there.is_dir():
            raise BadInput("--out", str(out), f"can't be made: {there} is no folder")
        if not os.access(there, os.W_OK | os.X_OK):
            raise BadInput("--out", str(out), f"can't be made: {there} is not yours to write, so choose another folder")
        disk = os.statvfs(there)
        if disk.f_blocks == 0:
            raise BadInput("--out", str(out), f"can't be made: {there} holds no files, so choose another folder")
        free = disk.f_bavail * disk.f_frsize
        if free < MIN_FREE_BYTES or (disk.f_files and not disk.f_favail):
            remedy = f"free some, or choose a folder on another disk with --out (df -h {there} shows what is left)"
            sizes = f"{format_size(free, 2)} free at {there}, {format_size(MIN_FREE_BYTES, 2)} needed"
            raise MissingRequirement(f"the disk is full: {sizes}", remedy)


@contextmanager
def made(*choices: Path) -> Iterator[Folder]:
    """The first of these folders that no other run has: made with its parents, claimed, and open.

    What was made and is still empty afterwards is removed.
    """
    for out in choices:
        try:
            opened = _claimed(out)
            break
        except BadInput as error:
            if out == choices[-1] or not isinstance(error.__cause__, BlockingIOError | FileExistsError):
                raise
    with opened:
        try:
            yield opened
        finally:
            opened.remove_if_empty()


def _claimed(out: Path) -> Folder:
    with reporting_path_errors("--out", out), ExitStack() as undo:
        opened = Folder(out, make=True)
        undo.callback(opened.close)
        try:
            opened.check_writable()
            opened.claim()
        except BlockingIOError as error:
            raise BadInput("--out", str(out), "is in use by another run: choose another folder") from error
        except FileExistsError as error:
            raise BadInput("--out", str(out), NOT_EMPTY) from error
        except OSError:
            opened.remove_if_empty()
            raise
        undo.pop_all()
        return opened


@contextmanager
def reporting_path_errors(field: str, out: Path) -> Iterator[None]:
    """Turn an error of the system about a path into one line that names the field."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "free some, or choose another --out"
            raise MissingRequirement(f"the disk is full: {out} can't be written", remedy) from error
        raise BadInput(field, str(out), f"can't be used: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        raise BadInput(field, str(out), f"is no path: {error}") from error

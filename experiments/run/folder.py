"""The folder that a run writes: checked before anything is built, and made at the last moment."""

import errno
import io
import os
import secrets
import shutil
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.safe_files import Folder, account_of, write_file
from railyard.core.sandbox.hidden import check_visible
from railyard.core.units import format_size

# more than flows.parquet and the report of a long run take
MIN_FREE_BYTES: Final = 50_000_000
REASON: Final = ".reason"
"""The file of a `Spare` that says why it was needed."""
IN_USE: Final = "is in use by another run: choose another folder"
NOT_EMPTY: Final = "exists and is not empty: choose another folder, or move this one away"


def default_choices(name: str) -> tuple[Path, ...]:
    """runs/<utc time>-<name>, and with a number for runs of the same second; without those that are there already."""
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{name}"
    paths = [Path("runs", stem)]
    paths += [Path("runs", f"{stem}-{number}") for number in range(2, 100)]
    free_paths = [path for path in paths if not path.exists()]
    # where all exist, the error names the last one
    return tuple(free_paths or paths[-1:])


def check(out: Path) -> None:
    """BadInput or MissingRequirement if a run can't write there without losing anything."""
    with reporting_path_errors("--out", out):
        check_visible("--out", out)
        if out.is_symlink() and not out.exists():
            raise BadInput("--out", str(out), "is a link to nowhere: choose another folder")
        if out.exists() and not out.is_dir():
            raise BadInput("--out", str(out), "exists and is no folder: choose another")
        if out.is_dir() and any(out.iterdir()):
            with Folder(out) as opened:
                raise BadInput("--out", str(out), IN_USE if opened.is_claimed() else NOT_EMPTY)
        existing = next(path for path in (out, *out.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise BadInput("--out", str(out), f"can't be made: {existing} is no folder")
        _check_disk(out, existing)


def _check_disk(out: Path, existing: Path) -> None:
    """Check that folders can be made in an existing one, and that its disk has room for a run."""
    disk = os.statvfs(existing)
    if not os.access(existing, os.W_OK | os.X_OK):
        reason = "on a read-only file system" if disk.f_flag & os.ST_RDONLY else "not yours to write"
        raise BadInput("--out", str(out), f"can't be made: {existing} is {reason}, so choose another folder")
    if disk.f_blocks == 0:
        raise BadInput("--out", str(out), f"can't be made: {existing} holds no files, so choose another folder")
    free = disk.f_bavail * disk.f_frsize
    has_no_inodes = disk.f_files > 0 and disk.f_favail == 0
    if free < MIN_FREE_BYTES or has_no_inodes:
        remedy = f"free some, or choose a folder on another disk with --out (df -h {existing} shows what is left)"
        sizes = f"{format_size(free, 2)} free at {existing}, {format_size(MIN_FREE_BYTES, 2)} needed"
        raise MissingRequirement(f"the disk is full: {sizes}", remedy)


def check_outputs(files: Mapping[str, Path | None]) -> None:
    """Check the files that options name, by option, before anything is run. BadInput if one can't be written."""
    for field, path in files.items():
        if path is None:
            continue
        # a name may be too long for the file system, which is_dir() reports as an error
        with reporting_path_errors(field, path):
            if path.is_dir():
                raise BadInput(field, str(path), "is a folder: name a file")
            if not path.absolute().parent.is_dir():
                raise BadInput(field, str(path), f"can't be made: there is no folder {path.absolute().parent}")
            if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
                raise BadInput(field, str(path), "can't be made: its folder is not yours to write")


def write_outputs(opened: Folder, junit: Path | None, markdown: Path | None, as_json: bool, problem: str = "") -> None:
    """Write a run's result for CI, from its folder. `problem`: why there are no records in it, if there are none."""
    if not (junit or markdown or as_json):
        return
    # pandas takes a second to load, and most runs need none of these files
    from railyard.results import run_folder
    from railyard.results.analysis.run_analysis import Analysis
    from railyard.results.runs.record_files import to_json
    from railyard.results.views import ci, report

    if opened.has("run.json"):
        analysis = Analysis(run_folder.load(opened))
        files = {"--junit": (junit, ci.junit(analysis)), "--markdown": (markdown, ci.markdown(analysis))}
        summary = report.summarise(analysis)
    else:
        text = f"### ❌ {opened.path.name}: {problem}\n".encode()
        files = {
            "--junit": (junit, ci.junit_without_records(opened.path.name, problem)),
            "--markdown": (markdown, text),
        }
        summary = {"name": opened.path.name, "passed": False, "complete": False, "problem": problem}
    for field, (path, data) in files.items():
        if path is not None:
            with reporting_path_errors(field, path):
                write_file(path, data)
    if as_json:
        sys.stdout.write(to_json(summary).decode())


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
            raise BadInput("--out", str(out), IN_USE) from error
        except FileExistsError as error:
            raise BadInput("--out", str(out), NOT_EMPTY) from error
        except OSError:
            opened.remove_if_empty()
            raise
        undo.pop_all()
        return opened


class Spare:
    """Memory, shared with a sandbox, for the records of a run whose folder can't be written any more.

    The sandbox doesn't see the folders of the machine in which they can be kept instead. Its content is a tar archive.
    """

    def __init__(self, fd: int | None = None) -> None:
        """Make it, or in the sandbox open the one that was inherited as `fd`."""
        self._file = os.fdopen(os.memfd_create("records") if fd is None else fd, "r+b")
        self._tar: tarfile.TarFile | None = None
        os.set_inheritable(self.fd, False)

    @property
    def fd(self) -> int:
        """Its file descriptor."""
        return self._file.fileno()

    def write(self, name: str, data: bytes) -> None:
        """Add a file."""
        self._tar = self._tar or tarfile.open(fileobj=self._file, mode="w")  # noqa: SIM115 - closed with it
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))

    def __enter__(self) -> "Spare":
        return self

    def __exit__(self, *_: object) -> None:
        if self._tar:
            self._tar.close()
        self._file.close()

    def problem(self, out: Folder) -> str:
        """Keep what was put in it in a folder of its own; return one line, "" if the records are in `out`."""
        if os.fstat(self.fd).st_size:
            return self._keep(out.path)
        try:
            Folder(out.path, identity=out.identity).close()
        except OSError:
            if out.is_removed:
                return f"{out.path} was removed during the run, with what the run wrote there"
            moved = "was moved or replaced during the run: what the run wrote is in"
            return f"{out.path} {moved} {out.real_path}"
        return ""

    def _keep(self, out: Path) -> str:
        self._file.seek(0)
        with tarfile.open(fileobj=self._file) as tar:
            files = {info.name: (tar.extractfile(info) or io.BytesIO()).read() for info in tar}
        failed = f"{out} can't be written ({files.pop(REASON, b'').decode()})"
        # a user of a container may have neither
        home = os.environ.get("HOME") or account_of(os.geteuid()).home
        state = Path(os.environ.get("XDG_STATE_HOME") or Path(home, ".local/state"), "railyard")
        # any user can list /var/tmp and /tmp: only the owner may read the records there
        umask = os.umask(0o077)
        try:
            for place in (state, Path("/var/tmp"), Path(os.environ.get("TMPDIR") or "/tmp"), Path("/dev/shm")):
                path = place / f"{out.name}-{secrets.token_hex(8)}"
                try:
                    with Folder(path, make=True) as folder:
                        for name, data in files.items():
                            folder.write(name, data)
                    return f"{failed}: the records are in {path}"
                except (OSError, ValueError):
                    shutil.rmtree(path, ignore_errors=True)
        finally:
            os.umask(umask)
        return f"{failed}, and there is no room elsewhere: the figures above are all that is kept"


@contextmanager
def reporting_path_errors(field: str, out: Path) -> Iterator[None]:
    """Turn an error of the system about a path into one line that names the field."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = f"free some, or choose another {field}" if field.startswith("--") else "free some space on it"
            raise MissingRequirement(f"the disk is full: {out} can't be written", remedy) from error
        reason = (error.strerror or str(error)).lower()
        if error.errno == errno.EROFS:
            reason += ": copy the folder to another disk" if field == "DIR" else ": choose another place"
        raise BadInput(field, str(out), f"can't be used: {reason}") from error
    except ValueError as error:
        raise BadInput(field, str(out), f"is no path: {error}") from error

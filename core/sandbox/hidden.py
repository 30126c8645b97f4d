"""Hiding the machine's files from a run: folders that hold sockets of services, and sockets elsewhere.

A Unix socket with a path is reached by its path alone: the network namespace doesn't prevent that, but the mount
namespace can. /run and similar folders are empty in a sandbox. So are /tmp and /var/tmp, where sockets lie between
files: the folders that the run needs are put back. Each socket that is left is covered with an empty file, wherever it
is; one that a service creates later, outside those folders, is not.
"""

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from railyard.core import plugins
from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.host import PROJECT

EMPTY: Final = ("/run", "/var/run", "/dev/shm", "/dev/mqueue")  # where the sandbox has an empty tmpfs of its own
PRIVATE: Final = ("/tmp", "/var/tmp")  # the same, with some of the machine's folders put back
_MS_NOSUID_NODEV: Final = 2 | 4
_MS_BIND: Final = 4096
_MS_REC: Final = 16384
_MOST_SOCKETS: Final = 4096
_libc: Final = ctypes.CDLL(None, use_errno=True)


def check_visible(field: str, path: Path) -> None:
    """BadInput for a path that a run could not see, since the sandbox covers it."""
    for covered in EMPTY:
        if path.resolve().is_relative_to(Path(covered).resolve()):
            raise BadInput(field, str(path), f"must not be under {covered}: a run has one of its own there")
    for private in PRIVATE:
        if path.resolve() == Path(private).resolve():
            raise BadInput(field, str(path), f"must be a folder below {private}: a run has one of its own there")


def needed(more: Iterable[Path]) -> list[str]:
    """Return the folders to put back into /tmp and /var/tmp: Railyard, its Python, the working folder, and these."""
    python = (Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).parent)
    always = (Path.cwd(), PROJECT, *python, *(plugin.path for plugin in plugins.loaded()))
    found = {path.resolve() for path in (*always, *map(Path, sys.path), *more) if path.exists()}
    below = {path for path in found if any(Path(place).resolve() in path.parents for place in PRIVATE)}
    return sorted(str(path) for path in below if not below & set(path.parents))


def files_meant(data: object) -> Iterator[Path]:
    """Files and folders in /tmp or /var/tmp that a text of an experiment may mean: by their path, or its beginning.

    A file brings its folder with it, since a trace has a file for each rank; in /tmp itself, those of its name.
    """
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, list | tuple):
        for item in data:
            yield from files_meant(item)
    if not isinstance(data, str) or not data:
        return
    with suppress(OSError, ValueError):
        path, folder = Path(data).absolute(), Path(data).absolute().parent.resolve()
        for place in (Path(place).resolve() for place in PRIVATE):
            if place in folder.parents or (place == folder and path.is_dir()):
                yield path if path.is_dir() else folder
            elif place == folder:
                stem = path.name.partition(".")[0]
                yield from (file for file in folder.glob(f"{stem}*") if file.is_file())


def sockets() -> list[str]:
    """The paths of the machine's Unix sockets, as far as the kernel lists them for this network namespace."""
    lines = Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()
    paths = {line.split(maxsplit=7)[7] for line in lines if line.count("/")}
    return sorted(path for path in paths if path.startswith("/"))[:_MOST_SOCKETS]


def hide(put_back: Sequence[str], covered: Sequence[str]) -> None:
    """Hide them, in a mount namespace of our own: `needed` and `sockets` were called outside."""
    here = str(Path.cwd())
    opened = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in put_back}
    for places, mode in ((EMPTY, "755"), (PRIVATE, "1777")):
        for place in dict.fromkeys(str(Path(place).resolve()) for place in places if Path(place).is_dir()):
            mount("tmpfs", place, "tmpfs", _MS_NOSUID_NODEV, f"mode={mode}")
    for path, fd in opened.items():
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        (Path(path) if is_folder else Path(path).parent).mkdir(parents=True, exist_ok=True)
        if not is_folder:
            Path(path).touch()
        mount(f"/proc/self/fd/{fd}", path, "", _MS_BIND | _MS_REC)
        os.close(fd)
    with suppress(OSError):  # the working folder was the one beneath
        os.chdir(here)
    # an empty file over each socket; one that can't be opened from here, or is no socket any more, is left
    nothing = Path("/run/railyard/nothing")
    nothing.parent.mkdir(parents=True, exist_ok=True)
    nothing.touch(mode=0o000)
    for path in covered:
        with suppress(OSError, MissingRequirement):
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    mount(str(nothing), f"/proc/self/fd/{fd}", "", _MS_BIND)
            finally:
                os.close(fd)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """The system call. MissingRequirement if it fails."""
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()) != 0:
        why = os.strerror(ctypes.get_errno() or errno.EINVAL)
        raise MissingRequirement(f"this machine refuses a private {target} ({why})", "use sudo")


def bind(source: Path, target: Path) -> None:
    """Put a file over another one."""
    mount(str(source), str(target), "", _MS_BIND)

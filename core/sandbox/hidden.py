"""Hiding the machine from a run: its devices, folders that hold sockets of services, sockets elsewhere, and settings.

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
from railyard.core.installation import PROJECT
from railyard.core.safe_files import real_path

# the sandbox has a tmpfs of its own at these places, in /dev with `_DEVICES`
EMPTY: Final = ("/run", "/var/run", "/dev")
# the same, with those folders of the machine put back that the run needs
PRIVATE: Final = ("/tmp", "/var/tmp")
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty", "net")
_DEV_LINKS: Final = {"fd": "/proc/self/fd", "ptmx": "pts/ptmx"}
_DEV_LINKS.update((name, f"/proc/self/fd/{fd}") for fd, name in enumerate(("stdin", "stdout", "stderr")))
_READ_ONLY: Final = ("/sys", "/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
# SYS_MODULE, SYS_RAWIO, SYS_BOOT, SYS_TIME, MKNOD, MAC_OVERRIDE, MAC_ADMIN, SYSLOG
_DROPPED: Final = (16, 17, 22, 25, 27, 32, 33, 34)
_MS_NOSUID_NODEV: Final = 2 | 4
_MS_BIND: Final = 4096
_MS_REC: Final = 16384
_PR_CAPBSET_DROP: Final = 24
# since Linux 5.12, with the same number on all architectures
_SYS_MOUNT_SETATTR: Final = 442
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_MOST_SOCKETS: Final = 4096
_libc: Final = ctypes.CDLL(None, use_errno=True)


def check_visible(field: str, path: Path) -> None:
    """BadInput for a path that a run could not see, since the sandbox covers it."""
    for covered in EMPTY:
        if real_path(path).is_relative_to(real_path(covered)):
            raise BadInput(field, str(path), f"must not be under {covered}: a run has one of its own there")
    for private in PRIVATE:
        if real_path(path) == real_path(private):
            raise BadInput(field, str(path), f"must be a folder below {private}: a run has one of its own there")


def check_all_visible(data: object, field: str = "") -> None:
    """BadInput for Railyard or its Python where the sandbox covers them, and for a file that an experiment names there.

    `data`: an experiment's plain data. A text without a slash is a path only if there is such a file.
    """
    if not field:
        check_visible("the folder of Railyard", PROJECT)
        check_visible("the Python environment", Path(sys.prefix))
    items: Iterable[tuple[object, object]] = ()
    if isinstance(data, Mapping):
        items = data.items()
    elif isinstance(data, list | tuple):
        items = enumerate(data)
    for key, item in items:
        check_all_visible(item, f"{field}.{key}".lstrip("."))
    with suppress(OSError, ValueError):
        if isinstance(data, str) and (data.startswith("/") or ("." in data and Path(data).is_file())):
            check_visible(field, Path(data))


def needed(more: Iterable[Path]) -> list[str]:
    """Return the folders to put back into /tmp and /var/tmp: Railyard, its Python, the working folder, and these."""
    paths = [Path.cwd(), PROJECT, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).parent]
    paths += [plugin.path for plugin in plugins.loaded()]
    paths += map(Path, sys.path)
    paths += more
    private = {Path(place).resolve() for place in PRIVATE}
    below: set[Path] = set()
    for path in paths:
        if os.access(path, os.F_OK) and not private.isdisjoint(real_path(path).parents):
            below.add(real_path(path))
    # a folder brings all that is in it
    return sorted(str(path) for path in below if below.isdisjoint(path.parents))


def files_meant(data: object) -> Iterator[Path]:
    """Files and folders in /tmp or /var/tmp that a text of an experiment may mean: by their path, or its beginning."""
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, list | tuple):
        for item in data:
            yield from files_meant(item)
    if not isinstance(data, str) or not data:
        return
    with suppress(OSError, ValueError):
        path = Path(data).absolute()
        folder = real_path(Path(data).absolute().parent)
        for place in map(Path.resolve, map(Path, PRIVATE)):
            if path.is_dir() and (place in folder.parents or place == folder):
                yield path
            elif place in folder.parents:
                # a file brings its folder with it, since a trace has a file for each rank
                yield folder
            elif place == folder:
                # the whole of /tmp must not be visible: only the files of that name
                stem = path.name.partition(".")[0]
                yield from filter(Path.is_file, folder.glob(f"{stem}*"))


def sockets() -> list[str]:
    """The paths of the machine's Unix sockets, as far as the kernel lists them for this network namespace."""
    # a name can hold any character, also the end of a line: what follows it is no line of the kernel's
    lines = Path("/proc/net/unix").read_text(errors="surrogateescape").split("\n")
    paths: set[str] = set()
    for line in lines:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[7].startswith("/"):
            paths.add(fields[7])
    return sorted(paths)[:_MOST_SOCKETS]


def hide(put_back: Sequence[str], covered: Sequence[str]) -> None:
    """Hide them, in a mount namespace of our own: `needed` and `sockets` were called outside."""
    here = str(Path.cwd())
    devices = [f"/dev/{name}" for name in _DEVICES if Path("/dev", name).exists()]
    opened: dict[str, int] = {}
    for path in (*put_back, *devices):
        # what is gone since then is named by the program that needs it
        with suppress(FileNotFoundError):
            opened[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
    for places, mode in ((EMPTY, "755"), (PRIVATE, "1777")):
        folders = [str(Path(place).resolve()) for place in places if Path(place).is_dir()]
        # /var/run is a link to /run on most machines: one mount is enough
        for folder in dict.fromkeys(folders):
            mount("tmpfs", folder, "tmpfs", _MS_NOSUID_NODEV, f"mode={mode}")
    for path, fd in opened.items():
        # a bind mount needs a folder or a file to lie over
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            Path(path).mkdir(parents=True, exist_ok=True)
        else:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).touch()
        mount(f"/proc/self/fd/{fd}", path, "", _MS_BIND | _MS_REC)
        os.close(fd)
    for name in ("shm", "mqueue", "pts"):
        Path("/dev", name).mkdir(0o1777)
        Path("/dev", name).chmod(0o1777)
    mount("devpts", "/dev/pts", "devpts", 2, "newinstance,ptmxmode=0666,mode=0620")
    for name, target in _DEV_LINKS.items():
        Path("/dev", name).symlink_to(target)
    # the working folder was the one beneath
    with suppress(OSError):
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


def protect_settings() -> None:
    """Make the machine's settings read-only, in this mount namespace, but for /proc/sys/net, which is the run's own.

    An older kernel leaves them as they are.
    """
    network = os.open("/proc/sys/net", os.O_PATH | os.O_CLOEXEC)
    # struct mount_attr: attr_set, attr_clr, propagation, userns_fd
    read_only = (ctypes.c_uint64 * 4)(1, 0, 0, 0)
    for path in filter(os.path.exists, _READ_ONLY):
        mount(path, path, "", _MS_BIND | _MS_REC)
        target = ctypes.c_char_p(path.encode())
        _libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, target, _AT_RECURSIVE, read_only, ctypes.sizeof(read_only))
    mount(f"/proc/self/fd/{network}", "/proc/sys/net", "", _MS_BIND)
    os.close(network)


def drop_capabilities() -> None:
    """Keep programs that this process starts from the capabilities that would reach the machine beside the run."""
    for capability in _DROPPED:
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """The system call. MissingRequirement if it fails."""
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()) != 0:
        why = os.strerror(ctypes.get_errno() or errno.EINVAL)
        raise MissingRequirement(f"this machine refuses a private {target} ({why})", "use sudo")


def bind(source: Path, target: Path) -> None:
    """Put a file over another one."""
    mount(str(source), str(target), "", _MS_BIND)

"""Users' credentials, and folders to write into, as root too, where a user may change the path at any moment.

A path is walked once, part by part, and the folder stays open: what is swapped later has no effect. From the first part
on that an ordinary user owns (a folder, or a symbolic link), root acts with that user's credentials. So a changed path
leads root to nothing that its user could not write alone, and the files are owned by that user.

A file is written under a name that cannot be guessed, and renamed: it is whole or not there at all.
"""

import errno
import fcntl
import json
import os
import pwd
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from railyard.core.errors import BadInput

NO_GROUP: Final = 65534
_KEPT: Final = ("TERM", "COLUMNS", "LINES", "LANG", "LANGUAGE", "TZ", "NO_COLOR")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Account:
    """A user as a process has it. `known`: whether the machine has an entry for it."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str
    known: bool = True

    @property
    def is_ours(self) -> bool:
        """True if this process has these credentials already."""
        return self.uid == os.geteuid()


def account_of(uid: int, gid: int = NO_GROUP) -> Account:
    """The account of a user; `gid` is for a user that the machine has no entry for, who gets no other group."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(uid, gid, (), str(uid), "/", known=False)
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return Account(uid, entry.pw_gid, tuple(groups), entry.pw_name, entry.pw_dir)


def drop_to(account: Account) -> None:
    """Become this user, for good."""
    # the groups first: once it is the user's, this process may no longer change them
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    if os.getresuid() != (account.uid,) * 3 or os.getresgid() != (account.gid,) * 3:
        raise PermissionError("the credentials could not be dropped")


def clean_environment(account: Account) -> dict[str, str]:
    """The variables for a program of this user: how the terminal is, and nothing else of ours."""
    kept = {key: value for key, value in os.environ.items() if key in _KEPT or key.startswith("LC_")}
    return {**kept, "PATH": _PATH, "HOME": account.home, "USER": account.name, "LOGNAME": account.name}


_ROOT: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_WALK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS: Final = 40
_REMOVED: Final = " (deleted)"
"""What the kernel adds to the path of an open folder that was removed."""
MOST_BYTES: Final = 256_000_000
"""Most that is read of a file in a folder, which may be anyone's."""


class Folder:
    """An open folder. `path` is as it was given, for messages."""

    def __init__(self, path: Path, make: bool = False, identity: tuple[int, int] | None = None) -> None:
        """Open it; with `make`, make it and its parents. OSError if it can't be, or is another one than `identity`."""
        self.path = path
        # folders that the walk made: (open parent, name)
        self._made: list[tuple[int, str]] = []
        # the user whose credentials are used in it, if not this process's own
        self._account: Account | None = None
        self._gid = -1
        self._claim = -1
        self._fd = self._walk(path, make)
        if identity is not None and identity != self.identity:
            self.close()
            raise OSError(errno.ESTALE, "another folder was put in its place")

    @property
    def real_path(self) -> Path:
        """The current path, for another process to open it again, with `identity`; the last one if it was removed."""
        path = str(Path(f"/proc/self/fd/{self._fd}").readlink())
        return Path(path.removesuffix(_REMOVED) if self.is_removed else path)

    @property
    def is_removed(self) -> bool:
        """True if it was removed since it was opened."""
        path = str(Path(f"/proc/self/fd/{self._fd}").readlink())
        # the name of a folder may end so too
        return path.endswith(_REMOVED) and not os.path.lexists(path)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode, which identify it whatever its name is."""
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)
        if self._claim >= 0:
            os.close(self._claim)
        for parent, _ in self._made:
            os.close(parent)
        self._made = []
        self._claim = -1

    def check_writable(self) -> None:
        """PermissionError unless files can be made in it."""
        with _acting_as(self._account):
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=self._fd, effective_ids=True):
                user = "you"
                if self._account:
                    user = f"{self._account.name}, whose folder the path goes through"
                raise PermissionError(errno.EACCES, f"is not writable by {user}")

    def claim(self) -> None:
        """Lock it, empty as it is. FileExistsError if it is not empty."""
        self.lock()
        with os.scandir(self._claim) as entries:
            if any(entries):
                raise FileExistsError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    def lock(self) -> None:
        """Keep it to this process until it is closed; a lock ends with the process that has it.

        BlockingIOError if another process has it. On a file system that can't lock folders that is not known.
        """
        with _acting_as(self._account):
            self._claim = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # NFS, for one
        if not os.fstat(self._claim).st_nlink:
            # the process that had it has removed it
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def is_claimed(self) -> bool:
        """Return whether another process has claimed it: a run that is under way."""
        with _acting_as(self._account):
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            # the file system can't lock folders
            pass
        finally:
            os.close(fd)
        return False

    def has(self, name: str) -> bool:
        """Return whether there is anything of this name."""
        try:
            return self.read(name, 0) is not None
        except OSError:
            return True

    def read(self, name: str, most: int = MOST_BYTES) -> bytes | None:
        """A file's content, also of one in a folder below; None if there is nothing of that name.

        IsADirectoryError if it is no regular file, OSError if it has more than `most` bytes.
        """
        *folders, last = PurePosixPath(name).parts
        try:
            with self._below(folders, make=False) as parent, _acting_as(self._account):
                fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                # a symbolic link; a socket
                raise IsADirectoryError(errno.EISDIR, "is no file") from error
            raise
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, "is no file")
            if status.st_size > most:
                raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, more than the {most:,} expected")
            return file.read(most)

    def write(self, name: str, data: bytes) -> None:
        """Write a file, also in a folder below (`traces/0.json`). An older one is replaced, or left if that fails."""
        *folders, last = PurePosixPath(name).parts
        part = f".{last}.{secrets.token_hex(8)}.part"
        with self._below(folders) as parent, _acting_as(self._account):
            fd = os.open(part, _NEW, 0o666, dir_fd=parent)
            try:
                try:
                    _write_all(fd, data)
                    self._hand_over(fd)
                finally:
                    os.close(fd)
                os.rename(part, last, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError:
                with suppress(OSError):
                    os.unlink(part, dir_fd=parent)
                raise

    def write_new(self, name: str, data: bytes, mode: int) -> None:
        """Write a file that must not be there yet, with this mode whatever the umask is. FileExistsError if it is."""
        with _acting_as(self._account):
            fd = os.open(name, _NEW, mode, dir_fd=self._fd)
            try:
                os.fchmod(fd, mode)
                _write_all(fd, data)
                self._hand_over(fd)
            except OSError:
                with suppress(OSError):
                    os.unlink(name, dir_fd=self._fd)
                raise
            finally:
                os.close(fd)

    def open_empty(self, name: str) -> int:
        """Make an empty file in place of an older one, and return that file, open to write."""
        part = f".{name}.{secrets.token_hex(8)}.part"
        with _acting_as(self._account):
            fd = os.open(part, _NEW, 0o666, dir_fd=self._fd)
            try:
                self._hand_over(fd)
                os.rename(part, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except OSError:
                os.close(fd)
                with suppress(OSError):
                    os.unlink(part, dir_fd=self._fd)
                raise
        return fd

    def open_to_append(self, name: str) -> int:
        """Make a file, and return it open to append to. FileExistsError if there is one of that name."""
        with _acting_as(self._account):
            fd = os.open(name, _NEW | os.O_APPEND, 0o666, dir_fd=self._fd)
            self._hand_over(fd)
            return fd

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with _acting_as(self._account), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def names(self) -> list[str]:
        """Return the names of everything in it."""
        with _acting_as(self._account):
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            with os.scandir(fd) as entries:
                return sorted(entry.name for entry in entries)
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder in it. OSError if there is a folder of the new name that is not empty."""
        with _acting_as(self._account):
            os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove_tree(self, name: str) -> None:
        """Remove a folder in it with its content, if it is there. No symbolic link is followed."""
        with _acting_as(self._account), suppress(FileNotFoundError):
            shutil.rmtree(name, dir_fd=self._fd)

    def remove_if_empty(self) -> None:
        """Remove what was made for it and has nothing in it."""
        with _acting_as(self._account):
            for parent, name in reversed(self._made):
                with suppress(OSError):
                    os.rmdir(name, dir_fd=parent)

    def _walk(self, path: Path, make: bool) -> int:
        fd = os.open("/", _ROOT)
        parts = list(reversed(path.absolute().parts[1:]))
        links = 0
        try:
            while parts:
                step_fd = self._step(fd, parts.pop(), make)
                kind = os.fstat(step_fd)
                if self._account is None:
                    self._account = _account_to_use(kind)
                    self._gid = kind.st_gid
                if not stat.S_ISLNK(kind.st_mode):
                    os.close(fd)
                    fd = step_fd
                    continue
                with _acting_as(self._account):
                    target = os.readlink("", dir_fd=step_fd)
                os.close(step_fd)
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                if target.startswith("/"):
                    os.close(fd)
                    fd = os.open("/", _ROOT)
                parts += [part for part in reversed(target.split("/")) if part]
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        except BaseException:
            self._fd = fd
            self.close()
            raise
        return fd

    def _step(self, parent: int, name: str, make: bool) -> int:
        """Open what has this name, without following it; or make a folder."""
        with _acting_as(self._account):
            try:
                return os.open(name, _WALK, dir_fd=parent)
            except FileNotFoundError:
                if not make:
                    raise
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
                self._made.append((os.dup(parent), name))
            return self._made_folder(parent, name)

    def _made_folder(self, parent: int, name: str) -> int:
        """Open a folder that was just made."""
        if self._account and not self._account.known:
            # a link in its place is for `_walk` to see
            with suppress(OSError):
                fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
                self._hand_over(fd)
                os.close(fd)
        return os.open(name, _WALK, dir_fd=parent)

    @contextmanager
    def _below(self, folders: list[str], make: bool = True) -> Iterator[int]:
        """A folder below, made with `make` where it isn't there; no link is followed."""
        fd = os.dup(self._fd)
        try:
            for name in folders:
                if name in ("/", ".", ".."):
                    raise ValueError(f"{name!r} is no folder's name")
                with _acting_as(self._account):
                    if make:
                        with suppress(FileExistsError):
                            os.mkdir(name, dir_fd=fd)
                    next_fd = self._made_folder(fd, name) if make else os.open(name, _WALK, dir_fd=fd)
                os.close(fd)
                fd = next_fd
            yield fd
        finally:
            os.close(fd)

    def _hand_over(self, fd: int) -> None:
        """Give a new file the group of its user's folder, where the machine knows no group of that user's."""
        if self._account and not self._account.known and os.fstat(fd).st_uid == self._account.uid:
            uid = os.geteuid()
            # as root for a moment, within `_acting_as`
            os.seteuid(0)
            try:
                os.fchown(fd, -1, self._gid)
            finally:
                os.seteuid(uid)


def write_file(path: Path, data: bytes) -> None:
    """Write one file in a folder that is there."""
    with Folder(path.parent) as folder:
        folder.write(path.name, data)


class _InputsRead:
    """How many of the user's files this process has read: what was made without one depends on none."""

    number = 0


inputs_read: Final = _InputsRead()


def read_input(path: Path, field: str, most: int, written: str = "") -> bytes:
    """Return the content of a regular file that the user names. BadInput for another, or more than `most` bytes."""
    written = written or str(path)
    inputs_read.number += 1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            # reading a device, a pipe or a socket may never end
            if not stat.S_ISREG(status.st_mode):
                raise BadInput(field, written, "must be a regular file")
            with os.fdopen(fd, "rb", closefd=False) as file:
                content = file.read(most + 1)
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        # ValueError: a null character in the name
        raise BadInput(field, written, f"can't be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > most:
        # files of /proc have size 0
        size = max(status.st_size, len(content))
        raise BadInput(field, written, too_large(size, most))
    return content


def too_large(size: int, most: int, files: int = 1) -> str:
    """Return what a message says of a file, or several together, with more bytes than can be read."""
    # pydantic with it, which is slow to load
    from railyard.core.units import size_name

    together = f" in {files:,} files together" if files > 1 else ""
    return f"has {size:,} bytes{together}: {most:,} ({size_name(most)}) or fewer can be read"


def decoded(content: bytes) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 or UTF-32, as some editors save it; without a byte order mark.

    UnicodeDecodeError for anything else.
    """
    return content.decode(json.detect_encoding(content))


def real_path(path: str | Path) -> Path:
    """Return a path without symbolic links. A loop of links stays in it, for which `Path.resolve` may raise."""
    return Path(os.path.realpath(path))


def become_owner_of(path: Path) -> Account | None:
    """Become, as root and for good, the user whose credentials `Folder` would use there. None if it would use none."""
    with Folder(path) as folder:
        account = folder._account
    if account:
        drop_to(account)
        os.environ["HOME"] = account.home
    return account


def _account_to_use(status: os.stat_result) -> Account | None:
    """The ordinary user who owns it, if this process is root and could become that user."""
    if os.geteuid() != 0 or status.st_uid == 0:
        return None
    # the user must exist in this user namespace: 65534 also stands for all users that don't
    lines = (line.split() for line in Path("/proc/self/uid_map").read_text().splitlines())
    is_mapped = any(int(first) <= status.st_uid < int(first) + int(count) for first, _, count in lines)
    return account_of(status.st_uid) if is_mapped else None


@contextmanager
def _acting_as(account: Account | None) -> Iterator[None]:
    """With the user's credentials, which decide what the kernel allows; root stays the real user."""
    if account is None or account.is_ours:
        yield
        return
    groups = os.getgroups()
    gid = os.getegid()
    try:
        os.setgroups(account.groups)
        os.setegid(account.gid)
        os.seteuid(account.uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


def _write_all(fd: int, data: bytes) -> None:
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[os.write(fd, unwritten) :]

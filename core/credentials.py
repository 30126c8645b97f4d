"""Users' credentials: what root takes on before it touches anything that an ordinary user controls."""

import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
        """Whether this process has these credentials already, so that there is nothing to take on."""
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
    """Become this user, for good. The groups go first: after the user, this process may no longer change them."""
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    if os.getresuid() != (account.uid,) * 3 or os.getresgid() != (account.gid,) * 3:
        raise PermissionError("the credentials could not be dropped")


def clean_environment(account: Account) -> dict[str, str]:
    """The variables for a program of this user: how the terminal is, and nothing else of ours."""
    kept = {key: value for key, value in os.environ.items() if key in _KEPT or key.startswith("LC_")}
    return {**kept, "PATH": _PATH, "HOME": account.home, "USER": account.name, "LOGNAME": account.name}


def is_mapped(uid: int) -> bool:
    """Whether the user exists in this user namespace. 65534 also stands for all users that don't."""
    return any(first <= uid < first + count for first, count in _ranges(Path("/proc/self/uid_map").read_text()))


def _ranges(text: str) -> Iterable[tuple[int, int]]:
    """(first, count) of each line of a uid_map: `0 1000 1` -> (0, 1)."""
    return ((int(line.split()[0]), int(line.split()[2])) for line in text.splitlines())

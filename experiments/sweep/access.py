"""Check the options by which a sweep reaches other machines: `--on`, `--keys` and `--insecure`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from railyard.core.errors import BadInput

if TYPE_CHECKING:
    from railyard.experiments.sweep.keys import Keys

LOCAL: Final = "local"
_PLAIN: Final = "tcp://"
_ENCRYPTED: Final = "tls://"
_BY_SSH: Final = "ssh:"
_ADDRESS: Final = re.compile(r"(tcp|tls)://\S+:\d+|ssh:\S+")
_RISK: Final = "everyone who reaches it runs programs on all machines"


def check(on: str, keys: Path | None, insecure: bool) -> None:
    """Raise BadInput for an address that is none, and for options that don't belong to it."""
    if on != LOCAL and not _ADDRESS.fullmatch(on):
        raise BadInput("--on", on, "must be local, tls://SCHEDULER:PORT, tcp://SCHEDULER:PORT or ssh:HOST,HOST")
    if keys and on.startswith(_BY_SSH):
        raise BadInput("--keys", str(keys), "is for --on tls://: a sweep over ssh makes a key of its own")
    if keys and not on.startswith(_ENCRYPTED):
        raise BadInput("--keys", str(keys), f"is for --on tls://SCHEDULER:PORT, and --on is {on}")
    if insecure and not on.startswith(_PLAIN):
        raise BadInput("--insecure", on, "is encrypted or on this machine: the option is for --on tcp://SCHEDULER:PORT")
    if on.startswith(_PLAIN) and not insecure:
        encrypted = _ENCRYPTED + on.removeprefix(_PLAIN)
        allowed = f"has neither encryption nor a key, so {_RISK}: use --on {encrypted} --keys FILE, or add --insecure"
        raise BadInput("--on", on, allowed)


def load_keys(path: Path | None) -> "Keys | None":
    """Return the keys of a file; None without one: Dask's configuration may name certificates."""
    if path is None:
        return None
    # this import takes 50 ms
    from railyard.experiments.sweep import keys

    return keys.load(path)

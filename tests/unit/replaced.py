"""Records with other values, of their own fields or of their interval's identity."""

from dataclasses import replace
from typing import Any, TypeVar

from railyard.core.records import INTERVAL_FIELDS, Record

R = TypeVar("R", bound=Record)


def replaced(record: R, **changes: Any) -> R:
    """Return the record with these values; `part` follows a fault that is made part of a script."""
    identity = {name: changes.pop(name) for name in INTERVAL_FIELDS if name in changes}
    if identity.get("script"):
        identity.setdefault("part", "")
    return replace(record, interval=replace(record.interval, **identity), **changes)

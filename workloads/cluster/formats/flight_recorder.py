"""PyTorch's Flight Recorder: a dump of each rank with its process groups and its last collectives.

`TORCH_NCCL_DUMP_ON_TIMEOUT` writes pickles (`nccl_trace_rank_0`), `_dump_nccl_trace_json` writes JSON. A pickle can run
any program, so only one that holds plain data is read.
"""

import io
import json
import pickle
import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

from railyard.core.errors import BadInput
from railyard.workloads.cluster.calls import TracedRank, element_bytes, operation_of
from railyard.workloads.cluster.definition import CLUSTER_FORMATS, DocumentFormat, rank_in_name
from railyard.workloads.cluster.records import Cluster, LastCall, Source

_KEYS: Final = (b'"pg_config"', b'"profiling_name"')
_SEND: Final = re.compile(r"send \d+->(\d+)")
_PICKLE: Final = b"\x80"  # the first byte of every protocol since 2


class _NotPlainError(Exception):
    """A pickle needs a class or a function."""


class _PlainUnpickler(pickle.Unpickler):
    """Loads plain data: dicts, lists, tuples, texts and numbers need no class."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse every class and function."""
        raise _NotPlainError(f"{module}.{name}")


@CLUSTER_FORMATS.register("flight-recorder")
class FlightRecorder(DocumentFormat):
    """Process groups, and the collective at which each rank is."""

    title = "PyTorch Flight Recorder dump"

    def recognizes(self, head: bytes) -> bool:
        """Return whether it is a pickle, or JSON with the keys of a dump."""
        if head.startswith(_PICKLE):
            return True
        # a profile has the groups' configuration too
        is_profile = b'"distributedInfo"' in head or b'"traceEvents"' in head
        return head.lstrip().startswith(b"{") and not is_profile and any(key in head for key in _KEYS)

    def read(self, content: bytes, cluster: Cluster, source: Source) -> None:
        """Take the groups of a rank's dump. BadInput for a pickle that holds more than plain data."""
        data = _plain_data(content, source.file)
        try:
            rank = _rank_of(data, source.file)
            traced = TracedRank(cluster, rank)
            for identity, group in data["pg_config"].items():
                ranks = group["ranks"]
                members = [int(member) for member in (json.loads(ranks) if isinstance(ranks, str) else ranks)]
                name = str(group.get("name", identity))
                traced.add_group(name, str(group.get("desc") or name), members)
            _add_calls(traced, data["entries"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise BadInput(
                source.file, "its content", "is no dump of Flight Recorder: a key is missing or wrong"
            ) from error


def _plain_data(content: bytes, file: str) -> Any:
    try:
        if content.startswith(_PICKLE):
            return _PlainUnpickler(io.BytesIO(content)).load()
        return json.loads(content)
    except _NotPlainError as error:
        raise BadInput(file, str(error), "is not loaded: only plain data is unpickled") from error
    except (
        pickle.UnpicklingError,
        ValueError,
        EOFError,
        RecursionError,
        MemoryError,
        IndexError,
        KeyError,
        OverflowError,
        AttributeError,
        TypeError,
    ) as error:
        raise BadInput(file, "its content", "is cut off or no dump of Flight Recorder") from error


def _rank_of(data: Mapping[str, Any], file: str) -> int:
    """Return the rank of a dump: newer ones hold it, else the file's name ends with it."""
    if "rank" in data:
        return int(data["rank"])
    return rank_in_name(file)


def _add_calls(traced: TracedRank, entries: list[dict[str, Any]]) -> None:
    """Count a rank's calls, and keep the last collective of each group. Sends and receives count on their own."""
    last: dict[str, LastCall] = {}
    for entry in entries:
        group = str(entry["process_group"][0])
        name = str(entry["profiling_name"]).removeprefix("nccl:")
        operation = operation_of(name)
        if operation and traced.has_group(group):
            sizes = (_bytes(entry, "input"), _bytes(entry, "output"))
            traced.add_call(group, operation, max(sizes), _peer(name, traced.group(group)))
        if entry.get("is_p2p"):
            continue
        number = int(entry["collective_seq_id"])
        if group not in last or number >= last[group].number:
            last[group] = LastCall(number, name, str(entry["state"]) == "completed")
    for group, call in last.items():
        if traced.has_group(group):
            traced.set_last_call(group, call)


def _bytes(entry: Mapping[str, Any], side: str) -> int:
    """Return the bytes of a call's inputs or outputs, as far as the entry has shapes and types."""
    total = 0
    dtypes = entry.get(f"{side}_dtypes", ())
    for shape, dtype in zip(entry.get(f"{side}_sizes", ()), dtypes, strict=False):
        total += prod(int(length) for length in shape) * element_bytes(dtype)
    return total


def _peer(name: str, group: Sequence[int]) -> int | None:
    """Return the rank that `send 0->1` goes to: its numbers are places in the group."""
    match = _SEND.fullmatch(name)
    if not match or int(match[1]) >= len(group):
        return None
    return group[int(match[1])]

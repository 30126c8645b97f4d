"""PyTorch's Flight Recorder: a dump of each rank with its process groups and its last collectives.

`TORCH_NCCL_DUMP_ON_TIMEOUT` writes pickles (`nccl_trace_rank_0`), `_dump_nccl_trace_json` writes JSON. A pickle can run
any program, so only one that holds plain data is read.
"""

import io
import json
import pickle
import re
from collections.abc import Mapping
from typing import Any, Final

from railyard.core.errors import BadInput
from railyard.workloads.cluster.definition import CLUSTER_FORMATS, DocumentFormat
from railyard.workloads.cluster.records import Cluster, CommunicatorPart, LastCall, Source

_PICKLE: Final = b"\x80"  # the first byte of every protocol since 2
_RANK_IN_NAME: Final = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle))?$")


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
        return head.startswith(_PICKLE) or (head.lstrip().startswith(b"{") and b'"pg_config"' in head)

    def read(self, content: bytes, cluster: Cluster, source: Source) -> None:
        """Take the groups of a rank's dump. BadInput for a pickle that holds more than plain data."""
        data = _plain_data(content, source.file)
        try:
            rank = _rank_of(data, source.file)
            groups = data["pg_config"]
            last = _last_calls(data["entries"])
            for identity, group in groups.items():
                _add_group(cluster, str(identity), group, rank, last)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
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
    ) as error:
        raise BadInput(file, "its content", "is cut off or no dump of Flight Recorder") from error


def _rank_of(data: Mapping[str, Any], file: str) -> int:
    """Return the rank of a dump: newer ones hold it, else the file's name ends with it."""
    if "rank" in data:
        return int(data["rank"])
    match = _RANK_IN_NAME.search(file)
    if not match:
        raise BadInput(file, "its name", "must end with the rank, as nccl_trace_rank_3")
    return int(match[1])


def _last_calls(entries: list[dict[str, Any]]) -> dict[str, LastCall]:
    """Return the last collective of each group, by the group's name. Sends and receives count on their own."""
    last: dict[str, LastCall] = {}
    for entry in entries:
        if entry.get("is_p2p"):
            continue
        group = str(entry["process_group"][0])
        number = int(entry["collective_seq_id"])
        name = str(entry["profiling_name"]).removeprefix("nccl:")
        if group not in last or number >= last[group].number:
            last[group] = LastCall(number, name, str(entry["state"]) == "completed")
    return last


def _add_group(
    cluster: Cluster, identity: str, group: Mapping[str, Any], rank: int, last: Mapping[str, LastCall]
) -> None:
    ranks = group["ranks"]
    members = [int(member) for member in (json.loads(ranks) if isinstance(ranks, str) else ranks)]
    if rank not in members:
        return
    name = str(group.get("name", identity))
    # groups of different ranks may have the same name, as each rank's own tensor-parallel group
    part = CommunicatorPart(f"rank {rank}", f"{name} of ranks {members}", size=len(members), rank=members.index(rank))
    part.title = str(group.get("desc") or name)
    part.global_rank = rank
    part.last_call = last.get(name)
    cluster.parts.append(part)

"""PyTorch's profile (Kineto), as `torch.profiler` exports it: JSON, a file for each rank.

`distributedInfo` has the rank and the process groups. Each call of torch.distributed is an event `record_param_comms`
of the CPU, with arguments as in torch/csrc/distributed/c10d/ParamCommsUtils.hpp.
"""

from collections.abc import Mapping
from typing import Any, Final

from railyard.core.errors import BadInput
from railyard.workloads.cluster.calls import (
    TracedRank,
    element_bytes,
    operation_of,
    pytorch_groups,
    whole_numbers,
)
from railyard.workloads.cluster.definition import CLUSTER_FORMATS, DocumentFormat, rank_in_name, ranks_of_job
from railyard.workloads.cluster.records import Cluster, Source
from railyard.workloads.traces.common import parse_json

NAME: Final = "Collective name"
_KEYS: Final = (b'"distributedInfo"', b'"traceEvents"', b'"deviceProperties"')


@CLUSTER_FORMATS.register("kineto")
class Kineto(DocumentFormat):
    """Process groups, and the calls of a rank."""

    title = "PyTorch profile (Kineto)"

    def recognizes(self, head: bytes) -> bool:
        """Return whether it is JSON with the keys of a profile."""
        return head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{") and any(key in head for key in _KEYS)

    def read(self, content: bytes, cluster: Cluster, source: Source) -> None:
        """Take the groups and calls. BadInput for a profile without ranks, or one that is cut off."""
        data = parse_json(content, source.file)
        events = data.get("traceEvents")
        information = data.get("distributedInfo") or {}
        if not isinstance(events, list) or not isinstance(information, dict):
            raise BadInput(source.file, "traceEvents", "is no list of events: a profile has one")
        # a profile of the GPU alone has the calls' kernels, with the same arguments
        calls = _calls(events, "cpu_op") or _calls(events, "kernel")
        if not information and not calls:
            raise BadInput(source.file, "distributedInfo", "is missing: the profiled program was not distributed")
        rank = information.get("rank")
        if type(rank) is not int:
            rank = rank_in_name(source.file)
        traced = TracedRank(cluster, rank)
        try:
            for name, title, ranks in pytorch_groups(information.get("pg_config") or []):
                traced.add_group(name, title, ranks or ranks_of_job(information.get("world_size")))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise BadInput(source.file, "pg_config", "is no list of process groups with pg_name and ranks") from error
        unplaced = sum(not _add_call(traced, call) for call in calls)
        if unplaced:
            cluster.gaps[f"{source.file}: {unplaced:,} calls are of groups whose ranks it doesn't list"] = None


def _calls(events: list[Any], category: str) -> list[Mapping[str, Any]]:
    """Return the arguments of each call of a collective, send or receive: of the CPU's events, or of the kernels."""
    calls: list[Mapping[str, Any]] = []
    for event in events:
        if not isinstance(event, dict) or event.get("cat") != category:
            continue
        arguments = event.get("args")
        if isinstance(arguments, dict) and operation_of(str(arguments.get(NAME, ""))):
            calls.append(arguments)
    return calls


def _add_call(traced: TracedRank, arguments: Mapping[str, Any]) -> bool:
    """Count a call; return whether its group is known."""
    group = str(arguments.get("Process Group Name", ""))
    if not traced.has_group(group):
        ranks = whole_numbers(arguments.get("Process Group Ranks"))
        traced.add_group(group, str(arguments.get("Process Group Description", "")), ranks)
    if not traced.has_group(group):
        return False
    elements = [arguments.get(key, 0) for key in ("In msg nelems", "Out msg nelems")]
    size = max((count for count in elements if type(count) is int), default=0) * element_bytes(arguments.get("dtype"))
    peer = arguments.get("Dst Rank")
    operation = operation_of(str(arguments[NAME]))
    assert operation is not None
    traced.add_call(group, operation, size, peer if type(peer) is int else None)
    return True

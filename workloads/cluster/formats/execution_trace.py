"""PyTorch's execution trace (`torch.profiler.ExecutionTraceObserver`): JSON, a file for each rank.

The groups are in the node `process_group:init`, the calls in nodes `record_param_comms`. As a workload, a trace is read
by workloads/traces/formats/pytorch.py, which needs the files of all ranks; this reads any of them.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from railyard.core.errors import BadInput
from railyard.workloads.cluster.calls import TracedRank, element_bytes, operation_of, pytorch_groups, whole_numbers
from railyard.workloads.cluster.definition import CLUSTER_FORMATS, DocumentFormat, rank_in_name, ranks_of_job
from railyard.workloads.cluster.records import Cluster, Source
from railyard.workloads.traces.common import parse_json
from railyard.workloads.traces.formats.pytorch import CALL, GROUPS

_KEYS: Final = (b'"schema"', b'"nodes"')


@CLUSTER_FORMATS.register("pytorch-execution-trace")
class ExecutionTrace(DocumentFormat):
    """Process groups, and the calls of a rank."""

    title = "PyTorch execution trace"

    def recognizes(self, head: bytes) -> bool:
        """Return whether it is a JSON object with a schema and nodes."""
        return head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{") and all(key in head for key in _KEYS)

    def read(self, content: bytes, cluster: Cluster, source: Source) -> None:
        """Take the groups and calls. BadInput for a trace that is cut off, or that has no process groups."""
        data = parse_json(content, source.file)
        nodes = data.get("nodes")
        if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
            raise BadInput(source.file, "nodes", "is no list of nodes: a PyTorch execution trace has one")
        rank = rank_in_name(source.file)
        traced = TracedRank(cluster, rank)
        calls = [_attributes(node) for node in nodes if node.get("name") == CALL]
        sizes = [call["group_size"] for call in calls if type(call.get("group_size")) is int]
        world_size = max([rank + 1, *sizes])
        try:
            for node in nodes:
                if GROUPS in str(node.get("name")):
                    for name, title, ranks in pytorch_groups(json.loads(_inputs(node)[0])):
                        traced.add_group(name, title, ranks or ranks_of_job(world_size))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise BadInput(source.file, GROUPS, "is no list of process groups with pg_name and ranks") from error
        unplaced = sum(not _add_call(traced, call) for call in calls)
        if unplaced:
            cluster.gaps[f"{source.file}: {unplaced:,} calls are of groups whose ranks it doesn't list"] = None


def _attributes(node: Mapping[str, Any]) -> dict[str, Any]:
    attributes = node.get("attrs")
    if not isinstance(attributes, list):
        return {}
    return {str(item.get("name")): item.get("value") for item in attributes if isinstance(item, dict)}


def _inputs(node: Mapping[str, Any]) -> list[Any]:
    inputs = node.get("inputs")
    values = inputs.get("values") if isinstance(inputs, dict) else inputs
    return values if isinstance(values, list) else []


def _add_call(traced: TracedRank, attributes: Mapping[str, Any]) -> bool:
    """Count a call, if it is one of a collective; return whether its group is known."""
    operation = operation_of(str(attributes.get("collective_name", "")))
    if operation is None:
        return True
    group = str(attributes.get("pg_name", ""))
    if not traced.has_group(group):
        traced.add_group(group, str(attributes.get("pg_desc", "")), whole_numbers(attributes.get("pg_ranks")))
    if not traced.has_group(group):
        return False
    counts = (attributes.get("in_msg_nelems", 0), attributes.get("out_msg_nelems", 0))
    elements = max((count for count in counts if type(count) is int), default=0)
    traced.add_call(group, operation, elements * element_bytes(attributes.get("dtype")))
    return True

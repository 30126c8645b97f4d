"""Traces that a workload can replay, as files of a cluster: the communicators of a job, with their calls."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from railyard.core.errors import BadInput
from railyard.workloads.cluster.calls import TracedRank
from railyard.workloads.cluster.records import Cluster, Source
from railyard.workloads.traces import common
from railyard.workloads.traces.formats.recorded import FILE
from railyard.workloads.traces.formats.simai import POLICIES

_SUFFIXES: Final = (".et", ".json")
_MESSAGES: Final = "sends and receives"
FLOPS_PER_S: Final = 1.0
"""Computing is not looked at, so any rate will do."""


def is_trace(file: Path, head: bytes) -> bool:
    """Return whether a file is one of a trace, by its name and its first bytes."""
    words = head.split(maxsplit=1)
    is_text = bool(words) and words[0].decode("latin-1") in POLICIES
    return file.name == FILE or file.suffix in _SUFFIXES or is_text


def read(files: Sequence[Path], cluster: Cluster, in_folder: bool = False) -> list[Path]:
    """Take the communicators and calls of the traces that files are of. BadInput where one can't be read.

    Return the files that are of no trace: `in_folder`, JSON of other programs, as a model's config.json.
    """
    done: set[str] = set()
    other_files: list[Path] = []
    for file in files:
        if file.name in done:
            continue
        trace_files = common.read_files(str(file), "FILE")
        name = common.format_of(trace_files, "FILE")
        # Chakra's format takes any JSON, and has a file for each rank
        if in_folder and name == "chakra" and trace_files.shared:
            other_files.append(file)
            continue
        ranks = _ranks(trace_files)
        trace = common.TRACE_FORMATS[name].read(trace_files, common.ReplayOn(ranks, 1, FLOPS_PER_S, {}))
        _take(trace, cluster)
        cluster.ranks_per_host = cluster.ranks_per_host or trace.ranks_per_node
        for note in trace.notes:
            cluster.gaps[note] = None
        for file_name in trace_files.names:
            done.add(file_name)
            cluster.sources.append(Source(file_name, (name,)))
    return other_files


def _ranks(files: common.Files) -> int:
    """Return the number of a trace's ranks where it says none itself: a file for each. BadInput for one file of all."""
    if not files.shared:
        return len(files.names)
    if files.suffix != ".json" and b"all_gpus:" not in files.content[0].partition(b"\n")[0]:
        allowed = "has no `all_gpus: N` in line 1, so the number of its ranks isn't known"
        raise BadInput("FILE", files.names[0], allowed)
    return 1


def _take(trace: common.Trace, cluster: Cluster) -> None:
    """Add the communicators of each rank. Messages are of no communicator: all of the ranks have one for them."""
    everyone = range(len(trace.ranks))
    for rank, nodes in enumerate(trace.ranks):
        traced = TracedRank(cluster, rank)
        for node in nodes:
            action = node.action
            if isinstance(action, common.Send | common.Recv):
                traced.add_group(_MESSAGES, _MESSAGES, everyone)
                if isinstance(action, common.Send):
                    traced.add_call(_MESSAGES, "send", action.bytes, action.dst)
                else:
                    traced.add_call(_MESSAGES, "recv", action.bytes)
            elif isinstance(action, common.Call):
                key = f"{action.group_name} {action.group}"
                traced.add_group(key, action.group_name, action.group)
                traced.add_call(key, action.op, _buffer_bytes(action))


def _buffer_bytes(call: common.Call) -> int:
    """Return the bytes of the buffer that goes in or comes out, whichever is larger."""
    if call.sends or call.receives:
        return max(sum(call.sends), sum(call.receives))
    if call.op in ("all-to-all", "gather", "scatter"):
        return round(call.data_bytes * len(call.group))
    return round(call.data_bytes)

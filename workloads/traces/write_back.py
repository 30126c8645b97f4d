"""What was measured, back into the trace: its own files, with the time that each operation took.

Times are those of the job on the real platform: emulated seconds divided by the time factor, as everything projected is
(`railyard.workloads.scale`). An operation lasts on a rank from the start of the first of its tasks there to the end of
the last; a receive from when its sender begins.
"""

from collections.abc import Mapping

from railyard.workloads.traces.common import Measured, NodeId, Trace
from railyard.workloads.traces.lower import Lowered


def durations(lowered: Lowered, spans: Mapping[int, tuple[int, int]], time_factor: float) -> dict[NodeId, Measured]:
    """Of every operation all of whose tasks ended. `spans`: start and end of tasks in ns, on one clock."""
    origin_ns = min((start for start, _ in spans.values()), default=0)
    found: dict[NodeId, Measured] = {}
    for node_id, tasks in lowered.tasks.items():
        if tasks and all(task in spans for task in tasks):
            start = min(spans[task][0] for task in tasks)
            end = max(spans[task][1] for task in tasks)
            found[node_id] = Measured((start - origin_ns) / 1e9 / time_factor, (end - start) / 1e9 / time_factor)
    return found


def write_back(trace: Trace, measured: Mapping[NodeId, Measured]) -> dict[str, bytes]:
    """The trace's files by name, in its own format, with what was measured; the rest of them as it was.

    .et: start and duration of nodes; Chakra JSON the same; PARAM: `latency_us`; SimAI: a table beside it.
    """
    return trace.rewrite(measured)

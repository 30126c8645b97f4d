"""`Operations` on any engine, as one rank plays them and tells of them.

Times are CLOCK_MONOTONIC's; bytes are the NICs' own count, since only they know what another engine sends where.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from railyard.topologies.multirail.addresses import Nic
from railyard.workloads.allreduce.engine.buffers import Array
from railyard.workloads.allreduce.engine.inputs import ROOT, draw_input, expected, outcome, rotated, wrong
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport
from railyard.workloads.allreduce.peers.rank_config import Engine, RankConfig

_COUNTERS: Final = Path("/proc/thread-self/net/dev")
_RECEIVED, _SENT = 0, 8  # columns


def count_bytes(text: str, rails: int) -> tuple[int, ...]:
    """By rail, bytes that this node's NIC has received and sent, headers and all, from what /proc/net/dev says."""
    rows = (line.split(":") for line in text.splitlines()[2:])
    columns = {name.strip(): values.split() for name, values in rows}
    of_rails = (columns[Nic(rail, None).interface] for rail in range(rails))
    return tuple(int(column[_RECEIVED]) + int(column[_SENT]) for column in of_rails)


def parts_of(size: float, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[float, ...]:
    """`size` shared out as the rails' bytes are; all 0 where none moved any."""
    moved = [new - old for old, new in zip(before, after, strict=True)]
    return tuple(size * each / max(1, sum(moved)) for each in moved)


def play(engine: Engine, config: RankConfig, operations: Operations) -> RankReport:
    """Play them as worker.do does; what the engine can't do ends them, and is in the report.

    A rail's seconds are the operation's, where it carried any of it: nobody tells when it was through.
    """
    report, wrongs = RankReport(config.rank), 0
    first = draw_input(operations, config.nodes, config.rank)
    reference = expected(operations, config.nodes, config.rank) if operations.check else first
    call, data = _call(engine, operations.collective), first.copy()
    try:
        engine.allreduce(np.zeros(1, np.uint8))  # all are here
        report.rail_bytes_over_time.append(_moved_now(config))
        for index in range(operations.count):
            if operations.check:
                data[:] = rotated(first, index)
            time.sleep(operations.gap_s)
            start = time.monotonic_ns()
            result = call(data)
            report.ends_ns.append(time.monotonic_ns())
            report.starts_ns.append(start)
            _note_rails(report, config, first.nbytes)
            if operations.check:
                wrongs += wrong(result, outcome(operations, config.nodes, config.rank, reference, index), config.nodes)
    except Exception as problem:  # an engine's own, of any kind
        report.errors.append(f"{type(problem).__name__}: {problem}")
    return replace(report, wrong=wrongs)


def _moved_now(config: RankConfig) -> tuple[int, tuple[int, ...]]:
    return time.monotonic_ns(), count_bytes(_COUNTERS.read_text(), len(config.layout.rails))


def _note_rails(report: RankReport, config: RankConfig, size: int) -> None:
    before = report.rail_bytes_over_time[-1][1]
    report.rail_bytes_over_time.append(_moved_now(config))
    shares = parts_of(size, before, report.rail_bytes_over_time[-1][1])
    elapsed_s = (report.ends_ns[-1] - report.starts_ns[-1]) / 1e9
    report.shares.append(shares)
    report.rail_seconds.append(tuple(elapsed_s if share else 0.0 for share in shares))


def _call(engine: Engine, collective: str) -> Callable[[Array], Array]:
    """What gives a rank's result from its input."""

    def in_place(do: Callable[[Array], None]) -> Callable[[Array], Array]:
        def call(data: Array) -> Array:
            do(data)
            return data

        return call

    match collective:
        case "allreduce":
            return in_place(engine.allreduce)
        case "reduce_scatter":
            return engine.reduce_scatter
        case "all_gather":
            return engine.all_gather
    return in_place(lambda data: engine.broadcast(data, ROOT))

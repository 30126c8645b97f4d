"""Find streams that exceeded the max-flow of the remaining fabric: the fault had no effect, or the oracle is wrong."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from railyard.failure.analysis.recovery_times import STEADY_BINS, Trace
from railyard.failure.oracle.reachability import Survivors
from railyard.failure.scenario.pairs import Pair

SLACK: Final = 1.05


def too_fast(remaining: Survivors, traces: Mapping[Pair, Trace]) -> frozenset[Pair]:
    """Return the pairs whose goodput (bit/s in bins), averaged over `STEADY_BINS`, was above their max-flow.

    Shorter traces are ignored. Max-flow is computed only for a pair that got more than the slowest live cable carries,
    which is a lower bound for any connected pair.
    """
    slowest = min((edge["capacity"] for _, _, edge in remaining.graph.edges(data=True)), default=0)
    found = set()
    for pair, trace in traces.items():
        if len(trace) < STEADY_BINS:
            continue
        peak_bps = float(np.convolve(trace, np.ones(STEADY_BINS) / STEADY_BINS, mode="valid").max())
        min_bps = slowest if pair in remaining.connected else 0
        if peak_bps > min_bps * SLACK and peak_bps > remaining.max_bps(*pair) * SLACK:
            found.add(pair)
    return frozenset(found)

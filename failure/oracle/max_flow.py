"""Streams that got more than what was left of the fabric can carry: then the fault wasn't there, or the oracle errs."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from railyard.failure.analysis.recovery_times import STEADY_BINS, Trace
from railyard.failure.oracle.reachability import Survivors
from railyard.failure.scenario.pairs import Pair

SLACK: Final = 1.05


def too_fast(left: Survivors, traces: Mapping[Pair, Trace]) -> frozenset[Pair]:
    """The pairs whose goodput (bit/s in bins), meant over `STEADY_BINS`, was above their max-flow.

    A shorter trace says nothing. Max-flow is worked out only for a pair that got more than the slowest living cable
    carries, which any two that are joined have at least.
    """
    slowest = min((known["capacity"] for _, _, known in left.graph.edges(data=True)), default=0)
    found = set()
    for pair, trace in traces.items():
        if len(trace) < STEADY_BINS:
            continue
        peak_bps = float(np.convolve(trace, np.ones(STEADY_BINS) / STEADY_BINS, mode="valid").max())
        least_bps = slowest if pair in left.connected else 0
        if peak_bps > least_bps * SLACK and peak_bps > left.most_bps(*pair) * SLACK:
            found.add(pair)
    return frozenset(found)

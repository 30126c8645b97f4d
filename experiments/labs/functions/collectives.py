"""Answers of lab 2: times of collectives by the formulas of Rail-only (Eq. 1, 11), and of the student's run."""

from railyard.core.units import format_rate
from railyard.experiments.labs.definition import Setting
from railyard.results.runs.records import Measurement
from railyard.workloads.collectives.all_gather import all_gather_s
from railyard.workloads.collectives.all_reduce import all_reduce_s

HB_FACTOR = 12
"""C_F over C_S of the platform a100."""
WORKLOADS = {"all-reduce": "all-reduce-ring", "all-gather": "all-gather-hierarchical"}
"""The collectives that a question names, with the workloads of the run."""


def rate_text(rate_mbit: int) -> str:
    """Return a rate in Mbit/s as text."""
    return format_rate(rate_mbit * 1_000_000)


def ring_s(megabytes: float, ranks: int, bytes_per_s: float) -> float:
    """Return the time of the ring AllReduce on a rail, s."""
    return float(all_reduce_s(megabytes * 1e6, 1, ranks, 1.0, bytes_per_s))


def gather_s(setting: Setting, hb_factor: float = HB_FACTOR) -> float:
    """Return the time of the hierarchical AllGather (Eq. 1) on the variant's grid, s."""
    rail = setting["rail_mbit"] * 1e6 / 8
    size = setting["gather_mb"] * 1e6
    return float(all_gather_s(size, setting["rails"], setting["domains"], rail * hb_factor, rail))


def measured(setting: Setting, workload: str) -> Measurement:
    """Return the completion time of a workload in the student's run."""
    return setting.measurement("measured", workload=workload)


def deviation(setting: Setting, workload: str) -> float:
    """Return by which share a measured time differs from its prediction."""
    row = measured(setting, workload)
    return abs(row.value / (row.predicted or row.value) - 1)


def worst_collective(setting: Setting) -> str:
    """Return the collective whose time differs most from its prediction."""
    return max(WORKLOADS, key=lambda name: deviation(setting, WORKLOADS[name]))


def latency_ms(setting: Setting) -> float:
    """Return by how much latency lengthens the predicted AllReduce, ms."""
    row = measured(setting, "all-reduce-ring")
    return 1000 * (row.predicted_with_latency or 0.0) - 1000 * (row.predicted or 0.0)

"""Answers of lab 7: costs of an allreduce on two unlike rails, the shares that end together, and the student's run."""

from railyard.experiments.labs.definition import Setting
from railyard.workloads.allreduce.balancing.costs import Cost, Rail, allreduce_cost, ideal_shares, threshold

SIZE = 2**20
SMALL = 4 * 2**10


def costs(setting: Setting) -> tuple[Cost, Cost]:
    """Return the costs of an allreduce on the rails eth (a ring) and ib (a tree through the switch)."""
    eth = Rail("eth", "tcp", setting["eth_mbit"] * 1e6 / 8, setting["eth_ms"] / 1e3)
    ib = Rail("ib", "sharp", setting["ib_mbit"] * 1e6 / 8, setting["ib_ms"] / 1e3)
    return allreduce_cost(eth, setting["nodes"]), allreduce_cost(ib, setting["nodes"])


def eth_s(setting: Setting, size: float = SIZE) -> float:
    """Return the time of an allreduce of `size` bytes on eth alone, s."""
    return costs(setting)[0].seconds(size)


def ib_s(setting: Setting, size: float = SIZE) -> float:
    """Return the time of an allreduce of `size` bytes on ib alone, s."""
    return costs(setting)[1].seconds(size)


def eth_share(setting: Setting) -> float:
    """Return the share of 1 MiB that belongs on eth if both rails are to end together."""
    return ideal_shares(costs(setting), SIZE)[0]


def ib_share(setting: Setting) -> float:
    """Return the share of 1 MiB that belongs on ib if both rails are to end together."""
    return ideal_shares(costs(setting), SIZE)[1]


def threshold_kib(setting: Setting) -> float:
    """Return the size up to which a split gains nothing, KiB."""
    return (threshold(costs(setting)) or 0.0) / 1024


def measured(setting: Setting, policy: str, metric: str = "completion_time") -> float:
    """Return what a policy achieved with 1 MiB in the student's run."""
    return setting.measurement("measured", policy=policy, workload="allreduce 1MiB", metric=metric).value


def fastest_single(setting: Setting) -> float:
    """Return the time of the faster rail alone with 1 MiB in the student's run, s."""
    return min(measured(setting, "single:eth"), measured(setting, "single:ib"))

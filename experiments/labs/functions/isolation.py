"""Answers of lab 8: pairs that a dead rail cuts, and times on a hot and a cold rail in the student's run."""

from itertools import permutations

from railyard.controller.failover.detours import Broken, choose, usable
from railyard.experiments.labs.definition import Setting
from railyard.topologies.addresses import Gpu


def ring(domains: int, rank: int) -> str:
    """Return a pair for each GPU of a rank and the one in the next domain, as YAML."""
    pairs = []
    for domain in range(domains):
        source = Gpu(domain, rank)
        destination = Gpu((domain + 1) % domains, rank)
        pairs.append(f"[{source.name}, {destination.name}]")
    return f"[{', '.join(pairs)}]"


def cut_pairs(setting: Setting, *rails: int) -> int:
    """Return how many ordered pairs of GPUs have a primary path that crosses one of the dead rail switches."""
    broken = Broken(rails=frozenset(rails))
    fabric = setting.fabric()
    count = 0
    for source, destination in permutations(setting.plan().gpus, 2):
        for share in fabric.paths(source, destination):
            if not usable(share.path, source, destination, broken, "rail-only"):
                count += 1
                break
    return count


def unreachable(setting: Setting, *rails: int) -> int:
    """Return how many ordered pairs have no path at all, with detours, when these rail switches are dead."""
    broken = Broken(rails=frozenset(rails))
    fabric = setting.fabric()
    count = 0
    for source, destination in permutations(setting.plan().gpus, 2):
        if not choose(fabric, source, destination, broken):
            count += 1
    return count


def dead_rails_that_separate(setting: Setting) -> int:
    """Return how many rail switches must be dead until GPUs of different domains can't reach each other."""
    count = 1
    while not unreachable(setting, *range(count)):
        count += 1
    return count


def measured_s(setting: Setting, workload: str) -> float:
    """Return the time of a workload in the student's run, s: `transfers` is on the hot rail."""
    return setting.measurement("measured", workload=workload).value

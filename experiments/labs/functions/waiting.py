"""Answers of lab 11: pairs without a path on isolated rails, rings that cross them, and the student's run."""

from collections.abc import Sequence
from itertools import pairwise, permutations

from railyard.experiments.labs.definition import NotDone, Setting
from railyard.results.runs.records import record_kind_of_file
from railyard.topologies.addresses import Gpu, gpu_of_name


def crossing_ring(first_rank: int, second_rank: int) -> list[str]:
    """Return four GPUs of two domains in the order of a ring whose hops between domains cross rails."""
    places = [(0, first_rank), (0, second_rank), (1, first_rank), (1, second_rank)]
    return [Gpu(*place).name for place in places]


def aligned_ring(first_rank: int, second_rank: int) -> list[str]:
    """Return the same GPUs in the order of a ring whose hops between domains stay on a rail."""
    places = [(0, first_rank), (0, second_rank), (1, second_rank), (1, first_rank)]
    return [Gpu(*place).name for place in places]


def yaml_list(names: Sequence[str]) -> str:
    """Return names as a list in YAML: [d0g0, d1g1]."""
    return f"[{', '.join(names)}]"


def pairs_without_path(setting: Setting) -> int:
    """Return how many ordered pairs of GPUs have no path on isolated rails."""
    fabric = setting.fabric(policy="isolated")
    return sum(not fabric.paths(src, dst) for src, dst in permutations(setting.plan().gpus, 2))


def hops_without_path(setting: Setting, ring: Sequence[str]) -> list[tuple[str, str]]:
    """Return the hops of a ring, the last one back to its first GPU included, that have no path on isolated rails."""
    fabric = setting.fabric(policy="isolated")
    hops = pairwise([*ring, ring[0]])
    return [hop for hop in hops if not fabric.paths(gpu_of_name(hop[0]), gpu_of_name(hop[1]))]


def first_hop_without_path(setting: Setting, ring: Sequence[str]) -> frozenset[str]:
    """Return the two GPUs of the first of these hops."""
    return frozenset(hops_without_path(setting, ring)[0])


def forwarder(setting: Setting, src: str, dst: str) -> str:
    """Return the GPU that forwards from one GPU to another by policy dr."""
    (share,) = setting.fabric().paths(gpu_of_name(src), gpu_of_name(dst))
    return Gpu(gpu_of_name(src).domain, share.path.rail).name


def measured_s(setting: Setting, workload: str, policy: str) -> float:
    """Return the time of a ring in the student's run on the fabric of a policy, s."""
    return setting.measurement("measured", workload=workload, policy=policy).value


def waiting_pair(setting: Setting) -> frozenset[str]:
    """Return the GPUs without a path that the student's run names. NotDone if it names none."""
    waits = setting.records("measured").run.rows(record_kind_of_file("waits.csv"))
    if not waits:
        raise NotDone("the run has no communicator that waited")
    return frozenset(waits[0].pair.split(" -> "))

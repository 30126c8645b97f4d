"""Forwarding policies: by which path packets travel between two GPUs while nothing is broken.

A policy is one rule, `path(src, dst, fabric)`. Everything else is derived from it: route tables (routing.py), detours
around failures (controller/failover), expected traffic per port and predicted times (workloads/matrix), and the path
that `trace` expects. Built-in policies are the modules of topologies/policies; plugins register theirs the same way:

    class Mine(ForwardingPolicy):
        def path(self, src, dst, fabric):
            return path_of("rd", src.rank)

    FORWARDING_POLICIES.add("mine", Mine())
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product
from typing import Final, Protocol

from railyard.core.registry import Registry
from railyard.topologies.addresses import Gpu
from railyard.topologies.paths import Path, Share, Shares, path_of, path_problem


class Fabric(Protocol):
    """The part of a fabric's specification that a rule may use: its kind and size."""

    @property
    def kind(self) -> str: ...
    @property
    def domains(self) -> int: ...
    @property
    def rails(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Shape:
    """A fabric's kind and size, where there is no full specification."""

    kind: str
    domains: int
    rails: int


class ForwardingPolicy:
    """Base of all forwarding policies. Rules must be deterministic and depend on their arguments alone."""

    def fits(self, joins_rails: bool) -> bool:
        """Return whether a fabric kind can use this policy. `joins_rails`: its NIC network carries frames between
        rails.
        """
        return True

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> Path | Shares:
        """Return the path between two GPUs that differ in domain and rank, or several paths with weights.

        Pairs of one domain always use their HB domain, and pairs of one rank their rail.
        """
        raise NotImplementedError


def shares_of(found: Path | Shares) -> Shares:
    """Return what a rule gave as shares."""
    return (Share(found),) if isinstance(found, Path) else found


_TRIED: Final = (Shape("rail-only", 2, 2), Shape("rail-only", 3, 3))


def _problems(name: str, policy: object) -> Iterator[str]:
    """Yield what is missing or wrong. The rule is tried for every pair of two small fabrics."""
    if not isinstance(policy, ForwardingPolicy):
        yield "it must be an instance of a subclass of ForwardingPolicy"
        return
    if type(policy).path is ForwardingPolicy.path:
        yield "it lacks path(src, dst, fabric)"
        return
    for shape in _TRIED:
        gpus = [Gpu(*place) for place in product(range(shape.domains), range(shape.rails))]
        for src, dst in permutations(gpus, 2):
            if src.domain != dst.domain and src.rank != dst.rank:
                problem = rule_problem(policy, src, dst, shape)
                if problem:
                    yield problem
                    return


def rule_problem(policy: ForwardingPolicy, src: Gpu, dst: Gpu, fabric: Fabric) -> str:
    """Return what is wrong with what a rule gives for a pair; "" if nothing is."""
    where = f"path({src.name}, {dst.name})"
    try:
        shares = shares_of(policy.path(src, dst, fabric))
        problems = [path_problem(path, src, dst, fabric.rails) for path, weight in shares if weight >= 1]
    except Exception as error:
        return f"{where} raises {type(error).__name__}: {error}"
    if len(problems) != len(shares) or not shares:
        return f"{where} gives {shares!r}: one path or more are needed, with weights of 1 or more"
    return next((f"{where} {problem}" for problem in problems if problem), "")


FORWARDING_POLICIES: Final = Registry[ForwardingPolicy](
    "forwarding policy", "railyard.topologies.policies", check=_problems
)


def policy_shares(policy: str, src: Gpu, dst: Gpu, fabric: Fabric) -> Shares:
    """Return the paths between two different GPUs by a policy's rule, with their weights."""
    if src.domain == dst.domain:
        return (Share(path_of("d", src.rank)),)
    if src.rank == dst.rank:
        return (Share(path_of("r", src.rank)),)
    return shares_of(FORWARDING_POLICIES[policy].path(src, dst, fabric))

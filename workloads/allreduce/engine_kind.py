"""Allreduce engines: the programs that run the operations of a policy, Railyard's own or others on the same rails.

An engine is one module of `engines/`, or a plugin. Its module is imported wherever names are looked up, so it loads
other libraries only in functions. An engine of another program derives its ranks from `PeerRanks` (peers/ranks.py).
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Final, Protocol

from railyard.core.errors import BadInput, MissingRequirement, unknown_name_hint
from railyard.core.registry import Registry
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import MultirailSpec
from railyard.topologies.rail_kind import RAIL_KINDS
from railyard.workloads.allreduce.balancing.costs import Rail, allreduce_cost
from railyard.workloads.allreduce.balancing.policy import (
    ALLREDUCE_POLICIES,
    AllreducePolicy,
    find_policy,
    policy_usages,
)
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport


class PlannedFabric(Protocol):
    """A built multi-rail fabric (MultirailNet), as far as an engine needs it."""

    plan: MultirailPlan


class Group(Protocol):
    """Connected ranks that wait for requests."""

    def run(self, operations: Operations, /) -> Sequence[RankReport]:
        """Run operations on all ranks and return the report of each."""
        ...

    def pause(self) -> None:
        """Stop all processes between operations: they use no CPU until `resume`."""
        ...

    def resume(self) -> None: ...


class AllreduceEngine:
    """Definition of an engine that runs one way of its own, which experiments list among the policies by its name.

    `equation`: what its prediction follows. `colour`: of its line in figures, a name of results/plots/style.py.
    """

    equation: ClassVar[str] = ""
    colour: ClassVar[str] = ""
    learns: Final = False
    relearns: Final = False

    def missing_requirement(self) -> MissingRequirement | None:
        """Return what this machine lacks for it, None if it can run here."""
        return None

    def problem(self, fabric: MultirailSpec) -> str | None:
        """Return why it can't run on a fabric, as `allowed` of a BadInput; None if it can."""
        return None

    def start(self, net: PlannedFabric) -> AbstractContextManager[Group]:
        """Return ranks on a built fabric, not yet started. Entering raises MissingRequirement or RailyardError."""
        raise NotImplementedError

    def seconds(self, rails: Sequence[Rail], nodes: int, size: int, rail: int) -> float:
        """Predict the seconds of an allreduce of `size` bytes: by default the wire alone of rail `rail`, Eq. 1 without
        set-up.
        """
        return 2 * (nodes - 1) / nodes * size / rails[rail].rate


def _problems(name: str, engine: object) -> Iterator[str]:
    if not isinstance(engine, AllreduceEngine):
        yield "must be an instance of a subclass of AllreduceEngine"
        return
    if type(engine).start is AllreduceEngine.start:
        yield "the method start(net) is missing"
    if not engine.equation:
        yield "`equation` is missing"
    if name in ALLREDUCE_POLICIES:
        yield f"an allreduce policy is called {name} too"


ALLREDUCE_ENGINES: Final = Registry[AllreduceEngine](
    "allreduce engine", "railyard.workloads.allreduce.engines", check=_problems
)


def peer_rail(fabric: MultirailSpec) -> int:
    """Return the rail on which engines of one rail run: the first ordinary TCP rail, else the first."""
    return next((number for number, rail in enumerate(fabric.rails) if RAIL_KINDS[rail.kind].is_tcp), 0)


def is_own(policy: str) -> bool:
    """Whether Railyard's engine runs it: a group of that can change its policy from one operation to the next."""
    return policy not in ALLREDUCE_ENGINES


def check_policy(policy: str, field: str, fabrics: Sequence[MultirailSpec]) -> None:
    """Raise BadInput unless every one of these fabrics can run a policy or engine."""
    for fabric in fabrics:
        if is_own(policy):
            find_policy(policy, [rail.name for rail in fabric.rails], field, ALLREDUCE_ENGINES)
        elif problem := ALLREDUCE_ENGINES[policy].problem(fabric):
            raise BadInput(field, policy, problem)


def check_own(policy: str, field: str, fabrics: Sequence[MultirailSpec]) -> None:
    """Raise BadInput unless it is a policy of Railyard's engine that every one of these fabrics can run."""
    if not is_own(policy):
        raise BadInput(field, policy, unknown_name_hint(policy, policy_usages()))
    for fabric in fabrics:
        find_policy(policy, [rail.name for rail in fabric.rails], field)


def definition_of(policy: str) -> AllreducePolicy | AllreduceEngine:
    """Return the definition of a policy or engine. KeyError if its name is not registered."""
    name = policy.partition(":")[0]
    return ALLREDUCE_POLICIES[name] if is_own(policy) else ALLREDUCE_ENGINES[name]


def predicted_s(policy: str, rails: Sequence[Rail], nodes: int, size: int, rail: int = 0) -> float:
    """Predict the seconds of an allreduce of `size` bytes. `rail`: the one on which engines of one rail run."""
    if not is_own(policy):
        return ALLREDUCE_ENGINES[policy].seconds(rails, nodes, size, rail)
    definition, argument = find_policy(policy, [each.name for each in rails])
    return definition.seconds(rails, [allreduce_cost(each, nodes) for each in rails], argument, size)

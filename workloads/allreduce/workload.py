"""Workloads on the nodes of multi-rail fabrics: the base of the kinds allreduce, training and ddp.

Sizes are in bytes as in the paper; what is sent is as many times less as the rails are slower. Predicted times are
those of Nezha Eq. 1 to 6 (balancing/costs.py) with rails as they are emulated. No constant is fitted to measurements.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, ClassVar, Final, NamedTuple, Protocol

from pydantic import Field

from railyard.core.config import Numbers, OnFabrics, check_numbers
from railyard.core.errors import BadInput, CheckFailed, unknown_name_hint
from railyard.core.records import IntervalId
from railyard.topologies.fabric_kinds import BaseFabricSpec
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import MultirailSpec
from railyard.workloads.allreduce.balancing.costs import Rail
from railyard.workloads.allreduce.engine.jobs import RankReport
from railyard.workloads.allreduce.engine_kind import Group, PlannedFabric, check_policy, definition_of
from railyard.workloads.spec import Workload

ITEM: Final = 4  # bytes of an element, a float32
# Operations before those that count, of a policy that learns nothing: connections and buffers are warm then.
WARMUP_OPERATIONS: Final = 4

Rows = Sequence[Sequence[str]]  # a table; its first row is the header


class Prediction(NamedTuple):
    """Predicted seconds under a policy. `workload` and `metric`: as in results;

    `size`: of a single allreduce.
    """

    policy: str
    workload: str
    metric: str
    seconds: float
    size: int = 0


def sent_bytes(size: int, scale: float) -> int:
    """Return the bytes to send for `size` on rails so many times slower: whole elements, one at least."""
    return max(1, round(size / scale / ITEM)) * ITEM


def learning_operations(policy: str, operations: int) -> int:
    """Return how many operations of a size come before those that count."""
    return operations if definition_of(policy).learns else WARMUP_OPERATIONS


def check_complete(reports: Sequence[RankReport]) -> None:
    """CheckFailed, with what ended them early, unless every rank did all of its operations."""
    for report in reports:
        # later errors of a rank follow from its first
        if report.errors:
            raise CheckFailed(f"rank {report.rank}: {report.errors[0]}")


class RailSession(Protocol):
    """A built multi-rail fabric, as a workload measures on it.

    `number`: the fabric's.
    `seed`, `repeats`: as given.

    Its plan and rails are as dilated as the fabric is built, so times that are measured are divided by `plan.dilation`.
    """

    number: int
    seed: int
    repeats: int

    @property
    def net(self) -> PlannedFabric:
        """The network, for ranks of other programs."""

    @property
    def plan(self) -> MultirailPlan:
        """The plan of the network."""

    @property
    def rails(self) -> tuple[Rail, ...]:
        """The rails as predictions take them: rates are those of payload."""

    def engine(self, policy: str) -> Group:
        """Return the ranks of a policy, not yet started."""

    def interval(
        self, workload: str, policy: str, repeat: int = 0, title: str = ""
    ) -> AbstractContextManager[IntervalId]:
        """Record the machine's load while entered, show a step of progress, and give the interval's identity.

        A policy that can't run here, or fails, is recorded as skipped, and the rest of the block is left out.
        """

    def record(
        self, where: IntervalId, metric: str, value: float, unit: str, predicted: float | None = None, phase: str = ""
    ) -> None:
        """Add a measurement: a row of results.csv."""

    def measure_sizes(
        self,
        sizes: Sequence[int],
        policies: Sequence[str],
        repeat: int,
        turns: Callable[[str, float], Sequence[tuple[int, int]]],
    ) -> None:
        """Measure allreduces of these sizes with new processes, the policies in turn, every sum checked first.

        `turns`, of a policy and the predicted s of one of its operations: (operations that don't count, operations that
        do) of each turn.
        """


class RailWorkload(OnFabrics, Workload):
    """Base of all kinds.

    `on`: only on some of the experiment's fabrics. `number` is always that of a fabric.
    """

    required: ClassVar[tuple[str, ...]] = ("measure(session)", "dry_run(number, plan, repeats)")
    fabric_spec: ClassVar[type[BaseFabricSpec]] = MultirailSpec
    # no key: the engine computes for as long as the workload says on every node
    stragglers: ClassVar[None] = None  # type: ignore[misc]  # a field of the base

    def measure(self, session: RailSession) -> None:
        """Measure it on a built fabric, `session.repeats` times."""
        raise NotImplementedError

    def intervals(self, number: int, fabric: MultirailSpec) -> Iterator[tuple[str, str]]:
        """Yield (workload, policy) of each interval that it records, which no other workload of the fabric has."""
        yield self.result_name, ""

    def check(self, fabrics: Sequence[MultirailSpec], field: str) -> None:
        """Raise BadInput, for a field below `field`, if it can't run on these fabrics of the experiment."""
        check_numbers(self.on, len(fabrics), f"{field}.on")

    def dilations(self, number: int, fabric: MultirailSpec) -> frozenset[float]:
        """Return how many times slower time passes on the fabrics that it needs."""
        return frozenset({1.0})

    def step_count(self, number: int, fabric: MultirailSpec, repeats: int) -> int:
        """Return how many steps measuring it has, for the progress bar."""
        return repeats

    def predictions(self, number: int, plan: MultirailPlan) -> Iterator[Prediction]:
        """Yield what has an equation."""
        yield from ()

    def dry_run(self, number: int, plan: MultirailPlan, repeats: int) -> Iterator[str | Rows]:
        """Yield what would be sent: sentences and tables."""
        raise NotImplementedError


class ComparedWorkload(RailWorkload):
    """Base of kinds that run under several policies. `single` stands for each unlike rail of a fabric alone; `only` has
    policies that are for some of the fabrics. `learning`: operations before those that count, of policies that learn.
    """

    policies: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = ("nezha", "mrib", "single")
    only: dict[str, Numbers] = Field(default_factory=dict)
    learning: Annotated[int, Field(ge=0, le=10_000)] = 60

    def check(self, fabrics: Sequence[MultirailSpec], field: str) -> None:
        """Check each policy on each fabric that has it."""
        super().check(fabrics, field)
        for i, policy in enumerate(self.policies):
            path = f"{field}.policies.{i}"
            if policy in self.policies[:i]:
                raise BadInput(path, policy, "is given twice")
            check_policy(policy, path, [fabric for n, fabric in enumerate(fabrics) if self._has(policy, n)])
        for policy, numbers in self.only.items():
            if policy not in self.policies:
                raise BadInput(f"{field}.only.{policy}", list(numbers), unknown_name_hint(policy, self.policies))
            check_numbers(numbers, len(fabrics), f"{field}.only.{policy}")

    def _has(self, policy: str, number: int) -> bool:
        return self.is_on(number) and number in self.only.get(policy, (number,))

    def intervals(self, number: int, fabric: MultirailSpec) -> Iterator[tuple[str, str]]:
        """Yield its label with each policy."""
        yield from ((self.result_name, policy) for policy in self.policies_on(number, fabric))

    def policies_on(self, number: int, fabric: MultirailSpec) -> tuple[str, ...]:
        """Return the policies of a fabric; `single` stands for each unlike rail alone."""
        policies: list[str] = []
        for policy in self.policies:
            if self._has(policy, number):
                if policy == "single":
                    policies += singles(fabric)
                else:
                    policies.append(policy)
        return tuple(dict.fromkeys(policies))


def singles(fabric: MultirailSpec) -> list[str]:
    """Return a policy for each rail that is unlike those before it."""
    # reversed, so that of like rails the first one stays
    first = {rail.model_dump_json(exclude={"name"}): rail.name for rail in reversed(fabric.rails)}
    return [f"single:{rail.name}" for rail in fabric.rails if rail.name in first.values()]

"""Workload kind `allreduce`: a sum over all nodes of a multi-rail fabric, of every size under every policy.

    {kind: allreduce, policies: [nezha, mrib, single], sizes: [2KiB, 64MiB], point: 500ms, learning: 40}

Source: Nezha section 5.2. Sizes are the paper's; what is sent is as many times less as the rails are slower.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from math import ceil
from typing import Annotated, Final

from pydantic import Field

from railyard.core.errors import BadInput
from railyard.core.units import Size, Time, format_size, size_name
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import BySize, MultirailSpec, value_for_size
from railyard.workloads.allreduce import workload
from railyard.workloads.allreduce.engine_kind import peer_rail, predicted_s, rails_of
from railyard.workloads.spec import WORKLOADS

# operations of a point that count: fewer have no median worth the name
MIN_OPERATIONS: Final = 10
# operations that don't count in each later turn: in 200 turns of 24 the first took 3% longer, the second did not
LATER_WARMUP_OPERATIONS: Final = 1
# Operations of a turn that count. Small ones of the same turn are slow or fast together, so many short turns vary less
# than few long ones: with as many operations, turns of 10 varied half as much again.
TURN_OPERATIONS: Final = 5


@WORKLOADS.register("allreduce")
class AllreduceSpec(workload.ComparedWorkload):
    """Allreduce of every size; all policies take turns. Each repeat has processes of its own; sizes that `starts` has,
    as many times as often.

    A point has as many operations as fit into `point` by the equations, `operations` at most.
    """

    is_iteration = False

    sizes: Annotated[tuple[Size, ...], Field(min_length=1, strict=False)]
    operations: Annotated[int, Field(ge=MIN_OPERATIONS, le=100_000)] = 1000
    point: Time = 1.0
    starts: BySize[Annotated[int, Field(ge=1, le=100)]] = Field(default_factory=dict)

    def check(self, fabrics: Sequence[MultirailSpec], field: str) -> None:
        """Check that sizes are whole elements, and distinct; results are named by size, so there is no other name."""
        if self.name is not None:
            raise BadInput(f"{field}.name", self.name, "is not for allreduce, whose results are named by their size")
        for i, size in enumerate(self.sizes):
            if size < workload.ITEM:
                allowed = f"must be {workload.ITEM}B or more: one element"
                raise BadInput(f"{field}.sizes.{i}", format_size(size), allowed)
            if size in self.sizes[:i]:
                raise BadInput(f"{field}.sizes.{i}", format_size(size), "is given twice")
        super().check(fabrics, field)

    def repeats_of(self, size: int, repeats: int) -> int:
        """Return how often a size is measured: `repeats` times its `starts`."""
        return repeats * value_for_size(self.starts, size, 1)

    def measure(self, session: workload.RailSession) -> None:
        """Measure the sizes that have the fabric's dilation, smallest first, until each has all of its repeats."""
        fabric = session.plan.spec
        policies = self.policies_on(session.number, fabric)
        if not policies:
            return
        sizes = sorted(size for size in self.sizes if fabric.dilation_of(size) == session.plan.dilation)
        for repeat in count():
            sizes = [size for size in sizes if repeat < self.repeats_of(size, session.repeats)]
            if not sizes:
                return
            session.measure_sizes(sizes, policies, repeat, self.turns)

    def intervals(self, number: int, fabric: MultirailSpec) -> Iterator[tuple[str, str]]:
        """Yield each size with each policy."""
        for policy in self.policies_on(number, fabric):
            yield from ((f"allreduce {size_name(size)}", policy) for size in self.sizes)

    def dilations(self, number: int, fabric: MultirailSpec) -> frozenset[float]:
        """Return those of its sizes."""
        if not self.policies_on(number, fabric):
            return frozenset()
        return frozenset(map(fabric.dilation_of, self.sizes))

    def step_count(self, number: int, fabric: MultirailSpec, repeats: int) -> int:
        """Return how many times a size is measured, each time by all policies in turn."""
        if not self.policies_on(number, fabric):
            return 0
        return sum(self.repeats_of(size, repeats) for size in self.sizes)

    def turns(self, policy: str, operation_s: float) -> list[tuple[int, int]]:
        """Return the turns of a point, in the first of which a policy learns."""
        return turns(workload.learning_operations(policy, self.learning), self.counted(operation_s))

    def counted(self, operation_s: float) -> int:
        """Return how many operations count at a point.

        `operation_s`: time of one operation here, dilated or not.
        """
        return max(MIN_OPERATIONS, min(self.operations, ceil(self.point / max(operation_s, 1e-6))))

    def predictions(self, number: int, plan: MultirailPlan) -> Iterator[workload.Prediction]:
        """Yield every size under every policy."""
        rails = rails_of(plan)
        peer = peer_rail(plan.spec)
        for policy in self.policies_on(number, plan.spec):
            for size in self.sizes:
                time = predicted_s(policy, rails, plan.spec.nodes, workload.sent_bytes(size, plan.scale), peer)
                yield workload.Prediction(policy, f"allreduce {size_name(size)}", "completion_time", time, size)

    def dry_run(self, number: int, plan: MultirailPlan, repeats: int) -> Iterator[str | workload.Rows]:
        """Yield a table of the operations of a start: those that learn, and those that count."""
        fabric = plan.spec
        policies = self.policies_on(number, plan.spec)
        if not policies:
            return
        is_slowed = any(fabric.dilation_of(size) > 1 for size in self.sizes)
        is_repeated = any(self.repeats_of(size, repeats) > 1 for size in self.sizes)
        header = ["size", "sent"]
        if is_slowed:
            header.append("slow motion")
        if is_repeated:
            header.append("starts")
        rows = [[*header, *policies]]
        for size in self.sizes:
            dilation = fabric.dilation_of(size)
            row = [size_name(size), format_size(workload.sent_bytes(size, plan.scale))]
            if is_slowed:
                row.append(f"{dilation:g}x" if dilation > 1 else "")
            if is_repeated:
                row.append(f"{self.repeats_of(size, repeats)} x")
            for prediction in self.predictions(number, plan):
                if prediction.size == size:
                    before = workload.learning_operations(prediction.policy, self.learning)
                    row.append(f"{before} + {self.counted(prediction.seconds * dilation)}")
            rows.append(row)
        yield rows
        yield (
            f"in turns of {TURN_OPERATIONS} that count; each later turn has {LATER_WARMUP_OPERATIONS} more before them"
        )


def turns(first: int, count: int) -> list[tuple[int, int]]:
    """Return the turns of `count` operations, each as (operations before those that count, operations that count).

    `first`: operations before those that count in the first turn, in which a policy learns.
    """
    number_of_turns = max(1, count // TURN_OPERATIONS)
    # what doesn't divide evenly goes to the first turns
    shortest, larger_turns = divmod(count, number_of_turns)
    schedule: list[tuple[int, int]] = []
    for turn in range(number_of_turns):
        warm_up = LATER_WARMUP_OPERATIONS if turn else first
        counted = shortest + 1 if turn < larger_turns else shortest
        schedule.append((warm_up, counted))
    return schedule

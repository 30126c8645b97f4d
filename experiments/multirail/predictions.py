"""Predicted times of allreduces and trainings, and how many operations fit into the time of a point.

Source: Nezha Eq. 1 to 6 (workloads/allreduce/balancing/costs.py). Sizes in bytes as they are sent, rails as they are
emulated: their rates are those of payload. No constant is fitted to measurements.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final

from railyard.experiments.spec.multi_rail import MIN_OPERATIONS, MultirailExperiment, TrainingSpec, compute_s
from railyard.topologies.multirail.plan import MultirailPlan, make_multirail_plan
from railyard.topologies.multirail.spec import MultirailSpec
from railyard.workloads.allreduce.balancing.costs import Rail
from railyard.workloads.allreduce.engine_kind import definition_of, predicted_s
from railyard.workloads.allreduce.peers.training import (
    GPT_LINK_RATE,
    Step,
    first_part,
    gpt_step,
    in_proportion,
    layers_step,
    step_s,
)
from railyard.workloads.models.catalogue import GptModel, LayersModel, load_model

ITEM: Final = 4
"""Bytes of an element, a float32."""
NOMINAL_SCALE: Final = 50.0
"""Slow-down of `auto` rails where no machine is measured: times hardly depend on it."""
WARMUP_OPERATIONS: Final = 4
"""Operations before those that count, of a policy that learns nothing: connections and buffers are warm then."""
LATER_WARMUP_OPERATIONS: Final = 1
"""The same in each later turn. In 200 turns of 24 the first operation took 3% longer, the second did not."""
TURN_OPERATIONS: Final = 5
"""Operations of a turn that count. Small ones of the same turn are slow or fast together, so many short turns vary less
than few long ones: with as many operations, turns of 10 varied half as much again."""


def nominal_plan(fabric: MultirailSpec) -> MultirailPlan:
    """The fabric with `auto` rates at their nominal scale."""
    rates = [rail.rate for rail in fabric.rails]
    if fabric.scale is None and all(rate == "auto" for rate in rates):
        fabric = fabric.model_copy(update={"scale": NOMINAL_SCALE})
    return make_multirail_plan(fabric)


def sent_bytes(size: int, scale: float) -> int:
    """Return the bytes to send for `size` on rails so many times slower: whole elements, one at least."""
    return max(1, round(size / scale / ITEM)) * ITEM


def learning(policy: str, operations: int) -> int:
    """Return how many operations of a size come before those that count."""
    return operations if definition_of(policy).learns else WARMUP_OPERATIONS


def counted(spec: MultirailExperiment, operation_s: float) -> int:
    """Return how many operations count at a point. `operation_s`: time of one operation here, dilated or not."""
    return max(MIN_OPERATIONS, min(spec.operations, ceil(spec.point / max(operation_s, 1e-6))))


def turns(first: int, count: int) -> list[tuple[int, int]]:
    """(operations before those that count, and these) of each turn: `count` in fives, the rest in the first ones.

    `first` of the first turn, in which a policy learns.
    """
    parts = max(1, count // TURN_OPERATIONS)
    sizes = [count // parts + (part < count % parts) for part in range(parts)]
    return [(first if part == 0 else LATER_WARMUP_OPERATIONS, size) for part, size in enumerate(sizes)]


def step_of(training: TrainingSpec, nodes: int, scale: float, rail_rate: float) -> Step:
    """Return what is sent on rails `scale` times slower than the paper's. `rail_rate` of one as emulated, bytes/s.

    GPT-3's nodes had 1 Gbit/s: on faster rails its computing shrinks as much as its communication does.
    """
    model = load_model(training.model)
    if isinstance(model, GptModel):
        step = in_proportion(gpt_step(training.model, model, nodes), training.volume, rail_rate * scale / GPT_LINK_RATE)
    else:
        assert isinstance(model, LayersModel)
        step = layers_step(training.model, model, training.batch, training.bucket, compute_s(training) or 0.0)
        step = first_part(step, training.volume)
    return step.scaled(1 / scale, ITEM)


def predicted_step_s(step: Step, rails: Sequence[Rail], nodes: int, policy: str, peer: int) -> float:
    """Return the seconds of a step, one allreduce after the other."""
    return step_s(step, [predicted_s(policy, rails, nodes, size, peer) for size in step.sizes])

"""Predictions and the dry run of a multi-rail experiment, and how many operations fit into the time of a point.

Source: Nezha Eq. 1 to 6 (workloads/allreduce/balancing/costs.py). Sizes in bytes as they are sent, rails as they are
emulated: their rates are those of payload. No constant is fitted to measurements.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from railyard.core.units import format_rate, format_size
from railyard.experiments.predict.unsteered import PREDICTION_COLUMNS, Prediction, png, save
from railyard.experiments.spec.multi_rail import MIN_OPERATIONS, MultirailExperiment, TrainingSpec, compute_s
from railyard.results.plots import style
from railyard.results.plots.allreduce import predicted
from railyard.results.runs.allreduce import allreduce_interval, size_name
from railyard.results.runs.records import to_csv
from railyard.results.views import format as fmt
from railyard.results.views.sections.allreduce import SLOW_MOTION
from railyard.topologies.multirail.plan import MultirailPlan, make_multirail_plan
from railyard.topologies.multirail.spec import MultirailSpec
from railyard.workloads.allreduce.balancing.costs import Rail
from railyard.workloads.allreduce.engine_kind import definition_of, peer_rail, predicted_s, rails_of
from railyard.workloads.allreduce.peers.training import (
    GPT_LINK_RATE,
    Step,
    first_part,
    gpt_step,
    in_proportion,
    layers_step,
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
    """Return the seconds of a step, one allreduce after the other: nothing overlaps, as Nezha's Fig. 16 suggests."""
    return step.compute_s + sum(predicted_s(policy, rails, nodes, size, peer) for size in step.sizes)


def predictions(spec: MultirailExperiment) -> Iterator[Prediction]:
    """Every size under every policy, and every training; a fault has no formula."""
    for number, label in enumerate(spec.labels):
        plan = nominal_plan(spec.fabrics[number])
        rails, nodes, peer = rails_of(plan), plan.spec.nodes, peer_rail(plan.spec)
        for policy in spec.policies_on(number):
            for size in spec.sizes:
                time = predicted_s(policy, rails, nodes, sent_bytes(size, plan.scale), peer)
                what = allreduce_interval(label, policy, size).workload
                yield Prediction(label, policy, what, "", "completion_time", time, "s", definition_of(policy).equation)
        for training in spec.trainings_on(number):
            step = step_of(training, nodes, plan.scale, rails[peer].rate)
            for policy in spec.policies_on(number, training.policies):
                time = predicted_step_s(step, rails, nodes, policy, peer)
                yield Prediction(
                    label, policy, training.name, "", "iteration_time", time, "s", definition_of(policy).equation
                )


def predict(spec: MultirailExperiment, out: Path, console: Console) -> int:
    """Compute, write NAME.csv and NAME.png, print."""
    rows = list(predictions(spec))
    files = save(spec.name, to_csv(PREDICTION_COLUMNS, rows), _png(spec, rows), out)
    for label in spec.labels:
        console.print(_table(label, [row for row in rows if row.fabric == label]))
    print(*files, sep="\n")
    return 0


def _table(label: str, rows: Iterable[Prediction]) -> Table:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        found.setdefault(row.workload, {})[row.policy] = row.predicted
    policies = list(dict.fromkeys(policy for by in found.values() for policy in by))
    table = Table(title=f"{label}: predicted times", title_justify="left", box=None, pad_edge=False)
    table.add_column("workload")
    for policy in policies:
        table.add_column(policy, justify="right")
    for workload, by in found.items():
        table.add_row(workload, *(fmt.seconds(by.get(policy)) for policy in policies))
    return table


def _png(spec: MultirailExperiment, rows: list[Prediction]) -> bytes:
    """A panel a fabric; bars are not for sizes."""
    panels = []
    for number, label in enumerate(spec.labels):
        lines = []
        for policy in spec.policies_on(number):
            policy_rows = [r for r in rows if (r.fabric, r.policy, r.metric) == (label, policy, "completion_time")]
            if policy_rows:
                lines.append(
                    (policy, [(size, row.predicted) for size, row in zip(spec.sizes, policy_rows, strict=True)])
                )
        if lines:
            panels.append((label, lines))
    title = f"{spec.name}: predicted times"
    return png(title, lambda: predicted(panels) if panels else style.new_figure(style.WIDTH, 1.0))


def dry_run(spec: MultirailExperiment, console: Console) -> int:
    """Print what would be sent, and over which rails."""
    for number, label in enumerate(spec.labels):
        plan = nominal_plan(spec.fabrics[number])
        rails = rails_of(plan)
        rail_rates = ", ".join(f"{rail.name} {format_rate(rail.rate * 8, 3)}" for rail in rails)
        console.print(
            f"[bold]{label}[/]: {plan.scale:g} times slower than the paper's; {rail_rates} a NIC", highlight=False
        )
        if spec.sizes and spec.policies_on(number):
            console.print(_operations(spec, number))
            turns = (
                f"in turns of {TURN_OPERATIONS} that count; "
                f"each later turn has {LATER_WARMUP_OPERATIONS} more before them"
            )
            console.print(turns, highlight=False)
        for fault in spec.faults_on(number):
            console.print(f"{fault.repeats} x {fault.name} for {fmt.seconds(fault.repair)}", highlight=False)
        for ddp_run in spec.ddp_runs_on(number):
            console.print(f"DDP: {ddp_run.steps} steps over Gloo, and as many over {ddp_run.policy}", highlight=False)
        for training in spec.trainings_on(number):
            step = step_of(training, plan.spec.nodes, plan.scale, rails[peer_rail(plan.spec)].rate)
            sent = f"{len(step.sizes)} allreduces of {format_size(sum(step.sizes), 3)} in all"
            slower = f", in slow motion {training.dilation:g}x" if training.dilation > 1 else ""
            console.print(
                f"{training.model}: {sent}, {fmt.seconds(step.compute_s)} of computing a step{slower}", highlight=False
            )
    return 0


def _operations(spec: MultirailExperiment, number: int) -> Table:
    """Return the operations of a start: those that learn, and those that count."""
    plan = nominal_plan(spec.fabrics[number])
    rails, peer = rails_of(plan), peer_rail(plan.spec)
    slow = any(plan.spec.dilation_of(size) > 1 for size in spec.sizes)
    table = Table(box=None, pad_edge=False)
    often = any(spec.repeats_of(size) > 1 for size in spec.sizes)
    optional_columns = [name for name, shown in ((SLOW_MOTION, slow), ("starts", often)) if shown]
    for column in ("size", "sent", *optional_columns, *spec.policies_on(number)):
        table.add_column(column, justify="right")
    for size in spec.sizes:
        sent, times = sent_bytes(size, plan.scale), plan.spec.dilation_of(size)
        cells = [f"{times:g}x" if times > 1 else ""] if slow else []
        cells += [f"{spec.repeats_of(size)} x"] if often else []
        for policy in spec.policies_on(number):
            dilated_s = predicted_s(policy, rails, plan.spec.nodes, sent, peer) * times
            count = counted(spec, dilated_s)
            cells.append(f"{learning(policy, spec.learning)} + {count}")
        table.add_row(size_name(size), format_size(sent), *cells)
    return table

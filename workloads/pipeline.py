"""A pipeline that takes micro-batches in 1F1B order: the passes of each stage, and the tasks between stages."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from railyard.workloads.schedule import Iteration, Program

# Share of the forward pass in t(b): a backward pass takes two times as long (Narayanan et al., section 2.2).
FORWARD: Final = 1 / 3


class Pass(NamedTuple):
    """One micro-batch through one model chunk of a stage, forward or backward."""

    forward: bool
    chunk: int
    micro_batch: int

    @property
    def name(self) -> str:
        """What people call it."""
        direction = "forward" if self.forward else "backward"
        name = f"{direction} {self.micro_batch}"
        if self.chunk:
            name += f", chunk {self.chunk}"
        return name


def one_forward_one_backward(stage: int, stages: int, micro_batches: int, virtual_stages: int = 1) -> list[Pass]:
    """Return all passes of a stage (from 0) in order: fill the pipeline, forward and backward by turns, drain."""
    total = micro_batches * virtual_stages
    stages_after = stages - stage - 1
    warm_up = stages_after
    if virtual_stages > 1:
        warm_up = 2 * stages_after + (virtual_stages - 1) * stages
    warm_up = min(total, warm_up)

    def step(forward: bool, k: int) -> Pass:
        """The k-th forward (or backward) pass: chunks go up on the way forward, and down on the way back."""
        group, place = divmod(k, stages * virtual_stages)
        chunk, within = divmod(place, stages)
        if not forward:
            chunk = virtual_stages - 1 - chunk
        return Pass(forward, chunk, group * stages + within)

    passes = [step(True, k) for k in range(warm_up)]
    for k in range(total):
        if warm_up + k < total:
            passes.append(step(True, warm_up + k))
        passes.append(step(False, k))
    return passes


def next_pass(stage: int, stages: int, virtual_stages: int, step: Pass) -> tuple[int, Pass] | None:
    """The stage that takes the output of this pass, and its pass; None at the model's own ends (or with one stage)."""
    direction = 1 if step.forward else -1
    position = step.chunk * stages + stage + direction
    if stages == 1 or not 0 <= position < stages * virtual_stages:
        return None
    chunk, target = divmod(position, stages)
    return target, step._replace(chunk=chunk)


RunPass = Callable[[int, Pass, float], None]
"""Appends what a stage does in one of its passes, given the stage, the pass and its seconds of computing."""


class _Event(NamedTuple):
    """The start of a pass, or (`sends`) the sending of its output when it ends; in order of time, sending first."""

    time: float
    starts: bool
    stage: int
    step: Pass


def pipeline_events(stages: int, micro_batches: int, virtual_stages: int, backward: float) -> list[_Event]:
    """Return what happens in the pipeline in order of time, where a forward pass takes 1 and a backward `backward`."""
    orders = [deque(one_forward_one_backward(stage, stages, micro_batches, virtual_stages)) for stage in range(stages)]
    # when the input of a pass is there: the model's own input is from the start
    arrived: dict[tuple[int, Pass], float] = {}
    for number in range(micro_batches):
        arrived[0, Pass(True, 0, number)] = arrived[stages - 1, Pass(False, virtual_stages - 1, number)] = 0.0
    free = [0.0] * stages
    events: list[_Event] = []
    while any(orders):
        remaining = sum(map(len, orders))
        for stage, order in enumerate(orders):
            while order and (stage, order[0]) in arrived:
                step = order.popleft()
                start = max(free[stage], arrived[stage, step])
                end = start + (1.0 if step.forward else backward)
                free[stage] = end
                events.append(_Event(start, True, stage, step))
                target = next_pass(stage, stages, virtual_stages, step)
                if target is not None:
                    arrived[target] = end
                    events.append(_Event(end, False, stage, step))
        if sum(map(len, orders)) == remaining:
            counts = f"{stages} stages, {micro_batches} micro-batches and {virtual_stages} chunks"
            raise ValueError(f"1F1B of {counts} stands still")
    return sorted(events, key=lambda event: event[:3])


def emit_pipeline(
    program: Program, iteration: Iteration, groups: Sequence[Sequence[int]], run_pass: RunPass, backward: float
) -> None:
    """Emit all passes in order of time, so that on a link no earlier transfer comes after a later one.

    groups: the GPUs of each stage; what the i-th GPU of a stage computes goes to the i-th of the next
    backward: how many times as long as a forward pass a backward pass takes, about
    """
    stages = iteration.stages
    v = iteration.virtual_stages
    # for a (stage, pass), the transfers that bring its input, one for each GPU
    inputs: dict[tuple[int, Pass], list[int]] = {}
    for _, starts, stage, step in pipeline_events(stages, iteration.micro_batches, v, backward):
        if starts:
            for gpu, transfer in zip(groups[stage], inputs.get((stage, step), ()), strict=False):
                program.wait_for(gpu, (*program.last(gpu), transfer))
            share = FORWARD if step.forward else 1 - FORWARD
            run_pass(stage, step, iteration.compute_s / v * share)
            continue
        target = next_pass(stage, stages, v, step)
        if target is None or iteration.boundary is None:
            continue
        # each GPU sends its part to its rank's GPU in the next stage, and waits for that
        number = program.phase(replace(iteration.boundary, step=step.name))
        size = int(iteration.boundary.data_bytes)
        ends = list(zip(groups[stage], groups[target[0]], strict=True))
        inputs[target] = [program.send(src, dst, size, number, program.last(src)) for src, dst in ends]
        for (src, _), transfer in zip(ends, inputs[target], strict=True):
            program.wait_for(src, (transfer,))

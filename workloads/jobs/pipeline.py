"""In which order a pipeline stage takes its micro-batches: 1F1B, plain or interleaved.

Source: Narayanan et al. 2021 (Megatron-LM, SC21), section 2.2 and Fig. 4. Interleaved, a stage holds v model chunks,
and takes micro-batches in groups of p: the group through its first chunk, then through its second, and so on.
"""

from typing import NamedTuple


class Pass(NamedTuple):
    """One micro-batch through one model chunk of a stage, forward or backward."""

    forward: bool
    chunk: int
    micro_batch: int


def one_forward_one_backward(stage: int, stages: int, micro_batches: int, virtual_stages: int = 1) -> list[Pass]:
    """All passes of a stage (from 0), in order: fill the pipeline, forward and backward by turns, drain."""
    total = micro_batches * virtual_stages
    stages_after = stages - stage - 1
    warm_up = min(total, stages_after if virtual_stages == 1 else 2 * stages_after + (virtual_stages - 1) * stages)
    passes = [_pass(True, k, stages, virtual_stages) for k in range(warm_up)]
    for k in range(total):
        if warm_up + k < total:
            passes.append(_pass(True, warm_up + k, stages, virtual_stages))
        passes.append(_pass(False, k, stages, virtual_stages))
    return passes


def _pass(forward: bool, k: int, stages: int, virtual_stages: int) -> Pass:
    """The k-th forward (or backward) pass of a stage: chunks go up on the way forward, and down on the way back."""
    group, place = divmod(k, stages * virtual_stages)
    chunk, within = divmod(place, stages)
    return Pass(forward, chunk if forward else virtual_stages - 1 - chunk, group * stages + within)


def next_pass(stage: int, stages: int, virtual_stages: int, step: Pass) -> tuple[int, Pass] | None:
    """The stage that takes the output of this pass, and its pass; None at the model's own ends (or with one stage)."""
    position = step.chunk * stages + stage + (1 if step.forward else -1)
    if stages == 1 or not 0 <= position < stages * virtual_stages:
        return None
    chunk, target = divmod(position, stages)
    return target, step._replace(chunk=chunk)

"""Floating-point operations of a GPT's training iteration.

Sources: Narayanan et al. 2021 Eq. 3 (full recomputation), Korthikanti et al. 2022 Eq. 7 and 8 (none, selective). All
are sums of the same parts: for a layer and a sequence, 24 s h^2 forward in matmuls with parameters and 4 s^2 h in
attention (scores, and scores times values); backward takes twice that.
"""

from typing import Literal

from railyard.workloads.models.catalogue import GptModel

Recompute = Literal["none", "selective", "full"]
"""What is computed a second time in the backward pass: nothing, attention's inner part, or all of a layer's forward."""


def parameter_flops(model: GptModel, recompute: Recompute) -> float:
    """FLOPs of a layer's matmuls with parameters, forward and backward, for one sequence."""
    passes = 4 if recompute == "full" else 3
    return passes * 24.0 * model.sequence * model.hidden**2


def attention_flops(model: GptModel, recompute: Recompute) -> float:
    """FLOPs of a layer's attention matmuls, forward and backward, for one sequence.

    Selective recomputation repeats the forward, 4 s^2 h more, 16 s^2 h together. Korthikanti Eq. 8 has s/(3h), which is
    24 s^2 h; that form is kept for reporting HFU (`hardware_flops`), since the published HFU use it.
    """
    passes = 3 if recompute == "none" else 4
    return passes * 4.0 * model.sequence**2 * model.hidden


def output_flops(model: GptModel) -> float:
    """FLOPs of the output layer (logits), forward and backward, for one sequence: 6 s h V, never recomputed."""
    return 6.0 * model.sequence * model.hidden * model.vocabulary


def hardware_flops(model: GptModel, recompute: Recompute, global_batch: int) -> float:
    """FLOPs of an iteration as HFU is published.

    none: 72 B l s h^2 (1 + s/(6h) + V/(12 h l)). selective: s/(3h) in place of s/(6h). full: 96 B l s h^2 (1 + s/(6h)
    + V/(16 l h)).
    """
    s, h = model.sequence, model.hidden
    base, attention = {"none": (72, s / (6 * h)), "selective": (72, s / (3 * h)), "full": (96, s / (6 * h))}[recompute]
    return global_batch * (model.layers * base * s * h**2 * (1 + attention) + output_flops(model))

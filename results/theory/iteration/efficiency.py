"""t(b): how long a GPU computes on a micro-batch, from FLOPs, bytes and three constants.

Rail-only's appendix wants t(b) profiled, or modelled from FLOPs and the GPU's speed; its own model isn't printed. Ours
is a roofline in parts that add up, since kernels run one after the other:

- matmuls at `matmul_efficiency` of the peak, after `overhead_flops` for each pass of a layer;
- everything else (layer norm, GeLU, dropout, softmax, residuals) moves bytes at `memory_efficiency` of the HBM peak.

So efficiency rises with the micro-batch and with the width h, where FLOPs outgrow bytes, and falls with t, where the
work of a GPU shrinks and the overhead doesn't.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from railyard.results.theory.iteration import flops
from railyard.results.theory.iteration.arrays import FloatArray, Strategies
from railyard.results.theory.iteration.constants import Constants
from railyard.results.theory.iteration.flops import Recompute
from railyard.results.theory.iteration.job import Job

FORWARD_TRAFFIC: Final = 2
"""A stored byte of activation is written by a kernel and read by the next; backward moves twice that, as with FLOPs."""
OPTIMIZER_BYTES: Final = 26
"""Adam moves for a parameter, in fp32: reads its copy and both moments, writes the three; and the 16-bit parameter."""
GRADIENT_READS: Final = 2
"""For the norm, and for the update."""
PASSES: Final[dict[Recompute, int]] = {"none": 3, "selective": 3, "full": 4}
"""Of a layer: forward, two of backward (gradients of inputs and of parameters), and forward again."""


@dataclass(frozen=True)
class ComputeParts:
    """Seconds at a GPU's data-sheet peaks, before any constant: of matmuls and of moving bytes.

    `pass_s`: of one FLOP more in each pass of each layer.
    """

    matmul_s: FloatArray
    memory_s: FloatArray
    pass_s: FloatArray

    def seconds(self, constants: Constants) -> FloatArray:
        matmul = (self.matmul_s + constants.overhead_flops * self.pass_s) / constants.matmul_efficiency
        return matmul + self.memory_s / constants.memory_efficiency


def micro_batch_parts(job: Job, s: Strategies) -> ComputeParts:
    """t(b): forward and backward of a micro-batch at a stage.

    The output layer's FLOPs are spread over the stages: Eq. 6 to 11 take all stages as equal.
    """
    model, recipe, cluster = job.model, job.recipe, job.cluster
    layer = flops.parameter_flops(model, recipe.recompute) + flops.attention_flops(model, recipe.recompute)
    whole = s.micro_batch * (model.layers * layer + flops.output_flops(model))
    layers = model.layers / s.pipeline
    return ComputeParts(
        matmul_s=whole / (s.tensor * s.pipeline * cluster.flops),
        memory_s=layers * _layer_traffic(job, s) / cluster.constants.memory_bytes_per_s,
        pass_s=layers * PASSES[recipe.recompute] / cluster.flops,
    )


def _layer_traffic(job: Job, s: Strategies) -> FloatArray:
    """Bytes that a layer's kernels other than matmuls move for a micro-batch, all passes, at one GPU.

    Proportional to the activations that they store: s b h (10 + 24/t + 5 a s/(h t)), Korthikanti Eq. 2, where sequence
    parallelism divides the 10 by t too (Eq. 4), and 5 a s/h is attention's inner part.
    """
    model, recipe = job.model, job.recipe
    attention = 5 * model.heads * model.sequence / model.hidden / s.tensor
    other_activations = 34 / s.tensor if recipe.sequence_parallel else 10 + 24 / s.tensor
    recomputed = {
        "none": np.zeros_like(other_activations),
        "selective": attention,
        "full": other_activations + attention,
    }[recipe.recompute]
    return (
        FORWARD_TRAFFIC
        * s.micro_batch
        * model.sequence
        * model.hidden
        * (3 * (other_activations + attention) + recomputed)
    )


def optimizer_parts(job: Job, parameters: FloatArray) -> ComputeParts:
    """Adam over a GPU's `parameters`, once an iteration: no matmul."""
    moved_bytes = parameters * (OPTIMIZER_BYTES + GRADIENT_READS * job.recipe.gradient_bytes)
    no_matmul = np.zeros_like(parameters)
    return ComputeParts(no_matmul, moved_bytes / job.cluster.constants.memory_bytes_per_s, no_matmul)

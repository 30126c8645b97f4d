"""The split of a training over GPUs (`Strategies`), and what else decides the time of its step (`Recipe`).

A strategy's dimensions nest as Megatron Core orders ranks: tensor innermost, then context, data, and pipeline
outermost. Expert parallelism takes ranks of the data, context and tensor dimensions, next to each other; an expert
is never split by tensor parallelism.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Recompute = Literal["none", "selective", "full"]
RECOMPUTE: Final[tuple[Recompute, ...]] = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything about a step but the model, the cluster and the strategy.

    global_batch: sequences of a step
    recompute: what the backward pass computes again. `selective`: attention's inner part where attention isn't fused;
        with fused attention the norms and the activation function, which cost no matmul. `full`: a layer's forward pass
    sequence_parallel: whether tensor-parallel ranks also split norms and residuals
    zero: 0 replicates optimizer state and gradients over data-parallel ranks; 1 splits the optimizer state, 2 the
        gradients too, 3 the parameters too (FSDP)
    gradient_bytes: bytes of a parameter's gradient, as kept and as reduced
    overlap_data: whether data-parallel communication runs beside the computing of a micro-batch
    overlap_tensor: share of each tensor-parallel collective that may run beside its matmul, 0 to 1 (overlap.py)
    overlap_input_gradients: whether the backward pass reduces the gradients of inputs beside the matmuls that compute
        those of weights, as Megatron-LM does since 2022
    overlap_pipeline: whether transfers between stages run beside the computing of another micro-batch
    overlap_experts: whether all-to-alls run beside the computing of another micro-batch
    cuda_graphs: whether a MoE layer's kernels are launched as recorded graphs, without the host's time for each
    kernels_of_2022: whether fused attention runs by the first kernels, which were written for the A100
    equal_stages: whether the output layer is spread over all stages, as Rail-only Eq. 6 to 11 have it. Otherwise it is
        the last stage's, which then decides how fast micro-batches follow each other
    """

    global_batch: int
    recompute: Recompute = "none"
    sequence_parallel: bool = True
    zero: int = 1
    gradient_bytes: int = 2
    overlap_data: bool = True
    overlap_tensor: float = 0.0
    overlap_input_gradients: bool = True
    overlap_pipeline: bool = False
    overlap_experts: bool = False
    cuda_graphs: bool = False
    kernels_of_2022: bool = False
    equal_stages: bool = False


@dataclass(frozen=True)
class Strategies:
    """Strategies side by side: each field is an array with a whole number for each strategy.

    expert: ranks that the experts of a MoE layer are spread over; 1 in a dense model
    """

    tensor: FloatArray
    context: FloatArray
    pipeline: FloatArray
    data: FloatArray
    expert: FloatArray
    virtual_stages: FloatArray
    micro_batch: FloatArray

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def replicas(self) -> FloatArray:
        """GPUs that hold the same shard of the parameters outside of experts: data times context."""
        return self.data * self.context

    @property
    def expert_replicas(self) -> FloatArray:
        """GPUs that hold the same experts."""
        return np.maximum(1, self.replicas * self.tensor // self.expert)

    def micro_batches(self, global_batch: int) -> FloatArray:
        """Micro-batches that a pipeline takes in a step."""
        return global_batch / (self.data * self.micro_batch)

    def select(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> "Strategies":
        """Return those of a mask, or at indices."""
        return Strategies(*(column[chosen] for column in vars(self).values()))

    def at(self, index: int) -> dict[str, int]:
        """Return one strategy by the names of its dimensions."""
        return {name: int(column[index]) for name, column in vars(self).items()}


def one_strategy(
    tensor: int = 1,
    context: int = 1,
    pipeline: int = 1,
    data: int = 1,
    expert: int = 1,
    virtual_stages: int = 1,
    micro_batch: int = 1,
) -> Strategies:
    """Return arrays of length 1."""
    numbers = (tensor, context, pipeline, data, expert, virtual_stages, micro_batch)
    return Strategies(*(np.array([float(number)]) for number in numbers))

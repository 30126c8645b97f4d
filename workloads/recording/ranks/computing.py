"""Floating-point operations of a rank, by the formulas of PyTorch's FlopCounterMode.

Matrix products, convolutions and attention count; what reads and writes memory (optimizers, norms, activations) has no
formula there, and counts as none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import ops
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from railyard.workloads.recording.ranks.recorder import Recorder
from railyard.workloads.recording.ranks.routing import chosen_in_turn


class FlopCounter(TorchDispatchMode):
    """A dispatch mode that adds the operations of every call to the recorder's computing."""

    def __init__(self, recorder: Recorder, is_balanced: bool) -> None:
        """`is_balanced`: a `topk` takes its columns in turn."""
        super().__init__()
        self._recorder = recorder
        self._is_balanced = is_balanced

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, then count it."""
        # a DTensor calls again with its local tensors, which are counted then
        if any(tensor_type.__name__ == "DTensor" for tensor_type in types):
            return NotImplemented
        options = dict(kwargs or {})
        result = function(*args, **options)
        count_call(self._recorder, function, args, options, result)
        return chosen_in_turn(function, args, result) if self._is_balanced else result


def count_call(recorder: Recorder, function: Any, args: Sequence[Any], options: dict[str, Any], result: Any) -> None:
    """Add the operations of one call, if it has a formula."""
    packet = function._overloadpacket
    if packet in flop_registry:
        recorder.count_flops(int(flop_registry[packet](*args, **options, out_val=result)))
    elif packet is ops.aten._scaled_dot_product_flash_attention_for_cpu:
        # the registry knows the attention of GPUs alone, which has the same operations
        recorder.count_flops(int(sdpa_flop_count(*[tensor.shape for tensor in args[:3]])))
    elif packet is ops.aten._scaled_dot_product_flash_attention_for_cpu_backward:
        recorder.count_flops(int(sdpa_backward_flop_count(*[tensor.shape for tensor in args[:4]])))

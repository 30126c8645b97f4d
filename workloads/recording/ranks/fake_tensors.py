"""Tensors without contents, so that a model which doesn't fit in this machine's memory can be recorded.

With `--fake`, large tensors that a script makes are PyTorch's FakeTensors: they have shape and type, and so has what is
computed from them. Small tensors and integers (meshes, sizes, counts) stay real, so that code goes on by them. A number
that is read from a tensor without contents is 1.

Functional collectives on FakeTensors run PyTorch's formulas for shapes and never reach a process group, so they are
recorded here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from railyard.workloads.recording.ranks.computing import count_call
from railyard.workloads.recording.ranks.initialization import group_of_name
from railyard.workloads.recording.ranks.process_group import RecordedWork, RecordingGroup
from railyard.workloads.recording.ranks.recorder import Recorder
from railyard.workloads.recording.ranks.routing import chosen_in_turn

SMALL_BYTES: Final = 4096
SMALL_INTEGER_BYTES: Final = 1 << 24
"""Of integers, which are indices and counts that code goes on by."""
MAKERS: Final = frozenset({
    "arange", "cat", "clone", "empty", "empty_like", "empty_strided", "full", "full_like", "new_empty",
    "new_empty_strided", "new_full", "new_ones", "new_zeros", "normal", "ones", "ones_like", "rand", "rand_like",
    "randint", "randn", "randn_like", "randperm", "stack", "_to_copy", "tril", "triu", "zeros", "zeros_like",
})  # fmt: skip
"""Operators of aten that make a tensor of any size from real tensors or none."""
COLLECTIVE_NAMESPACES: Final = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor")


class FakeLargeTensors(TorchDispatchMode):
    """A dispatch mode that makes large tensors without contents, and counts floating-point operations."""

    def __init__(self, recorder: Recorder, is_balanced: bool) -> None:
        """`is_balanced`: a `topk` takes its columns in turn."""
        super().__init__()
        self._recorder = recorder
        self._is_balanced = is_balanced
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._works: dict[int, tuple[torch.Tensor, RecordedWork]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function for shapes alone if a tensor has no contents, or if its result would be large."""
        if any(tensor_type.__name__ == "DTensor" for tensor_type in types):
            return NotImplemented
        options = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, torch.Tensor)]
        name = function._schema.name.partition("::")[2]
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            if name == "_local_scalar_dense":
                return _number(args[0].dtype)
            with self._mode:
                result = function(*args, **options)
            if function.namespace in COLLECTIVE_NAMESPACES and not name.endswith("_autograd"):
                self._record(name, args, result)
        else:
            result = self._result(function, name, args, options)
        count_call(self._recorder, function, args, options, result)
        return chosen_in_turn(function, args, result) if self._is_balanced else result

    def _result(self, function: Any, name: str, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Return the result of a function on real tensors: without contents if it is large."""
        if name not in MAKERS or str(options.get("device")) == "meta":
            return function(*args, **options)
        with self._mode:
            shape = function(*args, **options)
        made = [leaf for leaf in tree_leaves(shape) if isinstance(leaf, torch.Tensor)]
        is_integer = not any(tensor.is_floating_point() for tensor in made)
        limit = SMALL_INTEGER_BYTES if is_integer else SMALL_BYTES
        is_large = sum(tensor.numel() * tensor.element_size() for tensor in made) > limit
        if is_large and not any(tensor.device.type == "meta" for tensor in made):
            return shape
        return function(*args, **options)

    def _record(self, name: str, args: Sequence[Any], result: Any) -> None:
        """Record a functional collective, or that the script waits for one."""
        if name == "wait_tensor":
            _, work = self._works.pop(id(args[0]), (None, None))
            if work is not None:
                work.wait()
            return
        inputs = _as_list(args[0])
        outputs = _as_list(result)
        names = [argument for argument in args if isinstance(argument, str)]
        # the group's name is the last text: an operator such as "sum" may be before it
        group: RecordingGroup = group_of_name(names[-1])
        work = call(group, name, inputs, outputs, args)
        for output in outputs:
            # the tensor is kept, so that its id stays its own until it is waited for
            self._works[id(output)] = (output, work)


def call(
    group: RecordingGroup, name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor], args: Sequence[Any]
) -> RecordedWork:
    """Call the method of a group that a functional collective stands for."""
    base = name.rstrip("_").removesuffix("_out").removesuffix("_coalesced")
    if base == "all_reduce":
        return group.allreduce(outputs)
    if base == "broadcast":
        return group.broadcast(outputs, _Root(args[1]))
    if base == "all_gather_into_tensor":
        return group.allgather_into_tensor_coalesced(outputs, inputs)
    if base == "reduce_scatter_tensor":
        return group.reduce_scatter_tensor_coalesced(outputs, inputs)
    if base == "all_to_all_single":
        return group.alltoall_base(outputs[0], inputs[0], args[1], args[2])
    if base == "shard_dim_alltoall":
        return group.alltoall_base(outputs[0], inputs[0], [], [])
    raise NotImplementedError(f"the functional collective {name} can't be recorded without contents")


class _Root:
    """Options of a broadcast."""

    def __init__(self, root: int) -> None:
        self.rootRank = root


def _as_list(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _number(dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return False
    return 1.0 if dtype.is_floating_point else 1

"""Balanced routing of a mixture of experts: which expert a token goes to depends on data that a recording has not.

With `--routing balanced`, the columns that `topk` chooses are taken in turn: row r of k columns gets columns r k,
r k + 1, ... modulo their number. All experts then get the same number of tokens, as a balanced router gives.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

MAX_INDICES: Final = 1 << 24


def chosen_in_turn(function: Any, args: Sequence[Any], result: Any) -> Any:
    """Return the result of a call, with the columns of a `topk` of numbers taken in turn."""
    if function._overloadpacket is not torch.ops.aten.topk or not args[0].is_floating_point():
        return result
    values, indices = result
    dimension = args[2] if len(args) > 2 else -1
    columns = args[0].shape[dimension]
    count = math.prod(indices.shape)
    if dimension not in (-1, args[0].dim() - 1) or count > MAX_INDICES:
        return result
    # real even where the values have no contents: the numbers of tokens for each expert are counted from them
    in_turn = (torch.arange(count) % columns).view(indices.shape)
    if not isinstance(args[0], FakeTensor):
        values = args[0].gather(-1, in_turn)
    return values, in_turn

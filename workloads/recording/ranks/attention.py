"""Attention that PyTorch differentiates on GPUs alone: the CPU computes one of the same shapes in its place.

`flex_attention` refuses gradients on the CPU. Its stand-in is dense attention: it ignores masks and changes of scores,
which alter values but neither shapes nor the number of floating-point operations that PyTorch's formula counts.
"""

from typing import Any

import torch
from torch.nn.attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention


def install() -> None:
    """Replace `flex_attention` for every module that is imported from now on."""
    flex_attention.flex_attention = dense_attention


def dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """Return what `flex_attention` does, of all keys; logarithms of sums that are asked for are zeros."""
    output = scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=enable_gqa)
    zeros = torch.zeros(query.shape[:-1], dtype=torch.float32)
    if return_aux is not None:
        lse = zeros if return_aux.lse else None
        max_scores = zeros if return_aux.max_scores else None
        return output, flex_attention.AuxOutput(lse=lse, max_scores=max_scores)
    return (output, zeros) if return_lse else output

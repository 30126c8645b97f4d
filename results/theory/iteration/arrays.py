"""Candidate strategies side by side: one array for each of Rail-only Table III's parallel dimensions."""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from railyard.workloads.placement.parallelism import Parallelism

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Strategy:
    """One of `Strategies`, in whole numbers."""

    tensor_hb: int
    tensor_network: int
    pipeline_hb: int
    pipeline_network: int
    data_hb: int
    data_network: int
    micro_batch: int
    virtual_stages: int

    def __str__(self) -> str:
        """`t=8x1 p=1x64 d=1x6 b=1 v=1`, HB x network."""
        t = f"t={self.tensor_hb}x{self.tensor_network}"
        p = f"p={self.pipeline_hb}x{self.pipeline_network}"
        d = f"d={self.data_hb}x{self.data_network}"
        return f"{t} {p} {d} b={self.micro_batch} v={self.virtual_stages}"


@dataclass(frozen=True)
class Strategies:
    """t = t_h t_l, p = p_h p_l, d = d_h d_l (in an HB domain, over the network), b and v; arrays of one length.

    Whole numbers, kept as floats: so that products can't overflow and every formula works on them unchanged.
    """

    global_batch: int
    tensor_hb: FloatArray
    tensor_network: FloatArray
    pipeline_hb: FloatArray
    pipeline_network: FloatArray
    data_hb: FloatArray
    data_network: FloatArray
    micro_batch: FloatArray
    virtual_stages: FloatArray

    @property
    def tensor(self) -> FloatArray:
        return self.tensor_hb * self.tensor_network

    @property
    def pipeline(self) -> FloatArray:
        return self.pipeline_hb * self.pipeline_network

    @property
    def data(self) -> FloatArray:
        return self.data_hb * self.data_network

    @property
    def micro_batches(self) -> FloatArray:
        """m, of one pipeline."""
        return self.global_batch / (self.data * self.micro_batch)

    def __len__(self) -> int:
        return len(self.tensor_hb)

    def __getitem__(self, index: int) -> Strategy:
        return Strategy(*(int(getattr(self, f.name)[index]) for f in fields(Strategy)))

    def where(self, chosen: NDArray[np.bool_]) -> Self:
        """Those for which `chosen` is true."""
        kept = (getattr(self, f.name)[chosen] for f in fields(Strategy))
        return type(self)(self.global_batch, *kept)

    @classmethod
    def one(cls, strategy: Strategy, global_batch: int) -> Self:
        """A single strategy, in arrays of length 1."""
        return cls(global_batch, *(np.array([float(getattr(strategy, f.name))]) for f in fields(Strategy)))


def place_strategy(p: Parallelism, domain_gpus: int) -> Strategy:
    """A published job on HB domains of `domain_gpus`: tensor ranks fill a domain first, then data, then stages.

    That is Megatron-LM's order of ranks. ValueError if a dimension would lie across domains unevenly.
    """
    room, inside = domain_gpus, []
    for name, size in (("tensor", p.tensor), ("data", p.data), ("pipeline", p.pipeline)):
        part = min(size, room)
        if size % part or room % part:
            raise ValueError(f"{name} of {size} doesn't lie evenly in HB domains with {room} GPUs left")
        inside.append(part)
        room //= part
    t, d, s = inside
    return Strategy(t, p.tensor // t, s, p.pipeline // s, d, p.data // d, p.micro_batch, p.virtual_stages)

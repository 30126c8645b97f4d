"""How many times slower than the paper's the emulated rails are, and which rates this machine carries.

Source: Nezha Table 1 and 2. In the paper the CPU limits every rail far below its NIC's 100 or 128 Gbit/s; what is
scaled here is what a rail moves, `RailKind.effective_bps`. A frame of a ring passes one switch. A sum in the network
takes two passages, one to the aggregator and one back.
"""

from math import ceil, log10
from typing import Final

from railyard.core.errors import BadInput
from railyard.core.units import format_rate
from railyard.topologies.build.shaping import ETHERNET
from railyard.topologies.rail_kind import RAIL_KINDS
from railyard.topologies.multirail.spec import MultirailSpec

SHARE: Final = 0.3
"""Of the machine's frames that `auto` takes; the rest is for the nodes, who sum, and for acknowledgements."""
MAX_RATE_BPS: Final = 1_000_000_000
_STEPS: Final = (1, 2, 5, 10)


def frames_needed(spec: MultirailSpec, rates_bps: tuple[float, ...]) -> float:
    """Frames a second through switches when every rail is full."""
    passages = sum(
        rate * (2 if RAIL_KINDS[rail.kind].sums_in_network else 1)
        for rail, rate in zip(spec.rails, rates_bps, strict=True)
    )
    return spec.nodes * passages / 8 / (spec.mtu + ETHERNET)


def scale_of(spec: MultirailSpec, frames_per_s: float | None) -> float:
    """The scale that was given; else that of the rates that were given, all of them together; else what the machine
    carries within `SHARE`: 1, 2 or 5 times a power of ten.
    """
    if spec.scale is not None:
        return spec.scale
    given = [(RAIL_KINDS[rail.kind].effective_bps, rail.rate) for rail in spec.rails if isinstance(rail.rate, int)]
    if given:
        return sum(paper for paper, _ in given) / sum(rate for _, rate in given)
    if frames_per_s is None:
        raise ValueError("all rates are auto: what the machine carries must be known")
    paper = tuple(RAIL_KINDS[rail.kind].effective_bps for rail in spec.rails)
    return round_up(max(frames_needed(spec, paper) / (SHARE * frames_per_s), max(paper) / MAX_RATE_BPS))


def round_up(scale: float) -> float:
    """To 1, 2 or 5 times a power of ten, and to 1 at least."""
    power = 10 ** max(0, ceil(log10(max(scale, 1))) - 1)
    return float(next(step * power for step in _STEPS if step * power >= scale))


def rail_rates(spec: MultirailSpec, scale: float, frames_per_s: float | None) -> tuple[int, ...]:
    """bit/s of every rail; `auto` is what the paper's rail of that kind moves, to scale. BadInput if it's too much."""
    rates = tuple(
        rail.rate if isinstance(rail.rate, int) else round(RAIL_KINDS[rail.kind].effective_bps / scale)
        for rail in spec.rails
    )
    if frames_per_s is not None and (needed := frames_needed(spec, rates)) > frames_per_s:
        first = max(range(len(rates)), key=lambda rail: rates[rail])
        max_rate = format_rate(rates[first] * frames_per_s / needed, 2)
        raise BadInput(
            f"fabric.rails.{first}.rate",
            format_rate(rates[first]),
            f"is more than this machine carries: {max_rate}, all rails in this proportion, or auto",
        )
    return rates

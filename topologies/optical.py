"""Optical circuit switches between GPUs and the switches of their network, as a fabric's spec asks for them.

Source: Rail-only IV-C: "we add a small number of optical switches between the GPU and rail switches to allow the
dynamic reconfiguration of rails"; for large HB domains, in the optical core of the HB domain. Here one for each layer:
`ocs0` for the rails, `ocs1` for the HB domains.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

from pydantic import Field, field_validator

from topologies.addresses import gpu_of_name
from topologies.ports import OPTICAL_DPID, fibre_port, place_port
from topologies.strict import Strict
from topologies.units import Time, format_time

Layer = Literal["rail", "hb"]
LAYERS: Final[tuple[Layer, ...]] = get_args(Layer)
"""In this order: a layer's place is the number of its optical switch."""
OPTICAL_DOMAINS: Final = 254  # whose last fibre has a number below NETWORK_SIDE
LEAST_LIGHT_OFF_S: Final = 1e-3
MOST_LIGHT_OFF_S: Final = 10.0


class OpticalSpec(Strict):
    """`light_off`: how long ports that take part in a reconfiguration are dark, s."""

    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=len(LAYERS), strict=False)] = ("rail",)
    light_off: Time = 0.01

    @field_validator("layers")
    @classmethod
    def _once_each(cls, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        if len(set(layers)) < len(layers):
            raise ValueError("must name a layer once")
        return layers

    @field_validator("light_off")
    @classmethod
    def _is_a_switchs(cls, light_off: float) -> float:
        if not LEAST_LIGHT_OFF_S <= light_off <= MOST_LIGHT_OFF_S:
            raise ValueError(f"must be {format_time(LEAST_LIGHT_OFF_S)} to {format_time(MOST_LIGHT_OFF_S)}")
        return light_off


def dpid_of(layer: Layer) -> int:
    """The datapath id of a layer's optical switch."""
    return OPTICAL_DPID + LAYERS.index(layer)


def port_moves(moves: Mapping[str, str]) -> dict[int, int]:
    """{"d0g4": "d0g1"}, d0g4's fibre to the place that is d0g1's by the plan, as {fibre: place} in port numbers.

    ValueError for a name that isn't a GPU's, and for two fibres to one place.
    """
    if len(set(moves.values())) < len(moves):
        raise ValueError(f"two fibres can't lead to one place: {dict(moves)}")
    return {fibre_port(gpu_of_name(fibre)): place_port(gpu_of_name(place)) for fibre, place in moves.items()}

"""Optical circuit switches between GPUs and the switches of their network, as a fabric's spec asks for them.

Source: Rail-only IV-C: "we add a small number of optical switches between the GPU and rail switches to allow the
dynamic reconfiguration of rails"; for large HB domains, in the optical core of the HB domain. Here `ocs<d>` is between
the GPUs of domain d and their rails. Where HB domains have one, too, a fibre may have to lead to another domain: then
`ocs0` is for all rails, `ocs1` for all HB domains.
"""

from typing import Annotated, Final, Literal, get_args

from pydantic import Field, field_validator

from railyard.core.config import ConfigModel
from railyard.core.units import Time, format_time

Layer = Literal["rail", "hb"]
LAYERS: Final[tuple[Layer, ...]] = get_args(Layer)
"""In this order: a layer's place is the number of its optical switch, where one is for all domains."""
OPTICAL_DOMAINS: Final = 254  # whose last fibre has a number below NETWORK_PORT_OFFSET
MIN_SWITCHING_TIME_S: Final = 1e-3
MAX_SWITCHING_TIME_S: Final = 10.0


class OpticalSpec(ConfigModel):
    """`switching_time`: how long ports that take part in a reconfiguration are dark, s."""

    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=len(LAYERS), strict=False)] = ("rail",)
    switching_time: Time = 0.01

    @field_validator("layers")
    @classmethod
    def _once_each(cls, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        if len(set(layers)) < len(layers):
            raise ValueError("must name a layer once")
        return layers

    @field_validator("switching_time")
    @classmethod
    def _switching_time_in_range(cls, switching_time: float) -> float:
        if not MIN_SWITCHING_TIME_S <= switching_time <= MAX_SWITCHING_TIME_S:
            raise ValueError(f"must be {format_time(MIN_SWITCHING_TIME_S)} to {format_time(MAX_SWITCHING_TIME_S)}")
        return switching_time

    @property
    def is_per_domain(self) -> bool:
        """Whether each HB domain has an optical switch of its own. Unless HB links go through light, too, a spare can't
        be of another domain than the one that failed, and no fibre need leave a domain.

        Then switches are small: at each port event their process looks at all interfaces, and frames wait for that.
        """
        return "hb" not in self.layers

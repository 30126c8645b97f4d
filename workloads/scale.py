"""What was scaled down, by how much, and what an emulated time means on the real cluster.

Two steps lead from the published job to the emulated one, and both are recorded:

1. Shape. Fewer GPUs, layers, micro-batches, all-to-alls; merged collectives. The result is a job that could run on real
   GPUs at real rates, with real bytes per transfer. Its phases and those of the full job are tied by the equations
   only.
2. Time. Bytes, rates and computing gaps are scaled: emulated bytes = real bytes x bytes factor, emulated rate = real
   rate x rate factor, and so each transfer, and with it each gap, takes time factor = bytes factor / rate factor as
   long. Proportions between computing and communication are those of the job of step 1, and going back is exact for
   whatever is bound by bandwidth.

The HB rate has the same factor as the rail rate. Where the emulated C_F/C_S isn't the platform's, it is the real
cluster projected to that has another HB rate (`hb_bytes_per_s` says which).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.platforms import Platform
from railyard.workloads.schedule import Iteration


@dataclass(frozen=True, slots=True)
class Factor:
    """One quantity as it is in reality and in the emulation."""

    real: float
    emulated: float

    @property
    def ratio(self) -> float:
        """Emulated over real."""
        return self.emulated / self.real


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes of payload a second, per GPU and direction, of both kinds of link."""

    hb: float
    rail: float


def payload_rates(hb_bps: int, rail_bps: int, mtu: int) -> Rates:
    """Return the payload rates of links with these rates in bit/s."""
    fraction = payload_fraction(mtu) / 8
    return Rates(hb=hb_bps * fraction, rail=rail_bps * fraction)


@dataclass(frozen=True)
class Scale:
    """`shape` is step 1; the factors are step 2. `real` is the published job, at its full size, in real bytes."""

    workload: str
    platform: str
    real_rates: Rates
    emulated_rates: Rates
    bytes_factor: float
    shape: Mapping[str, Factor] = field(default_factory=dict)
    compute_kept: float = 1.0
    real: Iteration | None = None

    @property
    def rate_factor(self) -> float:
        return self.emulated_rates.rail / self.real_rates.rail

    @property
    def time_factor(self) -> float:
        """Emulated seconds for a second of the real job of the same shape."""
        return self.bytes_factor / self.rate_factor

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for the run's record."""
        factors = {
            **self.shape,
            "rail_bytes_per_s": Factor(self.real_rates.rail, self.emulated_rates.rail),
            "hb_bytes_per_s": Factor(self.real_rates.hb, self.emulated_rates.hb),
            "bytes_per_transfer": Factor(1, self.bytes_factor),
            "seconds": Factor(1, self.time_factor),
        }
        return {
            "workload": self.workload,
            "platform": self.platform,
            "compute_kept": self.compute_kept,
            "factors": {k: {"real": f.real, "emulated": f.emulated, "factor": f.ratio} for k, f in factors.items()},
        }


def real_rates(platform: Platform, emulated: Rates) -> Rates:
    """The platform's rail rate, and the HB rate that stands to it as in the emulation."""
    rail = platform.rail_bps / 8
    return Rates(hb=rail * emulated.hb / emulated.rail, rail=rail)


def project(scale: Scale, seconds: Mapping[str, float]) -> dict[str, float]:
    """Emulated seconds by phase, as seconds of the real job of the same shape on the real platform."""
    return {name: value / scale.time_factor for name, value in seconds.items()}

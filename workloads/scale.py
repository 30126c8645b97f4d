"""The scale at which a job is emulated: first a smaller shape, then fewer bytes at lower rates (docs/workloads.md).

The time factor is the bytes factor divided by the rate factor. HB and rail rates have the same factor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from railyard.topologies.platforms import Platform
from railyard.workloads.schedule import Iteration, Rates


@dataclass(frozen=True, slots=True)
class Factor:
    """One quantity as it is in reality and in the emulation."""

    real: float
    emulated: float


@dataclass(frozen=True)
class Scale:
    """`shape` is step 1; the factors are step 2. `real` is the published job, at its full size, in real bytes.

    `full_compute_s`: computing of `real` (`Iteration.compute_s`) if all of it were kept; None if that isn't known.
    """

    workload: str
    platform: str
    real_rates: Rates
    emulated_rates: Rates
    bytes_factor: float
    shape: Mapping[str, Factor] = field(default_factory=dict)
    compute_kept: float = 1.0
    real: Iteration | None = None
    full_compute_s: float | None = None

    @property
    def time_factor(self) -> float:
        """Emulated seconds for a second of the real job of the same shape."""
        rate_factor = self.emulated_rates.rail / self.real_rates.rail
        return self.bytes_factor / rate_factor

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for the run's record."""
        factors = {
            **self.shape,
            "rail_bytes_per_s": Factor(self.real_rates.rail, self.emulated_rates.rail),
            "hb_bytes_per_s": Factor(self.real_rates.hb, self.emulated_rates.hb),
            "bytes_per_transfer": Factor(1, self.bytes_factor),
            "seconds": Factor(1, self.time_factor),
        }
        rows: dict[str, dict[str, float]] = {}
        for name, factor in factors.items():
            ratio = factor.emulated / factor.real
            rows[name] = {"real": factor.real, "emulated": factor.emulated, "factor": ratio}
        kept = self.compute_kept
        return {"workload": self.workload, "platform": self.platform, "compute_kept": kept, "factors": rows}


def real_rates(platform: Platform, emulated: Rates) -> Rates:
    """The platform's rail rate, and the HB rate that stands to it as in the emulation."""
    rail = platform.rail_bps / 8
    return Rates(hb=rail * emulated.hb / emulated.rail, rail=rail)

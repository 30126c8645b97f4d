"""Real GPU platforms, to scale down from and project back to: bandwidth per GPU and direction.

Sources: DGX A100 and DGX H100 data sheets; Rail-only section II-A and III-B (GH200: 3.6 Tbps in, 400 Gbps out).
The ratio C_F/C_S is all that decides the shape of a result; it is 12 for the A100 and 9 for the H100.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Platform:
    """C_F (`hb_bps`) and C_S (`rail_bps`) in bit/s per GPU and direction; peak dense 16-bit FLOP/s."""

    name: str
    hb_bps: int
    rail_bps: int
    flops: float

    @property
    def ratio(self) -> float:
        """C_F / C_S."""
        return self.hb_bps / self.rail_bps


PLATFORMS: Final = {
    p.name: p
    for p in (
        Platform("a100", hb_bps=2_400_000_000_000, rail_bps=200_000_000_000, flops=312e12),
        Platform("h100", hb_bps=3_600_000_000_000, rail_bps=400_000_000_000, flops=989e12),
        Platform("gh200", hb_bps=3_600_000_000_000, rail_bps=400_000_000_000, flops=989e12),
    )
}

"""GLEX of the TH Express network, as a ring. Source: Nezha section 2.3.1 and Table 2."""

from railyard.topologies.rail_kind import RAIL_KINDS, RailKind

RAIL_KINDS.add(
    "glex", RailKind(rate_bps=128e9, effective_bps=5.029e9, setup_s=43.4e-6 / 6, cpu_s_per_byte=2.386e-9 / 1.5)
)

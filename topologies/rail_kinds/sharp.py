"""SHARP over InfiniBand: the switch sums, a tree of 2 messages that moves one buffer. Source: Nezha Table 1 and 2."""

from railyard.topologies.rail_kind import RAIL_KINDS, RailKind

RAIL_KINDS.add(
    "sharp",
    RailKind(rate_bps=100e9, effective_bps=2.997e9, setup_s=6.3e-6 / 2, cpu_s_per_byte=2.669e-9, sums_in_network=True),
)

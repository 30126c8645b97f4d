"""TCP over Ethernet, as a ring. Source: Nezha Table 1 and 2; on 4 nodes a ring has 6 messages and moves 3/2 buffers."""

from railyard.topologies.rail_kind import RAIL_KINDS, RailKind

RAIL_KINDS.add(
    "tcp",
    RailKind(rate_bps=100e9, effective_bps=2.664e9, setup_s=977.4e-6 / 6, cpu_s_per_byte=4.504e-9 / 1.5, is_tcp=True),
)

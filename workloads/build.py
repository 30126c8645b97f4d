"""From a workload's spec to its schedule on a fabric, with the record of what was scaled down for it."""

from railyard.topologies.platforms import PLATFORMS
from railyard.topologies.spec import FabricSpec
from railyard.workloads.scale import Scale, payload_rates, real_rates
from railyard.workloads.schedule import Schedule
from railyard.workloads.spec import Built, Setting, Workload


def build_whole(
    spec: Workload, fabric: FabricSpec, rail_bps: int, hb_bps: int, field: str = "workload", seed: int = 0
) -> Built:
    """Build a workload on a fabric with these link rates (bit/s). BadInput names fields below `field`.

    The seed decides what a kind draws at random, such as the pairs of shuffled `transfers` and the popular experts of
    a `moe`, and nothing else.
    """
    emulated = payload_rates(hb_bps, rail_bps, fabric.mtu)
    return spec.build(Setting(fabric, real_rates(PLATFORMS[fabric.platform], emulated), emulated, field, seed))


def build(
    spec: Workload, fabric: FabricSpec, rail_bps: int, hb_bps: int, field: str = "workload", seed: int = 0
) -> tuple[Schedule, Scale]:
    """Return the schedule of `build_whole`, and its scale."""
    built = build_whole(spec, fabric, rail_bps, hb_bps, field, seed)
    return built.schedule, built.scale

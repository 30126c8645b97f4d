"""Which GPU sends background load to which, and how much: every link of a hot element gets its share both ways.

    rail g       every GPU of it to the next domain's GPU of it
    domain d     every GPU of it to the next rank in it
    spine layer  every GPU to the next rank in the next domain, over the NIC network

What leaves a rail switch for the spines is spread frame by frame, since its group hashes flows, and one flow is on one
spine. All uplinks of a rail together are `rail_bps x domains / oversubscription`, so each of its GPUs sends
load x rail_bps / oversubscription to fill them to `load`: never more than its own link has, but at an oversubscription
of 1 the rails' own links are as hot as the uplinks.
"""

from dataclasses import dataclass
from typing import Final, Literal

from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Device
from railyard.workloads.background.spec import BackgroundSpec
from railyard.workloads.background.wave import Wave

PORT: Final = 9
"""UDP's discard: where all of it goes, and by which links tell it from other traffic."""


@dataclass(frozen=True, slots=True)
class BackgroundFlow:
    """`bps` (bit/s on the wire, Ethernet header and all) from `src`'s `device` to `dst` while `wave` is on.

    `path`: the only one that it ever takes; d over hb0, r on a rail, else across the spines.
    """

    src: Gpu
    dst: Gpu
    device: Device
    path: Literal["d", "r", "spine"]
    bps: float
    wave: Wave


def flows_of(spec: BackgroundSpec, plan: Plan) -> tuple[BackgroundFlow, ...]:
    """All flows of a spec that fits the plan (see check_background)."""
    domains, rails, wave = plan.spec.domains, plan.spec.rails, spec.wave
    found = []
    for src in plan.gpus:
        domain, rank = (src.domain + 1) % domains, (src.rank + 1) % rails
        if src.rank in spec.rails:
            found.append(BackgroundFlow(src, Gpu(domain, src.rank), "rail0", "r", spec.load * plan.rail_bps, wave))
        if src.domain in spec.domains:
            found.append(BackgroundFlow(src, Gpu(src.domain, rank), "hb0", "d", spec.load * plan.hb_bps, wave))
        if spec.spine:
            bps = spec.load * plan.uplink_bps * plan.spec.spine_count / domains
            found.append(BackgroundFlow(src, Gpu(domain, rank), "rail0", "spine", bps, wave))
    return tuple(found)

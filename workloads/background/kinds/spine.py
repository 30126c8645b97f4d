"""Load on all uplinks of the rail switches: every GPU sends to the next rank in the next domain, over the NIC network.

What leaves a rail switch for the spines is spread frame by frame, since its group hashes flows, and one flow is on one
spine. All uplinks of a rail together are `rail_bps x domains / oversubscription`, so each of its GPUs sends
load x rail_bps / oversubscription to fill them to `load`: never more than its own link has, but at an oversubscription
of 1 the rails' own links are as hot as the uplinks.
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.spec import BACKGROUNDS, BackgroundKind, FullLoad


@BACKGROUNDS.register("spine")
class Spine(BackgroundKind):
    """`spine: true`."""

    value = Annotated[bool, Field(strict=True)]

    def flows(self, src: Gpu, value: bool, plan: Plan) -> Iterator[FullLoad]:
        domains = plan.spec.domains
        rails = plan.spec.rails
        dst = Gpu((src.domain + 1) % domains, (src.rank + 1) % rails)
        yield FullLoad(dst, "rail0", "spine", plan.uplink_bps * plan.spec.spine_count / domains)

    def shares(self, value: bool, fabric: FabricSpec) -> dict[str, float]:
        """What crosses uplinks comes over the rails' links too."""
        over_rails = {f"rail {g}": 1 / (fabric.oversubscription or 1.0) for g in range(fabric.rails)}
        return {"the spine layer": 1.0} | over_rails

    def text(self, value: bool) -> str:
        return "spines"

    def problems(self, value: bool, fabric: FabricSpec) -> Iterator[tuple[str, object, str]]:
        if not fabric.spine_count:
            yield "", value, f"is not for kind {fabric.kind}, which has no spines"

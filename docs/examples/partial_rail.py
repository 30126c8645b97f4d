"""Background kind `partial-rail`: load on one rail, at the links of some HB domains only.

    background: [{partial-rail: {rail: 0, domains: [0, 2]}, load: 0.8}]

The built-in `rails` loads all links of a rail alike. Here the rail's GPU in each listed domain sends to that in the
next one listed, so the rail is hot for some pairs and idle for others.

    sudo script/run run hot-rail --plugin docs/examples/partial_rail.py -o 'background=[{partial-rail: {rail: 0,
        domains: [0, 1]}, load: 0.8}]'
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from railyard.core.config import ConfigModel
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.spec import BACKGROUNDS, BackgroundKind, FullLoad, Numbers, beyond


class Links(ConfigModel):
    """The links of GPUs G(d, rail) for every d in `domains`."""

    rail: Annotated[int, Field(ge=0)]
    domains: Annotated[Numbers, Field(min_length=2)]


@BACKGROUNDS.register("partial-rail")
class PartialRail(BackgroundKind):
    """Every listed link carries `load` of its rate in both directions."""

    value = Links

    def flows(self, src: Gpu, value: Links, plan: Plan) -> Iterator[FullLoad]:
        """Yield what a GPU sends at a load of 1: destination, device, path, and bit/s."""
        if src.rank == value.rail and src.domain in value.domains:
            following = value.domains[(value.domains.index(src.domain) + 1) % len(value.domains)]
            yield FullLoad(Gpu(following, src.rank), "rail0", "r", plan.rail_bps)

    def shares(self, value: Links, fabric: FabricSpec) -> dict[str, float]:
        """Return what is loaded: all loads on an element together must stay below its rate."""
        return {f"rail {value.rail}": 1.0}

    def text(self, value: Links) -> str:
        """Return the words of `dry-run` and of figures."""
        return f"rail {value.rail} of domains {', '.join(map(str, value.domains))}"

    def problems(self, value: Links, fabric: FabricSpec) -> Iterator[tuple[str, object, str]]:
        """Yield what the fabric doesn't have."""
        yield from beyond("domains.", value.domains, fabric.domains)
        if value.rail >= fabric.rails:
            yield "rail", value.rail, f"must be below {fabric.rails}: the fabric has no more"

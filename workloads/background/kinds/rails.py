"""Load on the rails' links to their GPUs: every GPU of a rail sends to the next domain's GPU of it."""

from collections.abc import Iterator

from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.kind import BACKGROUNDS, BackgroundKind, FullLoad, Numbers, beyond, numbered


class Rails(BackgroundKind):
    """`rails: [0, 1]`."""

    value = Numbers

    def flows(self, src: Gpu, value: tuple[int, ...], plan: Plan) -> Iterator[FullLoad]:
        if src.rank in value:
            yield FullLoad(Gpu((src.domain + 1) % plan.spec.domains, src.rank), "rail0", "r", plan.rail_bps)

    def shares(self, value: tuple[int, ...], fabric: FabricSpec) -> dict[str, float]:
        return {f"rail {g}": 1.0 for g in value}

    def text(self, value: tuple[int, ...]) -> str:
        return numbered("rail", value)

    def problems(self, value: tuple[int, ...], fabric: FabricSpec) -> Iterator[tuple[str, object, str]]:
        yield from beyond("", value, fabric.rails)


BACKGROUNDS.add("rails", Rails())

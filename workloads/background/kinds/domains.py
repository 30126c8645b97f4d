"""Load on the links of HB domains: every GPU of a domain sends to the next rank in it."""

from collections.abc import Iterator

from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.kind import BACKGROUNDS, BackgroundKind, FullLoad, Numbers, beyond, numbered


class Domains(BackgroundKind):
    """`domains: [2]`."""

    value = Numbers

    def flows(self, src: Gpu, value: tuple[int, ...], plan: Plan) -> Iterator[FullLoad]:
        if src.domain in value:
            yield FullLoad(Gpu(src.domain, (src.rank + 1) % plan.spec.rails), "hb0", "d", plan.hb_bps)

    def shares(self, value: tuple[int, ...], fabric: FabricSpec) -> dict[str, float]:
        return {f"domain {d}": 1.0 for d in value}

    def text(self, value: tuple[int, ...]) -> str:
        return numbered("domain", value)

    def problems(self, value: tuple[int, ...], fabric: FabricSpec) -> Iterator[tuple[str, object, str]]:
        yield from beyond("", value, fabric.domains)


BACKGROUNDS.add("domains", Domains())

"""Load on the links of HB domains: every GPU of a domain sends to the next rank in it."""

from collections.abc import Iterator

from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.workloads.background.spec import BACKGROUNDS, FullLoad, Numbered


@BACKGROUNDS.register("domains")
class Domains(Numbered):
    """`domains: [2]`."""

    unit = "domain"

    def flows(self, src: Gpu, value: tuple[int, ...], plan: Plan) -> Iterator[FullLoad]:
        if src.domain in value:
            yield FullLoad(Gpu(src.domain, (src.rank + 1) % plan.spec.rails), "hb0", "d", plan.hb_bps)

"""Load on the rails' links to their GPUs: every GPU of a rail sends to the next domain's GPU of it."""

from collections.abc import Iterator

from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.workloads.background.spec import BACKGROUNDS, FullLoad, Numbered


@BACKGROUNDS.register("rails")
class Rails(Numbered):
    """`rails: [0, 1]`."""

    unit = "rail"

    def flows(self, src: Gpu, value: tuple[int, ...], plan: Plan) -> Iterator[FullLoad]:
        if src.rank in value:
            yield FullLoad(Gpu((src.domain + 1) % plan.spec.domains, src.rank), "rail0", "r", plan.rail_bps)

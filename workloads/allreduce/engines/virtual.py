"""Two channels on the NIC of one rail, in equal parts, and none on the others. Source: Nezha section 4.1, Fig. 13."""

from collections.abc import Sequence
from dataclasses import replace

from railyard.core.errors import BadInput
from railyard.topologies.multirail.spec import MultirailSpec
from railyard.topologies.rail_kind import RAIL_KINDS
from railyard.workloads.allreduce.balancing.costs import Rail, allreduce_cost
from railyard.workloads.allreduce.engine_kind import ALLREDUCE_ENGINES, AllreduceEngine, Group, PlannedFabric, peer_rail
from railyard.workloads.allreduce.engines.railyard import Ranks


@ALLREDUCE_ENGINES.register("virtual")
class Virtual(AllreduceEngine):
    """Railyard's engine with two virtual rails on one NIC, each with a CPU core of its own."""

    equation = "Eq. 1 and 2, half the processor's cost"

    def check(self, policy: str, field: str, fabric: MultirailSpec) -> None:
        """Raise BadInput for `field` if its rail sums in the network."""
        if RAIL_KINDS[fabric.rails[peer_rail(fabric)].kind].sums_in_network:
            raise BadInput(field, policy, "needs a rail that doesn't sum in the network")

    def start(self, net: PlannedFabric, policy: str) -> Group:
        """Return ranks with two channels on one rail."""
        rail = peer_rail(net.plan.spec)
        return Ranks(net, "equal", channels=(rail, rail))

    def seconds(self, rails: Sequence[Rail], nodes: int, size: int, rail: int, policy: str = "") -> float:
        """Predict the seconds of a rail with half the processor's cost."""
        # each of the two channels has a core of its own, and half of the bytes
        used = replace(rails[rail], cpu_s_per_byte=rails[rail].cpu_s_per_byte / 2)
        return allreduce_cost(used, nodes).seconds(size)

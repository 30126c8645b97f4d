"""A spare takes a failed GPU's identity, once optical switches have given it that one's place in the network.

Source: Rail-only IV-C, "the optical switch reconfigures to bring a healthy, idle GPU to replace the failed one".
Whoever speaks to that rank afterwards speaks to the spare, by the same address, over the same rail: no peer learns
anything.

The names of namespaces move with it, so that whatever goes by rank finds the new one. The one that failed is
`<name>-failed`, and also has the spare's name: each name of the plan goes on naming a namespace, and only one.
"""

from topologies import namespaces
from topologies.addresses import Gpu
from topologies.net import FabricNet
from topologies.plan import Plan
from topologies.routes import FROM_HB, FROM_RAIL, route_commands


class Adoption:
    """All that can be known beforehand is worked out when this is made; `carry_out` is what is left for the moment.

    ValueError for a spare in another domain whose HB link doesn't go through an optical switch.
    """

    def __init__(self, net: FabricNet, spare: Gpu, failed: Gpu) -> None:
        optical = net.plan.spec.optical
        self._by_light = bool(optical and "hb" in optical.layers)
        if spare == failed or (spare.domain != failed.domain and not self._by_light):
            raise ValueError(f"{spare.name} can't take the place of {failed.name}")
        self._net, self._spare, self._failed = net, spare, failed
        self._identity = identity_commands(net.plan, spare, failed, net.backups)
        self._entry = f"fdb replace {failed.mac('hb')} dev {spare.name} master static\n"

    def carry_out(self) -> None:
        """Give the spare its new identity and name, while it is dark or after. RuntimeError with what `ip` said."""
        batches = [(self._spare.name, "ip", self._identity)]
        if not self._by_light:  # else the place at the bridge is the failed one's
            batches.append((f"hb{self._failed.domain}", "bridge", self._entry))
        namespaces.in_threads(_run, batches)
        self._move_names()

    def _move_names(self) -> None:
        failed, spare, kept = self._failed.name, self._spare.name, f"{self._failed.name}-failed"
        for node in (self._net.nameToNode[failed], self._net.nameToNode[spare]):
            if node.shell:  # in the namespace that had this name
                node.terminate()
        namespaces.name_also(failed, kept)
        namespaces.name_also(spare, failed)
        namespaces.name_also(kept, spare)
        self._net.further_names.add(kept)


def identity_commands(plan: Plan, spare: Gpu, failed: Gpu, backups: bool) -> str:
    """Input for `ip -batch -` in the spare's namespace.

    Its neighbours go with its MACs, and the routes of its main table with its address.
    """
    lines = [
        f"link set hb0 address {failed.mac('hb')}",
        f"link set rail0 address {failed.mac('rail')}",
        f"addr del {spare.ip}/32 dev lo",
        f"addr add {failed.ip}/32 dev lo",
        f"route flush table {FROM_HB}",
        f"route flush table {FROM_RAIL}",
    ]
    return "\n".join(lines) + "\n" + route_commands(plan, failed, plan.policy, backups)


def _run(batch: tuple[str, str, str]) -> None:
    node, program, commands = batch
    with namespaces.inside(node):
        namespaces.run([program, "-batch", "-"], commands)

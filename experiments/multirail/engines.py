"""Who runs the allreduces of a policy: Railyard's engine, or others' code on the same rails."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from railyard.experiments.multirail.parts import peer_rail
from railyard.topologies.multirail.net import MultirailNet
from railyard.workloads.allreduce.engine.emulated import Ranks
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport


class Engine(Protocol):
    """Ranks that are connected, and wait to be told what to do."""

    def run(self, operations: Operations, /) -> Sequence[RankReport]: ...

    def pause(self) -> None:
        """Between operations: until `resume` they take nothing of the machine."""
        ...

    def resume(self) -> None: ...


Started = AbstractContextManager[Engine]


def engine(net: MultirailNet, policy: str) -> Started:
    """Not yet started. Entering it raises MissingRequirement where others' code isn't installed."""
    make = _SPECIAL.get(policy)
    return make(net) if make else Ranks(net, policy)


def _gloo(net: MultirailNet) -> Started:
    from railyard.workloads.allreduce.peers.gloo import GlooRanks

    return GlooRanks(net, peer_rail(net.plan.spec))


def _mpi(net: MultirailNet) -> Started:
    from railyard.workloads.allreduce.peers.mpi import MpiRanks

    return MpiRanks(net, (peer_rail(net.plan.spec),))


def _mptcp(net: MultirailNet) -> Started:
    from railyard.workloads.allreduce.peers.mptcp import MptcpRanks

    return MptcpRanks(net)


def _virtual(net: MultirailNet) -> Started:
    """Two channels on one NIC (Nezha 4.1, Fig. 13)."""
    rail = peer_rail(net.plan.spec)
    return Ranks(net, "equal", channels=(rail, rail))


_SPECIAL: Final[Mapping[str, Callable[[MultirailNet], Started]]] = {
    "gloo": _gloo,
    "mpi": _mpi,
    "mptcp": _mptcp,
    "virtual": _virtual,
}
"""Others' code needs libraries of its own, and is loaded only where it is wanted."""

"""The path that a packet took, from where it was observed; its kind; and whether it follows the policy."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.forwarding import Path, path_name
from railyard.topologies.measure.capture import Observation


@dataclass(frozen=True, slots=True)
class Hop:
    """A node on the path: the interfaces of arrival and departure, and when (monotonic ns).

    The source has no `in_interface`; the destination, and where a packet is lost, no `out_interface`.
    """

    node: str
    in_interface: str | None = None
    out_interface: str | None = None
    in_ns: int | None = None
    out_ns: int | None = None

    @property
    def gpu(self) -> Gpu | None:
        """The GPU; None for a switch, or the bridge of an HB domain."""
        try:
            return gpu_of_name(self.node)
        except ValueError:
            return None

    @property
    def is_bridge(self) -> bool:
        """True for the bridge of an HB domain."""
        return self.node.startswith("hb")


@dataclass(frozen=True)
class TracedPath:
    """The nodes that a packet from `src` to `dst` crossed, in order."""

    src: Gpu
    dst: Gpu
    hops: tuple[Hop, ...]

    @property
    def delivered(self) -> bool:
        """True if the packet reached its destination."""
        return bool(self.hops) and self.hops[-1].node == self.dst.name and self.hops[-1].out_interface is None

    @cached_property
    def kind(self) -> str:
        """A letter a leg between two GPUs: d through an HB domain, r along a rail, s from one rail to another."""
        legs = []
        stops = [(hop, gpu) for hop in self.hops if (gpu := hop.gpu)]
        for (here, gpu), (_, following) in pairwise(stops):
            legs.append("d" if here.out_interface == "hb0" else "r" if gpu.rank == following.rank else "s")
        return "spine" if legs == ["s"] else "".join(legs)

    @cached_property
    def path(self) -> Path | None:
        """The path that it is; None if the packet was lost, or took a kind of path that no policy knows."""
        if not self.delivered:
            return None
        match self.kind:
            case "d" | "r" | "rd" | "spine" as kind:
                return Path(kind, self.src.rank)
            case "dr" | "drd" as kind:
                relay = next(hop.gpu for hop in self.hops[1:] if hop.gpu)
                return Path(kind, relay.rank)
            case _:
                return None

    @property
    def name(self) -> str:
        """`dr by rail 2`, or where it was lost."""
        if self.delivered:
            return path_name(self.path) if self.path else f"{self.kind}, which no policy takes"
        if not self.hops:
            return f"lost before it left {self.src.name}"
        last = self.hops[-1]
        return f"lost after HB domain {last.node[2:]}" if last.is_bridge else f"lost after {last.node}"

    def __str__(self) -> str:
        """`d0g1 -hb0-> d0g2 -rail0-> rail2 -> d1g2`: an HB domain is in its arrow."""
        nodes = [hop for hop in self.hops if not hop.is_bridge]
        arrows = [f" -{hop.out_interface}-> " if hop.gpu else " -> " for hop in nodes]
        return "".join(hop.node + arrow for hop, arrow in zip(nodes, [*arrows[:-1], ""], strict=False))

    @property
    def signature(self) -> tuple[tuple[str, str | None, str | None], ...]:
        """Identity of the path, whenever packets took it."""
        return tuple((hop.node, hop.in_interface, hop.out_interface) for hop in self.hops)


def assemble_path(src: Gpu, dst: Gpu, observations: Iterable[Observation]) -> TracedPath:
    """Return one packet's path: an observed arrival and the departure that follows it at a node are one hop."""
    hops: list[Hop] = []
    for seen in sorted(observations, key=lambda observation: observation.ns):
        if not seen.outgoing:
            hops.append(Hop(seen.node, in_interface=seen.interface, in_ns=seen.ns))
        elif hops and hops[-1].node == seen.node and hops[-1].out_interface is None:
            hops[-1] = replace(hops[-1], out_interface=seen.interface, out_ns=seen.ns)
        else:
            hops.append(Hop(seen.node, out_interface=seen.interface, out_ns=seen.ns))
    return TracedPath(src, dst, tuple(hops))


def follows_policy(traced: Sequence[TracedPath], expected: Collection[Path]) -> bool:
    """Return whether every packet took a path of the policy."""
    return all(traced_path.path in expected for traced_path in traced)


def verdict(traced: Sequence[TracedPath], expected: Collection[Path]) -> str:
    """One line: `as the policy says`, or what happened instead. ValueError without a packet or a path."""
    if not traced or not expected:
        raise ValueError("a verdict needs packets, and paths to compare theirs with")
    if follows_policy(traced, expected):
        return "as the policy says"
    others = [traced_path for traced_path in traced if traced_path.path not in expected]
    deviations = Counter("a detour" if other.delivered else other.name for other in others)
    parts = [f"{what} ({n} of {len(traced)})" if n < len(traced) else what for what, n in deviations.items()]
    return f"{', '.join(parts)}: the policy says {' or '.join(map(path_name, expected))}"

"""Which way from one GPU to another in a different domain, given what is dead.

Sources: Rail-only IV-B (HB domain first: dr), IV-C (what is unavailable after a failure); Outshift health routing
part 2 for drd. The papers leave a GPU unavailable when its rail link or switch is dead; here another rail of its domain
carries it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from railyard.topologies.addresses import Gpu
from railyard.topologies.routing import Device
from railyard.topologies.spec import Kind, Policy

PathKind = Literal["d", "r", "dr", "rd", "drd", "spine"]


@dataclass(frozen=True, slots=True)
class Path:
    """How a packet goes: `rail` is the one it crosses (for spine, and for d, which crosses none: the source's)."""

    kind: PathKind
    rail: int


@dataclass(frozen=True, slots=True)
class Broken:
    """What is dead: rail links by their GPU, rail switches by rank (the single switch is 0), the pairs of ranks, both
    ways round, whose rail switches no spine joins any more, and HB ports by their GPU. A crashed GPU is in `links` and
    in `hb`; a dead HB domain is all its ports.
    """

    links: frozenset[Gpu] = frozenset()
    rails: frozenset[int] = frozenset()
    disconnected_ranks: frozenset[tuple[int, int]] = frozenset()
    hb: frozenset[Gpu] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.links or self.rails or self.disconnected_ranks or self.hb)


def default_path(policy: Policy, src: Gpu, dst: Gpu) -> Path:
    """The policy's path while all is well. ValueError within one domain, where there is nothing to choose."""
    if src.domain == dst.domain:
        raise ValueError(f"{src.name} -> {dst.name}: a path between domains needs two domains")
    if src.rank == dst.rank:
        return Path("r", src.rank)
    if policy == "spine":
        return Path("spine", src.rank)
    return Path("rd", src.rank) if policy == "rd" else Path("dr", dst.rank)


def usable(path: Path, src: Gpu, dst: Gpu, broken: Broken, kind: Kind) -> bool:
    """True if every rail link, rail switch and HB port on the path lives."""
    if broken.hb and not broken.hb.isdisjoint(hb_ports(path, src, dst)):
        return False
    if path.kind == "d":
        return True
    far_rail = dst.rank if path.kind == "spine" else path.rail
    ends = (Gpu(src.domain, path.rail), Gpu(dst.domain, far_rail))
    if broken.links and (ends[0] in broken.links or ends[1] in broken.links):
        return False
    if kind == "single-switch":
        return not broken.rails
    if path.rail in broken.rails or far_rail in broken.rails:
        return False
    return not (path.kind == "spine" and (path.rail, far_rail) in broken.disconnected_ranks)


def hb_ports(path: Path, src: Gpu, dst: Gpu) -> tuple[Gpu, ...]:
    """The GPUs whose HB ports a path goes through: at each end where it changes GPUs, both."""
    if path.kind == "d":
        return (src, dst)
    if path.kind == "spine":
        return ()
    near, far = Gpu(src.domain, path.rail), Gpu(dst.domain, path.rail)
    return (() if near == src else (src, near)) + (() if far == dst else (far, dst))


def alternatives(src: Gpu, dst: Gpu, rails: int, kind: Kind) -> Iterator[Path]:
    """Ways round, best first: two hops, then the spine, then three hops, beginning at another rail for another pair.

    Each further rail is drawn anew for each pair, so that those whom a second fault turns away part as well.
    """
    if src.rank != dst.rank:
        yield Path("rd", src.rank)
        yield Path("dr", dst.rank)
        if kind != "rail-only":
            yield Path("spine", src.rank)
    left = [rail for rail in range(rails) if rail not in (src.rank, dst.rank)]
    for draw in range(len(left)):
        number = (1 + 2 * draw) * src.domain + (1 + draw) * dst.domain + src.rank
        yield Path("drd", left.pop(number % len(left)))


def choose(policy: Policy, src: Gpu, dst: Gpu, broken: Broken, rails: int, kind: Kind) -> Path | None:
    """The policy's own path if it lives, else the first way round that does; None if there is none.

    Within a domain there is nothing to choose: a dead HB port has no way round there, since GPUs don't hand packets of
    their own domain to the rails (topologies/routing.py).
    """
    preferred = default_path(policy, src, dst)
    if usable(preferred, src, dst, broken, kind):
        return preferred
    return next((p for p in alternatives(src, dst, rails, kind) if usable(p, src, dst, broken, kind)), None)


def next_hop(path: Path, src: Gpu, dst: Gpu) -> tuple[Device, Gpu | None]:
    """What the source's main table must say: the interface, and the GPU to hand it to (None: straight to `dst`)."""
    match path.kind:
        case "d":
            return "hb0", None
        case "dr" | "drd":
            return "hb0", Gpu(src.domain, path.rail)
        case "rd":
            return "rail0", Gpu(dst.domain, path.rail)
        case _:
            return "rail0", None


def name_of(path: Path) -> str:
    """`dr by rail 2`; where there is no choice of a rail, the kind alone."""
    return path.kind if path.kind in ("d", "spine") else f"{path.kind} by rail {path.rail}"

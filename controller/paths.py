"""Which way from one GPU to another in a different domain, given what is dead.

Sources: Rail-only IV-B (HB domain first: dr), IV-C (what is unavailable after a failure); Outshift health routing
part 2 for drd. The papers leave a GPU unavailable when its rail link or switch is dead; here another rail of its domain
carries it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from topologies.addresses import Gpu
from topologies.routes import Device
from topologies.spec import Kind, Policy

PathKind = Literal["d", "r", "dr", "rd", "drd", "spine"]


@dataclass(frozen=True, slots=True)
class Path:
    """How a packet goes: `rail` is the one it crosses (for spine, and for d, which crosses none: the source's)."""

    kind: PathKind
    rail: int


@dataclass(frozen=True, slots=True)
class Broken:
    """What is dead: rail links by their GPU (a crashed GPU is one too), rail switches by rank (the single switch is 0),
    and the pairs of ranks, both ways round, whose rail switches no spine joins any more.
    """

    links: frozenset[Gpu] = frozenset()
    rails: frozenset[int] = frozenset()
    apart: frozenset[tuple[int, int]] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.links or self.rails or self.apart)


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
    """True if every rail link and switch on the path lives."""
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
    return not (path.kind == "spine" and (path.rail, far_rail) in broken.apart)


def alternatives(src: Gpu, dst: Gpu, rails: int, kind: Kind) -> Iterator[Path]:
    """Ways round, best first: two hops, then the spine, then three hops, beginning at another rail for another pair."""
    if src.rank != dst.rank:
        yield Path("rd", src.rank)
        yield Path("dr", dst.rank)
        if kind != "rail-only":
            yield Path("spine", src.rank)
    others = [rail for rail in range(rails) if rail not in (src.rank, dst.rank)]
    first = src.domain + dst.domain + src.rank
    for step in range(len(others)):
        yield Path("drd", others[(first + step) % len(others)])


def choose(policy: Policy, src: Gpu, dst: Gpu, broken: Broken, rails: int, kind: Kind) -> Path | None:
    """The policy's own path if it lives, else the first way round that does; None if there is none."""
    own = default_path(policy, src, dst)
    if usable(own, src, dst, broken, kind):
        return own
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

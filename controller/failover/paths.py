"""Choice of the path from one GPU to another in a different domain, given what is dead.

Sources: Rail-only IV-B (HB domain first: dr), IV-C (what is unavailable after a failure); Outshift health routing
part 2 for drd. The papers leave a GPU unavailable when its rail link or switch is dead; here another rail of its domain
carries it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from railyard.topologies.addresses import Gpu
from railyard.topologies.fabric_kinds import FABRIC_KINDS, FabricKind
from railyard.topologies.forwarding import Path, Share, Shares, hb_ports, path_of
from railyard.topologies.spec import FabricSpec


@dataclass(frozen=True, slots=True)
class Broken:
    """What is dead: rail links by their GPU, rail switches by index (the rank; the single switch is 0), the pairs of
    ranks, both ways round, whose rail switches no spine joins any more, and HB ports by their GPU. A crashed GPU is in
    `links` and in `hb`; a dead HB domain is all its ports. Where GPUs have several rail links, `planes` has those that
    are dead as (GPU, plane), and `links` the GPUs that have none left.
    """

    links: frozenset[Gpu] = frozenset()
    rails: frozenset[int] = frozenset()
    disconnected_ranks: frozenset[tuple[int, int]] = frozenset()
    hb: frozenset[Gpu] = frozenset()
    planes: frozenset[tuple[Gpu, int]] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.links or self.rails or self.disconnected_ranks or self.hb or self.planes)


def living_planes(a: Gpu, b: Gpu, broken: Broken, kind: FabricKind) -> tuple[int, ...]:
    """Return the planes that carry what is left of the traffic between two GPUs of one rank; () if none joins them."""
    living = tuple(
        plane
        for plane in kind.all_planes
        if kind.rail_switch(a.rank, plane).index not in broken.rails
        and (a, plane) not in broken.planes
        and (b, plane) not in broken.planes
    )
    return kind.carrying(living) if living else ()


def usable(path: Path, src: Gpu, dst: Gpu, broken: Broken, kind: str) -> bool:
    """True if every rail link, rail switch and HB port on the path lives."""
    if broken.hb and not broken.hb.isdisjoint(hb_ports(path, src, dst)):
        return False
    if path.kind == "d":
        return True
    far_rail = dst.rank if path.kind == "spine" else path.rail
    ends = (Gpu(src.domain, path.rail), Gpu(dst.domain, far_rail))
    if broken.links and (ends[0] in broken.links or ends[1] in broken.links):
        return False
    definition = FABRIC_KINDS[kind]
    if definition.planes > 1:
        return bool(living_planes(*ends, broken, definition))
    if broken.rails:
        switch = definition.rail_switch
        if switch(path.rail).index in broken.rails or switch(far_rail).index in broken.rails:
            return False
    return not (path.kind == "spine" and (path.rail, far_rail) in broken.disconnected_ranks)


def is_intact(path: Path, src: Gpu, dst: Gpu, broken: Broken, kind: str) -> bool:
    """Return whether a path is usable over all planes, so that no flow on it is interrupted."""
    definition = FABRIC_KINDS[kind]
    if not usable(path, src, dst, broken, kind) or definition.planes == 1 or path.kind == "d":
        return usable(path, src, dst, broken, kind)
    ends = (Gpu(src.domain, path.rail), Gpu(dst.domain, path.rail))
    return living_planes(*ends, broken, definition) == definition.carrying(definition.all_planes)


def alternatives(src: Gpu, dst: Gpu, rails: int, kind: str) -> Iterator[Path]:
    """Ways round, best first: two hops, then the spine, then three hops, beginning at another rail for another pair.

    Each further rail is drawn anew for each pair, so that those whom a second fault turns away part as well.
    """
    if src.rank != dst.rank:
        yield path_of("rd", src.rank)
        yield path_of("dr", dst.rank)
        if FABRIC_KINDS[kind].joins_rails:
            yield path_of("spine", src.rank)
    left = [rail for rail in range(rails) if rail not in (src.rank, dst.rank)]
    for draw in range(len(left)):
        number = (1 + 2 * draw) * src.domain + (1 + draw) * dst.domain + src.rank
        yield path_of("drd", left.pop(number % len(left)))


def choose(fabric: FabricSpec, src: Gpu, dst: Gpu, broken: Broken) -> Shares:
    """Return the policy's own paths that live, else the first alternative that does; () if there is none.

    Within a domain there is no alternative to a dead HB port, since GPUs don't hand packets of their own domain to the
    rails (topologies/routing.py).
    """
    own = tuple(share for share in fabric.paths(src, dst) if usable(share.path, src, dst, broken, fabric.kind))
    if own:
        return own
    paths = alternatives(src, dst, fabric.rails, fabric.kind)
    return next(((Share(path),) for path in paths if usable(path, src, dst, broken, fabric.kind)), ())

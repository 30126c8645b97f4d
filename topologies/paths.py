"""Paths between two GPUs: their kinds, the hops that each consists of, and the next hop at the source.

| kind  | hops from G(d1,g1) to G(d2,g2)                                     | `rail` |
|-------|--------------------------------------------------------------------|--------|
| d     | the HB domain (d1 = d2)                                            | g1     |
| r     | the rail (g1 = g2)                                                 | g1     |
| dr    | HB domain to G(d1,g2), then its rail                               | g2     |
| rd    | own rail to G(d2,g1), then the HB domain                           | g1     |
| drd   | HB domain to G(d1,x), rail x to G(d2,x), HB domain                 | x      |
| spine | the NIC network alone, from rail g1 to rail g2                     | g1     |

Source: Rail-only IV-B (dr), Outshift health routing, parts 1 and 2 (rd, drd).
"""

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, NamedTuple

from railyard.topologies.addresses import Gpu, Side

PathKind = Literal["d", "r", "dr", "rd", "drd", "spine"]


@dataclass(frozen=True, slots=True)
class Path:
    """The route of a packet: the kind, and the rail that it crosses (see the table above)."""

    kind: PathKind
    rail: int


path_of: Final = cache(Path)
"""Return the one Path object of a kind and a rail: there are few, and millions of requests for them."""


class Share(NamedTuple):
    """A path and its share of a pair's traffic: `weight` out of the sum of the pair's weights. Flows are hashed."""

    path: Path
    weight: int = 1


Shares = tuple[Share, ...]


class Hop(NamedTuple):
    """One step of a path: from GPU `a`'s interface of a side to GPU `b`'s."""

    a: Gpu
    b: Gpu
    side: Side


def hops(path: Path, src: Gpu, dst: Gpu) -> tuple[Hop, ...]:
    """Return the steps of a path in the order of travel."""
    if path.kind == "d":
        return (Hop(src, dst, "hb"),)
    if path.kind == "spine":
        return (Hop(src, dst, "rail"),)
    enter, leave = Gpu(src.domain, path.rail), Gpu(dst.domain, path.rail)
    steps = (Hop(src, enter, "hb"), Hop(enter, leave, "rail"), Hop(leave, dst, "hb"))
    return tuple(step for step in steps if step.a != step.b)


def hb_ports(path: Path, src: Gpu, dst: Gpu) -> tuple[Gpu, ...]:
    """Return the GPUs whose HB ports a path crosses."""
    if path.kind == "spine":
        return ()
    if path.kind == "d":
        return (src, dst)
    near, far = Gpu(src.domain, path.rail), Gpu(dst.domain, path.rail)
    return (() if near == src else (src, near)) + (() if far == dst else (far, dst))


def path_problem(path: object, src: Gpu, dst: Gpu, rails: int) -> str:
    """Return why a path can't lead from `src` to `dst`, two GPUs that differ in domain and rank; "" if it can."""
    if not isinstance(path, Path):
        return f"gives {path!r}, which is no Path"
    allowed = {"dr": [dst.rank], "rd": [src.rank], "spine": [src.rank]}
    allowed["drd"] = [rail for rail in range(rails) if rail not in (src.rank, dst.rank)]
    if path.kind not in allowed:
        return f"gives a path of kind {path.kind!r} between two domains and ranks: allowed are {', '.join(allowed)}"
    if path.rail not in allowed[path.kind]:
        of = f"{path.kind} from {src.name} to {dst.name} crosses rail {' or '.join(map(str, allowed[path.kind]))}"
        return f"gives rail {path.rail}, but {of}"
    return ""


def path_name(path: Path) -> str:
    """Return `dr by rail 2`; where there is no choice of a rail, the kind alone."""
    return path.kind if path.kind in ("d", "spine") else f"{path.kind} by rail {path.rail}"


def path_names(shares: Shares) -> str:
    """Return `dr by rail 2 + rd by rail 1`; `none` where there is no path."""
    return " + ".join(path_name(share.path) for share in shares) or "none"

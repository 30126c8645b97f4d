"""A fabric, drawn as in Rail-only Fig. 1 and 6: HB domains with their GPUs below, rail switches above, then spines."""

import re
from itertools import chain, product
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import FancyBboxPatch, Rectangle

from railyard.results.format import rate, short
from railyard.results.plots import style
from railyard.results.runs.records import FabricRun
from railyard.topologies.fabric_kinds import FABRIC_KINDS, FabricKind

# of a larger fabric the first domains and rails stand for the rest
_MAX_GPUS: Final = 128
_MAX_RAILS: Final = 16
# up to so many GPUs half the width of the page will do
_MAX_HALF_WIDTH_GPUS: Final = 32
# with more domains their names, and those of their optical switches, would overlap
_MAX_NAMED_DOMAINS: Final = 12
_OPTICAL_SWITCH_HEIGHT: Final = 2.6  # how high an optical switch of a domain is drawn
_Y: Final = {"domain": 0.0, "gpu": 4.0, "domain_optics": 13.0, "optics": 18.0, "rail": 30.0, "spine": 46.0}
_SWITCH_HEIGHT: Final = 4.5
_TIER: Final = 16.0  # between two tiers of switches of a graph
GPU_NAME: Final = re.compile(r"d\d+g\d+")
_OPTICS: Final = {"rail": ("ocs0", "rails"), "hb": ("ocs1", "HB domains")}
Point = tuple[float, float]
Points = dict[tuple[int, int], Point]  # by GPU: domain and rank
_PER_DOMAIN: Final = ("rail",)  # layers with optical switches where each domain has one of its own


def draw(fabric: FabricRun) -> style.Plot:
    """GPUs are squares, in the colour of their rail, as are their links to its switch."""
    rails = min(fabric.rails, _MAX_RAILS)
    domains = max(2, min(fabric.domains, _MAX_GPUS // rails))
    width = 100.0 if is_small(fabric) else 200.0
    tiers = _tiers(fabric)
    if fabric.spines:
        top = _Y["spine"] + 8
    else:
        top = _Y["rail"] + 8 + _TIER * max(0, len(tiers) - 1)
    with style.drawing(style.WIDTH * (top + 5) / 208, style.WIDTH * width / 200) as figure:
        axes = figure.subplots()
        axes.set(xlim=(-2, width + 2), ylim=(-5, top), aspect="equal")
        axes.set_axis_off()
        gpus = _domains(axes, domains, rails, width)
        if fabric.cables:
            _graph(axes, fabric, tiers, gpus, width)
        elif len(fabric.switches) == 1:
            centre = (width / 2, _Y["rail"])
            for (_, rank), gpu in gpus.items():
                _cables(axes, [gpu], centre, _colour(rank, rails), 0.9)
            _switch(axes, centre, 24, fabric.switches[0], style.MUTED)
        else:
            ends = gpus
            if fabric.optics == _PER_DOMAIN:
                ends = _domain_optical_switches(axes, gpus, domains, width)
            _rails(axes, fabric, rails, ends, width)
        if fabric.optics != _PER_DOMAIN:
            _shared_optical_switches(axes, fabric, width)
        caption = _caption(fabric)
        part = (domains, rails) != (fabric.domains, fabric.rails)
        alt = f"Drawing of the {fabric.label} fabric: {caption}"
        if part:
            caption = f"{domains} of {fabric.domains} domains, {rails} of {fabric.rails} rails drawn. {caption}"
        return style.finish(figure, f"fabric-{fabric.label}", alt, caption)


def _shared_optical_switches(axes: Axes, fabric: FabricRun, width: float) -> None:
    """Draw each optical switch that is for all domains as a band that all cables of its layer go through."""
    for layer in _layers(fabric):
        if layer == "rail":
            y = _Y["optics"]
            colour = style.MUTED
        else:
            y = _Y["domain"] - 0.6
            colour = style.DOMAIN
        axes.add_patch(Rectangle((0, y), width, 1.2, facecolor=colour + "40", edgecolor=colour, linewidth=0.6))
        axes.text(width + 0.5, y + 0.6, _OPTICS[layer][0], ha="left", va="center", fontsize=8)


def is_small(fabric: FabricRun) -> bool:
    """Return True if two such drawings fit beside each other."""
    return fabric.domains * fabric.rails <= _MAX_HALF_WIDTH_GPUS


def _domains(axes: Axes, domains: int, rails: int, width: float) -> Points:
    """Draw the HB domains; returns the top of each GPU (domain, rank)."""
    pitch = width / domains
    box = pitch * 0.9
    side = min(box / (rails + 0.6), 6.0)
    tops = {}
    for d in range(domains):
        left_edge = pitch * (d + 0.5) - box / 2
        _box(axes, (left_edge, _Y["domain"]), (box, side + 4), 1, style.DOMAIN + "26", style.DOMAIN, 0.9)
        name = f"HB {d}" if domains <= _MAX_NAMED_DOMAINS else f"{d}"
        axes.text(left_edge + box / 2, -1.2, name, ha="center", va="top", fontsize=9)
        for g in range(rails):
            x = left_edge + box * (g + 0.5) / rails
            square = (x - side * 0.42, _Y["domain"] + 2)
            axes.add_patch(Rectangle(square, side * 0.84, side * 0.84, color=_colour(g, rails), linewidth=0))
            tops[d, g] = (x, _Y["domain"] + 2 + side * 0.84)
    return tops


def _rails(axes: Axes, fabric: FabricRun, rails: int, gpus: Points, width: float) -> None:
    """Draw the rail switches, those of several planes beside each other, with their cables; and the spines above."""
    pitch = width / rails
    kind = _kind(fabric)
    planes = _planes(fabric)
    places: dict[str, list[tuple[int, float]]] = {}
    rail_of = fabric.nics or range(rails)
    for g, plane in product(range(rails), range(planes)):
        name = kind.rail_switch(rail_of[g], plane).name if kind else f"rail{rail_of[g]}"
        places.setdefault(name, []).append((g, pitch * (g + (plane + 0.5) / planes)))
    # a switch may serve several rails, or ranks that share NICs
    centres: list[Point] = []
    for name, of_rails in places.items():
        centre = (sum(x for _, x in of_rails) / len(of_rails), _Y["rail"])
        centres.append(centre)
        for g, _ in of_rails:
            tops = [top for (_, rank), top in gpus.items() if rank == g]
            _cables(axes, tops, centre, _colour(g, rails), 0.9)
        colour = style.MUTED
        if len(of_rails) == 1:
            colour = _colour(of_rails[0][0], rails)
        label = name
        if rails * planes > 10:
            label = name.removeprefix("rail")
        _switch(axes, centre, min(pitch * 0.8 / planes, 16), label, colour)
    for i in range(fabric.spines):
        spine = (width * (i + 0.5) / fabric.spines, _Y["spine"])
        rail_tops = [(x, y + 4) for x, y in centres]
        _cables(axes, rail_tops, spine, style.MUTED, 1.2)
        name = f"spine{i}" if fabric.spines <= 8 else f"{i}"
        _switch(axes, spine, min(width / fabric.spines * 0.8, 20), name, style.MUTED)


def _tiers(fabric: FabricRun) -> list[list[str]]:
    """Return the switches of a graph by their distance from GPUs, and in each tier in the order of the kind."""
    reached = {a for a, _ in fabric.cables if GPU_NAME.fullmatch(a)}
    tiers: list[list[str]] = []
    while True:
        ends_of_reached = [ends for ends in fabric.cables if reached.intersection(ends)]
        nearest = set(chain.from_iterable(ends_of_reached)) - reached
        if not nearest:
            return tiers
        tiers.append([name for name in fabric.switches if name in nearest])
        reached |= nearest


def _graph(axes: Axes, fabric: FabricRun, tiers: list[list[str]], gpus: Points, width: float) -> None:
    """Draw the switches of a graph in tiers, with the cables of the GPUs that are drawn and those between switches."""
    at: dict[str, Point] = {}
    colours: dict[str, str] = {}
    rails = _rail_count(gpus)
    for (domain, rank), point in gpus.items():
        name = f"d{domain}g{rank}"
        at[name] = point
        colours[name] = _colour(rank, rails)
    boxes: list[tuple[str, Point, float]] = []
    for number, tier in enumerate(tiers):
        pitch = width / len(tier)
        for place, name in enumerate(tier):
            centre = (pitch * (place + 0.5), _Y["rail"] + _TIER * number)
            boxes.append((name, centre, min(pitch * 0.8, 20)))
            at[name] = centre
    for ends in fabric.cables:
        if all(name in at for name in ends):
            lower, upper = sorted(ends, key=lambda name: at[name][1])
            x, y = at[lower]
            is_gpu = lower in colours
            start = (x, y) if is_gpu else (x, y + _SWITCH_HEIGHT)
            _cables(axes, [start], at[upper], colours.get(lower, style.MUTED), 0.9)
    for name, centre, size in boxes:
        # a name is wider than a small box
        label = name if size > 6 else ""
        _switch(axes, centre, size, label, style.MUTED)


def _kind(fabric: FabricRun) -> FabricKind | None:
    """Return the definition of a fabric's kind; None for a plugin's that isn't loaded."""
    if fabric.kind in FABRIC_KINDS:
        return FABRIC_KINDS[fabric.kind]
    return None


def _planes(fabric: FabricRun) -> int:
    kind = _kind(fabric)
    if kind is None:
        return 1
    return kind.planes


def _layers(fabric: FabricRun) -> tuple[str, ...]:
    """Return the layers with optical switches."""
    if fabric.optics:
        return fabric.optics
    # runs of a time when an optical switch was for all domains don't record it: there each has its name
    return tuple(layer for layer, (name, _) in _OPTICS.items() if name in fabric.switches)


def _domain_optical_switches(axes: Axes, gpus: Points, domains: int, width: float) -> Points:
    """Draw an optical switch over each domain, and the fibres into it; returns where each GPU's cable leaves it."""
    pitch = width / domains
    for d in range(domains):
        corner = (pitch * (d + 0.05), _Y["domain_optics"])
        size = (pitch * 0.9, _OPTICAL_SWITCH_HEIGHT)
        axes.add_patch(Rectangle(corner, *size, facecolor=style.MUTED + "40", edgecolor=style.MUTED, linewidth=0.6))
        if domains <= _MAX_NAMED_DOMAINS:
            middle = (pitch * (d + 0.5), _Y["domain_optics"] + _OPTICAL_SWITCH_HEIGHT / 2)
            axes.text(*middle, f"ocs{d}", ha="center", va="center", fontsize=8)
    rails = _rail_count(gpus)
    for (_, rank), top in gpus.items():
        _cables(axes, [top], (top[0], _Y["domain_optics"]), _colour(rank, rails), 0.9)
    top_y = _Y["domain_optics"] + _OPTICAL_SWITCH_HEIGHT
    return {gpu: (x, top_y) for gpu, (x, _) in gpus.items()}


def _rail_count(gpus: Points) -> int:
    return 1 + max(rank for _, rank in gpus)


def _cables(axes: Axes, ends: list[Point], centre: Point, colour: str, width: float) -> None:
    # many cables would run together into a patch of colour
    if len(ends) > 8:
        width /= 2
    lines = [[end, centre] for end in ends]
    axes.add_collection(LineCollection(lines, colors=colour, linewidths=width, alpha=0.75))


def _switch(axes: Axes, centre: Point, width: float, name: str, colour: str) -> None:
    _box(axes, (centre[0] - width / 2, centre[1]), (width, _SWITCH_HEIGHT), 0.8, style.PAPER, colour, 1.3)
    axes.text(centre[0], centre[1] + 2.1, name, ha="center", va="center", fontsize=9)


def _box(axes: Axes, corner: Point, size: Point, radius: float, face: str, edge: str, line: float) -> None:
    look: dict[str, Any] = {"facecolor": face, "edgecolor": edge, "linewidth": line}
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=f"round,pad=0,rounding_size={radius}", **look))


def _colour(rank: int, rails: int) -> str:
    return style.shade(style.RAIL_SHADES, rank, rails)


def _caption(fabric: FabricRun) -> str:
    parts = [f"{fabric.domains} HB domains × {fabric.rails} GPUs"]
    owner = "GPU"
    if fabric.nics:
        parts.append(f"{len(set(fabric.nics))} NICs a domain, which GPUs share")
        owner = "NIC"
    planes = _planes(fabric)
    if planes > 1:
        parts.append(f"{planes} planes per rail")
    if fabric.cables:
        parts.append(f"{len(fabric.switches)} switches")
    elif fabric.spines:
        parts.append(f"{fabric.spines} spines with {short(rate(fabric.uplink_bps))} to each rail")
    else:
        parts.append("no spine")
    optics = [_OPTICS[layer][1] for layer in _layers(fabric)]
    if optics:
        parts.append(f"optical circuit switches between GPUs and {' and '.join(optics)}")
    if optics and fabric.optics == _PER_DOMAIN:
        parts.append("one a domain")
    rates = f"HB {short(rate(fabric.hb_bps))}, rail {short(rate(fabric.rail_bps))} per {owner} and direction"
    kind = f"{fabric.kind[0].upper()}{fabric.kind[1:]}"
    return f"{kind}: {', '.join(parts)}. {rates}. Policy {fabric.policy}."

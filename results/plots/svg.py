"""Make Matplotlib's SVG small, and give its shapes tooltips and names of series.

Matplotlib writes six decimals, absolute coordinates, a style for every mark and an id for every group, which is three
quarters of the text. Coordinates are rounded to 0.1 of 720 units across, a third of a pixel at most on the page.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final
from xml.etree import ElementTree as ET

from matplotlib.artist import Artist

_MARK: Final = "mark:"
_XLINK: Final = "{http://www.w3.org/1999/xlink}href"
_DROPPED: Final = {"fill-opacity": "1", "stroke-opacity": "1", "opacity": "1", "stroke-width": "1", "font-family": ""}
# XML 1.0, production 2: a name may have characters that no XML parser reads
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# text is never shown smaller: a figure that would be scrolls sideways instead
_LEGIBLE_PX: Final = 9.0
# a path with more coordinates is a curve, in which a tenth of a unit isn't seen, and not a shape
_MANY: Final = 12


def mark(artists: Artist | Iterable[Artist], series: str = "", *tips: str) -> None:
    """Name the series of artists, which the page's legend can hide, and their tooltips: of each marker, or of all."""
    if isinstance(artists, Artist):
        artists = [artists]
    for artist in artists:
        artist.set_gid(_MARK + json.dumps([series, *tips]))


def compact(text: str, prefix: str, root: dict[str, str]) -> str:
    """Return Matplotlib's SVG as an element for a page: `root` are its attributes, `prefix` starts its ids."""
    svg = ET.fromstring(_NOT_XML.sub("\ufffd", text))
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    ids = {name: f"{prefix}-{number}" for number, name in enumerate(sorted(used))}
    box = svg.attrib["viewBox"]
    svg.attrib.clear()
    font_sizes = map(float, re.findall(r"font-size: ([\d.]+)px", text))
    smallest = min(font_sizes, default=_LEGIBLE_PX)
    width = f"min-width:{float(box.split()[2]) * _LEGIBLE_PX / smallest:.0f}px"
    svg.attrib.update({**root, "stroke-linejoin": "round", "viewBox": box, "style": width})
    _tidy(svg, ids, decimals=1)
    return ET.tostring(svg, encoding="unicode")


def _tidy(parent: ET.Element, ids: dict[str, str], decimals: int) -> None:
    parent.tag = parent.tag.rpartition("}")[2]
    if parent.tag != "text":
        parent.text = None
    if parent.tag in ("defs", "clipPath"):
        # shapes of markers are small, and drawn many times
        decimals = 2
    children: list[ET.Element] = []
    for child in parent:
        child.tag = child.tag.rpartition("}")[2]
        child.tail = None
        if child.tag in ("metadata", "style"):
            continue
        name = child.attrib.pop("id", "")
        _attributes(child, ids, decimals)
        _tidy(child, ids, decimals)
        if name in ids:
            child.set("id", ids[name])
        elif name.startswith(_MARK):
            _name_marks(child, *json.loads(name.removeprefix(_MARK)))
        if _is_unseen(child):
            continue
        if child.tag == "g" and not child.attrib:
            # a group without attributes changes nothing: its children take its place
            children += list(child)
        else:
            children.append(child)
    parent[:] = children
    if parent.tag == "g" and "style" not in parent.attrib:
        _share_style(parent)


def _is_unseen(element: ET.Element) -> bool:
    """Return True for a path that isn't drawn and not referred to, and for a group without children."""
    if element.tag == "path":
        return element.get("style") == "fill:none" and "id" not in element.attrib
    return element.tag in ("g", "defs") and not len(element)


def _share_style(group: ET.Element) -> None:
    """Give a group the style of its children, if there are several and all have the same."""
    styles = {child.get("style") for child in group}
    if len(group) < 2 or len(styles) != 1 or None in styles:
        return
    group.set("style", group[0].attrib["style"])
    for child in group:
        del child.attrib["style"]


def _attributes(element: ET.Element, ids: dict[str, str], decimals: int) -> None:
    target = element.attrib.pop(_XLINK, "")
    if target.startswith("#"):
        element.set("href", f"#{ids[target[1:]]}")
    elif target:
        element.set("href", target)
    for name, value in list(element.attrib.items()):
        if name == "style":
            element.set("style", _short_style(value, ids))
        elif name == "d":
            element.set("d", path_data(value, decimals))
        elif name in ("x", "y", "width", "height", "transform"):
            rounded = re.sub(r"-?\d+\.\d+", lambda number: _number(float(number[0]), 2), value)
            element.set(name, rounded)
            if name == "transform" and rounded.startswith("rotate(-0 "):
                del element.attrib[name]
        else:
            element.set(name, _reference(value, ids))


def _short_style(style: str, ids: dict[str, str]) -> str:
    """Return a style without its defaults and without the font, which the page decides."""
    parts: list[str] = []
    for part in style.split(";"):
        key, _, value = map(str.strip, part.partition(":"))
        if key and _DROPPED.get(key) not in (value, ""):
            parts.append(f"{key}:{_reference(value, ids)}")
    return ";".join(parts)


def _reference(value: str, ids: dict[str, str]) -> str:
    return re.sub(r"url\(#([^)]+)\)", lambda m: f"url(#{ids[m[1]]})", value)


def _name_marks(group: ET.Element, series: str, *tips: str) -> None:
    """Give a group its series and a title, or its markers a title each."""
    if series:
        group.set("data-series", series)
    elements = [group]
    marks = list(group.iter("use"))
    if len(tips) > 1 and len(tips) == len(marks):
        elements = marks
    for element, tip in zip(elements, tips, strict=False):
        title = ET.Element("title")
        title.text = tip
        element.insert(0, title)


def _number(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    if text in ("-0", ""):
        return "0"
    return re.sub(r"^(-?)0\.", r"\1.", text)


def path_data(data: str, decimals: int = 1) -> str:
    """Return absolute path data of M, L, Q, C and z with rounded and relative coordinates; shapes get a digit more."""
    parts: list[tuple[str, list[float]]] = []
    for part in re.findall(r"[A-Za-z][^A-Za-z]*", data):
        parts.append((part[0], list(map(float, part[1:].split()))))
    if sum(len(values) for _, values in parts) <= _MANY:
        decimals = 2
    unit = 10.0**-decimals
    return _joined(_relative_steps(parts, unit), unit, decimals)


def _relative_steps(parts: Sequence[tuple[str, Sequence[float]]], unit: float) -> list[tuple[str, list[int]]]:
    """Return commands with coordinates relative to the point before, in units. `parts`: with absolute ones."""
    steps: list[tuple[str, list[int]]] = []
    x = y = start_x = start_y = 0
    for command, values in parts:
        at = [round(value / unit) for value in values]
        if command == "M":
            steps.append(("M", at))
            x, y = start_x, start_y = at[0], at[1]
            continue
        if command in "zZ":
            steps.append(("z", []))
            x = start_x
            y = start_y
            continue
        moved = list(at)
        for place in range(0, len(at), 2):
            moved[place] -= x
            moved[place + 1] -= y
        x = at[-2]
        y = at[-1]
        _append(steps, command.lower(), moved)
    return steps


def _joined(steps: Sequence[tuple[str, Sequence[int]]], unit: float, decimals: int) -> str:
    """Return steps as path data. A minus sign separates numbers, and a repeated command is left out."""
    text = ""
    last_command = ""
    for command, moves in steps:
        numbers = " ".join(_number(value * unit, decimals) for value in moves).replace(" -", "-")
        if command != last_command or command in "Mz":
            text += command + numbers
        elif numbers.startswith("-"):
            text += numbers
        else:
            text += f" {numbers}"
        last_command = command
    return text


def _append(steps: list[tuple[str, list[int]]], command: str, moved: Sequence[int]) -> None:
    """Append a step: lines along an axis as h and v, joined where they go on, and none of no length."""
    last, before = steps[-1]
    if command != "l":
        steps.append((command, list(moved)))
    elif 0 not in moved:
        steps.append(("l", list(moved)))
    # a point of a line cap is a line of no length
    elif any(moved) or last == "M":
        dx, dy = moved
        if dx:
            command = "h"
        else:
            command = "v"
        by = dx or dy
        if last == command and before[0] * by > 0:
            steps[-1] = (command, [before[0] + by])
        else:
            steps.append((command, [by]))

"""What fabrics and workloads are called: by what they are, and by what sets them apart from others of their kind."""

import re
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from railyard.topologies.spec import FabricSpec

_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def plain_name(name: str) -> str:
    """An experiment's name, which becomes part of a folder's. ValueError for what it can't be."""
    if not _NAME.fullmatch(name):
        raise ValueError("must be lower-case letters, digits and single hyphens between them")
    return name


def traits(fabric: FabricSpec) -> dict[str, str]:
    """What may set a fabric apart, in the order in which a label takes it."""
    rates = fabric.model_dump(mode="json", include={"rail_rate", "hb_rate"})
    return {
        "policy": fabric.chosen_policy,
        "platform": Path(fabric.platform).stem,
        "size": f"{fabric.domains}x{fabric.rails}",
        "rail_rate": f"rail {rates['rail_rate']}",
        "hb_rate": f"HB {rates['hb_rate']}",
        "mtu": f"MTU {fabric.mtu}",
        "spines": f"{fabric.spine_count} spines",
        "oversubscription": f"{fabric.oversubscription or 1:g}:1",
        "optical": f"optical {' and '.join(fabric.optical.layers)}" if fabric.optical else "",
    }


def distinct_labels(names: Sequence[str], traits: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Each name with those of its traits that differ among its namesakes, and a number where that doesn't suffice."""
    labels: list[str] = []
    for name, mine in zip(names, traits, strict=True):
        namesakes = [t for n, t in zip(names, traits, strict=True) if n == name]
        distinguishing = [value for key, value in mine.items() if len({t.get(key, "") for t in namesakes}) > 1]
        label = " ".join([name, *(t for t in distinguishing if t)])
        numbered = (label if n == 1 else f"{label} {n}" for n in count(1))
        labels.append(next(choice for choice in numbered if choice not in labels))
    return tuple(labels)

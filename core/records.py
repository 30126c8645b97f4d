"""Identity of what a run records: which fabric ran what, under which policy, in which scene, with which faults."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class IntervalId:
    """Identity of one measurement interval. Every record of the interval carries it; fields that don't apply are empty.

    `fabric`, `workload`: as the experiment names them. `policy`: the forwarding policy, or the one that steered routes.
    `scene`: a scene of background load. `script`: the failure script that ran beside it, or a GPU replacement.
    `reroute`: "on" or "off" where faults were injected. `part`: what tells intervals of one script apart: a fault that
    was injected alone ("link-down d0g1"), or a step of a replacement. Views make labels of it; nothing parses them.
    """

    fabric: str = ""
    workload: str = ""
    policy: str = ""
    scene: str = ""
    script: str = ""
    repeat: int = 0
    reroute: str = ""
    part: str = ""

    @property
    def work(self) -> "IntervalId":
        """What ran, wherever and however often it did: the identity without fabric, policy and repeat."""
        return replace(self, fabric="", policy="", repeat=0)

    @property
    def is_replacement(self) -> bool:
        """Whether it is a step of a GPU replacement, which has a fabric of its own, with spares."""
        return bool(self.script and self.part)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set, and the repeat, as plain data for events and JSON."""
        return {name: value for name in INTERVAL_FIELDS if (value := getattr(self, name)) or name == "repeat"}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "IntervalId":
        """Return the identity in plain data, such as an event's detail; other keys are ignored."""
        return cls(**{name: data[name] for name in INTERVAL_FIELDS if name in data})


INTERVAL_FIELDS = tuple(f.name for f in fields(IntervalId))

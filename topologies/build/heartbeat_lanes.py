"""A lane for heartbeats on every link of a GPU: a class of its own in the shapers, while heartbeats are sent.

Whether the lanes are open stands in the sandbox's own /run, for whoever makes a shaper anew meanwhile.
"""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from railyard.topologies.build import namespaces
from railyard.topologies.build.shaping import heartbeat_lane_commands, remove_heartbeat_lane_commands
from railyard.topologies.optical import LAYERS
from railyard.topologies.plan import End, Plan

ENABLED_FILE: Final = Path("/run/railyard/beat-lanes")


def ends(plan: Plan) -> frozenset[End]:
    """Where heartbeats leave: both ends of each GPU's two links, up to its place. Over spines go none."""
    links = [link for gpu in plan.gpus for layer in LAYERS for link in plan.cables(gpu, layer)]
    return frozenset(end for link in links for end in (link.a, link.b))


def lanes_enabled() -> bool:
    return ENABLED_FILE.exists()


def enable_lanes(plan: Plan) -> None:
    """Open them on a fabric that stands, whatever it carries."""
    _run(plan, lambda interface: heartbeat_lane_commands(interface, plan.spec.mtu))
    ENABLED_FILE.parent.mkdir(parents=True, exist_ok=True)
    ENABLED_FILE.touch()


def disable_lanes(plan: Plan) -> None:
    """Make the shapers what they were."""
    ENABLED_FILE.unlink()
    _run(plan, remove_heartbeat_lane_commands)


def _run(plan: Plan, command: Callable[[str], str]) -> None:
    lines: defaultdict[str, str] = defaultdict(str)
    for end in sorted(ends(plan), key=lambda end: (end.node, end.interface)):
        lines[end.node] += command(end.interface)

    def work(node: str) -> None:
        with namespaces.inside(node):
            namespaces.run(["tc", "-batch", "-"], lines[node])

    namespaces.in_threads(work, list(lines))

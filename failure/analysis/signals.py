"""Which of the controller's words are about a fault: with several at once, the first "port-down" may be another's."""

from collections.abc import Mapping
from typing import Any

from railyard.failure.oracle.dead import CONTROL_PLANE_KINDS, gpus_of
from railyard.failure.scenario.kinds import Fault
from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.optical import LAYERS, Layer
from railyard.topologies.plan import Plan

SILENCE_KEYS = ("link", "gpu", "hb-link", "rail", "hb-domain")
"""What heartbeats call silent: an event "silent" has one of these, with a name."""


def is_signal_of(fault: Fault, plan: Plan, event_kind: str, detail: Mapping[str, Any]) -> bool:
    """Whether an event says that something is down because of this fault, as far as its words can tell.

    A rail link can be told as its whole rail, and an HB port as its domain: where too few members are left for
    heartbeats to tell them apart.
    """
    if fault.kind in CONTROL_PLANE_KINDS:
        return False  # what is told of these is the injector's own word
    if fault.kind in ("spine-crash", "rail-switch-crash", "rail-switch-hang", "rail-switch-reboot"):
        silent = event_kind == "silent" and detail.get("rail") == _rail_of_switch(plan, fault.target)
        return silent or (event_kind, detail.get("switch")) == ("switch-down", fault.target)
    gpus = gpus_of(fault, plan) or frozenset({gpu_of_name(fault.target)})
    if event_kind == "port-down":
        layers = {"hb-port-down": ("hb",), "gpu-crash": LAYERS, "server-crash": LAYERS}.get(fault.kind, ("rail",))
        hb_optics = {switch.name for switch in plan.optics.get("hb", ())}
        layer: Layer = "hb" if detail.get("switch") in hb_optics else "rail"
        return layer in layers and any(detail.get("port") == gpu.name for gpu in gpus)
    if event_kind != "silent":
        return False
    return any((key, str(detail[key])) in _silence_labels(fault, plan, gpus) for key in SILENCE_KEYS if key in detail)


def _silence_labels(fault: Fault, plan: Plan, gpus: frozenset[Gpu]) -> set[tuple[str, str]]:
    """(kind, name) of all that heartbeats may tell for it."""
    found = {("gpu", gpu.name) for gpu in gpus}
    if not fault.kind.startswith("link"):
        found |= {("hb-link", gpu.name) for gpu in gpus} | {("hb-domain", f"hb{gpu.domain}") for gpu in gpus}
    if fault.kind != "hb-port-down":
        found |= {("link", gpu.name) for gpu in gpus}
        found |= {("rail", rail_of(plan, gpu)) for gpu in gpus}
    return found


def rail_of(plan: Plan, gpu: Gpu) -> str:
    """A GPU's rail, as heartbeats call it."""
    return _rail_of_switch(plan, plan.rail_switch_end(gpu).node)


def _rail_of_switch(plan: Plan, name: str) -> str:
    """A rail switch as heartbeats call it: the single switch is rail0. Spines have no such name."""
    switch = next(switch for switch in plan.switches if switch.name == name)
    return "" if switch.role == "spine" else f"rail{switch.index}"

"""Which events of the controller announce a fault. With several faults at once an event may be about another one."""

from collections.abc import Mapping
from typing import Any, Final

from railyard.failure.faults.support.impact import Impact
from railyard.topologies.addresses import Gpu
from railyard.topologies.optical import Layer
from railyard.topologies.plan import Plan

SILENCE_KEYS: Final = ("link", "gpu", "hb-link", "rail", "hb-domain")
"""What heartbeats report as silent: an event "silent" has one of these keys, with a name."""


def is_signal_of(impact: Impact, plan: Plan, event_kind: str, detail: Mapping[str, Any]) -> bool:
    """Whether an event says that something is down because of this impact, as far as its fields can tell.

    A rail link can be reported as its whole rail, and an HB port as its domain: where too few members are left for
    heartbeats to tell them apart.
    """
    if event_kind == "switch-down":
        return detail.get("switch") in impact.nodes
    if event_kind == "port-down":
        hb_optics = {switch.name for switch in plan.optics.get("hb", ())}
        layer: Layer = "hb" if detail.get("switch") in hb_optics else "rail"
        gpus = impact.dead_gpus | impact.gpus_impaired_at(layer)
        return any(detail.get("port") == gpu.name for gpu in gpus)
    if event_kind != "silent":
        return False
    labels = silence_labels(impact, plan)
    return any((key, str(detail[key])) in labels for key in SILENCE_KEYS if key in detail)


def silence_labels(impact: Impact, plan: Plan) -> set[tuple[str, str]]:
    """(key, name) of everything that heartbeats may report for an impact."""
    dead, on_rail, on_hb = impact.dead_gpus, impact.gpus_impaired_at("rail"), impact.gpus_impaired_at("hb")
    found = {("gpu", gpu.name) for gpu in dead | on_rail | on_hb}
    found |= {("link", gpu.name) for gpu in dead | on_rail} | {("rail", rail_of(plan, g)) for g in dead | on_rail}
    found |= {("hb-link", gpu.name) for gpu in dead | on_hb}
    found |= {("hb-domain", f"hb{gpu.domain}") for gpu in dead | on_hb}
    return found | {("rail", rail) for rail in dead_rails(impact, plan)}


def dead_rails(impact: Impact, plan: Plan) -> frozenset[str]:
    """The rails whose switch is dead, as heartbeats name them: the single switch is rail0."""
    return frozenset(f"rail{s.index}" for s in plan.switches if s.name in impact.nodes and s.role in ("rail", "single"))


def rail_of(plan: Plan, gpu: Gpu) -> str:
    """A GPU's rail, as heartbeats name it."""
    name = plan.rail_switch_end(gpu).node
    return next(f"rail{switch.index}" for switch in plan.switches if switch.name == name)

"""Answers of lab 4: backup routes and detours while a link is cut, and recovery times of the student's run."""

from railyard.controller.failover.detours import DETOUR_METRIC as DETOUR_METRIC  # for expressions of the lab
from railyard.controller.failover.detours import Broken, choose
from railyard.core.records import Recovery
from railyard.experiments.labs.definition import Answer, Setting
from railyard.topologies.routing import BACKUP_METRIC as BACKUP_METRIC  # for expressions of the lab
from railyard.topologies.routing import backup_routes


def backup_gpu(setting: Setting) -> str:
    """Return the GPU that the backup route of the GPU with the cut cable leads to."""
    next_gpu = backup_routes(setting.plan(), setting.gpu("gpu"))[0].hops[0].via
    return next_gpu.name if next_gpu else ""


def detour_rail(setting: Setting, source: str, destination: str) -> str:
    """Return the rail of the controller's detour between two GPUs while the variant's link is cut."""
    broken = Broken(links=frozenset([setting.gpu("gpu")]))
    detours = choose(setting.fabric(), setting.gpu(source), setting.gpu(destination), broken)
    return f"rail{detours[0].path.rail}"


def recovery(setting: Setting, kind: str, reroute: str) -> Recovery:
    """Return the record of a fault in the student's run."""
    return setting.recovery("measured", fault=kind, reroute=reroute)


def ms(value: float | None) -> Answer:
    """Return a time in ms as an answer; what didn't happen before the repair is `never`."""
    return "never" if value is None else value


def slowest_fault(setting: Setting) -> str:
    """Return the fault after which the first packet arrived last, with rerouting."""

    def first_packet_ms(kind: str) -> float:
        value = recovery(setting, kind, "on").first_packet_ms
        return float("inf") if value is None else value

    return max(("link-down", "rail-switch-crash"), key=first_packet_ms)


def recovered(setting: Setting, reroute: str) -> str:
    """Return whether the traffic of the cut cable was back before the repair, as `yes` or `no`."""
    return "yes" if recovery(setting, "link-down", reroute).recovered else "no"

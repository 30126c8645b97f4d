"""Keys `hosts` and `underlay` of an experiment's file: one fabric over several machines."""

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator, Field

from railyard.core.config import ConfigModel
from railyard.core.errors import BadInput
from railyard.core.units import Time

if TYPE_CHECKING:
    from railyard.experiments.spec.experiment import ExperimentSpec

MAX_HOSTS: Final = 64
Port = Annotated[int, Field(ge=1024, le=65535)]
_ONE_MACHINE: Final = (
    "routing", "background", "grid", "faults", "scripts", "replacements", "trainings"
)  # fmt: skip
"""Sections of an experiment that need all GPUs on one machine."""


def _interface(name: str) -> str:
    if name and (len(name) > 15 or not name.isprintable() or set(name) & set("/ :%\"'")):
        raise ValueError("must be the name of a network interface")
    return name


class UnderlaySpec(ConfigModel):
    """The network between the machines. `interface`: of this machine, with the IPv4 address that the others reach.

    Other machines join at TCP port `port`, `wait` long at most. Cables between machines are VXLAN on UDP port
    `tunnel_port`: none of the machine's own tunnels may use it.
    """

    interface: Annotated[str, AfterValidator(_interface)] = ""
    port: Port = 7911
    tunnel_port: Port = 47_911
    wait: Annotated[Time, Field(ge=1, le=3600)] = 30.0


def check_hosts(spec: "ExperimentSpec") -> None:
    """Raise BadInput for what can't be on several machines, and for an underlay that nothing would use."""
    if spec.hosts == 1:
        if spec.underlay != UnderlaySpec():
            raise BadInput("underlay", spec.underlay.model_dump(mode="json"), "is for hosts of 2 or more")
        return
    if not spec.underlay.interface:
        raise BadInput("underlay.interface", "", "must be named: the interface that leads to the other machines")
    for key in _ONE_MACHINE:
        if given := getattr(spec, key):
            count = len(given) if isinstance(given, tuple) else 1
            raise BadInput(key, count, "can't be given together with hosts: it needs all GPUs on one machine")
    for i, fabric in enumerate(spec.gpu_fabrics):
        if fabric.spine_count or fabric.optical:
            what = "spines" if fabric.spine_count else "optical switches"
            raise BadInput(f"fabrics.{i}.kind", fabric.kind, f"can't be on several hosts with {what}")
        if fabric.domains < spec.hosts:
            allowed = f"must be {fabric.domains} or less: HB domains are whole on a machine, fabrics.{i} has no more"
            raise BadInput("hosts", spec.hosts, allowed)

"""Keys `hosts` and `underlay` of an experiment's file: one fabric over several machines."""

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from railyard.core.config import ConfigModel
from railyard.core.units import Time

MAX_HOSTS: Final = 64
Port = Annotated[int, Field(ge=1024, le=65535)]


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

"""Keys `hosts` and `underlay` of an experiment's file: one fabric over several machines."""

from typing import Annotated, Final

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator

from railyard.core.config import ConfigModel
from railyard.core.units import Time

MAX_HOSTS: Final = 64


def _hosts(value: object) -> object:
    """Check a number of machines, or their names."""
    if isinstance(value, list | tuple):
        for name in value:
            if not isinstance(name, str) or not name or not name.isprintable():
                raise ValueError("must have a name for each machine")
            if value.count(name) > 1:
                raise ValueError(f"must name each machine once, and has {name} {value.count(name)} times")
        if not 1 <= len(value) <= MAX_HOSTS:
            raise ValueError(f"must name 1 to {MAX_HOSTS} machines")
        return tuple(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a number of machines, or a list of their names, this machine's first")
    if value < 1:
        raise ValueError("must be 1 or more")
    if value > MAX_HOSTS:
        raise ValueError(f"must be {MAX_HOSTS} or less")
    return value


def _as_written(hosts: int | tuple[str, ...]) -> object:
    if isinstance(hosts, int):
        return hosts
    return list(hosts)


Hosts = Annotated[int | tuple[str, ...], PlainValidator(_hosts), PlainSerializer(_as_written)]
"""A number of machines, or their names as their agents give them; the first is the machine of the run."""
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

"""The kernel's MPTCP over all rails: what its path manager is told in a node's namespace.

Each node announces its NICs' addresses. Who called learns them, and adds a subflow to each: routes say that it leaves
by its own NIC on that rail. So a connection over any rail grows to one subflow a rail, if the listener is one for all
addresses (0.0.0.0): a subflow comes to another address than the call did. The listener's side learns the caller's
addresses too and calls in vain, since nobody listens there; the limit leaves room for that.
"""

import socket
from collections.abc import Sequence
from typing import Final

from railyard.topologies.build import namespaces
from railyard.topologies.multirail.addresses import Nic

MAX_SUBFLOWS: Final = 8
"""Of the kernel, beyond the first."""


def has_mptcp() -> bool:
    """Whether this kernel has MPTCP, and it is on."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP).close()
    except OSError:
        return False
    return True


def mptcp_commands(nics: Sequence[Nic]) -> str:
    """Input for `ip -batch`: endpoints and limits of a node with these NICs."""
    other_nics = len(nics) - 1
    subflow_limit = min(2 * other_nics, MAX_SUBFLOWS)
    limits = f"mptcp limits set subflow {subflow_limit} add_addr_accepted {other_nics}\n"
    return limits + "".join(f"mptcp endpoint add {nic.ip} dev {nic.interface} signal\n" for nic in nics)


def configure_mptcp(nics: Sequence[Nic]) -> None:
    """In the node's namespace: let stock MPTCP sockets use all these NICs."""
    namespaces.run(["ip", "-batch", "-"], mptcp_commands(nics))

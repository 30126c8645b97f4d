"""Where the switches find their controller: 127.0.0.1:6653 inside each switch's own namespace, or :6654 for its
successor, and so on in turns (railyard.topologies.build.ovs.call).

So there is no management network to build and no port open on the machine. A socket belongs to the namespace in which
it was made, whichever process uses it later.
"""

import socket
from collections.abc import Iterable
from typing import Final

from railyard.topologies.build import namespaces
from railyard.topologies.build.ovs import CONTROLLER_PORT

HOST: Final = "127.0.0.1"
ADDRESS: Final = (HOST, CONTROLLER_PORT)
PORTS: Final = (CONTROLLER_PORT, CONTROLLER_PORT + 1)


def listeners(switches: Iterable[str], port: int = CONTROLLER_PORT) -> list[socket.socket]:
    """A listening socket in each switch's namespace. Whoever starts the controller makes them, and hands them over: a
    switch that connects while the controller still loads its libraries waits in the queue instead of trying again
    later.
    """
    found = []
    for name in switches:
        with namespaces.inside(name):
            found.append(socket.create_server((HOST, port)))
    return found

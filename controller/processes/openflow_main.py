"""The OpenFlow app alone, for a Mininet script with a remote controller: `python -m
railyard.controller.processes.openflow_main`.

It listens on 127.0.0.1:6653, installs the flows of every switch, and prints its events, one line each. It doesn't
change routes of GPUs. Datapath ids and ports have to follow topologies/addresses.py.
"""

import signal
import socket

from railyard.controller.openflow.app import SwitchEvent
from railyard.controller.openflow.server import OpenFlowServer
from railyard.controller.processes.clients import ADDRESS
from railyard.topologies.addresses import MAX_RAILS, NETWORK_PORT_OFFSET, gpu_at, gpu_of_optical_port, plane_of, role_of


def describe(event: SwitchEvent) -> str:
    """Return an event as a line: `rail1: d0g1 down`, `spine0: connected, 4 ports up`."""
    role, index = role_of(event.dpid)
    name = {"single": "switch0", "optical": f"ocs{index}"}.get(role, f"{role}{index % MAX_RAILS}")
    name += f"p{plane_of(event.dpid)}" if plane_of(event.dpid) else ""
    if event.what == "switch-up":
        return f"{name}: connected, {len(event.up_ports)} ports up"
    if event.what == "switch-down":
        return f"{name}: gone"
    if role == "optical":
        side = "place" if event.port > NETWORK_PORT_OFFSET else "fibre"
        port = f"{side} of {gpu_of_optical_port(event.port).name}"
    else:
        gpu = gpu_at(event.dpid, event.port)
        port = gpu.name if gpu else f"port {event.port}"
    return f"{name}: {port} {'up' if event.up else 'down'}"


def main() -> None:
    """Serve switches until a signal ends the process."""
    server = OpenFlowServer(lambda event: print(describe(event), flush=True))
    server.serve([socket.create_server(ADDRESS)])
    print(f"listening on {ADDRESS[0]}:{ADDRESS[1]}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()

"""The OpenFlow app on its own, for a Mininet script that asks for a remote controller: `python -m
railyard.controller.processes.openflow_main`.

It listens on 127.0.0.1:6653, gives every switch its flows and keeps them right, and says what it hears, a line each.
Routes at the GPUs are left alone: it knows of switches only. Datapath ids and ports have to follow topologies/ports.py.
"""

import signal
import socket

from railyard.controller.openflow.app import Heard
from railyard.controller.openflow.listeners import ADDRESS
from railyard.controller.openflow.server import OpenFlowServer
from railyard.topologies.ports import NETWORK_SIDE, gpu_at, optical_gpu, role_of


def describe(heard: Heard) -> str:
    """One line for a person: `rail1: d0g1 down`, `spine0: connected, 4 ports up`."""
    role, index = role_of(heard.dpid)
    name = {"single": "switch0", "optical": f"ocs{index}"}.get(role, f"{role}{index}")
    if heard.what == "switch-up":
        return f"{name}: connected, {len(heard.up_ports)} ports up"
    if heard.what == "switch-down":
        return f"{name}: gone"
    return f"{name}: {_what_is_at(heard.dpid, heard.port)} {'up' if heard.up else 'down'}"


def _what_is_at(dpid: int, port: int) -> str:
    if role_of(dpid)[0] == "optical":
        return f"{'place' if port > NETWORK_SIDE else 'fibre'} of {optical_gpu(port).name}"
    gpu = gpu_at(dpid, port)
    return gpu.name if gpu else f"port {port}"


def main() -> None:
    server = OpenFlowServer(lambda heard: print(describe(heard), flush=True))
    server.serve([socket.create_server(ADDRESS)])
    print(f"listening on {ADDRESS[0]}:{ADDRESS[1]}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()

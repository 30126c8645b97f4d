"""How many packets a second this machine can carry through its emulated switches, and which link rates that allows.

Measured, not looked up: TCP over a small fabric without limits, one full frame a packet. Segmentation offload is
switched off for it, since many slow flows, as a run has them, look like that to a switch. Senders, switch and
receivers share the cores as they do in a run.
"""

import json
import subprocess
import time
from typing import Final

import psutil

from railyard.core.errors import RailyardError
from railyard.core.host import Datapath
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricController, FabricNet
from railyard.topologies.build.shaping import ETHERNET, IP_TCP
from railyard.topologies.plan import Plan
from railyard.topologies.platforms import PLATFORMS
from railyard.topologies.spec import FabricSpec

UNSHAPED_BPS: Final = 20_000_000_000
SECONDS: Final = 1
STEPS: Final = (1, 2, 5)  # rates that people like to read
SHARE: Final = (
    0.3  # of the capacity that `auto` uses; the rest is for acknowledgements, HB domains and the GPUs themselves
)
MAX_RAIL_BPS: Final = 1_000_000_000
MIN_RAIL_BPS: Final = 1_000_000


def measure(datapath: Datapath, controller: FabricController) -> float:
    """Full frames a second that cross a switch if all cores do nothing else. Takes about 3 s, in a sandbox."""
    spec = FabricSpec.model_validate({"kind": "rail-only", "domains": 2, "rails": 2})
    net = FabricNet(Plan(spec, UNSHAPED_BPS, UNSHAPED_BPS), datapath, controller)
    net.start()
    try:
        before, idle0 = _clock_and_idle_s()
        flows = [_flow(net, rank) for rank in range(spec.rails)]
        frames = sum(_frames(flow, spec.mtu) for flow in flows)
        after, idle1 = _clock_and_idle_s()
    finally:
        net.stop()
    cores = psutil.cpu_count() or 1
    busy = max(0.1, cores * (after - before) - (idle1 - idle0))
    return frames / busy * cores


def _flow(net: FabricNet, rank: int) -> "subprocess.Popen[str]":
    server, client = net.get(f"d1g{rank}"), net.get(f"d0g{rank}")
    server_process = server.popen("iperf3 -s -1 --forceflush")
    server_process.stdout.readline()
    with namespaces.inside(client.name):
        namespaces.run(["ethtool", "-K", "rail0", "tso", "off", "gso", "off"])
        command = ["iperf3", "-J", "-t", str(SECONDS), "-w", "128K", "-c", server.IP()]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _frames(flow: "subprocess.Popen[str]", mtu: int) -> float:
    report = json.loads(flow.communicate()[0])
    if "error" in report:
        raise RailyardError(f"what this machine carries could not be measured: iperf3: {report['error']}")
    return float(report["end"]["sum_received"]["bytes"]) / (mtu - IP_TCP)


def _clock_and_idle_s() -> tuple[float, float]:
    """(wall clock, idle time summed over cores) in s."""
    times = psutil.cpu_times()
    return time.monotonic(), times.idle + times.iowait


def frames_needed(spec: FabricSpec, rail_bps: int) -> float:
    """Frames a second through switches when every link that goes through one is full.

    With spines half of the rails' frames are taken to change rails, which makes one switch three. Optical switches are
    passed twice, at the sender and at the receiver, be it one or two, and in the HB layer by frames that pass no other.
    """
    layers = spec.optical.layers if spec.optical else ()
    switches = (2.0 if spec.spine_count else 1.0) + 2 * ("rail" in layers)
    if "hb" in layers:
        switches += 2 * _hb_ratio(spec)
    return spec.gpus * rail_bps / 8 / (spec.mtu + ETHERNET) * switches


def _hb_ratio(spec: FabricSpec) -> float:
    """C_F/C_S: the platform's, unless both rates are given."""
    if isinstance(spec.hb_rate, int) and isinstance(spec.rail_rate, int):
        return spec.hb_rate / spec.rail_rate
    return PLATFORMS[spec.platform].ratio


def max_rail_bps(spec: FabricSpec, frames_per_s: float) -> float:
    """The rail rate at which the switches would take all of the machine."""
    return frames_per_s / frames_needed(spec, 1)


def auto_rail_bps(specs: list[FabricSpec], frames_per_s: float) -> int:
    """One rail rate for fabrics that are to be compared: 1, 2 or 5 times a power of ten, within `SHARE` for each."""
    limit = min(SHARE * max_rail_bps(spec, frames_per_s) for spec in specs)
    rates = [step * 10**power for power in range(6, 10) for step in STEPS]
    fitting = [rate for rate in rates if MIN_RAIL_BPS <= rate <= min(limit, MAX_RAIL_BPS)]
    return max(fitting, default=MIN_RAIL_BPS)

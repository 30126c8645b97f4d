"""The part of a fabric that one of several machines has, and its cables to the other machines: VXLAN tunnels.

A tunnel's device is made from the machine's own network namespace, so that what it sends leaves there, and is at once
in the namespace of its GPU or switch: it has the name, number and MAC address of the veth interface that would be there
on a single machine, and the same shaper. The kernel removes it with that namespace.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from railyard.core import watch
from railyard.core.errors import MissingRequirement
from railyard.core.host import Datapath
from railyard.core.wait import poll
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricController, FabricNet, _index_of
from railyard.topologies.build.shaping import max_gso_segments
from railyard.topologies.fabric_kinds import Link
from railyard.topologies.placement import Placement

TUNNEL_HEADERS: Final = 14 + 20 + 8 + 8
"""Bytes that a tunnel adds to an IP packet: the inner Ethernet header, IPv4, UDP, VXLAN."""
OUTER_FRAME: Final = 14 + 20 + 8 + 8
"""Bytes that the underlay's counters have more than a link's shaper counts: outer Ethernet header, IPv4, UDP, VXLAN."""
_GUARD_S: Final = 5.0


@dataclass(frozen=True)
class Underlay:
    """The network between the machines as one of them, number `machine`, sees it.

    `addresses`: of all, in their order.

    `first_tunnel`: VXLAN identifier of the first cable between machines.
    """

    machine: int
    addresses: tuple[str, ...]
    interface: str
    port: int
    first_tunnel: int


class PartNet(FabricNet):
    """The namespaces and cables of one machine.

    `machine_net`: the machine's own network namespace, an open file.
    """

    def __init__(
        self,
        placement: Placement,
        underlay: Underlay,
        machine_net: int,
        datapath: Datapath,
        controller: FabricController | None,
        backups: bool,
    ) -> None:
        self._placement = placement
        self._underlay = underlay
        self._machine_net = machine_net
        super().__init__(placement.plan, datapath, controller, backups)

    @property
    def node_names(self) -> list[str]:
        """The namespaces of this machine."""
        here = self._placement.nodes(self._underlay.machine)
        return [node for node in self._placement.plan.namespaces if node in here]

    def _make_links(self) -> None:
        inner = [link for link in self.plan.links if {link.a.node, link.b.node} <= self._here]
        namespaces.run(["ip", "-batch", "-"], "".join(map(self._link_command, inner)))
        tunnels = []
        for number, link in enumerate(self._placement.tunnels):
            if {link.a.node, link.b.node} & self._here:
                tunnels.append(self._tunnel_command(number, link))
        with namespaces.inside_machine(self._machine_net):
            namespaces.run(["ip", "-batch", "-"], "".join(tunnels), "ip, for the tunnels to other machines,")

    def _tunnel_command(self, number: int, link: Link) -> str:
        near, far = (link.a, link.b) if link.a.node in self._here else (link.b, link.a)
        underlay = self._underlay
        mtu = self.plan.spec.mtu
        remote = underlay.addresses[self._placement.machine_of[far.node]]
        tunnel = underlay.first_tunnel + self._placement.earlier_tunnels + number
        options = ""
        gpu = self._gpus.get(near.node)
        if gpu:
            options = f" index {_index_of(link)} gso_max_segs {max_gso_segments(link.rate_bps, mtu)}"
            options += f" address {gpu.mac_of(near.interface)}"
        return (
            f"link add {near.interface}{options} netns {near.node} mtu {mtu} type vxlan"
            f" id {tunnel} local {underlay.addresses[underlay.machine]} remote {remote}"
            f" dstport {underlay.port} dev {underlay.interface} nolearning noudp6zerocsumrx\n"
        )


def check_tunnels() -> None:
    """Make a tunnel's device in a namespace that goes at once. MissingRequirement if the kernel can't."""
    argv = ["unshare", "--net", "ip", "link", "add", "probe", "type", "vxlan", "id", "1", "dstport", "4789"]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise MissingRequirement(f"this kernel makes no VXLAN devices: {done.stderr.strip()}", "modprobe vxlan")


def _guard_rules(table: str, underlay: Underlay) -> str:
    """Return the commands of nft that make a table with an owner.

    `meta skuid` matches a packet that a socket of the machine's own namespace sends, of any user. It matches none
    of a tunnel: such a packet has the socket of a GPU's namespace, or none. What the machine forwards to tunnels, for
    containers and virtual machines, came in over another interface.
    """
    peers = ", ".join(address for n, address in enumerate(underlay.addresses) if n != underlay.machine)
    port = underlay.port
    return f"""
add table inet {table} {{ flags owner; }}
add chain inet {table} tunnels {{ type filter hook prerouting priority -300; }}
add rule inet {table} tunnels udp dport {port} iifname != "{underlay.interface}" drop
add rule inet {table} tunnels udp dport {port} ip saddr != {{ {peers} }} drop
add rule inet {table} tunnels udp dport {port} meta nfproto ipv6 drop
add chain inet {table} programs {{ type filter hook output priority -300; }}
add rule inet {table} programs udp dport {port} meta skuid 0-4294967295 drop
"""


@contextmanager
def guarded(underlay: Underlay, machine_net: int) -> Iterator[None]:
    """Keep packets that no tunnel of the run has sent out of the tunnels while entered: VXLAN authenticates nothing.

    What comes from elsewhere than the other machines is dropped, and so is what programs of this machine send to
    tunnels, root's included. MissingRequirement if the kernel has no tunnels, or no such tables.
    """
    check_tunnels()
    table = f"railyard-{os.getpid()}-{time.monotonic_ns()}"
    rules = _guard_rules(table, underlay)
    listing = ["nft", "list", "table", "inet", table]

    def has_rules() -> bool:
        active_rules = subprocess.run(listing, capture_output=True, text=True).stdout
        return active_rules.count(" drop") == rules.count(" drop")

    with namespaces.inside_machine(machine_net):
        # nft owns the table, so the kernel removes it with this process, whatever ends that
        owner = subprocess.Popen(
            ["nft", "-i"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C must end it last, so it leaves the terminal's process group
            start_new_session=True,
        )
        assert owner.stdin
        owner.stdin.write(rules)
        owner.stdin.flush()
        is_guarded = poll(has_rules, _GUARD_S, 0.02)
    try:
        if not is_guarded:
            owner.kill()
            lines = (owner.communicate()[1] or "").strip().splitlines()
            reason = lines[0] if lines else "no rule"
            problem = f"nftables can't keep foreign packets out of tunnels: {reason}"
            remedy = "a kernel of 5.12 or later, and nftables 0.9.9, have tables with an owner"
            raise MissingRequirement(problem, remedy)
        watched = watch.add("the guard of tunnels (nft)", owner.pid)
        try:
            yield
        finally:
            watched.release()
    finally:
        owner.kill()
        owner.communicate()


def interface_bytes(machine_net: int, interface: str) -> int:
    """Return the bytes that an interface of the machine has sent."""
    with namespaces.inside_machine(machine_net):
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    for line in lines:
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            return int(numbers.split()[8])
    raise KeyError(interface)

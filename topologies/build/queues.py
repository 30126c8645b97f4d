"""Give an interface of a slow link a receive queue of its own.

A veth puts what it hands over into the backlog of the CPU: one queue of 1,000 packets (net.core.netdev_max_backlog) for
all links of the machine, which is emptied when the CPU has time. 64 GPUs whose NICs hand on single frames over HB links
of 36 Mbit/s fill it in 30 ms, and the kernel then drops packets of any link: 0.3% to 0.7% of a two-phase all-to-all.
With generic receive offload the receiving end has a queue of 256 packets (NAPI), which no other link fills. The kernel
uses it for packets of a sender without segmentation offload (drivers/net/veth.c, `veth_skb_is_eligible_for_gro`), so
this suits links whose NICs hand on single frames anyway.
"""

import socket
from typing import Final

from railyard.topologies.build import ethtool, gpu_setup
from railyard.topologies.build.shaping import ETHERNET

_MAX_IP: Final = 120  # bytes of IP and TCP headers with all options


def give_own_queue(interface: str, mtu: int) -> None:
    """Give an interface of this thread's namespace a receive queue, once its other end does so too. OSError."""
    ethtool.set_feature(interface, ethtool.TSO, False)
    ethtool.set_feature(interface, ethtool.GRO, True)
    # frames are still received one by one: a packet of two would exceed the size to which the kernel may join them
    gpu_setup.send([gpu_setup.max_joined(socket.if_nametoindex(interface), mtu + ETHERNET + _MAX_IP)], interface)

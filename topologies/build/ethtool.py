"""Switches of an interface's features, as `ethtool -K` sets them: in this thread's namespace."""

import array
import fcntl
import socket
import struct
from typing import Final

TSO: Final = 0x1F  # linux/ethtool.h: each number sets one feature
GRO: Final = 0x2C
TX_CHECKSUM: Final = 0x17
_SIOCETHTOOL: Final = 0x8946


def set_feature(interface: str, feature: int, on: bool) -> None:
    """Switch a feature on or off; without checksums the kernel switches segmentation off too. OSError."""
    words = array.array("I", [feature, int(on)])
    request = struct.pack("16sP", interface.encode(), words.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCETHTOOL, request)

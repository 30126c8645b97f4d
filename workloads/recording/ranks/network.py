"""Networks of a real run: a namespace with a loopback interface alone, or the GPUs of a fabric."""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWNET: Final = 0x40000000
SIOCGIFFLAGS: Final = 0x8913
SIOCSIFFLAGS: Final = 0x8914
IFF_UP: Final = 1
LOOPBACK: Final = "127.0.0.1"
NAMESPACES: Final = "/run/netns"
"""Folder with the namespace of each GPU, in the sandbox of a fabric."""


class Network(NamedTuple):
    """Address of a rank, and of the store by which the ranks find each other."""

    address: str
    store_address: str
    store_port: int


def enter_first(addresses: Mapping[str, str]) -> str:
    """Return the address of the first rank. `addresses`: of a fabric's GPUs, the first of which this process is at.

    Without a fabric, the process moves to a namespace of its own. OSError if the kernel refuses.
    """
    if addresses:
        return next(iter(addresses.values()))
    enter_namespace()
    return LOOPBACK


def enter_namespace() -> None:
    """Move this process to a network namespace that has a loopback interface alone. OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWNET | CLONE_NEWUSER
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        current = struct.unpack("16sh14x", fcntl.ioctl(control, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", current | IFF_UP))


def enter_gpu(name: str) -> None:
    """Move this process to a GPU of a fabric: to its network namespace, with its host name."""
    libc = ctypes.CDLL(None, use_errno=True)
    namespace = os.open(f"{NAMESPACES}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    moved = libc.setns(namespace, CLONE_NEWNET)
    os.close(namespace)
    if moved != 0 or libc.unshare(CLONE_NEWUTS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    socket.sethostname(name)

"""Network namespaces: create, enter, name and configure them with system calls alone, 0.7 ms each; a shell takes 7 ms.

Netlink is written by hand where pyroute2 is too slow: it takes 15 times as long to decode a dump, and a millisecond to
open its socket, a fifth of some recoveries. A namespace is kept alive by a bind mount under /run/netns, as `ip netns`
does it; /run is the sandbox's own. A thread, not the process, is in a namespace: work in another namespace is done in a
short-lived thread, and sockets opened there stay there.
"""

import ctypes
import errno
import os
import socket
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Final, TypeVar

from railyard.core import watch
from railyard.core.host import CLONE_NEWNET, NETNS_DIR, usable_cores

MS_BIND: Final = 0x1000
MNT_DETACH: Final = 2
# <asm-generic/socket.h>; the socket module does not name it
_SO_ATTACH_FILTER: Final = 26
_libc: Final = ctypes.CDLL(None, use_errno=True)
_T = TypeVar("_T")
_R = TypeVar("_R")


def _check(result: int, operation: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{operation}: {os.strerror(number)}")


def path(name: str) -> Path:
    """Return the file that a namespace is mounted on."""
    return NETNS_DIR / name


def _create_here(name: str) -> None:
    _check(_libc.unshare(CLONE_NEWNET), f"network namespace {name}")
    path(name).touch()
    _check(_libc.mount(b"/proc/thread-self/ns/net", bytes(path(name)), None, MS_BIND, None), f"mount {name}")


def enter(name: str) -> None:
    """Move this thread into a namespace, for good."""
    fd = os.open(path(name), os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(fd, CLONE_NEWNET), f"enter {name}")
    finally:
        os.close(fd)


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Enter a namespace, and return to this thread's own at the end."""
    with _back(name):
        enter(name)
        yield


@contextmanager
def inside_machine(machine_net: int) -> Iterator[None]:
    """Enter the machine's own network namespace, an open file, and return to this thread's own at the end."""
    with _back("the machine's network namespace"):
        _check(_libc.setns(machine_net, CLONE_NEWNET), "enter the machine's network namespace")
        yield


@contextmanager
def _back(name: str) -> Iterator[None]:
    original = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        _check(_libc.setns(original, CLONE_NEWNET), "leave " + name)
        os.close(original)


def open_socket(
    name: str, kind: int = socket.SOCK_DGRAM, family: int = socket.AF_INET, protocol: int = 0
) -> socket.socket:
    """Return a socket of a namespace."""
    with inside(name):
        return socket.socket(family, kind, protocol)


def attach_filter(sock: socket.socket, steps: Sequence[tuple[int, int, int, int]]) -> None:
    """Attach a classic BPF program: struct sock_filter (code, jump if true, jump if false, constant) of each step."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(steps), ctypes.addressof(code)))


def in_threads(work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Do `work` on every item in a few threads, which may move between namespaces; raise the first error."""
    workers = min(len(items), max(2, round(usable_cores()))) or 1
    with ThreadPoolExecutor(workers, thread_name_prefix="namespaces") as pool:
        return list(pool.map(work, items))


def create(names: Iterable[str]) -> None:
    """Make all the namespaces. OSError names the one that could not be made."""
    NETNS_DIR.mkdir(parents=True, exist_ok=True)
    if not NETNS_DIR.is_mount():
        _check(_libc.mount(b"railyard", bytes(NETNS_DIR), b"tmpfs", 0, b"mode=755"), f"mount {NETNS_DIR}")
    in_threads(_create_here, list(names))


def add_name(name: str, another: str) -> None:
    """Give a namespace another name; whatever that named before isn't named so any more."""
    if path(another).exists():
        _check(_libc.umount2(bytes(path(another)), MNT_DETACH), f"unmount {another}")
    path(another).touch()
    _check(_libc.mount(bytes(path(name)), bytes(path(another)), None, MS_BIND, None), f"mount {another}")


def remove(names: Iterable[str]) -> None:
    """Unpin the namespaces; the kernel takes each down when its last process and socket are gone."""
    removed = set(names)
    # each mount by itself costs an RCU grace period, so all of them go with the folder that they are mounted in
    if NETNS_DIR.is_mount() and {file.name for file in NETNS_DIR.iterdir()} == removed:
        _check(_libc.umount2(bytes(NETNS_DIR), MNT_DETACH), f"unmount {NETNS_DIR}")
        return
    for name in removed:
        _check(_libc.umount2(bytes(path(name)), MNT_DETACH), f"unmount {name}")
        path(name).unlink()


@contextmanager
def kept(names: Iterable[str]) -> Iterator[None]:
    """Keep namespaces while entered, although they are removed."""
    with ExitStack() as stack:
        for name in names:
            stack.callback(os.close, os.open(path(name), os.O_RDONLY | os.O_CLOEXEC))
        yield


def run(argv: Sequence[str], text: str = "", name: str = "") -> str:
    """Run a program in this thread's namespace with `text` as its input, and return its output.

    `name`: what messages call it; its first words by default. RailyardError if it fails, as `watch.communicate`.
    """
    # a pipe would hold 64 KB of it
    with os.fdopen(os.memfd_create("input"), "w+") as stdin:
        stdin.write(text)
        stdin.seek(0)
        process = subprocess.Popen(argv, stdin=stdin, stdout=PIPE, stderr=PIPE, text=True)
        return watch.communicate(process, name or " ".join(argv[:4]))


def set_sysctl(key: str, value: int | str) -> None:
    """Set a namespaced sysctl (`net/...`) in this thread's namespace; without pathlib, which takes twice as long."""
    fd = os.open(f"/proc/sys/{key}", os.O_WRONLY)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


RTO_MIN: Final = "net/ipv4/tcp_rto_min_us"
# the kernel waits no longer (tcp_rto_max_ms)
MAX_RTO_US: Final = 120_000_000
TCP_SETTINGS: Final = {
    # no probe of a transfer's end after a pause
    "net/ipv4/tcp_early_retrans": 0,
    # Linux 6.11 and later; without it, only the first helps
    RTO_MIN: 1_000_000,
}


@contextmanager
def relaxed_tcp_timers(gpus: Iterable[str], longest_queue_s: float = 0.0) -> Iterator[None]:
    """Relax TCP loss detection in the GPUs' namespaces while entered.

    `longest_queue_s`: the longest time that a segment may wait in queues, s. Faults are measured with the kernel's own
    settings.
    """
    nodes = list(gpus)
    # On links of a few Mbit/s a frame takes milliseconds, and TCP takes a queue that grows fast for a loss: 64 GPUs at
    # 10 Mbit/s sent 9,800 segments of a direct all-to-all twice, in 1.47 of the predicted time; with this 11, in 1.06.
    # RDMA, which the real fabrics carry, has no such timer. Linux takes a segment for lost when its acknowledgement is
    # later than usual by the least timeout, and a queue that grows from nothing delays it by `longest_queue_s` at most.
    rto_min_us = min(MAX_RTO_US, max(TCP_SETTINGS[RTO_MIN], round(longest_queue_s * 1e6)))
    settings = TCP_SETTINGS | {RTO_MIN: rto_min_us}
    # a kernel may lack some of them
    available = {key: value for key, value in settings.items() if Path("/proc/sys", key).exists()}

    def change(node: str, settings: dict[str, int]) -> dict[str, int]:
        """Change settings; return what they were."""
        with inside(node):
            before = {key: int(Path("/proc/sys", key).read_text()) for key in settings}
            for key, value in settings.items():
                set_sysctl(key, value)
        return before

    before = in_threads(lambda node: change(node, available), nodes)
    try:
        yield
    finally:
        in_threads(lambda pair: change(*pair), list(zip(nodes, before, strict=True)))


REQUEST_DUMP: Final = 0x1 | 0x300
REQUEST_ACK: Final = 0x1 | 0x4
NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3
HEADER: Final = struct.Struct("=IHHII")
RTM_GETLINK: Final = 18
LINK: Final = struct.Struct("=BxHiII")
"""Head of a message about an interface (struct ifinfomsg): family, type, index, flags, and the flags that change."""
IFLA_IFNAME: Final = 3
IFLA_GROUP: Final = 27
IFF_UP: Final = 1


def send_request(sock: socket.socket, kind: int, body: bytes) -> None:
    """Send one message, and return when the kernel has carried it out. OSError if it refuses."""
    sock.send(HEADER.pack(HEADER.size + len(body), kind, REQUEST_ACK, 0, 0) + body)
    _raise_error(sock.recv(65536), 0)


def _raise_error(data: bytes, offset: int) -> None:
    code = -struct.unpack_from("=i", data, offset + HEADER.size)[0]
    if code:
        raise OSError(code, errno.errorcode.get(code, str(code)))


def dump(sock: socket.socket, kind: int, body: bytes, sequence: int = 0) -> Iterator[bytes]:
    """Yield the bodies of all messages of a dump. OSError if the kernel refuses.

    `sequence`: number of the question, where answers to others may be left in the socket.
    """
    sock.send(HEADER.pack(HEADER.size + len(body), kind, REQUEST_DUMP, sequence, 0) + body)
    while True:
        data = sock.recv(65536)
        offset = 0
        while offset < len(data):
            length, kind, _, answered, _ = HEADER.unpack_from(data, offset)
            if answered == sequence:
                if kind == NLMSG_DONE:
                    return
                if kind == NLMSG_ERROR:
                    _raise_error(data, offset)
                yield data[offset + HEADER.size : offset + length]
            offset += (length + 3) & ~3


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, value) of each attribute."""
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        yield kind & 0x3FFF, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3

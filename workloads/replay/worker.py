"""A replay's worker process: `python -m railyard.workloads.replay.worker`; gets Job, Connect and Go, in this order.

Its connections are made inside the GPUs' namespaces, before the clock starts. A receiver offers a window that fits the
link (job.py), and has far more room than that: one that drops for want of room looks like a bad link. Congestion
control is cubic, which every kernel has; links without loss leave it nothing to decide.
"""

import errno
import gc
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Collection
from typing import Final

from railyard.core.host import raise_open_file_limit
from railyard.core.worker import Failed, Parent, Ready
from railyard.topologies.build import namespaces
from railyard.workloads.replay.engine import Engine
from railyard.workloads.replay.job import PORT, Channel, Connect, Go, Job, connections

SOCKET_BUFFER_BYTES: Final = 212_992  # all that an ordinary user gets; the kernel doubles it for its own bookkeeping
CONNECT_S: Final = 20.0
_LINGER_RESET: Final = struct.pack("ii", 1, 0)
"""struct linger: a closed connection ends with a reset, and no receiver waits for what is yet to be sent."""
HELLO: Final = struct.Struct("!II")  # the caller's GPU number, and the stripe

Connections = dict[Channel, socket.socket]


def _configured(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    sock.setblocking(False)
    return sock


def listen(job: Job) -> dict[int, socket.socket]:
    """Open a listening socket at each local GPU that receives anything."""
    listeners = {}
    for dst in sorted({channel.dst for channel in connections(job.tasks)} & job.local_gpus):
        with namespaces.inside(job.gpus[dst].name):
            sock = _configured(socket.socket())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((job.gpus[dst].ip, PORT))
        sock.listen(1024)
        listeners[dst] = sock
    return listeners


def connect(job: Job, listeners: dict[int, socket.socket]) -> tuple[Connections, Connections]:
    """(sending, receiving), all established. TimeoutError names a pair of which one did not come about.

    The kernels of both ends connect all pairs at once, so waiting for one after the other takes no longer.
    """
    channels, deadline = connections(job.tasks), time.monotonic() + CONNECT_S
    stripes = Counter((channel.src, channel.dst) for channel in channels)

    def wait(sock: socket.socket, event: int, missing: Collection[Channel]) -> None:
        poller = select.poll()
        poller.register(sock, event)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            src, dst, _ = min(missing)
            raise TimeoutError(f"no connection {job.gpus[src].name} -> {job.gpus[dst].name} in {CONNECT_S:.0f} s")

    sending = {channel: _open_connection(job, channel) for channel in channels if channel.src in job.local_gpus}
    for channel, sock in sending.items():
        wait(sock, select.POLLOUT, [channel])
        if error_code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error_code, f"{channel} failed")
        sock.send(HELLO.pack(channel.src, channel.stripe))
    receiving: Connections = {}
    for dst, listener in listeners.items():
        missing = {channel for channel in channels if channel.dst == dst}
        while missing:
            wait(listener, select.POLLIN, missing)
            sock, _ = listener.accept()
            sock.setblocking(False)
            wait(sock, select.POLLIN, missing)
            src, stripe = HELLO.unpack(sock.recv(HELLO.size))
            window = job.windows.per_connection(job.gpus[src].domain == job.gpus[dst].domain, stripes[src, dst])
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, window)
            receiving[Channel(src, dst, stripe)] = sock
            missing.remove(Channel(src, dst, stripe))
    return sending, receiving


def _open_connection(job: Job, channel: Channel) -> socket.socket:
    src, dst = job.gpus[channel.src], job.gpus[channel.dst]
    with namespaces.inside(src.name):
        sock = _configured(socket.socket())
    error_code = sock.connect_ex((dst.ip, PORT))
    if error_code not in (0, errno.EINPROGRESS):
        raise OSError(error_code, f"{src.name} -> {dst.name} can't connect")
    return sock


def main() -> None:
    """Serve one job."""
    parent = Parent(Job, Connect, Go)
    job = parent.receive()
    raise_open_file_limit()

    try:
        listeners = listen(job)
        parent.send(Ready())
        parent.receive()
        engine = Engine(job, *connect(job, listeners))
        parent.send(Ready())
        go = parent.receive()
        gc.disable()
        outcome = engine.run(go.start_ns, parent.send, go.deadline_ns)
        parent.send(outcome)
        if not outcome.broken:
            parent.receive()  # keep the connections until all workers have finished
        # else close them, so that the other workers find out at once
    except (OSError, TimeoutError) as error:
        parent.send(Failed(why=str(error)))


if __name__ == "__main__":
    main()

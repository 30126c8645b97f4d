"""The route agent: one netlink socket in each GPU's namespace, through which routes change while traffic flows.

The sockets are opened once; after that the changes at a GPU are one send, without a process or a setns. The kernel
carries them out within the send: the answers are there when it returns, so nothing waits.
"""

import errno
import os
import socket
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces, rtnetlink
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Device, Route

SOL_NETLINK: Final = 270
# answers leave out the message that they answer, which makes them 36 bytes long
NETLINK_CAP_ACK: Final = 10
# the kernel applies the filters of a request for routes
NETLINK_GET_STRICT_CHK: Final = 12
ANSWER_BYTES: Final = 4096
# no interface has this number: the kernel refuses such a route
NO_INTERFACE: Final = 0
_SEQUENCES: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Outcome:
    """`done`: number of changes in force. `refused`: for each GPU whose kernel refused changes, the first error."""

    done: int
    refused: Mapping[Gpu, OSError]


def refusal(gpu: Gpu, route: Route, code: int, count: int) -> OSError:
    """Return the error of a GPU whose kernel refused `count` routes, the first one with this error number."""
    more = f" (and {count - 1} more)" if count > 1 else ""
    return OSError(code, f"{gpu.name}: route to {route.prefix}: {os.strerror(code)}{more}")


class RouteAgent:
    """Changes main-table routes of any GPU of the fabric but those `elsewhere`. Not to be shared by threads."""

    def __init__(self, plan: Plan, elsewhere: Container[str] = ()) -> None:
        self._devices = plan.devices
        self._sockets = {gpu: _open(gpu) for gpu in plan.gpus if gpu.name not in elsewhere}
        self._index: dict[Gpu, dict[Device, int]] = {}
        self._sequence = 0

    def learn_interfaces(self) -> None:
        """Call once when the links are there. A GPU that lacks one (it has crashed) refuses its routes."""
        for gpu in self._sockets:
            self._index[gpu] = self._indices_at(gpu)

    def rebind_gpu(self, gpu: Gpu) -> None:
        """Use the namespace that now has this GPU's name, after a GPU replacement. OSError if there is none."""
        self._index[gpu] = self._indices_at(gpu)
        before = self._sockets[gpu]
        self._sockets[gpu] = _open(gpu)
        before.close()

    def _indices_at(self, gpu: Gpu) -> dict[Device, int]:
        with namespaces.inside(gpu.name):
            indices = {name: number for number, name in socket.if_nameindex()}
        return {name: indices.get(name, NO_INTERFACE) for name in self._devices}

    def routes(self, metric: int) -> dict[Gpu, dict[str, Route]]:
        """Return the GPUs' current routes of that metric, by key. OSError names a GPU whose kernel doesn't answer."""
        by_gpu: dict[Gpu, dict[str, Route]] = {}
        for gpu in self._sockets:
            routes = self.routes_at(gpu, metric)
            if routes:
                by_gpu[gpu] = routes
        return by_gpu

    def routes_at(self, gpu: Gpu, metric: int) -> dict[str, Route]:
        """Return one GPU's current routes of that metric, by key, from its main table and that for transit traffic."""
        names = {number: name for name, number in self._index[gpu].items()}
        sequence = self._sequence
        self._sequence = (self._sequence + 1) % _SEQUENCES
        try:
            routes = rtnetlink.read_routes(self._sockets[gpu], sequence, names)
        except OSError as error:
            raise OSError(error.errno, f"{gpu.name}: {error.strerror}") from error
        return {route.key: route for route in routes if route.metric == metric}

    def change(self, gpu: Gpu, remove: Iterable[Route], put: Iterable[Route]) -> int:
        """Put routes in, each replacing one of the same prefix and metric, then remove others; return their number.

        OSError names the GPU and the first route that the kernel refused; the rest is done.
        """
        outcome = self.change_all({gpu: (remove, put)})
        for refusal in outcome.refused.values():
            raise refusal
        return outcome.done

    def change_all(self, changes: Mapping[Gpu, tuple[Iterable[Route], Iterable[Route]]]) -> Outcome:
        """Make the changes of many GPUs, {gpu: (remove, put)}. A refusal at one GPU doesn't stop those of others."""
        done = 0
        refused: dict[Gpu, OSError] = {}
        for gpu, (remove, put) in changes.items():
            puts = list(put)
            # a put replaces the route of its key: to remove that one as well would remove what has just been put
            replaced = {(route.prefix, route.table, route.metric) for route in puts}
            removals = [route for route in remove if (route.prefix, route.table, route.metric) not in replaced]
            routes = puts + removals
            # a route that went with its interface (a crashed GPU) is gone as requested
            errors = self._carry_out(gpu, routes, len(puts))
            refusals = [(place, code) for place, code in errors if place < len(puts) or code != errno.ESRCH]
            done += len(routes) - len(refusals)
            if refusals:
                place, code = refusals[0]
                refused[gpu] = refusal(gpu, routes[place], code, len(refusals))
        return Outcome(done, refused)

    def _carry_out(self, gpu: Gpu, routes: list[Route], puts: int) -> list[tuple[int, int]]:
        """Put the first `puts` of these routes, remove the others; return (place, error number) of the errors."""
        first = self._sequence
        index = self._index[gpu]
        messages: list[bytes] = []
        for sequence, route in enumerate(routes, first):
            if len(messages) < puts:
                messages.append(rtnetlink.put_message(route, gpu, index, sequence))
            else:
                messages.append(rtnetlink.remove_message(route, sequence))
        self._sequence = (first + len(routes)) % _SEQUENCES
        errors: list[tuple[int, int]] = []
        for begin, count, data in rtnetlink.batches(messages):
            self._sockets[gpu].send(data)
            place = -1
            last = begin + count - 1
            # the kernel answers in order: the batch is done when its last message is answered
            while place != last:
                sequence, code = rtnetlink.answer_of(self._sockets[gpu].recv(ANSWER_BYTES))
                place = sequence - first
                # answers to a call that was interrupted may still be in the socket
                if code and begin <= place <= last:
                    errors.append((place, code))
        return errors


def _open(gpu: Gpu) -> socket.socket:
    with namespaces.inside(gpu.name):
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    sock.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
    # kernels before 4.20 lack this option and return routes of all tables, which `routes_at` filters anyway
    with suppress(OSError):
        sock.setsockopt(SOL_NETLINK, NETLINK_GET_STRICT_CHK, 1)
    return sock

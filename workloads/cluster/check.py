"""The check of a cluster for rails: places of GPUs, routes of communicators, and findings."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from railyard.workloads.cluster.bandwidth import ExpectedBandwidth, expected
from railyard.workloads.cluster.rails import CommunicatorRoutes, RailMap, Route, RoutedConnection, interleaved, routes
from railyard.workloads.cluster.records import Cluster, Communicator, End, Host, RingChannel
from railyard.workloads.cluster.settings import SettingInUse, settings_in_use

MAX_NAMED: Final = 4  # hosts, ranks or NICs that a sentence names


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """A GPU with the NICs and rails that it uses, the same on all of `hosts`.

    `nearest`: NICs of the topology, if known; `rails` are theirs if no connection shows which NICs it uses.
    """

    hosts: tuple[str, ...]
    gpu: int
    nics: tuple[str, ...]
    rails: tuple[int, ...]
    nearest: tuple[str, ...] = ()


@dataclass(frozen=True)
class RailCheck:
    """A cluster's logs with the rails of its NICs, and the results that follow.

    `nic_bps`: the rate of every NIC, bit/s, in place of the logs'; None to take theirs.
    """

    cluster: Cluster
    rails: RailMap
    nic_bps: float | None = None

    @cached_property
    def routes(self) -> tuple[CommunicatorRoutes, ...]:
        """The connections of every communicator with their routes."""
        return routes(self.cluster, self.rails)

    @cached_property
    def crossing(self) -> tuple[RoutedConnection, ...]:
        """All connections that cross rails."""
        connections: list[RoutedConnection] = []
        for communicator in self.routes:
            connections += communicator.crossing
        return tuple(connections)

    @property
    def has_map(self) -> bool:
        """True if the cabling was given."""
        return bool(self.rails.by_nic or self.rails.by_host)

    @property
    def settings(self) -> tuple[SettingInUse, ...]:
        """NCCL's settings that decide it."""
        return settings_in_use(self.cluster)

    @property
    def bandwidths(self) -> tuple[ExpectedBandwidth, ...]:
        """Measured bus bandwidths beside what the NICs allow."""
        return expected(self.cluster, self.nic_bps)

    @property
    def verdict(self) -> str:
        """`crosses` if a connection crosses rails, `unknown` if that can't be known of one, else `ready`.

        `none` if the files name no connection.
        """
        if self.crossing or self.crossing_channels:
            return "crosses"
        counts = [communicator.counts for communicator in self.routes]
        lacking = any(routes.is_lacking for routes in self.routes)
        if self.untraced_ranks or lacking or any(count[Route.UNKNOWN] for count in counts):
            return "unknown"
        return "ready" if any(counts) or self.cluster.ring_channels else "none"

    @property
    def crossing_channels(self) -> tuple[RingChannel, ...]:
        """The channels of NCCL's graph that leave a host by another rail than they enter the next one by."""
        host = Host("")
        channels: list[RingChannel] = []
        for channel in self.cluster.ring_channels:
            if self.rails.rail(host, channel.entered_by) != self.rails.rail(host, channel.left_by):
                channels.append(channel)
        return tuple(channels)

    @cached_property
    def gpus(self) -> tuple[GpuPlace, ...]:
        """The place of each GPU. Hosts that are alike share a row."""
        nics_of = self._nics_in_use()
        rows_of_host: dict[str, tuple[GpuPlace, ...]] = {}
        for name, host in self.cluster.hosts.items():
            numbers = {*host.gpus, *(gpu for host_name, gpu in nics_of if host_name == name)}
            rows = []
            for gpu in sorted(numbers - {-1}):
                used = sorted(nics_of.get((name, gpu), ()))
                nearest = host.nics_of_gpu.get(gpu, ())
                # without connections, as of a topology alone, a GPU will take the NIC that is nearest
                rails = {self.rails.rail(host, nic) for nic in used or nearest}
                known_rails = tuple(sorted(rail for rail in rails if rail is not None))
                rows.append(GpuPlace((), gpu, self._nic_names(name, used), known_rails, self._nic_names(name, nearest)))
            rows_of_host[name] = tuple(rows)
        hosts_alike: defaultdict[tuple[GpuPlace, ...], list[str]] = defaultdict(list)
        for name, host_rows in rows_of_host.items():
            hosts_alike[host_rows].append(name)
        places: list[GpuPlace] = []
        for alike_rows, hosts in hosts_alike.items():
            for row in alike_rows:
                places.append(GpuPlace(tuple(hosts), row.gpu, row.nics, row.rails, row.nearest))
        return tuple(places)

    def _nics_in_use(self) -> dict[tuple[str, int], set[int]]:
        """Return the NICs that each GPU's own connections take, by host and GPU; those of PXN are another GPU's."""
        nics: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
        for communicator in self.cluster.communicators:
            for connection, ends in communicator.connections.items():
                sides: tuple[tuple[int, End | None], ...] = (
                    (connection.src, ends.sender),
                    (connection.dst, ends.receiver),
                )
                for rank, end in sides:
                    member = communicator.members.get(rank)
                    if member and end and end.nic is not None and end.proxy is None:
                        nics[member.host, member.gpu].add(end.nic)
        return nics

    def _nic_names(self, host: str, numbers: Sequence[int]) -> tuple[str, ...]:
        nics = self.cluster.host(host).nics
        return tuple((nics[number].name if number in nics else "") or f"NIC {number}" for number in numbers)

    @property
    def untraced_ranks(self) -> tuple[int, ...]:
        """The ranks of a traced job whose calls no file has: their sends and their other groups aren't known."""
        ranks: set[int] = set()
        for communicator in self.cluster.communicators:
            if communicator.is_traced:
                ranks.update(communicator.global_ranks.values())
        return tuple(sorted(ranks - self.cluster.traced_ranks))

    @property
    def is_expected(self) -> bool:
        """True if no file has a connection, and all follow from the places of ranks and their calls."""
        connected = [communicator for communicator in self.cluster.communicators if communicator.connections]
        return bool(connected) and all(communicator.is_traced for communicator in connected)

    def findings(self) -> Iterator[str]:
        """Yield a sentence for everything that a reader should know or change."""
        yield from self.cluster.reports
        if self.untraced_ranks:
            names = _listed([f"rank {rank}" for rank in self.untraced_ranks])
            yield f"no file has the calls of {names}: their sends and their other groups aren't known"
        yield from _order_findings(self.routes)
        for communicator in self.routes:
            yield from self._crossing_findings(communicator)
            yield from _connection_findings(communicator)
            yield from _initialization_findings(communicator)
            yield from _waiting_findings(communicator.communicator)
            yield from self._leaf_findings(communicator.communicator)
        yield from self._channel_findings()
        yield from self._sharing_findings()
        yield from self._unmapped_findings()
        yield from self._nic_findings()

    def _crossing_findings(self, routes_of: CommunicatorRoutes) -> Iterator[str]:
        crossing = routes_of.crossing
        if not crossing:
            return
        first = crossing[0]
        source = f"rank {first.connection.src} (rail {first.src_rail})"
        destination = f"rank {first.connection.dst} (rail {first.dst_rail})"
        share = f"{len(crossing)} of {len(routes_of.connections)} connections cross rails"
        yield (
            f"{routes_of.communicator.name}: {share}, as {source} to {destination}. On rail-only they wait for ever "
            "unless HB domains forward them; on rail-optimized they load the spines"
        )
        if not self.has_map:
            yield "NIC n of every host is taken to be on rail n: if the cabling differs, give it by --rails"

    def _leaf_findings(self, communicator: Communicator) -> Iterator[str]:
        """Yield that a communicator's hosts are at several leaf switches, so that a rail isn't one switch."""
        leaves: dict[str, None] = {}
        for name in communicator.hosts:
            leaf = self.cluster.host(name).leaf
            if leaf:
                leaves[leaf] = None
        if len(leaves) > 1:
            yield (
                f"{communicator.name}: its hosts are at {len(leaves)} leaf switches ({_listed(list(leaves))}), so even "
                "traffic on its rail passes the switches above them"
            )

    def _channel_findings(self) -> Iterator[str]:
        crossing = self.crossing_channels
        if not crossing:
            return
        first = crossing[0]
        share = f"{len(crossing)} of {len(self.cluster.ring_channels)} ring channels"
        yield (
            f"{share} of NCCL's graph leave a host by another NIC than they enter it by, as channel {first.channel} by "
            f"NIC {first.left_by} and {first.entered_by}: between hosts they cross rails, unless NCCL_CROSS_NIC is 0"
        )

    def _sharing_findings(self) -> Iterator[str]:
        by_number = 0
        connections = 0
        for communicator in self.routes:
            for connection in communicator.connections:
                if connection.route in (Route.RAIL, Route.PXN):
                    connections += 1
                    by_number += connection.crosses_by_gpu_number
        if by_number:
            yield (
                f"{by_number} of {connections} connections on a rail join GPUs of different numbers: "
                "rails go by NICs here, and GPUs share NICs or use PXN"
            )

    @cached_property
    def unmapped_nics(self) -> tuple[str, ...]:
        """The NICs that connections take and that the map of the cabling doesn't have, with their hosts."""
        unmapped: dict[str, None] = {}
        for communicator in self.cluster.communicators:
            for connection, ends in communicator.connections.items():
                for rank, end in ((connection.src, ends.sender), (connection.dst, ends.receiver)):
                    member = communicator.members.get(rank)
                    if member is None or end is None or end.nic is None:
                        continue
                    if self.rails.rail(self.cluster.host(member.host), end.nic) is None:
                        (nic_name,) = self._nic_names(member.host, (end.nic,))
                        unmapped[f"{nic_name} of {member.host}"] = None
        return tuple(sorted(unmapped))

    def _unmapped_findings(self) -> Iterator[str]:
        if self.unmapped_nics:
            yield f"--rails has no rail for {_listed(self.unmapped_nics)}: the routes of their connections aren't known"

    def _nic_findings(self) -> Iterator[str]:
        """Yield NICs that have different numbers on different hosts: without a map, their rails are taken wrongly."""
        if self.has_map:
            return
        numbers: defaultdict[str, set[int]] = defaultdict(set)
        for host in self.cluster.hosts.values():
            for nic in host.nics.values():
                if nic.name:
                    numbers[nic.name].add(nic.number)
        moved = sorted(name for name, positions in numbers.items() if len(positions) > 1)
        if moved:
            yield (
                f"{_listed(moved)} has different numbers on different hosts, so a rail of NIC numbers is uncertain: "
                "give the cabling by --rails"
            )


def _connection_findings(routes_of: CommunicatorRoutes) -> Iterator[str]:
    if routes_of.is_unconnected:
        yield (
            f"{routes_of.communicator.name}: the log has none of its connections. NCCL makes them at the first "
            "collective, so the log may end before it"
        )
    ranks = routes_of.partly_connected
    if ranks:
        names = _listed([f"rank {rank}" for rank in ranks])
        yield (
            f"{routes_of.communicator.name}: the log lacks connections of ranks, as of {names}. It is cut off, or "
            "lacks hosts"
        )


def _order_findings(all_routes: Iterable[CommunicatorRoutes]) -> Iterator[str]:
    """Yield one finding for all communicators whose ranks are dealt out to hosts, with the largest of them."""
    dealt_out = [routes.communicator for routes in all_routes if interleaved(routes.communicator)]
    if not dealt_out:
        return
    largest = max(dealt_out, key=lambda communicator: communicator.size)
    places = [f"{rank} on {member.host}" for rank, member in sorted(largest.members.items())]
    more = f" and {len(dealt_out) - 1} more communicators" if len(dealt_out) > 1 else ""
    yield (
        f"{largest.name}{more}: consecutive ranks are on different hosts ({_listed(places)}), so their groups leave "
        "the HB domain. Fill one host after the other: mpirun --map-by slot, srun --distribution=block"
    )


def _initialization_findings(routes_of: CommunicatorRoutes) -> Iterator[str]:
    communicator = routes_of.communicator
    if not communicator.has_begun or not communicator.connections or not routes_of.missing:
        return
    ranks = [str(rank) for rank in routes_of.missing]
    yield (
        f"{communicator.name}: the initialization of rank {_listed(ranks)} is not complete in the log: "
        "it hangs there, or the log is cut off"
    )


def _waiting_findings(communicator: Communicator) -> Iterator[str]:
    """Yield the ranks that wait in a collective, and those that they wait for: behind it, or in another one."""
    waiting = {rank: call for rank, call in communicator.last_calls.items() if not call.is_complete}
    if not waiting:
        return
    number = max(call.number for call in waiting.values())
    at_front = [rank for rank, call in waiting.items() if call.number == number]
    collective = waiting[at_front[0]].collective
    behind: list[str] = []
    for rank, call in sorted(communicator.last_calls.items()):
        if call.number != number or call.collective != collective:
            state = "called" if call.is_complete else "waits in"
            behind.append(f"{_rank_name(communicator, rank)} {state} {call.collective} number {call.number}")
    names = [_rank_name(communicator, rank) for rank in at_front if waiting[rank].collective == collective]
    absent = communicator.size - len(communicator.last_calls)
    reason = _listed(behind) if behind else f"{absent} ranks have no dump" if absent else "all of its ranks are there"
    yield f"{communicator.name}: {_listed(names)} waits in {collective} number {number}: {reason}"


def _rank_name(communicator: Communicator, rank: int) -> str:
    return f"rank {communicator.global_ranks.get(rank, rank)}"


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(names[:MAX_NAMED])
    if len(names) > MAX_NAMED:
        return f"{shown} and {len(names) - MAX_NAMED} more"
    return shown

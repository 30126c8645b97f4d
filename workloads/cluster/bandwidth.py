"""The bus bandwidth that NICs allow, in nccl-tests' terms, beside what nccl-tests measured."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from railyard.workloads.cluster.records import Bandwidth, Cluster, Communicator

_RING: Final = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce")


@dataclass(frozen=True)
class ExpectedBandwidth:
    """A measured row. `expected_bps`: the bound by the NICs, bit/s; None where a rate or a formula is missing."""

    measured: Bandwidth
    expected_bps: float | None

    @property
    def share(self) -> float | None:
        """The measured share of what is expected."""
        if not self.expected_bps:
            return None
        return self.measured.bus_bps / self.expected_bps


def expected_bus_bps(collective: str, communicator: Communicator, nic_bps: Sequence[float]) -> float | None:
    """Return the bus bandwidth of a collective over several hosts, bit/s. `nic_bps`: the rates of a host's NICs.

    A ring's bytes leave each host once, over all NICs together: busbw is the sum of their rates. Of an all-to-all each
    GPU sends to the n - g GPUs of other hosts over its part of the NICs: (n - 1) / (n - g) of that part, with n ranks,
    g on each host (nccl-tests, doc/PERFORMANCE.md). None for one host, or hosts with different numbers of ranks.
    """
    hosts = communicator.hosts
    if len(hosts) < 2 or not nic_bps or len(communicator.members) < communicator.size:
        return None
    ranks = communicator.size
    ranks_of_host = ranks // len(hosts)
    if ranks_of_host * len(hosts) != ranks:
        return None
    host_bps = sum(nic_bps)
    if collective in _RING:
        return host_bps
    if collective == "all-to-all":
        return host_bps / ranks_of_host * (ranks - 1) / (ranks - ranks_of_host)
    return None


def expected(cluster: Cluster, nic_bps: float | None = None) -> tuple[ExpectedBandwidth, ...]:
    """Return the measured rows with what is expected. `nic_bps`: the rate of every NIC, if the logs don't have it."""
    rows = []
    for measured in _medians(cluster.bandwidths):
        expected_bps = None
        if cluster.communicators:
            # nccl-tests runs on all ranks that it was started with
            communicator = cluster.communicators[0]
            rates = _nic_rates(cluster, communicator, nic_bps)
            expected_bps = expected_bus_bps(measured.collective, communicator, rates)
        rows.append(ExpectedBandwidth(measured, expected_bps))
    return tuple(rows)


def _medians(bandwidths: Iterable[Bandwidth]) -> list[Bandwidth]:
    """Return a row for each collective and size, with the median of its bandwidths, and all of its wrong results."""
    rows_of: defaultdict[tuple[str, int], list[Bandwidth]] = defaultdict(list)
    for bandwidth in bandwidths:
        rows_of[bandwidth.collective, bandwidth.bytes].append(bandwidth)
    medians = []
    for (collective, size), rows in rows_of.items():
        wrong = sum(row.wrong for row in rows)
        medians.append(Bandwidth(collective, size, median(row.bus_bps for row in rows), wrong))
    return medians


def _nic_rates(cluster: Cluster, communicator: Communicator, nic_bps: float | None) -> list[float]:
    """Return the rates of the first host's NICs; none if one isn't known."""
    if not communicator.hosts:
        return []
    host = cluster.host(communicator.hosts[0])
    rates: list[float] = []
    for nic in host.nics.values():
        rate_bps = nic_bps or nic.rate_bps
        if rate_bps is None:
            return []
        rates.append(rate_bps)
    return rates

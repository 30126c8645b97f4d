"""Failures a year, and the share of GPU-time that they take: Monte Carlo, and a closed form to first order beside it.

Rail-only IV-C: a GPU whose link (NIC, two transceivers) or switch is out is unavailable, in both designs alike. With
rerouting by the HB domain, the others carry the m of K rails that are out, and an iteration is 1 + c m/(K-m) long, with
c the share of it that waits for rails (docs/reliability.md). Not counted: a job that waits as a whole for its slowest
domain, restarts and lost iterations; two domains without a common working rail. GPUs are numbered domain by domain.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationInfo, field_validator

from railyard.core.config import ConfigModel, parse_model, read_yaml
from railyard.core.installation import data_file
from railyard.results.theory.clos import Network, rail_only, rail_optimized

DEFAULT_COMPONENTS: Final = data_file("results/theory/reliability/components.yaml")
HOURS_A_YEAR: Final = 8766.0
DAYS_A_YEAR: Final = 365.25

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)]


class Observation(ConfigModel):
    """Failures counted in a fleet."""

    failures: Annotated[int, Field(ge=0)]
    components: Annotated[int, Field(ge=1)]
    days: _Positive


class Component(ConfigModel):
    """One kind: how often one of them fails, by either key, and for how long on average."""

    seen: Observation | None = None
    per_year: Annotated[_NotNegative | None, Field(validate_default=True)] = None
    repair_h: _Positive
    source: str

    @field_validator("per_year")
    @classmethod
    def _one_of_both(cls, per_year: float | None, info: ValidationInfo) -> float | None:
        if "seen" in info.data and (per_year is None) == (info.data["seen"] is None):
            raise ValueError("must be given or else seen, one of the two")
        return per_year

    @property
    def failures_per_year(self) -> float:
        """Failures of one component a year."""
        if self.seen is None:
            return self.per_year or 0.0
        return self.seen.failures / self.seen.components / (self.seen.days / DAYS_A_YEAR)

    @property
    def unavailable(self) -> float:
        """Share of its time that one of them is out, to first order: rate x repair time."""
        return self.failures_per_year * self.repair_h / HOURS_A_YEAR


class Components(ConfigModel):
    """Components of a cluster. A GPU's link has `nic`, one a GPU, and `transceiver`; `hbm` is counted a GPU."""

    gpu: Component
    hbm: Component
    nic: Component
    switch: Component
    transceiver: Component
    rail_time_share: Annotated[float, Field(ge=0, le=1, strict=False)]


def read_components(path: Path = DEFAULT_COMPONENTS) -> Components:
    """Return the components of a file. BadInput names the file, and the key in it that can't be used."""
    return parse_model(Components, read_yaml(path, "components"), f"components {path.name}")


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Wiring:
    """A network with its GPUs in HB domains of `domain_gpus`."""

    network: Network
    domain_gpus: int

    @cached_property
    def switch_of(self) -> Ints:
        """The first-tier switch of each GPU. Shape: gpus.

        Rank by rank, as rails are wired, and as full as the counts of results/theory/clos.py have it.
        """
        net = self.network
        k = self.domain_gpus
        domains = net.gpus // k
        domain, rank = np.divmod(np.arange(net.gpus), k)
        # a switch below the top has half its ports down
        if net.tiers > 1:
            return np.asarray((rank * domains + domain) // (net.radix // 2))
        if net.design != "rail-only":
            return np.asarray(rank // k)
        # no rail is split: a switch takes as many whole ones as it has ports for
        rails_of_switch = net.radix // domains
        return np.asarray(rank // rails_of_switch)


def both(gpus: int, domain_gpus: int, radix: int) -> tuple[Wiring, Wiring]:
    """Rail-optimized and rail-only, for the same GPUs. ValueError if they aren't whole HB domains."""
    narrow = rail_only(gpus, domain_gpus, radix)
    return Wiring(rail_optimized(gpus, radix), domain_gpus), Wiring(narrow, domain_gpus)


class Estimate(NamedTuple):
    """A mean over simulated years with its 95% confidence interval, the closed form, and how single years vary."""

    mean: float
    low: float
    high: float
    first_order: float
    year_p5: float
    year_p95: float


class Reliability(NamedTuple):
    """Failures a year, all tiers; `access_failures`: those that leave a GPU without its rail, a switch counting once.

    lost: share of all GPU-time, 0 to 1, as in the paper; lost_rerouted: with rerouting by the HB domain.
    """

    switch_failures: Estimate
    transceiver_failures: Estimate
    network_failures: Estimate
    access_failures: Estimate
    lost: Estimate
    lost_rerouted: Estimate


_Outages = tuple[Ints, Floats, Floats]
"""Outages of one kind of component in all years: number of the component, start and end in years; of one length."""


def lost_share(out: Ints, domain_gpus: int, rail_time_share: float, rerouted: bool) -> Floats:
    """Share of a domain's time that is lost while `out` of its rails are, 0 to 1."""
    if not rerouted:
        return np.asarray(out / domain_gpus)
    living_gpus = domain_gpus - out
    slowdown = rail_time_share * out / np.maximum(living_gpus, 1)
    return np.where(living_gpus > 0, slowdown / (1 + slowdown), 1.0)


def first_order_lost(wiring: Wiring, components: Components, rerouted: bool) -> float:
    """Share of GPU-time lost, with each component out alone for rate x repair time of the time."""
    k = wiring.domain_gpus
    share = components.rail_time_share
    gpus = wiring.network.gpus
    link = 2 * components.transceiver.unavailable + components.nic.unavailable
    by_links = gpus * link * k * float(lost_share(np.array([1]), k, share, rerouted)[0])
    domains = gpus // k
    # how many GPUs of a domain are behind a switch, for each pair of these that has any
    _, gpus_per_switch = np.unique(wiring.switch_of * domains + np.arange(gpus) // k, return_counts=True)
    by_switches = components.switch.unavailable * k * float(lost_share(gpus_per_switch, k, share, rerouted).sum())
    return (by_links + by_switches) / gpus


def simulate(wiring: Wiring, components: Components, years: int, seed: int) -> Reliability:
    """Monte Carlo of so many years in a row, all with the same equipment. ValueError for less than two.

    Failures are Poisson, repairs take exponential times. What fails anew while it is being repaired is back when both
    repairs are done.
    """
    if years < 2:
        raise ValueError(f"{years} years must be 2 or more, to tell how they vary")
    rng = np.random.default_rng(seed)
    net = wiring.network
    kinds = (components.switch, components.transceiver, components.nic)
    counts = (net.switches, net.transceivers, net.gpus)
    access = (net.layers[0], 2 * net.gpus, net.gpus)
    outages = list[_Outages]()
    for kind, count in zip(kinds, access, strict=True):
        events = int(rng.poisson(kind.failures_per_year * count * years))
        start = rng.uniform(0, years, events)
        part = rng.integers(count, size=events)
        repair_years = kind.repair_h / HOURS_A_YEAR
        outages.append((part, start, start + rng.exponential(repair_years, events)))
    above = [kind.failures_per_year * (n - low) for kind, n, low in zip(kinds, counts, access, strict=True)]
    upper = [rng.poisson(a_year, years) for a_year in above]
    # how many began in each year
    begun = np.array([np.bincount(start.astype(np.int64), minlength=years) for _, start, _ in outages])
    switches, (transceiver, starts, ends), nics = outages
    # two transceivers a link, one at each end
    changes = _changes([_spread(switches, wiring), (transceiver // 2, starts, ends), nics])
    by_domain = _by_domain(changes, wiring)

    def lost(rerouted: bool) -> Estimate:
        yearly = _lost_a_year(by_domain, wiring, components.rail_time_share, rerouted, years)
        return _estimate(yearly, first_order_lost(wiring, components, rerouted))

    expected = [kind.failures_per_year * count for kind, count in zip(kinds, counts, strict=True)]
    return Reliability(
        _estimate(begun[0] + upper[0], expected[0]),
        _estimate(begun[1] + upper[1], expected[1]),
        _estimate(np.sum(begun, 0) + np.sum(upper, 0), sum(expected)),
        _estimate(np.sum(begun, 0), sum(expected) - sum(above)),
        lost(rerouted=False),
        lost(rerouted=True),
    )


def _spread(switches: _Outages, wiring: Wiring) -> _Outages:
    part, start, end = switches
    counts = np.bincount(wiring.switch_of, minlength=wiring.network.layers[0])
    sorted_gpus = np.argsort(wiring.switch_of, kind="stable")
    first = np.cumsum(counts) - counts
    gpu_counts = counts[part]
    begin = np.cumsum(gpu_counts) - gpu_counts
    place = np.arange(gpu_counts.sum()) + np.repeat(first[part] - begin, gpu_counts)
    return sorted_gpus[place], np.repeat(start, gpu_counts), np.repeat(end, gpu_counts)


def _changes(kinds: list[_Outages]) -> tuple[Ints, Floats, Ints]:
    """Return GPU, time and step of each time at which a GPU's rail goes (+1) or is back (-1): overlaps are one."""
    parts, starts, ends = zip(*kinds, strict=True)
    gpu = np.concatenate(parts * 2)
    time = np.concatenate(starts + ends)
    step = np.repeat([1, -1], len(gpu) // 2)
    order = np.lexsort((time, gpu))
    gpu = gpu[order]
    time = time[order]
    step = step[order]
    # every outage ends, so the count is back at 0 where the next GPU's begin
    running = np.cumsum(step)
    changes = ((step == 1) & (running == 1)) | ((step == -1) & (running == 0))
    return gpu[changes], time[changes], step[changes]


def _by_domain(changes: tuple[Ints, Floats, Ints], wiring: Wiring) -> tuple[Ints, Floats, Floats]:
    """Return for each change, domain by domain: rails out from then on, the time, and that until the next change."""
    gpu, time, step = changes
    order = np.lexsort((time, gpu // wiring.domain_gpus))
    # the last of a domain has another's after it, but then none of its rails is out, and nothing lost
    return np.cumsum(step[order]), time[order], np.diff(time[order], append=0.0)


def _lost_a_year(
    by_domain: tuple[Ints, Floats, Floats], wiring: Wiring, rail_time_share: float, rerouted: bool, years: int
) -> Floats:
    """Return the share of each year's GPU-time, all GPUs; an outage that spans two years counts in the first."""
    k = wiring.domain_gpus
    (out, time, durations) = by_domain
    year = np.minimum(time.astype(np.int64), years - 1)
    lost = lost_share(out, k, rail_time_share, rerouted) * durations * k
    return np.bincount(year, weights=lost, minlength=years) / wiring.network.gpus


def _estimate(yearly: npt.NDArray[np.floating] | npt.NDArray[np.integer], first_order: float) -> Estimate:
    mean = float(np.mean(yearly))
    half = 1.96 * float(np.std(yearly, ddof=1)) / len(yearly) ** 0.5
    p5, p95 = np.percentile(yearly, (5, 95)).tolist()
    return Estimate(mean, mean - half, mean + half, first_order, p5, p95)

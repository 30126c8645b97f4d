"""Switches, transceivers, cost and power of a Clos network (Rail-only section V-E, Eq. 4, 5).

Full bisection, from the fewest tiers that reach all GPUs. Equipment is counted by ports, as Table II of the paper has
it: below the top a switch has as many ports down as up, at the top all are down, and each tier has a port down for
every GPU. Rails share switches (a 256-port switch takes two rails of 128), but a rail of one tier isn't torn between
two. Where the counts divide, as in Table II, that many can be wired evenly; elsewhere it is the least that could do.
"""

from dataclasses import dataclass
from math import ceil
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Equipment:
    """Price in USD and peak power in W of one switch port and of one transceiver."""

    switch_port_usd: float
    transceiver_usd: float
    switch_port_w: float
    transceiver_w: float


AT_400G: Final = Equipment(switch_port_usd=694, transceiver_usd=199, switch_port_w=18, transceiver_w=9)
"""Rail-only section V-E, footnote 1: 400 Gbps."""


@dataclass(frozen=True, slots=True)
class Network:
    """Network of `gpus` GPUs, a port each, with switches of `radix` ports; so many in each layer, from the GPUs up.

    Each layer has a link down for every GPU, and a transceiver at each of its ends.
    """

    design: Literal["rail-optimized", "rail-only", "dual-plane"]
    gpus: int
    radix: int
    layers: tuple[int, ...]

    @property
    def tiers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def switches(self) -> int:
        """N_SW."""
        return sum(self.layers)

    @property
    def transceivers(self) -> int:
        """N_TR."""
        return self.tiers * 2 * self.gpus

    def cost_usd(self, equipment: Equipment = AT_400G) -> float:
        """Rail-only Eq. 4: a switch is paid with all its ports, used or not."""
        ports = self.switches * self.radix
        return equipment.switch_port_usd * ports + equipment.transceiver_usd * self.transceivers

    def power_w(self, equipment: Equipment = AT_400G) -> float:
        """Rail-only Eq. 5, at peak."""
        ports = self.switches * self.radix
        return equipment.switch_port_w * ports + equipment.transceiver_w * self.transceivers


@dataclass(frozen=True, slots=True)
class Comparison:
    """Networks of both designs for the same GPUs, `wide` with spines over all and `narrow` without, and their prices.

    `saved_usd` and the like are what the narrow network saves of the wide one.
    """

    wide: Network
    narrow: Network
    equipment: Equipment = AT_400G

    @property
    def saved_usd(self) -> float:
        """Cost saved, USD."""
        return self.wide.cost_usd(self.equipment) - self.narrow.cost_usd(self.equipment)

    @property
    def saved_w(self) -> float:
        """Peak power saved, W."""
        return self.wide.power_w(self.equipment) - self.narrow.power_w(self.equipment)

    @property
    def cost_saving_pct(self) -> float:
        """Cost saved, percent of the wide network's."""
        return 100 * self.saved_usd / self.wide.cost_usd(self.equipment)

    @property
    def power_saving_pct(self) -> float:
        """Power saved, percent of the wide network's."""
        return 100 * self.saved_w / self.wide.power_w(self.equipment)

    @property
    def bounds_pct(self) -> tuple[float, float]:
        """The least and the most percent that can be saved, whatever ports and transceivers cost or draw.

        Eq. 4 and 5 weigh the saving of switch ports and that of transceivers by their prices.
        """
        switches_pct = 100 * (1 - self.narrow.switches / self.wide.switches)
        transceivers_pct = 100 * (1 - self.narrow.transceivers / self.wide.transceivers)
        return min(switches_pct, transceivers_pct), max(switches_pct, transceivers_pct)


def capacity(tiers: int, radix: int) -> int:
    """Return the GPUs that a full-bisection Clos of so many tiers connects: 2 (radix/2)^tiers."""
    if radix < 4 or radix % 2:
        raise ValueError(f"radix {radix} must be an even number of ports, 4 or more")
    half: int = (radix // 2) ** tiers
    return 2 * half


def tiers_for(gpus: int, radix: int) -> int:
    """Return the fewest tiers that connect `gpus` GPUs any to any."""
    if gpus < 1:
        raise ValueError(f"{gpus} GPUs must be 1 or more")
    tiers = 1
    while capacity(tiers, radix) < gpus:
        tiers += 1
    return tiers


def rail_optimized(gpus: int, radix: int) -> Network:
    """Return one Clos over all GPUs, any to any."""
    return Network("rail-optimized", gpus, radix, _layers(gpus, radix, tiers_for(gpus, radix)))


def rail_only(gpus: int, domain_gpus: int, radix: int) -> Network:
    """Return a Clos for each of the K rails; `domain_gpus` is K, and `gpus` are whole HB domains of K."""
    if domain_gpus < 1 or gpus % domain_gpus:
        raise ValueError(f"{gpus} GPUs must be whole HB domains, not of {domain_gpus}")
    rail = gpus // domain_gpus
    tiers = tiers_for(rail, radix)
    if tiers > 1:
        return Network("rail-only", gpus, radix, _layers(gpus, radix, tiers))
    return Network("rail-only", gpus, radix, (ceil(domain_gpus / (radix // rail)),))


def dual_plane(gpus: int, domain_gpus: int, radix: int) -> Network:
    """Return rail-only with two planes: each GPU has a link of half the rate to a switch of either.

    A switch of `radix` ports then has twice as many of half the rate, as in Alibaba HPN (SIGCOMM 2024, section 5), so a
    plane needs fewer tiers. A transceiver carries two such links, so a tier has as many transceivers as with one plane.
    """
    # half the rate on each of twice as many ports
    plane = rail_only(gpus, domain_gpus, 2 * radix)
    return Network("dual-plane", gpus, radix, tuple(2 * switches for switches in plane.layers))


def radix_that_saves(gpus: int, domain_gpus: int, radix: int) -> int | None:
    """Return the smallest radix, `radix` times a power of two, with which rail-only has fewer tiers; None if none has.

    From the radix on that connects all GPUs in one tier, nothing can be saved.
    """
    while tiers_for(gpus, radix) > 1:
        if tiers_for(gpus // domain_gpus, radix) < tiers_for(gpus, radix):
            return radix
        radix *= 2
    return None


def _layers(gpus: int, radix: int, tiers: int) -> tuple[int, ...]:
    return (*[ceil(gpus / (radix // 2))] * (tiers - 1), ceil(gpus / radix))

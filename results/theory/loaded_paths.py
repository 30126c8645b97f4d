"""Latency and bandwidth of the two paths that health routing, part 2, compares, from the health of their links.

From G1 = G(d1, g1) to G2 = G(d2, g2), links in the order of travel:

    rail-only's path (dr)     HB link of G1, HB link of G(d1, g2), rail link of G(d1, g2), rail link of G2
    rail-optimized's path     rail link of G1, uplink of rail g1, uplink of rail g2, rail link of G2

A health H is the share of a link that other traffic leaves, 0 to 1. Rates are in rates of a rail. A link of rate C is a
queue of its own (M/M/1) whose load is 1 - H, so that a message takes 1 / (C H) in it on average, in units of its time
on an idle rail: the less the health, the greater the latency, as the article has it. Bandwidth is what the slowest link
leaves. All functions take arrays too, a value for each set of loads.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Answers = npt.NDArray[np.bool_]


class Healths(NamedTuple):
    """H of the source's HB domain and rail, of the spine layer, and of the destination's rail, above 0 each."""

    domain: Values
    rail: Values
    spine: Values
    far_rail: Values


class PathPair(NamedTuple):
    """A quantity of rail-only's path and of rail-optimized's."""

    rail_only: Values
    rail_optimized: Values


def condition(healths: Healths) -> Answers:
    """Return where g(G1) = H(g1) / H(d1) < 1 / H(S), by which rail-only's path has the higher score (part 2)."""
    return healths.rail * healths.spine < healths.domain


def latency(healths: Healths, hb_ratio: float) -> PathPair:
    """Return the mean latencies of a small message, in units of its time on an idle rail.

    hb_ratio: rate of an HB link over that of a rail. Uplinks have the rate of a rail.
    """
    in_domain = 2 / (hb_ratio * healths.domain)
    over_spines = 2 / healths.spine
    arrival = 1 / healths.far_rail
    return PathPair(in_domain + 2 * arrival, 1 / healths.rail + over_spines + arrival)


def bandwidth(healths: Healths, hb_ratio: float) -> PathPair:
    """Return what the slowest links leave, in rates of a rail. hb_ratio: as for `latency`."""
    rail_only = np.minimum(hb_ratio * healths.domain, healths.far_rail)
    rail_optimized = np.minimum(np.minimum(healths.rail, healths.spine), healths.far_rail)
    return PathPair(rail_only, rail_optimized)


def names_no_worse(holds: Answers, costs: PathPair) -> Answers:
    """Return where the path that the condition names costs no more than the other one.

    holds: the condition. costs: the less, the better, such as latencies.
    """
    return np.where(holds, costs.rail_only <= costs.rail_optimized, costs.rail_optimized <= costs.rail_only)

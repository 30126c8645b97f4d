"""Answers of lab 9: collisions of flows on uplinks, and lost probes of the student's run."""

from statistics import fmean

import numpy as np

from railyard.core.records import Recovered
from railyard.experiments.labs.definition import Setting
from railyard.results.theory.ecmp import hashes


def expected_imbalance(flows: int, uplinks: int) -> float:
    """Return the mean over hashes of the busiest uplink's flows over the mean per uplink."""
    imbalances: list[float] = []
    for chosen_uplinks in hashes(flows, uplinks):
        busiest = float(np.bincount(chosen_uplinks, minlength=uplinks).max())
        imbalances.append(busiest * uplinks / flows)
    return fmean(imbalances)


def imbalance_of_all(flows: int, uplinks: int) -> float:
    """Return the share of hashes, in percent, by which all flows are on one uplink."""
    return 100.0 * uplinks / float(uplinks**flows)


def lost(setting: Setting, fabric: str) -> int:
    """Return how many probes a cut link cost on a fabric in the student's run."""
    return setting.recovery("measured", fabric=fabric).probes_lost


def is_back(setting: Setting) -> str:
    """Return whether all traffic of the fabric with two planes was back before the repair, as `yes` or `no`."""
    return "no" if setting.recovery("measured", fabric="dual-plane").recovered is Recovered.NO else "yes"

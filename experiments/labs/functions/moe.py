"""Answers of lab 3: what forwarding in HB domains costs all-to-all, by formula and in the student's run."""

from railyard.experiments.labs.definition import Setting
from railyard.workloads.collectives.all_to_all_two_phase import forwarding_share


def cost(domains: int, rails: int, hb_factor: float = 12.0) -> float:
    """Return by how many percent Eq. 3 exceeds Eq. 2 on a grid, for C_F = `hb_factor` C_S."""
    return 100 * forwarding_share(rails, domains, hb_factor, 1.0)


def measured_s(setting: Setting, fabric: str, phase: str = "moe-a2a") -> float:
    """Return the time of a phase in the student's run, s; by default of its all-to-alls, of the step if it is ""."""
    metric = "completion_time" if phase else "iteration_time"
    return setting.measurement("measured", fabric=fabric, phase=phase, metric=metric).value

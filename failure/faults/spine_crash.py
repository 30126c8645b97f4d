"""Fault kind spine-crash."""

from railyard.failure.faults.definition import fault
from railyard.failure.faults.support.processes import SwitchCrash


@fault("spine-crash")
class SpineCrash(SwitchCrash):
    """The process of a spine is killed, or of another switch without GPUs."""

    order = 10
    weight = 1.0
    target_sort = "spine"
    roles = ("spine", "core")

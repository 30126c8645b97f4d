"""Free capacity: the complement of the papers' "traffic load". A full link has 0, whatever its queue."""

from railyard.controller.health.estimator import ESTIMATORS, Load
from railyard.controller.health.policy import BEST


@ESTIMATORS.register("utilisation")
def utilisation(load: Load) -> float:
    """Free capacity: the complement of the papers' "traffic load". A full link has 0, whatever its queue."""
    return BEST * (1 - load.used)

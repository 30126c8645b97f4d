"""Free queue space: distinguishes a link that is just full from one with a long queue."""

from railyard.controller.health.estimator import ESTIMATORS, Load
from railyard.controller.health.policy import BEST


@ESTIMATORS.register("backlog")
def backlog(load: Load) -> float:
    """Free queue space: distinguishes a link that is just full from one with a long queue."""
    return BEST * (1 - load.filled)

"""The mean of utilisation and backlog, two views of one load, times the share that loss leaves."""

from railyard.controller.health.estimator import ESTIMATORS, Load
from railyard.controller.health.estimators.backlog import backlog
from railyard.controller.health.estimators.loss import loss
from railyard.controller.health.estimators.utilisation import utilisation
from railyard.controller.health.policy import BEST


@ESTIMATORS.register("blended")
def blended(load: Load) -> float:
    """The mean of utilisation and backlog, two views of one load, times the share that loss leaves."""
    return (utilisation(load) + backlog(load)) / 2 * loss(load) / BEST

"""100 without drops, 0 from LOSS_LIMIT on: for faults without load, such as a cable that loses frames."""

from typing import Final

from railyard.controller.health.estimator import ESTIMATORS, Load
from railyard.controller.health.policy import BEST

LOSS_LIMIT: Final = 0.01
"""Lost frames per sent frame at which the score is 0: at 1% TCP is far below half of a rail's rate."""


@ESTIMATORS.register("loss")
def loss(load: Load) -> float:
    """100 without drops, 0 from LOSS_LIMIT on: for faults without load, such as a cable that loses frames."""
    return BEST * max(0.0, 1 - load.lost / LOSS_LIMIT)

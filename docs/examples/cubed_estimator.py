"""A score estimator: the cube of the load lowers the score, so that half-full links still count as good.

A link at half of its rate scores 88 and not 50, so no pair leaves it for a longer path.

    script/run run hot-rail --plugin docs/examples/cubed_estimator.py -o routing.health.estimator=cubed
"""

from railyard.controller.health.estimator import ESTIMATORS, Load


@ESTIMATORS.register("cubed")
def cubed(load: Load) -> float:
    """100 less the cube of the used share of the capacity."""
    return 100 * (1 - load.used**3)

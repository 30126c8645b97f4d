"""Max-min fair rates of flows by progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2), in arrays.

A port that is shared evenly by its pending flows offers each of them a rate. A port is a bottleneck if no port that its
flows cross offers less: its flows get that rate, which is then taken from all ports that they cross. The other flows
share in the next round what remains. Rates in bytes a second.
"""

import numpy as np

from railyard.results.theory.fluid.routes import Amounts, Numbers, Routes

# a share that differs by rounding is the same
EQUAL = 1 + 1e-12


def max_min(routes: Routes, flows: Numbers, port_rates: Amounts) -> Amounts:
    """Return the rate of each of these flows while they share all ports fairly.

    `flows`: numbers of flows, each with a path. `port_rates`: of each port now, like `Routes.rates`. A port with the
    rate 0 gives its flows nothing.
    """
    rates = np.zeros(len(flows))
    free = port_rates.copy()
    pending = np.arange(len(flows))
    # a row for each hop: NumPy reduces a few long rows faster than many short ones
    crossed = np.ascontiguousarray(routes.crossed[flows].T)
    shares = np.ascontiguousarray(routes.shares[flows].T)
    while len(pending):
        weights = np.bincount(crossed.ravel(), shares.ravel(), len(free))
        offered = np.full(len(free), np.inf)
        np.divide(free, weights, out=offered, where=weights > 0)
        # fillers have infinite rates, and so offer infinite ones
        least_of_flow = offered[crossed].min(axis=0)
        least_at_port = np.full(len(free), np.inf)
        np.minimum.at(least_at_port, crossed.ravel(), np.tile(least_of_flow, len(crossed)))
        # all bottlenecks at once: two of them with a common flow offer the same
        is_bottleneck = offered <= least_at_port * EQUAL
        is_bottleneck[-1] = False
        is_fixed = is_bottleneck[crossed].any(axis=0)
        rates[pending[is_fixed]] = least_of_flow[is_fixed]
        pending = pending[~is_fixed]
        used = shares[:, is_fixed] * least_of_flow[is_fixed]
        taken = np.bincount(crossed[:, is_fixed].ravel(), used.ravel(), len(free))
        # rounding may take slightly more than there is
        free = np.maximum(0.0, free - taken)
        crossed = crossed[:, ~is_fixed]
        shares = shares[:, ~is_fixed]
    return rates

"""Max-min fair rates of flows by progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2), in arrays.

A port whose share for each of its flows is the least at all ports that these flows cross fixes their rates. All such
ports of a round do so at once: flows elsewhere only raise the shares of the others. Rates in bytes a second.
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
        # what each pending flow would get if all of a port were shared among them now
        level = np.full(len(free), np.inf)
        np.divide(free, weights, out=level, where=weights > 0)
        # fillers have infinite rates, and so infinite levels
        least = level[crossed].min(axis=0)
        neighbour = np.full(len(free), np.inf)
        np.minimum.at(neighbour, crossed.ravel(), np.tile(least, len(crossed)))
        # a port with a neighbour that fills earlier has to wait: flows there will take less of it
        is_full = level <= neighbour * EQUAL
        is_full[-1] = False
        is_fixed = is_full[crossed].any(axis=0)
        rates[pending[is_fixed]] = least[is_fixed]
        pending = pending[~is_fixed]
        used = shares[:, is_fixed] * least[is_fixed]
        taken = np.bincount(crossed[:, is_fixed].ravel(), used.ravel(), len(free))
        # rounding may take slightly more than there is
        free = np.maximum(0.0, free - taken)
        crossed = crossed[:, ~is_fixed]
        shares = shares[:, ~is_fixed]
    return rates

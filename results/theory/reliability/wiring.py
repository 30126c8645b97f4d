"""Which switch each GPU hangs on. GPUs are numbered domain by domain, as a plan numbers them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from railyard.results.theory.clos import Network, rail_only, rail_optimized

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Wiring:
    """A network with its GPUs in HB domains of `domain_gpus`."""

    network: Network
    domain_gpus: int

    @cached_property
    def switch_of(self) -> Ints:
        """The first-tier switch of each GPU. Shape: gpus.

        Rank by rank, as rails are wired, and as full as the counts of results/theory/clos.py have it: a switch below
        the top has half its ports down; of a rail-only fabric of one tier it takes as many whole rails as it has ports
        for.
        """
        net, k = self.network, self.domain_gpus
        domains = net.gpus // k
        domain, rank = np.divmod(np.arange(net.gpus), k)
        if net.tiers > 1:
            return np.asarray((rank * domains + domain) // (net.radix // 2))
        rails_each = net.radix // domains if net.design == "rail-only" else k
        return np.asarray(rank // rails_each)

    @cached_property
    def gpus_by_switch(self) -> tuple[Ints, Ints, Ints]:
        """GPUs sorted by switch, where each switch's begin, and how many it has."""
        counts = np.bincount(self.switch_of, minlength=self.network.layers[0].switches)
        return np.argsort(self.switch_of, kind="stable"), np.cumsum(counts) - counts, counts

    @property
    def upper_switches(self) -> int:
        """Above the first tier: no GPU hangs on them, and routes go around one that is out."""
        return self.network.switches - self.network.layers[0].switches

    @property
    def upper_transceivers(self) -> int:
        return self.network.transceivers - self.network.layers[0].transceivers


def both(gpus: int, domain_gpus: int, radix: int) -> tuple[Wiring, Wiring]:
    """Rail-optimized and rail-only, for the same GPUs. ValueError if they aren't whole HB domains."""
    narrow = rail_only(gpus, domain_gpus, radix)
    return Wiring(rail_optimized(gpus, radix), domain_gpus), Wiring(narrow, domain_gpus)

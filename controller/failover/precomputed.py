"""Detours that are known before they are needed: those for each single thing that may break.

To work them out takes some milliseconds on a fabric of 64 GPUs, which is a fifth of a recovery.
"""

import gc
import time
from collections.abc import Iterator
from itertools import product
from typing import Final

from railyard.controller.failover.detours import Detours, detours, rails_used
from railyard.controller.failover.paths import Broken
from railyard.topologies.plan import Plan

MAX_GPUS: Final = 80  # the work grows with the cube of the GPUs: 0.9 s for 72, 8x8 with its spares
PAUSE_S: Final = 0.002  # between two, so that whoever shares this process's time gets some


class PrecomputedDetours:
    """`detours(plan, broken)` of one plan, by calling it; at once for what `precompute` has worked out."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._by_failure: dict[Broken, Detours] = {Broken(): {}}

    def __call__(self, broken: Broken) -> Detours:
        known = self._by_failure.get(broken)
        return detours(self._plan, broken) if known is None else known

    def precompute(self) -> None:
        """Work out what to do about each GPU's rail link, HB port, the GPU itself, and each rail."""
        rails_used(self._plan.spec)
        if len(self._plan.gpus) > MAX_GPUS:
            return
        for broken in _single_failures(self._plan):
            self._by_failure[broken] = detours(self._plan, broken)
            time.sleep(PAUSE_S)
        gc.collect()
        gc.freeze()  # what lives this long lives on: to look through it again would take longer than to decide


def _single_failures(plan: Plan) -> Iterator[Broken]:
    switches = plan.spec.definition.rail_switches(plan.spec.rails)
    yield from (Broken(rails=frozenset({switch.index})) for switch in switches)
    for link in product(plan.gpus, plan.spec.definition.all_planes if plan.spec.definition.planes > 1 else ()):
        yield Broken(planes=frozenset({link}))
    for gpu in plan.gpus:
        alone = frozenset({gpu})
        yield from (Broken(links=alone), Broken(hb=alone), Broken(links=alone, hb=alone))

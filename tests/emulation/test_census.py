"""A census on packets: where nobody reroutes it names the pairs that a silent link cuts off, those and no others.

rail0 --+---------+---------+
      d0g0      d1g0      d2g0
        | hb0     | hb1     | hb2
      d0g1      d1g1      d2g1
rail1 --x---------+---------+         x: goes silent
"""

import time
from itertools import permutations

import pytest

from railyard.core.records import ConnectivityCheck
from railyard.failure.connectivity.check import ConnectivityChecker
from railyard.failure.faults import Fault
from railyard.failure.script import NO_DEADLINE_NS, Action, QuietPeriod
from railyard.topologies.addresses import Gpu
from tests.emulation.fabrics import build, eventually, inject, repair

pytestmark = pytest.mark.sandbox

SILENT = Fault("link-silent", "d0g1")


def crosses(src: Gpu, dst: Gpu) -> bool:
    """Policy dr: between domains a packet takes the rail of its destination, into which its own domain hands it."""
    return src.domain != dst.domain and (dst == Gpu(0, 1) or (src.domain == 0 and dst.rank == 1))


def taken(checker: ConnectivityChecker, actions: list[Action], answered: int, *broken: Fault) -> ConnectivityCheck:
    """After the last of these acts, with all the time that it may want; again, if a busy machine kept answers back."""

    def check() -> ConnectivityCheck | None:
        found = checker.check(QuietPeriod(actions[-1], broken, NO_DEADLINE_NS), actions)
        return found if found and found.answered == answered else None

    found = eventually(check)
    assert found is not None
    return found


def test_silent_link_names_only_the_disconnected_gpus() -> None:
    fabric = build("rail-only", 3, 2, reroute=False, backups=False)
    pairs = list(permutations(fabric.gpus, 2))
    cut_off = {pair for pair in pairs if crosses(*pair)}
    actions = [Action(inject(fabric.net, SILENT), time.monotonic_ns(), "inject", SILENT)]
    with ConnectivityChecker(fabric.net, reroute=False) as checker:
        unjudged = taken(checker, actions, 30 - 8, SILENT)
    with ConnectivityChecker(fabric.net) as checker:
        silent = taken(checker, actions, 30 - 8, SILENT)
        repair(fabric.net, SILENT)
        actions.append(Action(time.monotonic_ns(), time.monotonic_ns(), "repair", SILENT))
        whole = taken(checker, actions, 30)
    named = {line.partition(":")[0] for line in silent.mismatches.splitlines()}
    assert named == {f"{src.name} -> {dst.name}" for src, dst in cut_off}
    assert (silent.not_recovered, silent.unexpected_answers, silent.forwarding_failed_parts) == (len(cut_off), 0, 0)
    assert (unjudged.not_recovered, unjudged.mismatches, unjudged.answered) == (0, "", 30 - 8)
    assert (silent.pairs, silent.reachable, silent.answered) == (30, 30, 30 - 8)
    assert (whole.mismatch_count, whole.mismatches) == (0, "")
    assert (whole.pairs, whole.reachable, whole.answered) == (30, 30, 30)

"""The fabric that a live page shows: its links are sampled, and the paths of its pairs are read after events."""

import asyncio
import time
from contextlib import suppress
from typing import Any, Final

from railyard.experiments.live.messages import ShowFabric
from railyard.experiments.live.page_state import PageState
from railyard.experiments.live.paths import Paths
from railyard.experiments.live.sampler import LinkSample, Sampler, structure
from railyard.topologies.addresses import Pair
from railyard.topologies.plan import Plan

PERIOD_S: Final = 0.2
# after a late sample: in a shorter time a single burst would look like a high rate
MIN_PERIOD_S: Final = 0.1
# the reaction to a fault has several events, and paths are read once after all of them
PATHS_SETTLE_S: Final = 0.02
PATHS_SHARE: Final = 0.02  # of the time is taken by reading paths, unless they would be older than
MAX_PATHS_GAP_S: Final = 1.0


class WatchedFabric:
    """The fabric that is up, if there is one. What is read of it goes to `state`."""

    def __init__(self, state: PageState) -> None:
        self._state = state
        self._sampler: Sampler | None = None
        self._paths: Paths | None = None
        self._paths_due = asyncio.Event()
        self.plan: Plan | None = None
        """Its plan, if it has paths to choose from: a fabric of GPUs."""
        self.last_sample: list[LinkSample] = []

    def begin(self, message: ShowFabric) -> None:
        """Watch a fabric instead of the last one."""
        self.end()
        fabric: dict[str, Any] | None = None
        # the fabric may be gone already
        with suppress(OSError):
            self._sampler = Sampler(message.plan)
            fabric = structure(message.label, message.plan)
            if isinstance(message.plan, Plan):
                self.plan = message.plan
                self._paths = Paths(message.plan)
        self._state.show_fabric(fabric)
        self.read_paths_soon()

    def end(self) -> None:
        """Watch no fabric."""
        if self._sampler:
            self._sampler.close()
        self._sampler = None
        self._paths = None
        self.plan = None
        self.last_sample = []
        self._state.forget_fabric()

    async def sample(self) -> None:
        """Sample the fabric and show it, for as long as the process lives."""
        due_s = time.monotonic()
        while True:
            # after a late sample the next ones are not made up for
            due_s = max(due_s + PERIOD_S, time.monotonic() + MIN_PERIOD_S)
            await asyncio.sleep(due_s - time.monotonic())
            if self._sampler is None:
                continue
            try:
                at_ns, self.last_sample = self._sampler.sample()
            except OSError:
                # the fabric is going away
                self.end()
                continue
            columns = [list(column) for column in zip(*self.last_sample, strict=True)]
            self._state.show_sample(at_ns, columns)

    def read_paths_soon(self) -> None:
        """Let `follow_paths` read them: an event may have changed some."""
        self._paths_due.set()

    async def follow_paths(self) -> None:
        """Read the paths of pairs after events, and show those that changed, for as long as the process lives."""
        while True:
            await self._paths_due.wait()
            await asyncio.sleep(PATHS_SETTLE_S)
            self._paths_due.clear()
            # time of this thread: on a busy machine reading takes longer, but costs no more
            begun_s = time.thread_time()
            # the fabric may be going away
            with suppress(OSError):
                self._read_paths()
            await asyncio.sleep(min(MAX_PATHS_GAP_S, (time.thread_time() - begun_s) / PATHS_SHARE))

    def path(self, src: Any, dst: Any) -> dict[str, Any]:
        """Return the path of a pair now. OSError if the fabric is going away."""
        assert self._paths
        self._read_paths((src, dst))
        return self._paths.last(src, dst)

    def _read_paths(self, *pairs: Pair) -> None:
        """Read the paths of these pairs, of all without any, and show those that changed."""
        if self._paths is None:
            return
        ns, changed = self._paths.read(*pairs)
        if changed:
            self._state.show_paths(ns, changed)

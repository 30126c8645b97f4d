"""Load of all machines of a run, as that of one."""

import os
from dataclasses import fields
from typing import Any

import numpy as np

from railyard.core.host_load import LoadMeter, LoadSample, MachineLoad
from railyard.experiments.machines import messages
from railyard.experiments.machines.cluster import Cluster


class ClusterMeter:
    """The load of all machines, as a LoadMeter has that of one: of each figure, that of the machine where it is worst.

    Machines that share a kernel see one another's processes as foreign; the meter takes them for what they are.
    """

    def __init__(self, cluster: Cluster, late_s: float) -> None:
        self._cluster = cluster
        self._late_s = late_s
        self._own = LoadMeter(late_s)
        self._loads: list[MachineLoad] = []
        # measurements by parts of the fabric that run on this kernel
        self._shared: list[messages.Metered] = []

    def __enter__(self) -> "ClusterMeter":
        self._cluster.ask_all(messages.Meter(on=True, late_s=self._late_s))
        self._own.__enter__()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._own.__exit__()
        if kind is not None:
            # a machine may be gone
            return
        answers = self._cluster.ask_all(messages.Meter(on=False), messages.Metered)
        for machine, metered in zip(self._cluster.others, answers, strict=True):
            if machine.about["boot_id"] == self._cluster.own["boot_id"]:
                self._shared.append(metered)
            else:
                self._loads.append(metered.load)

    @property
    def load(self) -> MachineLoad:
        """The load so far."""
        own_load = self._own.load
        values = {field.name: getattr(own_load, field.name) for field in fields(MachineLoad)}
        if self._shared:
            cores = len(os.sched_getaffinity(0))
            elapsed_s = self._own.elapsed_s * cores
            parts_s = sum(part.own_s for part in self._shared)
            values["foreign"] = max(0.0, own_load.foreign - parts_s / elapsed_s)
            values["foreign_100ms"] = max(map(self._foreign, self._own.steps, self._own.steps[2:]), default=0.0)
            for part in self._shared:
                for name in ("lag_p99_ms", "paused", "pause_ms"):
                    values[name] = max(values[name], getattr(part.load, name))
        for load in self._loads:
            for name, value in values.items():
                values[name] = max(value, getattr(load, name))
        return MachineLoad(**values)

    def take_samples(self) -> list[LoadSample]:
        """Return this machine's samples since the last call."""
        samples = self._own.take_samples()
        if not self._shared:
            return samples
        cores = len(os.sched_getaffinity(0))

        def corrected(sample: LoadSample) -> LoadSample:
            end = sample.monotonic_ns / 1e9
            parts = self._used_by_parts(end - 0.1, end) / (0.1 * cores)
            return sample._replace(foreign=max(0.0, sample.foreign - parts))

        return [corrected(sample) for sample in samples]

    def _foreign(self, before: Any, after: Any) -> float:
        cores = len(os.sched_getaffinity(0))
        spent = [b - a for a, b in zip(before, after, strict=True)]
        elapsed, busy, stolen, kernel, ours = spent
        foreign = busy - stolen - kernel - ours - self._used_by_parts(before.at, after.at)
        return float(min(1.0, max(0.0, foreign / (elapsed * cores))))

    def _used_by_parts(self, start: float, end: float) -> float:
        """Return the CPU seconds of the parts on this kernel between two times of the monotonic clock."""
        used = 0.0
        for part in self._shared:
            if part.own:
                at, used_s = np.array(part.own).T
                used += float(np.interp(end, at, used_s) - np.interp(start, at, used_s))
        return used

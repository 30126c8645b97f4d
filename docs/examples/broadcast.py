"""Workload kind `broadcast`: one GPU sends a buffer to all others, over its rail first, then in every HB domain.

    {kind: broadcast, root: d0g1, bytes: 4MB}

A kind is a class: its fields are the keys in YAML, `build` makes the schedule. The phases have a kind of traffic of
their own, "broadcast", which reports show beside TP, PP, DP and EP, and no collective algorithm: `predict` bounds each
by the busiest link of its own transfers.

    sudo script/run run FILE --plugin docs/examples/broadcast.py
"""

from railyard.core.errors import BadInput
from railyard.core.units import Size
from railyard.topologies.addresses import gpu_of_name
from railyard.workloads.schedule import Phase, Program
from railyard.workloads.spec import WORKLOADS, Built, Setting, Workload


@WORKLOADS.register("broadcast")
class Broadcast(Workload):
    """`bytes` from `root` to every other GPU of the fabric, which has two domains or more."""

    is_iteration = False  # plain traffic: reports give a completion time, not an iteration time

    bytes: Size
    root: str = "d0g0"

    def build(self, setting: Setting) -> Built:
        """Return the schedule. BadInput for a root that the fabric doesn't have."""
        program = Program(setting.fabric.domains, setting.fabric.rails)
        names = {f"d{d}g{g}": gpu for d, row in enumerate(program.grid) for g, gpu in enumerate(row)}
        if self.root not in names:
            raise BadInput(f"{setting.field}.root", self.root, "must be a GPU of the fabric, such as d0g0")
        root, rank = names[self.root], gpu_of_name(self.root).rank
        heads = [row[rank] for row in program.grid]  # the GPUs of the root's rail
        in_domains = dict(zip(heads, program.grid, strict=True))
        steps = {"over the rail": {root: tuple(heads)}, "in HB domains": in_domains}
        for name, groups in steps.items():
            phase = program.phase(Phase(name, "broadcast", "", len(program.grid[0]), len(heads), self.bytes))
            for src, group in groups.items():
                before = program.last(src)
                for dst in (gpu for gpu in group if gpu != src):
                    before = (program.send(src, dst, self.bytes, phase, before),)
                    program.wait_for(dst, before)
                program.wait_for(src, before)
        return Built(program.schedule(self.kind), setting.scale(self.kind))

    def traits(self) -> dict[str, str]:
        """Return what distinguishes two broadcasts of an experiment: it becomes part of the label."""
        return {"root": f"from {self.root}"}

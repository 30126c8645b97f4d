"""Workload kind `ring-attention`: GPUs of a rail pass blocks of keys and values round, and compute on each meanwhile.

    {kind: ring-attention, bytes: 1MB, compute: 200ms}

Computing and sending overlap, so the bound of the busiest link is not what it takes, and the times of such a phase are
`not compared`. This kind states its own prediction in place of it: a step ends with the slower of the two. Where
nothing can be predicted, `NotCompared("waits for a random time")` gives the reason that tables show.

    sudo script/run run FILE --plugin docs/examples/ring_attention.py
"""

from railyard.core.units import Size, Time
from railyard.topologies.prediction import WHOLE, StatedTime
from railyard.workloads.schedule import Phase, Program
from railyard.workloads.spec import WORKLOADS, Built, Setting, Workload


@WORKLOADS.register("ring-attention")
class RingAttention(Workload):
    """Every GPU sends `bytes` to the next domain, domains - 1 times, and computes for `compute` beside each of them."""

    is_iteration = False

    bytes: Size
    compute: Time

    def build(self, setting: Setting) -> Built:
        """Return the schedule with its prediction: the last block is sent after all other steps have ended."""
        domains, rails = setting.fabric.domains, setting.fabric.rails
        program = Program(domains, rails)
        phase = program.phase(Phase("ring", "attention", "", 1, domains, self.bytes))
        for _ in range(domains - 1):
            arriving: dict[int, int] = {}
            for gpu in range(domains * rails):
                receiver = (gpu + rails) % (domains * rails)
                arriving[receiver] = program.send(gpu, receiver, self.bytes, phase, program.last(gpu))
                program.compute(gpu, self.compute, phase)
            for gpu, block in arriving.items():
                program.wait_for(gpu, (*program.last(gpu), block))
        send_s = self.bytes / setting.emulated.rail
        seconds = (domains - 2) * max(send_s, self.compute) + send_s
        time = StatedTime(seconds, "(y-2) max(send, compute) + send")
        schedule = program.schedule(self.kind, stated={"ring": time, WHOLE: time})
        return Built(schedule, setting.scale(self.kind))

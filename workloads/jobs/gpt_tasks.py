"""The tasks of a GPT's training iteration: 1F1B on every pipeline, then the gradients' AllReduce."""

from railyard.workloads.collectives.algorithm import ALGORITHMS
from railyard.workloads.jobs.gpt import FORWARD, GptJob, gpt_iteration, steps
from railyard.workloads.jobs.pipeline import Pass, next_pass, one_forward_one_backward
from railyard.workloads.program import Grid, Program
from railyard.workloads.schedule import Schedule


def gpt_schedule(job: GptJob) -> Schedule:
    """The iteration: every stage of every replica takes its passes in 1F1B order, then the replicas sum gradients."""
    place, p = job.placement, job.placement.parallelism
    program = Program(place.domains, place.rails)
    for replica in range(p.data):
        _Pipeline(job, program, replica).emit()
    if p.data > 1:
        all_reduced = steps(job).all_reduce
        for stage in range(p.pipeline):
            number = program.phase(all_reduced)
            for rank in range(p.tensor):
                grid = place.data_grid(stage, rank)
                ALGORITHMS[all_reduced.collective].emit(program, all_reduced, number, grid)
    return program.schedule(job.name, gpt_iteration(job))


class _Pipeline:
    """One replica's passes. `input_transfers`: for a (stage, pass), the transfers that bring its input, one for each
    GPU."""

    def __init__(self, job: GptJob, program: Program, replica: int) -> None:
        self.job, self.program, self.p = job, program, job.placement.parallelism
        self.steps = steps(job)
        self.groups = [job.placement.tensor_group(stage, replica) for stage in range(self.p.pipeline)]
        self.grids = [job.placement.tensor_grid(stage, replica) for stage in range(self.p.pipeline)]
        self.input_transfers: dict[tuple[int, Pass], list[int]] = {}

    def emit(self) -> None:
        """Round and round the stages, at each the next pass if its input was sent: so tasks are in order of time."""
        stages, m, v = self.p.pipeline, self.p.micro_batches, self.p.virtual_stages
        orders = [one_forward_one_backward(stage, stages, m, v) for stage in range(stages)]
        done = [0] * stages
        while any(done[stage] < len(orders[stage]) for stage in range(stages)):
            before = sum(done)
            for stage, order in enumerate(orders):
                if done[stage] < len(order) and self._is_input_sent(stage, order[done[stage]]):
                    self._pass(stage, order[done[stage]])
                    done[stage] += 1
            if sum(done) == before:
                raise ValueError(f"1F1B of {stages} stages, {m} micro-batches and {v} chunks stands still after {done}")

    def _is_input_sent(self, stage: int, step: Pass) -> bool:
        first = 0 if step.forward else self.p.pipeline - 1
        end = 0 if step.forward else self.p.virtual_stages - 1
        return (stage, step.chunk) == (first, end) or (stage, step) in self.input_transfers

    def _pass(self, stage: int, step: Pass) -> None:
        group = self.groups[stage]
        for gpu, input_transfer in zip(group, self.input_transfers.get((stage, step), []), strict=False):
            self.program.wait_for(gpu, (*self.program.last(gpu), input_transfer))
        seconds = self.job.compute_s / self.p.virtual_stages * (FORWARD if step.forward else 1 - FORWARD)
        for _ in range(self.job.pairs_per_pass):
            self._tensor(self.grids[stage], seconds / self.job.pairs_per_pass)
        target = next_pass(stage, self.p.pipeline, self.p.virtual_stages, step)
        if target is not None:
            self._send_to_next_stage(group, *target)

    def _tensor(self, grid: Grid, seconds: float) -> None:
        """AllGather, computing, ReduceScatter; the computing counts to the phase of the ReduceScatter."""
        gather, scatter = self.steps.all_gather, self.steps.reduce_scatter
        ALGORITHMS[gather.collective].emit(self.program, gather, self.program.phase(gather), grid)
        number = self.program.phase(scatter)
        for row in grid:
            for gpu in row:
                self.program.compute(gpu, seconds, number)
        ALGORITHMS[scatter.collective].emit(self.program, scatter, number, grid)

    def _send_to_next_stage(self, group: tuple[int, ...], stage: int, step: Pass) -> None:
        """Each GPU sends its part to the GPU of its rank in the next stage, and waits until it is sent."""
        number = self.program.phase(self.steps.point_to_point)
        size = int(self.steps.point_to_point.data_bytes)
        transfers = [
            self.program.send(src, dst, size, number, self.program.last(src))
            for src, dst in zip(group, self.groups[stage], strict=True)
        ]
        for src, transfer in zip(group, transfers, strict=True):
            self.program.wait_for(src, (transfer,))
        self.input_transfers[stage, step] = transfers

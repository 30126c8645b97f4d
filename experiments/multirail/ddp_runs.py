"""A network that DistributedDataParallel trains twice on one fabric: over Gloo, and over Railyard's backend."""

from collections.abc import Sequence
from statistics import fmean, median
from typing import Final

from railyard.core.records import IntervalId
from railyard.experiments.multirail.parts import DdpSpec
from railyard.experiments.multirail.session import MultirailSession
from railyard.experiments.multirail.spec import MultirailExperiment
from railyard.experiments.run.progress import Steps
from railyard.results.multirail.records import DdpRun
from railyard.workloads.allreduce.engine_kind import peer_rail
from railyard.workloads.allreduce.peers.ddp import DdpRanks
from railyard.workloads.allreduce.peers.ddp_run import Training, TrainingResult

MIN_LOSS: Final = 0.01
"""Smaller ones are compared as if they were this large: their last digits are float32's."""


def run_ddp(spec: MultirailExperiment, session: MultirailSession, ddp_run: DdpSpec, repeat: int, steps: Steps) -> None:
    """Both on the same ranks, Gloo first."""
    training = Training(ddp_run.steps, width=ddp_run.width, bucket_mb=ddp_run.bucket / 2**20, seed=spec.seed + repeat)
    what = f"DDP, {ddp_run.policy}"
    with (
        steps.step(f"{session.label}: {what}"),
        session.watch().record_load(IntervalId(session.label, "DDP", ddp_run.policy, repeat=repeat)),
        session.recording_skips(what),
        DdpRanks(session.net, peer_rail(session.plan.spec)) as ranks,
    ):
        gloo, ours = ranks.train("gloo", training), ranks.train("railyard", training, policy=ddp_run.policy)
        session.run.multirail.lessons.append(compared(session.label, ddp_run.policy, repeat, gloo, ours))


def compared(
    fabric: str, policy: str, repeat: int, gloo: Sequence[TrainingResult], ours: Sequence[TrainingResult]
) -> DdpRun:
    """From every rank's account of both."""
    pairs = [p for g, o in zip(gloo, ours, strict=True) for p in zip(g.losses, o.losses, strict=True)]
    return DdpRun(
        fabric=fabric,
        policy=policy,
        repeat=repeat,
        bytes=ours[0].gradient_bytes,
        gloo_losses=_mean_losses(gloo),
        losses=_mean_losses(ours),
        losses_apart=max(abs(mine - theirs) / max(abs(theirs), MIN_LOSS) for theirs, mine in pairs),
        gloo_step_s=_step_s(gloo),
        step_s=_step_s(ours),
    )


def _mean_losses(ranks: Sequence[TrainingResult]) -> tuple[float, ...]:
    return tuple(fmean(step) for step in zip(*(rank.losses for rank in ranks), strict=True))


def _step_s(ranks: Sequence[TrainingResult]) -> float:
    """Of the rank that took longest; the first step is learning where everything is."""
    return max(median(rank.seconds[1:]) for rank in ranks)

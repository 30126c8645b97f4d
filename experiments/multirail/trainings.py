"""Trainings on a multi-rail fabric: replays of published models, and small networks trained by PyTorch's DDP."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from statistics import fmean, median
from typing import Final

from railyard.core.records import IntervalId
from railyard.experiments.multirail.measured import check_complete
from railyard.experiments.multirail.parts import DdpSpec, TrainingSpec
from railyard.experiments.multirail.predictions import learning, predicted_step_s, step_of
from railyard.experiments.multirail.session import MultirailSession
from railyard.experiments.multirail.spec import MultirailExperiment
from railyard.experiments.run.progress import Steps
from railyard.results.runs.allreduce import DdpRun, Training, training_name
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport
from railyard.workloads.allreduce.engine_kind import Group, peer_rail
from railyard.workloads.allreduce.peers.training import DdpRanks, Step, TrainingResult
from railyard.workloads.allreduce.peers.training import Training as DdpTraining
from railyard.workloads.models.catalogue import GptModel, load_model


def run_training(
    spec: MultirailExperiment, session: MultirailSession, training: TrainingSpec, policy: str, repeat: int, steps: Steps
) -> None:
    """First as many steps, without their computing, as have the operations that a policy is given to learn in."""
    batch = 0 if isinstance(load_model(training.model), GptModel) else training.batch
    peer, dilation = peer_rail(session.plan.spec), session.dilation
    step = step_of(training, session.nodes, session.plan.scale, session.rails[peer].rate * dilation)
    step = replace(step, compute_s=step.compute_s * dilation)
    predicted = predicted_step_s(step, session.rails, session.nodes, policy, peer)
    name = training_name(training.model, batch)
    what, interval = f"{name}, {policy}", IntervalId(session.label, name, policy, repeat=repeat)
    with (
        steps.step(f"{session.label}: {what}"),
        session.watch().record_load(session.run, interval),
        session.recording_skips(policy),
        session.engine(policy) as ranks,
    ):
        for number in range(ceil(learning(policy, spec.learning) / len(step.sizes))):
            _one_step(ranks, replace(step, compute_s=0.0), spec.seed + number)
        times = [_one_step(ranks, step, spec.seed + number) for number in range(training.steps)]
        own_time = (step.compute_s / dilation, median(times) / dilation, predicted / dilation)
        compute_s, step_s, predicted_s = own_time
        Training(
            interval, training.steps, step.samples / step_s, sum(step.sizes), compute_s, step_s, predicted_s, dilation
        ).add_to(session.run)


def _one_step(ranks: Group, step: Step, seed: int) -> float:
    """Seconds: of each run of like allreduces its computing, and from the first start to the last end."""
    total = 0.0
    for size, count in step.groups:
        reports = ranks.run(Operations("allreduce", "float32", size, count, seed, gap_s=step.gap_s))
        check_complete(reports)
        total += step.gap_s + _span_s(reports)
    return total


def _span_s(reports: Sequence[RankReport]) -> float:
    return (max(report.ends_ns[-1] for report in reports) - min(report.starts_ns[0] for report in reports)) / 1e9


MIN_LOSS: Final = 0.01
"""Smaller ones are compared as if they were this large: their last digits are float32's."""


def run_ddp(spec: MultirailExperiment, session: MultirailSession, ddp_run: DdpSpec, repeat: int, steps: Steps) -> None:
    """Both on the same ranks, Gloo first."""
    training = DdpTraining(
        ddp_run.steps, width=ddp_run.width, bucket_mb=ddp_run.bucket / 2**20, seed=spec.seed + repeat
    )
    what = f"DDP, {ddp_run.policy}"
    interval = IntervalId(session.label, f"DDP, width {ddp_run.width}", ddp_run.policy, repeat=repeat)
    with (
        steps.step(f"{session.label}: {what}"),
        session.watch().record_load(session.run, interval),
        session.recording_skips(what),
        DdpRanks(session.net, peer_rail(session.plan.spec)) as ranks,
    ):
        gloo, ours = ranks.train("gloo", training), ranks.train("railyard", training, policy=ddp_run.policy)
        compared(interval, gloo, ours).add_to(session.run)


def compared(interval: IntervalId, gloo: Sequence[TrainingResult], ours: Sequence[TrainingResult]) -> DdpRun:
    """From every rank's account of both."""
    pairs = [p for g, o in zip(gloo, ours, strict=True) for p in zip(g.losses, o.losses, strict=True)]
    return DdpRun(
        interval,
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

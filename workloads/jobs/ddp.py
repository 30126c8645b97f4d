"""Workload kind `ddp`: a small network that PyTorch's DistributedDataParallel really trains on a multi-rail fabric.

{kind: ddp, steps: 30, width: 1024, bucket: 256KiB}
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Annotated, Final

from pydantic import Field

from railyard.core.units import Size
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import MultirailSpec
from railyard.workloads.allreduce.engine_kind import check_policy, peer_rail
from railyard.workloads.allreduce.peers.training import DdpRanks, Training
from railyard.workloads.allreduce.workload import RailSession, RailWorkload, Rows
from railyard.workloads.spec import WORKLOADS

# smaller losses are compared as if they were this large: their last digits are float32's
MIN_LOSS: Final = 0.01


@WORKLOADS.register("ddp")
class DdpSpec(RailWorkload):
    """The same training over Gloo and over Railyard's backend with `policy`.

    `width` of its hidden layer: about 1 KB of gradients each; `bucket` is DDP's.
    """

    steps: Annotated[int, Field(ge=2, le=10_000)] = 30
    width: Annotated[int, Field(ge=1, le=65_536)] = 1024
    bucket: Size = 256 * 2**10
    policy: str = "nezha"

    def label(self) -> str:
        """Return `DDP, width 1024`."""
        return f"DDP, width {self.width}"

    def check(self, fabrics: Sequence[MultirailSpec], field: str) -> None:
        """Check the policy on each fabric."""
        super().check(fabrics, field)
        on = [fabric for n, fabric in enumerate(fabrics) if self.is_on(n)]
        check_policy(self.policy, f"{field}.policy", on, own_only=True)

    def measure(self, session: RailSession) -> None:
        """Train over Gloo, then over Railyard, on the same ranks, and compare the losses of every rank and step."""
        for repeat in range(session.repeats):
            seed = session.seed + repeat
            training = Training(self.steps, width=self.width, bucket_mb=self.bucket / 2**20, seed=seed)
            with (
                session.interval(self.result_name, self.policy, repeat, f"DDP, {self.policy}") as interval,
                DdpRanks(session.net, peer_rail(session.plan.spec)) as ranks,
            ):
                gloo = ranks.train("gloo", training)
                railyard = ranks.train("railyard", training, policy=self.policy)
                differences: list[float] = []
                for gloo_rank, railyard_rank in zip(gloo, railyard, strict=True):
                    for expected, loss in zip(gloo_rank.losses, railyard_rank.losses, strict=True):
                        differences.append(abs(loss - expected) / max(abs(expected), MIN_LOSS))
                difference = max(differences)
                beside = replace(interval, policy="gloo", part=self.policy)
                for place, results in ((beside, gloo), (interval, railyard)):
                    # of the slowest rank; the first step warms up and is left out
                    step_s = max(median(result.seconds[1:]) for result in results)
                    session.record(place, "iteration_time", step_s, "s")
                    for n, losses in enumerate(zip(*(r.losses for r in results), strict=True), start=1):
                        session.record(place, "loss", fmean(losses), "ratio", phase=f"step {n}")
                session.record(interval, "gradient_size", railyard[0].gradient_bytes, "B")
                session.record(interval, "loss_difference", difference, "share")

    def dry_run(self, number: int, plan: MultirailPlan, repeats: int) -> Iterator[str | Rows]:
        """Yield the number of steps."""
        yield f"DDP: {self.steps} steps over Gloo, and as many over {self.policy}"

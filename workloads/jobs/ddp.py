"""Workload kind `ddp`: a small network that PyTorch's DistributedDataParallel really trains on a multi-rail fabric.

{kind: ddp, steps: 30, width: 1024, bucket: 256KiB}
"""

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from railyard.core.units import Size
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import MultirailSpec
from railyard.workloads.allreduce.engine_kind import check_policy
from railyard.workloads.allreduce.workload import RailWorkload, Rows
from railyard.workloads.spec import WORKLOADS


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

    def dry_run(self, number: int, plan: MultirailPlan, repeats: int) -> Iterator[str | Rows]:
        """Yield the number of steps."""
        yield f"DDP: {self.steps} steps over Gloo, and as many over {self.policy}"

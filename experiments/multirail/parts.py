"""The parts of a multi-rail experiment: policies by their names, a fault, a training, a lesson."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from railyard.core.errors import BadInput
from railyard.core.units import Size, Time
from railyard.experiments.spec.faults import Numbers
from railyard.topologies.multirail.rail_fault import RAIL_FAULTS
from railyard.topologies.multirail.spec import Dilation, MultirailSpec
from railyard.topologies.spec import ConfigModel
from railyard.workloads.allreduce.peers.training import published_compute_s


class FaultSpec(ConfigModel):
    """A fault of a rail (rail_fault.py) while allreduces of `size` run.

    It is injected `at` seconds after they began and repaired `repair` later; they continue for `after`. `node`: whose
    link it is; unused for faults of switches.
    """

    kind: Annotated[str, AfterValidator(RAIL_FAULTS.checked)]
    rail: str
    node: Annotated[int, Field(ge=0)] = 1
    size: Size = 16 * 2**20
    at: Time = 0.3
    repair: Time = 0.7
    after: Time = 1.5
    repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    policy: str = "nezha"
    on: Numbers | None = None

    @property
    def name(self) -> str:
        """Its kind and target."""
        return f"{self.kind} {self.target}"

    @property
    def target(self) -> str:
        """The rail; of a link fault, its NIC."""
        return self.rail + (f" of n{self.node}" if RAIL_FAULTS[self.kind].is_link else "")


class TrainingSpec(ConfigModel):
    """A training's allreduces and computing, replayed: `steps` of them.

    `bucket`: the most that an allreduce of gradients moves (AlexNet, VGG-11). `compute`: seconds a step, if not those
    of Nezha's Fig. 16. `volume`: the part of a step that is replayed: of its allreduces, the first; of GPT's, which
    are few and large, that part of each.
    """

    model: str
    batch: Annotated[int, Field(ge=1, le=65536)] = 32
    bucket: Size = 4 * 2**20
    compute: Time | None = None
    steps: Annotated[int, Field(ge=1, le=1000)] = 3
    volume: Annotated[float, Field(gt=0, le=1, strict=False)] = 1.0
    dilation: Dilation = 1.0
    policies: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = None
    on: Numbers | None = None


class DdpSpec(ConfigModel):
    """A small network that PyTorch's DDP really trains, over Gloo and over Railyard's backend with `policy`.

    `width` of its hidden layer: about 1 KB of gradients each; `bucket` is DDP's.
    """

    steps: Annotated[int, Field(ge=2, le=10_000)] = 30
    width: Annotated[int, Field(ge=1, le=65_536)] = 1024
    bucket: Size = 256 * 2**10
    policy: str = "nezha"
    on: Numbers | None = None


def compute_s(training: TrainingSpec) -> float | None:
    """Of a step of a model of layers; None where neither the spec nor the paper says."""
    return training.compute or published_compute_s(training.model, training.batch)


def mix_of(fabric: MultirailSpec) -> str:
    """`tcp+sharp`."""
    return "+".join(rail.kind for rail in fabric.rails)


def singles(fabric: MultirailSpec) -> list[str]:
    """A policy for each rail that is unlike those before it."""
    first = {rail.model_dump_json(exclude={"name"}): rail.name for rail in reversed(fabric.rails)}
    return [f"single:{rail.name}" for rail in fabric.rails if rail.name in first.values()]


def check_given_once(policies: Sequence[str], field: str) -> None:
    """Raise BadInput for a policy that is listed twice."""
    for number, policy in enumerate(policies):
        if policy in policies[:number]:
            raise BadInput(f"{field}.{number}", policy, "is given twice")

"""The parts of a multi-rail experiment: policies by their names, a fault, a training, a lesson."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, model_validator

from railyard.core.config import field_error
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.units import Size, Time
from railyard.experiments.spec.faults import BaseFaultSpec, Numbers
from railyard.failure.faults import FAULTS, fault_kinds
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import Dilation, MultirailSpec, RailSpec
from railyard.topologies.rail_kind import RAIL_KINDS
from railyard.topologies.spec import ConfigModel
from railyard.workloads.allreduce.peers.training import published_compute_s


def _rail_fault_kinds() -> list[str]:
    """Return the fault kinds that break a rail of a multi-rail fabric, so that its traffic moves to another rail."""
    rails = (RailSpec(name="rail", kind=RAIL_KINDS.names()[0], rate="auto"),)
    plan = MultirailPlan(MultirailSpec(kind="multi-rail", rails=rails), (1,), 1.0)
    return [kind for kind in fault_kinds() if FAULTS[kind].is_rerouted and FAULTS[kind].targets(plan)]


class FaultSpec(BaseFaultSpec):
    """A fault of a rail (failure/faults) while allreduces of `size` run.

    It is injected `at` seconds after they began and repaired `repair` later; they continue for `after`. `node`: the
    node whose link fails; unused for faults of switches. `target`: the rail, or `tcp0 of n1` for a link; it follows
    from the other keys.
    """

    target: Annotated[str, Field(exclude=True)]
    rail: str
    node: Annotated[int, Field(ge=0)] = 1
    size: Size = 16 * 2**20
    at: Time = 0.3
    repair: Time = 0.7
    after: Time = 1.5
    repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    policy: str = "nezha"
    on: Numbers | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_target(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        if "target" in data:
            raise field_error("target", data["target"], "is not a key here: give rail, and node for a link")
        kind, rail = data.get("kind"), data.get("rail")
        if isinstance(kind, str) and kind not in (possible := _rail_fault_kinds()):
            raise field_error("kind", kind, unknown_name_hint(kind, possible))
        is_of_link = isinstance(kind, str) and FAULTS[kind].layer is not None
        return {**data, "target": f"{rail} of n{data.get('node', 1)}" if is_of_link else str(rail)}

    @property
    def is_of_link(self) -> bool:
        """True if it breaks one node's link, not the rail's switch."""
        return FAULTS[self.kind].layer is not None

    @property
    def name(self) -> str:
        """Its kind and target."""
        return f"{self.kind} {self.target}"


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

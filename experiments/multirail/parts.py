"""The parts of a multi-rail experiment: policies by their names, a fault, a training, a lesson."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.units import Size, Time
from railyard.experiments.spec.faults import Numbers
from railyard.topologies.multirail.rail_kind import RAIL_KINDS
from railyard.topologies.multirail.spec import Dilation, MultirailSpec
from railyard.topologies.spec import ConfigModel
from railyard.workloads.allreduce.balancing.policies import weights_of
from railyard.workloads.allreduce.engine.training import published_compute_s

Peer = Literal["gloo", "mpi", "mptcp"]
PEERS: Final[tuple[Peer, ...]] = get_args(Peer)
"""Run by others' code on the same rails: Gloo and MPI on one of them, MPTCP (the kernel's) on all."""
OURS: Final = ("nezha", "mrib", "slicing", "equal", "single", "weights")
VIRTUAL: Final = "virtual"
"""Two channels on the NIC of one rail, and none on the others' (Nezha 4.1)."""
_POLICIES: Final = (*OURS[:-1], *PEERS, VIRTUAL)
FaultKind = Literal["link-down", "link-silent", "rail-switch-crash", "rail-switch-hang"]


class FaultSpec(ConfigModel):
    """A rail that goes while allreduces of `size` run, at one `node` or, of a switch, at all: `at` seconds after
    they began, back `repair` later, and they go on for `after`.

    `link-down`: its NIC's cable is cut at the switch. `link-silent`: nothing passes it any more, and nothing says so.
    """

    kind: FaultKind
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
        """Its row in tables."""
        return f"{self.kind} {self.rail}" + (f" of n{self.node}" if self.kind.startswith("link") else "")


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


def peer_rail(fabric: MultirailSpec) -> int:
    """The rail on which Gloo and MPI run: the first tcp one, else the first."""
    return next((number for number, rail in enumerate(fabric.rails) if RAIL_KINDS[rail.kind].is_tcp), 0)


def check_policy(policy: str, field: str, fabrics: Iterable[MultirailSpec]) -> None:
    """BadInput unless each of these fabrics can have it."""
    kind, _, rest = policy.partition(":")
    if policy not in _POLICIES and not (kind == "weights" or (kind == "single" and rest)):
        raise BadInput(field, policy, unknown_name_hint(policy, [*_POLICIES, "single:RAIL", "weights:99:1"]))
    for fabric in fabrics:
        names = [rail.name for rail in fabric.rails]
        if kind == "single" and rest and rest not in names:
            raise BadInput(field, policy, unknown_name_hint(rest, names))
        if policy == VIRTUAL and RAIL_KINDS[fabric.rails[peer_rail(fabric)].kind].sums_in_network:
            raise BadInput(field, policy, "needs a rail that isn't sharp")
        if kind == "weights":
            try:
                weights_of(policy, len(names))
            except BadInput as error:
                raise BadInput(field, policy, error.allowed) from error


def is_ours(policy: str) -> bool:
    """Whether it is one of Railyard's own engine, which can plan by another from one operation to the next."""
    return policy.partition(":")[0] in OURS


def check_ours(policy: str, field: str, fabrics: Iterable[MultirailSpec]) -> None:
    """The same of what only Railyard's own engine can do."""
    if not is_ours(policy):
        raise BadInput(field, policy, unknown_name_hint(policy, OURS))
    check_policy(policy, field, fabrics)


def check_given_once(policies: Sequence[str], field: str) -> None:
    for number, policy in enumerate(policies):
        if policy in policies[:number]:
            raise BadInput(f"{field}.{number}", policy, "is given twice")

"""Specification of a multi-rail experiment: fabrics, policies, sizes, faults and trainings, read from YAML and checked.

fabrics:  [{kind: multi-rail, nodes: 4, rails: [{kind: tcp, rate: auto}, {kind: sharp, rate: auto}]}]
policies: [nezha, mrib, single]
sizes:    [2KiB, 64MiB]       as in the paper; what is sent is as many times less as the rails are slower
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from railyard.core.config import ConfigModel, field_error, find_problems
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.units import Size, Time, format_size, format_time
from railyard.experiments.spec.experiment import distinct_labels, plain_name
from railyard.experiments.spec.faults import BaseFaultSpec, Numbers, check_on, restore_on_key
from railyard.experiments.spec.kind import BaseExperiment, Sections
from railyard.failure.faults import FAULTS, fault_kinds
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import BySize, Dilation, MultirailSpec, RailSpec, value_for_size
from railyard.topologies.rail_kind import RAIL_KINDS
from railyard.workloads.allreduce.engine_kind import check_policy
from railyard.workloads.allreduce.peers.training import SPEEDS, published_compute_s, training_name
from railyard.workloads.models.catalogue import GptModel, LayersModel, load_model


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

    @property
    def name(self) -> str:
        """The workload's name: its model, and the batch unless the model has one of its own."""
        return training_name(self.model, 0 if isinstance(load_model(self.model), GptModel) else self.batch)


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
    """Return the seconds of computing in a step of a model of layers; None if neither the spec nor the paper says."""
    return training.compute or published_compute_s(training.model, training.batch)


def singles(fabric: MultirailSpec) -> list[str]:
    """A policy for each rail that is unlike those before it."""
    first = {rail.model_dump_json(exclude={"name"}): rail.name for rail in reversed(fabric.rails)}
    return [f"single:{rail.name}" for rail in fabric.rails if rail.name in first.values()]


def check_given_once(policies: Sequence[str], field: str) -> None:
    """Raise BadInput for a policy that is listed twice."""
    for number, policy in enumerate(policies):
        if policy in policies[:number]:
            raise BadInput(f"{field}.{number}", policy, "is given twice")


KIND: Final = "multi-rail"
MIN_SIZE: Final = 4
MIN_OPERATIONS: Final = 10
"""Of a point, that count: fewer have no median worth the name."""


class MultirailExperiment(BaseExperiment):
    """Each policy sums each size on each fabric; then faults; then trainings.

    All but faults is done `repeats` times, by processes of its own each time, policies in turn; sizes that `starts`
    has, as many times as often.

    A point has as many operations as fit into `point` by the equations, `operations` at most; a policy that learns has
    `learning` of them first, which don't count. `single` stands for each unlike rail of a fabric alone. `only` has
    policies that are for some of the fabrics.
    """

    experiment_kind: ClassVar[str] = KIND
    fabrics: Annotated[tuple[MultirailSpec, ...], Field(min_length=1, strict=False)]
    policies: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = ("nezha", "mrib", "single")
    only: dict[str, Numbers] = Field(default_factory=dict)
    sizes: Annotated[tuple[Size, ...], Field(strict=False)] = ()
    operations: Annotated[int, Field(ge=MIN_OPERATIONS, le=100_000)] = 1000
    learning: Annotated[int, Field(ge=0, le=10_000)] = 60
    point: Time = 1.0
    starts: BySize[Annotated[int, Field(ge=1, le=100)]] = Field(default_factory=dict)
    faults: Annotated[tuple[Annotated[FaultSpec, BeforeValidator(restore_on_key)], ...], Field(strict=False)] = ()
    trainings: Annotated[tuple[Annotated[TrainingSpec, BeforeValidator(restore_on_key)], ...], Field(strict=False)] = ()
    ddp: Annotated[tuple[Annotated[DdpSpec, BeforeValidator(restore_on_key)], ...], Field(strict=False)] = ()
    repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    plugins: Annotated[tuple[str, ...], Field(strict=False)] = ()

    @field_validator("name")
    @classmethod
    def _name_is_plain(cls, name: str) -> str:
        return plain_name(name)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """`tcp+sharp, 4 nodes`, and what sets a fabric apart from others of that name."""
        return distinct_labels([f.label() for f in self.fabrics], [f.traits(self.fabrics) for f in self.fabrics])

    def policies_on(self, fabric: int, requested: Sequence[str] | None = None) -> tuple[str, ...]:
        """Return the policies of a fabric; `single` stands for each unlike rail alone."""
        found: list[str] = []
        for policy in requested or [p for p in self.policies if fabric in self.only.get(p, (fabric,))]:
            found += singles(self.fabrics[fabric]) if policy == "single" else [policy]
        return tuple(dict.fromkeys(found))

    def dilations_on(self, fabric: int) -> tuple[float, ...]:
        """Return all dilations of a fabric, which is built anew for each. Faults and DDP aren't slowed down."""
        sizes = self.sizes if self.policies_on(fabric) else ()
        found = {self.fabrics[fabric].dilation_of(size) for size in sizes}
        found |= {training.dilation for training in self.trainings_on(fabric)}
        return tuple(sorted(found | {1.0} if self.faults_on(fabric) or self.ddp_runs_on(fabric) else found))

    def repeats_of(self, size: int) -> int:
        """Return how often a size is measured: `repeats` times its `starts`."""
        return self.repeats * value_for_size(self.starts, size, 1)

    def sizes_to_measure(self, fabric: int, dilation: float, repeat: int) -> list[int]:
        """Return the sizes with this dilation and at least this many repeats, smallest first."""
        slowed = self.fabrics[fabric].dilation_of
        if not self.policies_on(fabric):
            return []
        return sorted(size for size in self.sizes if slowed(size) == dilation and repeat < self.repeats_of(size))

    def faults_on(self, fabric: int) -> tuple[FaultSpec, ...]:
        """Return the faults of a fabric."""
        return tuple(fault for fault in self.faults if fault.on is None or fabric in fault.on)

    def trainings_on(self, fabric: int) -> tuple[TrainingSpec, ...]:
        """Return the trainings of a fabric."""
        return tuple(training for training in self.trainings if training.on is None or fabric in training.on)

    def ddp_runs_on(self, fabric: int) -> tuple[DdpSpec, ...]:
        """Return the DDP runs of a fabric."""
        return tuple(ddp_run for ddp_run in self.ddp if ddp_run.on is None or fabric in ddp_run.on)

    @property
    def injections(self) -> int:
        """Number of faults in all."""
        return sum(fault.repeats for number in range(len(self.fabrics)) for fault in self.faults_on(number))

    @property
    def size_runs(self) -> int:
        """Number of measurements of a size in all, each by all policies in turn."""
        measured = sum(bool(self.policies_on(number)) for number in range(len(self.fabrics)))
        return measured * sum(map(self.repeats_of, self.sizes))

    @property
    def points(self) -> int:
        """Number of points in all."""
        every = sum(len(self.policies_on(number)) for number in range(len(self.fabrics)))
        return every * sum(map(self.repeats_of, self.sizes))

    @property
    def replays(self) -> int:
        """Number of trainings in all."""
        fabric_trainings = [(n, training) for n in range(len(self.fabrics)) for training in self.trainings_on(n)]
        ddp_runs = sum(len(self.ddp_runs_on(n)) for n in range(len(self.fabrics)))
        return (
            sum(len(self.policies_on(n, training.policies)) for n, training in fabric_trainings) + ddp_runs
        ) * self.repeats


SECTIONS: Final[Sections] = {key: frozenset[str]() for key in MultirailExperiment.model_fields} | {
    "fabrics": frozenset(MultirailSpec.model_fields),
    "faults": frozenset(FaultSpec.model_fields) - {"repeats", "on", "target", "parameters"},
    "trainings": frozenset(TrainingSpec.model_fields) - {"policies", "on"},
    "ddp": frozenset(DdpSpec.model_fields) - {"on"},
}


def is_multirail(data: Mapping[str, Any]) -> bool:
    """Return whether plain data is for this kind of experiment: its first fabric is multi-rail."""
    fabrics = data.get("fabrics")
    first = fabrics[0] if isinstance(fabrics, list) and fabrics else None
    return isinstance(first, Mapping) and first.get("kind") == KIND


def parse(data: object) -> MultirailExperiment:
    """An experiment from plain data, as YAML gives it. BadInput names the first field that is wrong."""
    try:
        spec = MultirailExperiment.model_validate(data)
    except ValidationError as error:
        raise BadInput(*find_problems(error)[0]) from error
    if not (spec.sizes or spec.faults or spec.trainings or spec.ddp):
        raise BadInput("sizes", [], "must have 1 or more, unless there are faults or trainings")
    _sizes_are_distinct(spec)
    for number, policy in enumerate(spec.policies):
        fabrics = [fabric for n, fabric in enumerate(spec.fabrics) if n in spec.only.get(policy, (n,))]
        check_policy(policy, f"policies.{number}", fabrics)
    check_given_once(spec.policies, "policies")
    for policy, numbers in spec.only.items():
        if policy not in spec.policies:
            raise BadInput(f"only.{policy}", list(numbers), unknown_name_hint(policy, spec.policies))
        check_on(numbers, len(spec.fabrics), f"only.{policy}")
    for number, fault in enumerate(spec.faults):
        _check_fault(fault, f"faults.{number}", spec)
    for number, training in enumerate(spec.trainings):
        _check_training(training, f"trainings.{number}", spec)
    _trainings_are_distinct(spec)
    for number, ddp_run in enumerate(spec.ddp):
        check_on(ddp_run.on, len(spec.fabrics), f"ddp.{number}")
        check_policy(ddp_run.policy, f"ddp.{number}.policy", spec.fabrics, own_only=True)
    return spec


def _sizes_are_distinct(spec: MultirailExperiment) -> None:
    for number, size in enumerate(spec.sizes):
        if size < MIN_SIZE:
            raise BadInput(f"sizes.{number}", format_size(size), f"must be {MIN_SIZE}B or more: one element")
        if size in spec.sizes[:number]:
            raise BadInput(f"sizes.{number}", format_size(size), "is given twice")


def _check_fault(fault: FaultSpec, field: str, spec: MultirailExperiment) -> None:
    check_on(fault.on, len(spec.fabrics), field)
    for number, fabric in enumerate(spec.fabrics):
        if fault not in spec.faults_on(number):
            continue
        names = [rail.name for rail in fabric.rails]
        if fault.rail not in names:
            raise BadInput(f"{field}.rail", fault.rail, unknown_name_hint(fault.rail, names))
        if fault.node >= fabric.nodes:
            raise BadInput(f"{field}.node", fault.node, f"must be 0 to {fabric.nodes - 1}")
        if len(names) < 2:
            raise BadInput(f"{field}.rail", fault.rail, f"is the only rail of fabrics.{number}: nothing can take over")
        check_policy(fault.policy, f"{field}.policy", [fabric], own_only=True)


def _trainings_are_distinct(spec: MultirailExperiment) -> None:
    """Tables know a training by its model, batch and fabric; a GPT's batch is its model's own."""
    for fabric in range(len(spec.fabrics)):
        seen = set()
        for number, training in enumerate(spec.trainings):
            if training not in spec.trainings_on(fabric):
                continue
            own_batch = isinstance(load_model(training.model), GptModel)
            key = (training.model, 0 if own_batch else training.batch)
            if key in seen:
                which = "" if own_batch else f"with batch {training.batch} "
                allowed = f"{which}is given twice for fabrics.{fabric}"
                raise BadInput(f"trainings.{number}.model", training.model, allowed)
            seen.add(key)


def _check_training(training: TrainingSpec, field: str, spec: MultirailExperiment) -> None:
    check_on(training.on, len(spec.fabrics), field)
    fabrics = [fabric for number, fabric in enumerate(spec.fabrics) if training in spec.trainings_on(number)]
    for number, policy in enumerate(training.policies or ()):
        check_policy(policy, f"{field}.policies.{number}", fabrics)
    check_given_once(training.policies or (), f"{field}.policies")
    model = load_model(training.model, f"{field}.model")
    if not isinstance(model, LayersModel | GptModel):
        raise BadInput(f"{field}.model", training.model, "must be a model of layers (alexnet, vgg-11), or a GPT")
    if isinstance(model, LayersModel) and compute_s(training) is None:
        known = ", ".join(f"{name} {batch}" for name, batch in SPEEDS)
        allowed = f"and batch {training.batch} have no published step time: give compute, or one of {known}"
        raise BadInput(f"{field}.model", training.model, allowed)
    if training.compute is not None and isinstance(model, GptModel):
        raise BadInput(f"{field}.compute", format_time(training.compute), "is for models of layers: a GPT's is counted")
    for number, fabric in enumerate(spec.fabrics):
        if isinstance(model, GptModel) and training in spec.trainings_on(number):
            batch = model.training.global_batch
            if batch % fabric.nodes:
                allowed = f"has a batch of {batch}, which {fabric.nodes} nodes can't share"
                raise BadInput(f"{field}.model", training.model, allowed)

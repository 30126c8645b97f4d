"""Base of measures: a section of an experiment's file, how it runs on packets, and what its results show.

A measure is a package of this folder (or a plugin's class) that registers one `Measure`. Everything else asks the
registry: parsing, `list`, `describe`, `dry-run`, the runner, the report. A measure's module imports only its
specification; its methods import what is slow to load.
"""

import dataclasses
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, NamedTuple, TypeVar, cast

from rich.console import Console

from railyard.core.config import OnFabrics
from railyard.core.errors import RailyardError
from railyard.core.host import Datapath, Machine
from railyard.core.records import Record
from railyard.core.registry import Registry
from railyard.experiments.spec.experiment import ExperimentSpec, Reroute
from railyard.results.measured import MEASURED, MeasuredResults, RecordKind
from railyard.results.runs.records import KERNEL_KINDS, RESULTS_CSV, Run
from railyard.topologies.capacity import Capacity
from railyard.topologies.fabric_kinds import BaseFabricSpec, FabricPlan
from railyard.topologies.plan import Plan
from railyard.topologies.spec import FabricSpec

if TYPE_CHECKING:
    from railyard.experiments.predict.output import Predicted
    from railyard.experiments.run.progress import Steps
    from railyard.experiments.run.session import FabricSession

Item = TypeVar("Item", bound=OnFabrics)


class Counts(NamedTuple):
    """Numbers of intervals of a measure, for `list`: workloads that are replayed, and faults that are injected."""

    replays: int = 0
    faults: int = 0


@dataclass(frozen=True)
class RunContext:
    """Everything that a measure runs with.

    `plans`: of the experiment's fabrics, in their order, with rates that this machine carries: instances of Plan, or
    of MultirailPlan.
    `capacity`: what the machine carries, if it was measured. `run`: takes the records. `steps`: shows progress.
    """

    spec: ExperimentSpec
    plans: Sequence[Any]
    datapath: Datapath
    capacity: Capacity | None
    run: Run
    steps: "Steps"


@dataclass(frozen=True)
class SharedFabric:
    """A built fabric on which several measures run, one after another.

    `number`: of the fabric in the experiment. `reroute`: "on" if its controller reroutes pairs, else "off".
    `is_first`: whether it is the first one that is built for the fabric of this number: measures that need no mode of
    `reroute` run on that one alone.
    """

    context: RunContext
    session: "FabricSession"
    number: int
    reroute: Reroute
    is_first: bool


class SpecSection(NamedTuple):
    """A section of an experiment's file: a list of items of a measure, or another value.

    `key`: in the file, such as `trainings`. `Spec`: its pydantic type, a tuple of items. `repeats_key`: the
    experiment's key that says how often each item is repeated; "" if there is none. `has_items`: False for a section
    of another type, whose `default` is its value without the key. `hides_defaults`: whether `describe` leaves out the
    keys of its items that have their defaults.
    """

    key: str
    Spec: Any
    repeats_key: str = ""
    has_items: bool = True
    default: Any = ()
    hides_defaults: bool = False


class Measure(MeasuredResults, Generic[Item]):
    """Base of measures. `Item`: an item of its section, which names the fabrics that it runs on.

    To be given: `key`, `Spec`, `run` (or `shares_fabric` and `run_on`), and what the results need (MeasuredResults).
    """

    key: ClassVar[str] = ""
    """The key of its section in an experiment's file, such as `trainings`."""
    Spec: ClassVar[Any] = None
    """The pydantic type of its section: a tuple of items. Without the key in a file, the section is empty."""
    repeats_key: ClassVar[str] = ""
    """The experiment's key that says how often each item is repeated; "" if there is none."""
    short_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys of its items that `-o` may give without the section: `-o steps=20`."""
    dependent_keys: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Keys of its sections that have an effect only beside its items, with what to say where there are none."""
    fabric_spec: ClassVar[type[BaseFabricSpec]] = FabricSpec
    """The specification class of the fabrics that it runs on."""
    spans_machines: ClassVar[bool] = False
    """Whether it runs on fabrics over several machines."""
    shared_items: ClassVar[Mapping[str, type[Any] | None]] = MappingProxyType({})
    """The sections of other measures, such as `workloads`, that have its items on its fabrics.

    Each with their type; None if it is the type of the section. Then it needs no `key`, and `items` returns them.
    """
    injects_faults: ClassVar[bool] = False
    """Whether `reroute` and `heartbeats` have an effect on it."""
    excludes: ClassVar[frozenset[str]] = frozenset()
    """Keys of an experiment that can't be given together with its sections."""
    needs_all_paths: ClassVar[bool] = False
    """Whether its items need a path between any two GPUs of their fabrics, which some policies don't give."""
    shares_fabric: ClassVar[bool] = False
    """Whether it runs, by `run_on` in place of `run`, on fabrics that are built once for all measures that share."""

    @property
    def spec_sections(self) -> tuple[SpecSection, ...]:
        """Its sections of an experiment's file: the one of `key`, unless it has several, or none of its own."""
        if not self.key:
            return ()
        return (SpecSection(self.key, self.Spec, self.repeats_key),)

    def short_keys_by_section(self) -> Mapping[str, frozenset[str]]:
        """Return the keys of items that `-o` may give without their section."""
        if not self.key:
            return {}
        return {self.key: self.short_keys}

    def is_for(self, spec: ExperimentSpec) -> bool:
        """Return whether the experiment has fabrics on which the measure runs."""
        return isinstance(spec.fabrics[0], self.fabric_spec)

    def items(self, spec: ExperimentSpec) -> tuple[Item, ...]:
        """Return the items of its sections, one section after another."""
        items: list[Item] = []
        for section in self.spec_sections:
            items += getattr(spec, section.key, ())
        return tuple(items)

    def items_on(self, spec: ExperimentSpec, fabric: int) -> tuple[Item, ...]:
        """Return the items for a fabric, by its number."""
        return tuple(item for item in self.items(spec) if item.is_on(fabric))

    def items_by_fabric(self, spec: ExperimentSpec) -> Iterator[tuple[int, tuple[Item, ...]]]:
        """Yield the number of each fabric that has items, with these items."""
        for fabric in range(len(spec.fabrics)):
            items = self.items_on(spec, fabric)
            if items:
                yield fabric, items

    def repeats(self, spec: ExperimentSpec) -> int:
        """Return how often each item is repeated."""
        if not self.repeats_key:
            return 1
        return cast(int, getattr(spec, self.repeats_key))

    def item_label(self, item: Item) -> str:
        """Return what tells an item from others of its section, for intervals and steps; equal ones get numbers."""
        return ""

    def check(self, spec: ExperimentSpec, plans: Sequence[FabricPlan]) -> None:
        """Raise BadInput for items that the fabrics can't have. `plans`: of the fabrics, at nominal rates.

        The numbers under `on` of each item are checked before.
        """

    def missing_requirements(self, spec: ExperimentSpec, machine: Machine) -> Iterator[RailyardError]:
        """Yield an error for each program or library that the items need and the machine lacks."""
        yield from ()

    def plans(self, spec: ExperimentSpec, capacity: Capacity | None) -> Sequence[tuple[int, Plan]]:
        """Return the plans that `run` builds beside the experiment's, each with the number of its fabric.

        Their rates are checked before anything is built. `capacity`: what the machine carries, if it was measured.
        """
        return ()

    def steps(self, spec: ExperimentSpec) -> int:
        """Return how many steps `run` has, for the progress bar: those of `experiments.run.items.run_items`."""
        steps = 0
        for _, items in self.items_by_fabric(spec):
            steps += 1 + len(items) * self.repeats(spec)
        return steps

    def seconds(self, spec: ExperimentSpec) -> float | None:
        """Return about how long `run` takes, s; None where that doesn't follow from the specification."""
        return None

    def counts(self, spec: ExperimentSpec) -> Counts:
        """Return how many replays and faults it has, for `list`: by default each repeat of an item is a replay."""
        return Counts(replays=self.item_runs(spec))

    def item_runs(self, spec: ExperimentSpec) -> int:
        """Return how often items are measured: all items of all fabrics, with repeats."""
        item_count = 0
        for _, items in self.items_by_fabric(spec):
            item_count += len(items)
        return item_count * self.repeats(spec)

    def predict(self, spec: ExperimentSpec) -> "Predicted | None":
        """Compute what has a formula, for `predict`; None if nothing has."""
        return None

    def dry_run(self, spec: ExperimentSpec, console: Console) -> None:
        """Print what `run` would do, without doing it: by default the items of each fabric."""
        for number, items in self.items_by_fabric(spec):
            label = spec.labels[number]
            for item in items:
                keys = item.model_dump(mode="json", exclude={"on"})
                values = [f"{key} {value}" for key, value in keys.items()]
                console.print(
                    f"[bold]{self.key}[/] on {label}: {', '.join(values)}; times {self.repeats(spec)}", highlight=False
                )

    def run(self, context: RunContext) -> None:
        """Measure all items, in a sandbox, and add the records to the run."""
        raise NotImplementedError

    def reroutes(self, spec: ExperimentSpec, fabric: int) -> Sequence[Reroute]:
        """Return the modes of `reroute` in which it needs a shared fabric; none if it has no need of any."""
        return ()

    def run_on(self, shared: SharedFabric) -> None:
        """Measure the items for a shared fabric, in a sandbox, and add the records to the run.

        It is called for each mode of `reroute` that any measure needs. The fabric must be left as it was.
        """
        raise NotImplementedError

    def _missing_parts(self) -> Iterator[str]:
        """Yield a phrase for each part that is missing."""
        if self.shares_fabric:
            if type(self).run_on is Measure.run_on:
                yield "run_on(shared) is missing"
        elif type(self).run is Measure.run:
            yield "run(context) is missing"
        if self.shared_items:
            return
        if not self.key:
            yield "key is missing"
        if not self.Spec:
            yield "Spec is missing"

    def problems(self, registered: Mapping[str, MeasuredResults]) -> Iterator[str]:
        """Yield parts that are missing, and keys that are taken or can't be keys."""
        missing = list(self._missing_parts())
        yield from missing
        if missing:
            # the checks that follow need these parts
            return
        for section in self.spec_sections:
            if section.has_items and not _has_items(section.Spec):
                yield "Spec must be a tuple of items, each of a subclass of OnFabrics: tuple[MySpec, ...]"
            if section.key == section.repeats_key:
                yield f"{section.key!r} is both key and repeats_key"
        yield from _key_problems(self, registered)
        yield from _record_problems(self.records, registered.values())


def _keys_of(measure: Measure[Any]) -> list[str]:
    """Return the keys of an experiment's file that a measure has."""
    keys: list[str] = []
    for section in measure.spec_sections:
        keys += filter(None, (section.key, section.repeats_key))
    return keys


def _key_problems(measure: Measure[Any], earlier: Mapping[str, MeasuredResults]) -> Iterator[str]:
    """Yield keys of a measure that are taken or can't be keys. `earlier`: the measures before it, by name."""
    taken = dict.fromkeys(ExperimentSpec.model_fields, "a key of every experiment")
    for name, other in earlier.items():
        if isinstance(other, Measure):
            taken |= dict.fromkeys(_keys_of(other), f"a key of the measure {name!r}")
    for key in _keys_of(measure):
        if not re.fullmatch(r"[a-z]+(_[a-z]+)*", key):
            yield f"{key!r} can't be a key: words of lower-case letters, joined by _"
        elif key in taken:
            yield f"{key!r} is taken: it is {taken[key]}"


def _is_record(row: object) -> bool:
    return isinstance(row, type) and issubclass(row, Record) and dataclasses.is_dataclass(row)


def _record_problems(kinds: Iterable[RecordKind[Any]], earlier: Iterable[MeasuredResults]) -> Iterator[str]:
    """Yield what is wrong with the kinds of records of a measure. `earlier`: the measures before it."""
    names = {field.name for field in dataclasses.fields(Run)}
    files = {RESULTS_CSV}
    files.update(kind.file for kind in KERNEL_KINDS)
    for measure in earlier:
        for kind in measure.records:
            names.add(kind.name)
            files.add(kind.file)
    for kind in kinds:
        if not _is_record_class(kind):
            yield f"records: {kind.name!r} must be of a dataclass that is a subclass of Record"
        if kind.name in names:
            yield f"records: the name {kind.name!r} is taken"
        if kind.file and not re.fullmatch(r"[a-z_]+\.(csv|parquet)", kind.file):
            yield f"records: {kind.file!r} can't be a file: words of lower-case letters, joined by _, .csv or .parquet"
        if kind.file and kind.file in files:
            yield f"records: the file {kind.file!r} is taken"


def _is_record_class(kind: RecordKind[Any]) -> bool:
    """Return whether records are of a dataclass, of an interval if they are rows of a file."""
    if not (isinstance(kind.row, type) and dataclasses.is_dataclass(kind.row)):
        return False
    # a list in run.json may be of what has no interval, such as a fabric
    return not kind.file or issubclass(kind.row, Record)


def _has_items(section_type: Any) -> bool:
    """Return whether the type of a section is a tuple of items that name their fabrics."""
    if typing.get_origin(section_type) is Annotated:
        section_type = typing.get_args(section_type)[0]
    arguments = typing.get_args(section_type)
    if typing.get_origin(section_type) is not tuple or len(arguments) != 2 or arguments[1] is not Ellipsis:
        return False
    item = arguments[0]
    if typing.get_origin(item) is Annotated:
        item = typing.get_args(item)[0]
    return isinstance(item, type) and issubclass(item, OnFabrics)


MEASURES: Final = cast("Registry[Measure[Any]]", MEASURED)
"""The registry, which results/ reads too, with the whole definitions."""


def measures_of(spec: ExperimentSpec) -> list[Measure[Any]]:
    """Return the measures that the experiment has items of, in the order in which they run."""
    return [measure for measure in MEASURES.values() if measure.is_for(spec) and measure.items(spec)]


def sharing_measures(spec: ExperimentSpec) -> list[Measure[Any]]:
    """Return those of the experiment's measures that run on shared fabrics, in the order in which they run."""
    return [measure for measure in measures_of(spec) if measure.shares_fabric]


def shared_reroutes(spec: ExperimentSpec, fabric: int) -> tuple[Reroute, ...]:
    """Return the modes of `reroute` in which a fabric is built for the measures that share it, by its number."""
    needed: set[Reroute] = set()
    for measure in sharing_measures(spec):
        needed.update(measure.reroutes(spec, fabric))
    return tuple(mode for mode in spec.reroute if mode in needed) or ("on",)

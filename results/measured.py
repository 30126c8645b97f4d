"""Registry of measures as results see them: the records, checks, targets and sections of the report that each adds.

A measure is defined in experiments/measures; the registry here is how results find it, without naming one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from railyard.core.records import IntervalId
from railyard.core.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Row = TypeVar("Row")
CrossedLinks = Callable[[Any, Any], Iterable[tuple[int, int, float]]]
"""(pair, its paths) -> direction (0 to the network, 1 from it), link number, share of its bytes, for each link."""


@dataclass(frozen=True)
class RecordKind(Generic[Row]):
    """Kind of records of a run: a table with a file of its own in the run's folder, or a list in run.json.

    `name`: of its list in a run, in run.json and in the journal. `row`: the dataclass of a record. `file`: the CSV or
    Parquet file; "" for a list in run.json. `before`: the kind whose records follow in the folder. `in_every_run`: the
    file is written without records too. `is_linked`: the report links the file. `has_labels`: tables have rows of its
    fabrics and policies, beside those of measurements.
    `sweep_file`: the Parquet file of a sweep's folder that has the records of all its runs; "" if it has none.
    `columns`: those of a CSV file, in their order, where they differ from the fields of `row`. `to_plain` returns the
    values of a record by column; `from_plain` gives a row that was read the values of the fields, in place.
    """

    name: str
    row: type[Row]
    file: str = ""
    before: str = "events"
    in_every_run: bool = False
    is_linked: bool = True
    has_labels: bool = False
    sweep_file: str = ""
    columns: tuple[str, ...] = ()
    to_plain: Callable[[Row], dict[str, Any]] | None = None
    from_plain: Callable[[dict[str, Any]], None] | None = None

    @property
    def place(self) -> str:
        """The file, and for a list in run.json its name there, for messages."""
        return self.file or f"run.json: {self.name}"


@dataclass(frozen=True, slots=True)
class ComparedValue:
    """A value that `compare` sets beside that of another run: None if it never came.

    `interval`: in which it was measured. `phase`: what tells it from others of its `metric` in the interval.
    """

    interval: IntervalId
    phase: str
    metric: str
    unit: str
    value: float | None


@dataclass(frozen=True)
class LinkTraffic:
    """Bytes on the links of a fabric for some time: bits on the wire in each bin of `bin_ns` from `begin_ns`.

    `bits` has the shape (direction, link, bin).
    """

    begin_ns: int
    bin_ns: int
    bits: "npt.NDArray[np.float64]"

    @property
    def end_ns(self) -> int:
        """End of the last bin."""
        _, _, count = self.bits.shape
        return self.begin_ns + int(count) * self.bin_ns


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and the figures by which it passed or failed.

    `value` of the quantity, at most `limit`, in `unit`; `interval`: where it is worst.
    """

    name: str
    passed: bool
    detail: str
    quantity: str = ""
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    interval: IntervalId | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        plain = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) not in ("", None)}
        if self.interval:
            plain["interval"] = self.interval.as_dict()
        return plain


class MeasuredResults:
    """Base of what a measure's results show. What a measure doesn't define, it doesn't show.

    Measures are registered in `MEASURED` and defined in experiments/measures: nothing here names one.
    """

    records: ClassVar[Sequence[RecordKind[Any]]] = ()
    """Its kinds of records, beside measurements, flows and events: `run.rows(KIND)` is the list of one in a run."""

    order: ClassVar[int] = 50
    """Its place among the measures, lowest first: they run, and their checks are shown, in this order."""
    sentences: ClassVar[Mapping[str, Sequence[str]]] = MappingProxyType({})
    """Its events in words, on the terminal and on the live page: `SOURCE-WHAT` -> sentences with {details}.

    Of each event the first sentence whose details are all there, as in experiments/live/static/words.js.
    """

    hidden_sources: ClassVar[frozenset[str]] = frozenset()
    """Sources of events that progress doesn't print: the line of a step shows them, or they are too many."""
    sampled_events: ClassVar[frozenset[str]] = frozenset()
    """Names of controllers' events that are no events of a run: records of the measure have them."""
    fact_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of an experiment whose numbers of items the report states."""

    has_recovery_targets: ClassVar[bool] = False
    """Whether its targets are among those of recovery, which the section on failures shows."""

    shows_targets: ClassVar[bool] = False
    """Whether a section of its own shows its targets; else the section on targets does."""

    def outcome_text(self, measured: Any) -> str:
        """Return the result of a step in a few words, for its progress line.

        `measured`: a Run with the records of the step.
        """
        return ""

    def fabric_labels(self, run: Any) -> Iterable[str]:
        """Return the labels of fabrics of a Run that aren't among its records of fabrics of GPUs."""
        return ()

    def findings(self, run: Any) -> Iterable[Any]:
        """Return a Finding for each record of a Run that its fidelity depends on."""
        return ()

    def watched_interval(self, interval: IntervalId) -> IntervalId:
        """Return the interval whose record of the machine's load is that of another interval too."""
        return interval

    def has_fabric_of_its_own(self, interval: IntervalId) -> bool:
        """Return whether an interval was measured on a fabric built for it alone, whose links had no checks."""
        return False

    def policies_in_turn(self, run: Any) -> Sequence[str]:
        """Return the policies under which it measured each fabric of a run in turn; none if each has its own."""
        return ()

    def checks(self, analysis: Any) -> Iterable[Check]:
        """Return the checks of the measure for which the run of an Analysis has records."""
        return ()

    def targets(self, analysis: Any) -> Iterable[Any]:
        """Return an Outcome for each target of the measure and fabric; one without samples if nothing was measured."""
        return ()

    def event_arrows(self, run: Any) -> Mapping[tuple[str, int], list[int]]:
        """Return the numbers of the timeline's arrows through events of controllers, by fabric and time (ns)."""
        return {}

    def compared_values(self, run: Any) -> Iterable[ComparedValue]:
        """Return the values of a Run, beside its measurements, that `compare` sets beside those of another run."""
        return ()

    def add_tracks(self, root: Any, run: Any) -> None:
        """Add to the timeline of a Run what the measure recorded with a time, below the Track `root`."""

    def page_messages(self, run: Any, fabric_label: str) -> Iterable[tuple[str, dict[str, Any]]]:
        """Return what the live page of a finished Run shows of a fabric beside the run's events and traffic.

        A message is its kind, such as `event` or `health`, and its data with the time `ns`, monotonic.
        """
        return ()

    def link_traffic(self, run: Any, label: str, plan: Any, crossed: CrossedLinks) -> Iterable[LinkTraffic]:
        """Return the traffic that a Run recorded apart from flows, for the live page of a finished run.

        `label`, `plan`: of the fabric. `crossed`: the links on the paths of a pair.
        """
        return ()

    def sweep_table(self, kind: RecordKind[Any], rows: Any, axes: Sequence[str]) -> Any:
        """Return a Table of the records of a sweep's runs, for a kind that has a `sweep_file`; None to show none.

        `rows`: a data frame with the columns of the kind, `verdict`, and the axes. `axes`: those apart from the seed.
        """
        return None

    def sections(self) -> Mapping[str, type[Any]]:
        """Return its sections of the report, each a subclass of results.views.report.Section, by their id in it."""
        return {}

    def problems(self, registered: Mapping[str, "MeasuredResults"]) -> Iterator[str]:
        """Yield what is wrong with the definition, a phrase each. `registered`: the measures before it, by name."""
        yield from ()


def _problems(name: str, measure: MeasuredResults) -> Iterator[str]:
    return measure.problems(MEASURED.registered())


MEASURED: Final = Registry[MeasuredResults](
    "measure",
    "railyard.experiments.measures",
    MeasuredResults,
    ["run(context)"],
    _problems,
    part="measure",
    order=attrgetter("order"),
)
"""Every measure by its name, in the order in which they run."""


def policies_in_turn(run: Any) -> Sequence[str]:
    """Return the policies under which each fabric of a Run was measured in turn; none if each has its own."""
    for measure in MEASURED.values():
        policies = measure.policies_in_turn(run)
        if policies:
            return policies
    return ()

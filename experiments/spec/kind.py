"""Kinds of experiments: what the commands do with a specification, whatever its fabrics are.

A kind is one module of `experiments/kinds/`. Commands load a specification (loading.py) and ask its kind; they never
look at its type. The modules of the kinds are imported when the registry is first read, and import their runners and
tables in functions, so that `list` and `--help` stay fast.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from rich.console import Console

from railyard.core import plugins
from railyard.core.config import ConfigModel
from railyard.core.errors import BadInput
from railyard.core.host import Datapath, Machine
from railyard.core.registry import Registry

if TYPE_CHECKING:
    from mininet.net import Mininet

    from railyard.experiments.run.progress import Steps
    from railyard.results.runs.records import Run
Sections = Mapping[str, frozenset[str]]
"""Every key of an experiment, and the keys of its items where it is a list of things."""


class BaseExperiment(ConfigModel):
    """Base of every specification."""

    experiment_kind: ClassVar[str]
    """The name of its kind in EXPERIMENT_KINDS."""
    name: str
    title: str = ""
    description: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each fabric, as tables show it."""
        raise NotImplementedError

    def resolved(self) -> dict[str, Any]:
        """Return plain data with every default filled in, of which its kind's `parse` makes the same experiment."""
        data: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return data | {"plugins": list(plugins.copies())}


S = TypeVar("S", bound=BaseExperiment)


class ExperimentKind(Generic[S]):
    """Definition of a kind. `spec`: its specification."""

    spec: type[S]

    def sections(self) -> Sections:
        """Return which keys `-o` may give without their section (loading.py); plugins add to them."""
        raise NotImplementedError

    def accepts(self, data: Mapping[str, Any]) -> bool:
        """Return True for plain data, as YAML gives it, of this kind; its fabrics decide."""
        raise NotImplementedError

    def parse(self, data: object) -> S:
        """Return the specification. BadInput names the first field that is wrong."""
        raise NotImplementedError

    def shown(self, spec: S) -> dict[str, Any]:
        """Return what `describe` prints: all keys with their defaults, but none without effect on this experiment."""
        idle = {"title", "description"}
        return {key: value for key, value in spec.resolved().items() if key not in idle and value != []}

    def check_machine(self, spec: S, machine: Machine) -> None:
        """Raise MissingRequirement or BadInput if the machine can't run it."""

    def hosts(self, spec: S) -> dict[str, str]:
        """Return the address of every host by its name, for /etc/hosts of the sandbox."""
        raise NotImplementedError

    def first_net(self, spec: S, datapath: Datapath) -> "tuple[Mininet, str, str]":
        """Return the first fabric, not yet built, for `shell`; its size; and what to try on it."""
        raise NotImplementedError

    def step_count(self, spec: S) -> int:
        """Return how many steps `measure` has, for the progress bar."""
        raise NotImplementedError

    def measure(self, spec: S, datapath: Datapath, frames_per_s: float, run: "Run", steps: "Steps") -> None:
        """Build the fabrics and fill in the run's records. `frames_per_s`: what the machine carries.

        Whatever ends it early, what was measured until then is in the records.
        """
        raise NotImplementedError

    def predict(self, spec: S, out: Path, console: Console) -> int:
        """Compute the formulas, write NAME.csv and NAME.png, print; return the exit status."""
        raise NotImplementedError

    def dry_run(self, spec: S, console: Console) -> int:
        """Print what would be sent; return the exit status."""
        raise NotImplementedError

    def lint(self, spec: S, console: Console) -> int:
        """Print the cross-rail traffic of each workload; return 1 if there is any. BadInput if none can be checked."""
        raise BadInput("NAME", spec.name, "has no HB domains: its traffic can't change rails")


def _problems(name: str, kind: object) -> Iterator[str]:
    if not isinstance(kind, ExperimentKind):
        yield "must be an instance of a subclass of ExperimentKind"
        return
    if not hasattr(kind, "spec"):
        yield "`spec` is missing"
    elif getattr(kind.spec, "experiment_kind", None) != name:
        yield f"`spec.experiment_kind` must be {name!r}"
    for method in ("sections", "accepts", "parse", "hosts", "first_net", "step_count", "measure", "predict", "dry_run"):
        if getattr(type(kind), method) is getattr(ExperimentKind, method):
            yield f"the method {method} is missing"


EXPERIMENT_KINDS: Final = Registry[ExperimentKind[Any]](
    "experiment kind", "railyard.experiments.kinds", check=_problems
)
DEFAULT_KIND: Final = "gpu-fabrics"
"""Of data that no kind accepts: its `parse` says what is wrong."""


def kind_for(data: Mapping[str, Any]) -> ExperimentKind[Any]:
    """Return the kind of an experiment from its plain data."""
    accepting = (kind for _, kind in EXPERIMENT_KINDS.items() if kind.accepts(data))
    return next(accepting, EXPERIMENT_KINDS[DEFAULT_KIND])


def kind_of(spec: S) -> ExperimentKind[S]:
    """Return the kind of a specification."""
    return EXPERIMENT_KINDS[spec.experiment_kind]

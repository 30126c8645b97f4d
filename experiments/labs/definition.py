"""Labs: exercises for a class. A lab is one file: its text, what a student's variant is, questions, and runs to make.

The text is Markdown, a Jinja template. A name in it stands for a value of the student's variant; `{{ railyard }}` for
what starts a command; `{{ folder }}` for the student's folder; `{{ own_name }}` for a name that no other student has;
`{{ run.NAME }}` for the command of a run; and `{{ ask.NAME }}` for a question. Right answers are computed from plans,
policies, formulas and the records of the student's own runs, so that a lab has no list of answers.
"""

import json
import random
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from jinja2 import Environment, StrictUndefined

from railyard.core.errors import BadInput, RailyardError
from railyard.core.installation import RUN
from railyard.core.records import Recovery
from railyard.core.registry import Registry
from railyard.core.safe_files import Folder
from railyard.experiments.spec import loading
from railyard.results import run_folder
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Measurement
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import FabricSpec, parse_fabric

T = TypeVar("T")
Answer = float | str | frozenset[str]
"""A number, a word or name, or a set of names."""
_TEMPLATES: Final = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
NOMINAL_BPS: Final = 100_000_000  # of a rail whose rate is `auto`, where the rate doesn't matter


_template: Final = lru_cache(1000)(_TEMPLATES.from_string)


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Return a template with values in it. jinja2's UndefinedError for a name without a value."""
    return _template(text).render(values)


class NotDone(RailyardError):
    """A run that a check needs was not made, or not as the lab asks. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class LabRun:
    """A run that the student makes: an experiment with overrides, templates of the variant's values.

    It is written to a folder of the student's, `name`, and when repeated to `name-2` and so on. `plugin`: the file in
    the student's folder with a definition, and `own`: its name, and one that stands for it where no file is loaded.
    `goal` returns what is missing in the records, "" if nothing is.
    """

    name: str
    experiment: str
    overrides: tuple[str, ...] = ()
    plugin: str = ""
    own: tuple[str, str] = ("", "")
    goal: Callable[[Analysis], str] = lambda _: ""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong answer that students often give, and what they did to get it."""

    answer: "Callable[[Setting], Answer]"
    what: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a lab. `text` is a template as the lab's text.

    `right` returns the answer for a student's setting, a number in `unit` (of `core.units`: s, ms, MB, %, ...; "" for a
    count or a ratio); numbers may differ from it by the share `within`. `hint` is for
    a wrong answer and must not contain the right one; `why` explains the right one to the teacher.
    """

    name: str
    text: str
    right: "Callable[[Setting], Answer]"
    hint: str
    why: str
    within: float = 0.02
    mistakes: tuple[Mistake, ...] = ()
    unit: str = ""


class Lab:
    """Base of all labs. Attributes describe it; `values` chooses a variant."""

    number: ClassVar[int]
    title: ClassVar[str]
    minutes: ClassVar[int]
    text: ClassVar[str]
    questions: ClassVar[tuple[Question, ...]]
    runs: ClassVar[tuple[LabRun, ...]] = ()
    starter: ClassVar[tuple[str, str]] = ("", "")
    """A file of the student's folder that the student completes: its name, and what it contains at first."""
    solution: ClassVar[str] = ""
    """What that file may contain in the end; for the teacher."""
    discuss: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Open questions, each with a model answer for the teacher; nothing checks these."""
    plan_45: ClassVar[str]
    """What to do in a lesson of 45 minutes."""
    plan_90: ClassVar[str]

    def values(self, choose: random.Random) -> dict[str, Any]:
        """Return the values of a variant by name, drawn from `choose` alone: a student's name gives one variant."""
        raise NotImplementedError


def _problems(name: str, lab: Lab) -> Iterator[str]:
    for part in ("number", "title", "minutes", "text", "questions", "plan_45", "plan_90"):
        if not hasattr(lab, part):
            yield f"{part} is missing"


LABS: Final = Registry[Lab]("lab", "railyard.experiments.labs", Lab, ["values(choose)"], _problems)


@dataclass(frozen=True)
class Setting:
    """A student's variant of a lab, and the folder with what the student did."""

    lab: Lab
    student: str = ""
    folder: Path = Path()
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, lab: Lab, student: str = "", folder: Path | None = None) -> "Setting":
        """Return the variant that belongs to a student's name; the folder is by default `folder_name`."""
        chosen = lab.values(random.Random(f"lab {lab.number}: {student}"))
        return cls(lab, student, folder or Path(folder_name(lab, student)), chosen)

    def __getitem__(self, name: str) -> Any:
        """Return a value of the variant."""
        return self.values[name]

    def gpu(self, name: str) -> Gpu:
        """Return the GPU whose name is a value of the variant."""
        domain, rank = str(self.values[name])[1:].split("g")
        return Gpu(int(domain), int(rank))

    def fabric(self, **keys: Any) -> FabricSpec:
        """Return a fabric with the variant's `domains` and `rails`, rail-only unless `keys` say otherwise."""
        size = {key: self[key] for key in ("domains", "rails") if key in self.values}
        return parse_fabric({"kind": "rail-only", **size, **keys})

    def plan(self, **keys: Any) -> Plan:
        """Return the plan of such a fabric."""
        return make_plan(self.fabric(**keys), NOMINAL_BPS)

    def overrides(self, run: LabRun) -> list[str]:
        """Return a run's overrides with the variant's values."""
        return [fill(text, self.values) for text in run.overrides]

    def command(self, run: LabRun) -> str:
        """Return the command line of a run."""
        words = [word for text in self.overrides(run) for word in ("-o", text)]
        words += ["--plugin", str(self.folder / run.plugin)] if run.plugin else []
        return f"{RUN} {shlex.join(['run', run.experiment, *words, '--out', str(self.folder / run.name)])}"

    def records(self, name: str) -> Analysis:
        """Return the records of the student's newest run of a name. NotDone if there is none as the lab asks."""
        run = next(run for run in self.lab.runs if run.name == name)
        # a check doesn't load a student's file, which would run with the rights of the teacher
        asked = [text.replace(*run.own) if run.plugin else text for text in self.overrides(run)]
        wanted = loading.load_any(run.experiment, asked).resolved()
        problem = f"there is no run in {self.folder / name}"
        folders = [self.folder / name, *self.folder.glob(f"{name}-*")]
        for path in sorted(filter(Path.is_dir, folders), key=lambda path: path.stat().st_mtime, reverse=True):
            try:
                with Folder(path) as opened:
                    found = run_folder.load(opened)
            except (RailyardError, OSError) as error:
                problem = f"{path} can't be read: {error}"
                continue
            if found.damaged or not found.verified:
                problem = f"the records in {path} are not as the run wrote them"
            elif found.failed or found.interrupted:
                problem = f"the run in {path} did not go to its end"
            elif _asked(found.spec, run) != _asked(wanted, run):
                problem = f"the run in {path} is of another experiment than the lab asks for"
            else:
                return Analysis(found)
        raise NotDone(problem)

    def measurement(self, run: str, **keys: Any) -> Measurement:
        """Return the student's first measurement with these fields: a completion time of a whole unless they say else.

        NotDone if there is none.
        """
        return _first(self.records(run).run.measurements, {"phase": "", "metric": "completion_time", **keys})

    def recovery(self, run: str, **keys: Any) -> Recovery:
        """Return the student's first record of a fault with these fields. NotDone if there is none."""
        return _first(self.records(run).run.recoveries, keys)


def _first(rows: Iterable[T], keys: Mapping[str, Any]) -> T:
    for row in rows:
        if all(getattr(row, name) == value for name, value in keys.items()):
            return row
    raise NotDone(f"the run has no record of {', '.join(f'{name} {value}' for name, value in keys.items() if value)}")


def _asked(spec: Mapping[str, Any], run: LabRun) -> str:
    """Return the part of a specification that a lab asks for, as text: the seed is the student's choice."""
    part = {key: value for key, value in spec.items() if key not in ("seed", "title", "description", "plugins")}
    text = json.dumps(part, sort_keys=True)
    own, shipped = map(json.dumps, run.own)
    return text.replace(own, shipped) if run.plugin else text


def find(number: str) -> Lab:
    """Return the lab of this number or name. BadInput for any other."""
    for name, lab in LABS.items():
        if number in (name, str(lab.number)):
            return lab
    known = ", ".join(f"{lab.number} ({name})" for name, lab in sorted(LABS.items(), key=lambda item: item[1].number))
    raise BadInput("N", number, f"is not a lab: allowed are {known}")


def name_of(lab: Lab) -> str:
    """Return the name under which a lab is registered."""
    return next(name for name, each in LABS.items() if each is lab)


def folder_name(lab: Lab, student: str) -> str:
    """Return the name of a student's folder."""
    return f"lab{lab.number}-{student}" if student else f"lab{lab.number}"

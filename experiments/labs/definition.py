"""Labs: exercises for a class. A lab is one Markdown file; `reading.py` makes a `Lab` of it.

A lab's texts are Jinja templates. A name in one stands for a value of the student's variant; in the lab's text,
`{{ railyard }}` stands for what starts a command; `{{ folder }}` for the student's folder; `{{ own_name }}` for a name
that no other student has; `{{ run.NAME }}` for the command of a run; and `{{ ask.NAME }}` for a question. Right answers
are computed from plans, policies, formulas and the records of the student's own runs, so that a lab has no list of
answers.
"""

import json
import random
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

from jinja2 import Environment, StrictUndefined

from railyard.core.errors import BadInput, RailyardError
from railyard.core.installation import RUN
from railyard.core.records import Recovery
from railyard.core.registry import Registry
from railyard.core.safe_files import Folder
from railyard.experiments.spec import loading
from railyard.results import run_folder
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Measurement, record_kind_of_file
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


def _no_goal(analysis: Analysis) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class LabRun:
    """A run that the student makes, in the folder `name` of the student's folder; repetitions are in `name-2`, ...

    experiment: the name of a shipped experiment.
    overrides: templates, an override of the experiment each.
    plugin: the file in the student's folder that defines what the run uses.
    plugin_name: the name under which that file registers its definition.
    stand_in: the name of a shipped definition that replaces it where the student's file must not be loaded.
    goal: returns what is missing in the records, "" if nothing is.
    """

    name: str
    experiment: str
    overrides: tuple[str, ...] = ()
    plugin: str = ""
    plugin_name: str = ""
    stand_in: str = ""
    goal: Callable[[Analysis], str] = _no_goal


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong answer that students often give, and its reason."""

    answer: "Callable[[Setting], Answer]"
    reason: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a lab. `text`, `hint` and `why` are templates of the variant's values.

    right: returns the answer for a student's setting. NotDone if it needs a run that wasn't made.
    hint: the message for a wrong answer; it must not contain the right one.
    why: the explanation of the right answer for the teacher.
    within: the share by which a number may differ from the right one.
    unit: the unit of a number (of `core.units`: s, ms, MB, %, ...); "" for a count or a ratio.
    """

    name: str
    text: str
    right: "Callable[[Setting], Answer]"
    hint: str
    why: str
    within: float = 0.02
    mistakes: tuple[Mistake, ...] = ()
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Starter:
    """A file that the student completes: its name, its content at first, and a solution for the teacher."""

    file: str
    text: str
    solution: str


@dataclass(frozen=True, slots=True)
class Discussion:
    """An open question, with a model answer for the teacher; nothing checks it. Both are templates."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """An exercise.

    summary: one sentence about it, for `list --kinds`.
    minutes: the time that a student needs.
    text: Markdown for the student, a template.
    choose_values: returns the values of a variant by name, drawn from its argument alone, so that a student's name
        gives one variant.
    plan_45, plan_90: what to do in a lesson of 45 and of 90 minutes.
    """

    name: str
    number: int
    title: str
    summary: str
    minutes: int
    text: str
    choose_values: Callable[[random.Random], dict[str, Any]]
    questions: tuple[Question, ...]
    plan_45: str
    plan_90: str
    runs: tuple[LabRun, ...] = ()
    starter: Starter | None = None
    discuss: tuple[Discussion, ...] = ()


LABS: Final = Registry[Lab]("lab", "railyard.experiments.labs.shipped", Lab)


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
        values = lab.choose_values(random.Random(f"lab {lab.number}: {student}"))
        return cls(lab, student, folder or Path(folder_name(lab, student)), values)

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
        words = ["run", run.experiment]
        for override in self.overrides(run):
            words += ["-o", override]
        if run.plugin:
            words += ["--plugin", str(self.folder / run.plugin)]
        words += ["--out", str(self.folder / run.name)]
        return f"{RUN} {shlex.join(words)}"

    def records(self, name: str) -> Analysis:
        """Return the records of the student's newest run of a name. NotDone if there is none as the lab asks."""
        (run,) = (run for run in self.lab.runs if run.name == name)
        overrides = self.overrides(run)
        if run.plugin:
            # a check doesn't load a student's file, which would run with the rights of the teacher
            overrides = [text.replace(run.plugin_name, run.stand_in) for text in overrides]
        expected_spec = loading.load_any(run.experiment, overrides).resolved()
        problem = f"there is no run in {self.folder / name}"
        for path in self._run_folders(name):
            try:
                with Folder(path) as opened:
                    records = run_folder.load(opened)
            except (RailyardError, OSError) as error:
                problem = f"{path} can't be read: {error}"
                continue
            if records.damaged or not records.verified:
                problem = f"the records in {path} are not as the run wrote them"
            elif records.failed or records.interrupted:
                problem = f"the run in {path} did not go to its end"
            elif _comparable(records.spec, run) != _comparable(expected_spec, run):
                problem = f"the run in {path} is of another experiment than the lab asks for"
            else:
                return Analysis(records)
        raise NotDone(problem)

    def _run_folders(self, name: str) -> list[Path]:
        """Return the folders of a run and its repetitions, the newest first."""
        folders = [self.folder / name, *self.folder.glob(f"{name}-*")]
        return sorted(filter(Path.is_dir, folders), key=lambda path: path.stat().st_mtime, reverse=True)

    def measurement(self, run: str, **keys: Any) -> Measurement:
        """Return the student's first measurement with these fields: a completion time of a whole unless they say else.

        NotDone if there is none.
        """
        return _first(self.records(run).run.measurements, {"phase": "", "metric": "completion_time", **keys})

    def recovery(self, run: str, **keys: Any) -> Recovery:
        """Return the student's first record of a fault with these fields. NotDone if there is none."""
        rows: list[Recovery] = self.records(run).run.rows(record_kind_of_file("recovery.csv"))
        return _first(rows, keys)


def _first(rows: Iterable[T], keys: Mapping[str, Any]) -> T:
    for row in rows:
        values = {name: getattr(row, name) for name in keys}
        if values == keys:
            return row
    described = [f"{name} {value}" for name, value in keys.items() if value]
    raise NotDone(f"the run has no record of {', '.join(described)}")


def _comparable(spec: Mapping[str, Any], run: LabRun) -> str:
    """Return the part of a specification that a lab asks for, as text: the seed is the student's choice."""
    part = dict(spec)
    for key in ("seed", "title", "description", "plugins"):
        part.pop(key, None)
    text = json.dumps(part, sort_keys=True)
    if not run.plugin:
        return text
    return text.replace(json.dumps(run.plugin_name), json.dumps(run.stand_in))


def in_order() -> list[Lab]:
    """Return all labs by number."""
    return sorted(LABS.values(), key=lambda lab: lab.number)


def find(number: str) -> Lab:
    """Return the lab of this number or name. BadInput for any other."""
    for lab in LABS.values():
        if number in (lab.name, str(lab.number)):
            return lab
    names = ", ".join(f"{lab.number} ({lab.name})" for lab in in_order())
    raise BadInput("N", number, f"is not a lab: allowed are {names}")


def folder_name(lab: Lab, student: str) -> str:
    """Return the name of a student's folder."""
    return f"lab{lab.number}-{student}" if student else f"lab{lab.number}"

"""Reads a lab from a Markdown file: YAML between two lines `---`, then the text for students (docs/extending.md#a-lab).

Texts are Jinja templates, and a key `compute` has a Jinja expression. Both use the values of the student's variant; an
expression also uses `setting` (a `Setting`) and the public functions of the module that the key `functions` names.
"""

import random
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from jinja2 import Environment, StrictUndefined, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables
from pydantic import Field, model_validator

from railyard.core.config import ConfigModel, PlainName, parse_model, parse_yaml
from railyard.core.errors import BadInput
from railyard.core.installation import file_in_project
from railyard.core.plugins import Origin, Source
from railyard.core.safe_files import decoded, read_input
from railyard.experiments.labs.definition import (
    LABS,
    Answer,
    Discussion,
    Lab,
    LabRun,
    Mistake,
    Question,
    Setting,
    Starter,
    fill,
)

MAX_BYTES: Final = 2**20
_FILE: Final = re.compile(r"---\n(?P<front_matter>.*?)^---\n(?P<text>.*)", re.DOTALL | re.MULTILINE)
_EXPRESSIONS: Final = Environment(undefined=StrictUndefined)
_DRAWS: Final = ("choice", "sample", "randrange")
"""Functions that an expression below `values` may call; each is a method of random.Random."""
_Expression: TypeAlias = Callable[[Mapping[str, Any]], Any]
"""A compiled expression: returns its result for the values of the names in it."""
_Rule: TypeAlias = Callable[[random.Random, Mapping[str, Any]], Any]
"""Returns a value of a variant, drawn from a random source or computed from the values before it."""


class _Computed(ConfigModel):
    """A value of a variant that is computed from those before it."""

    compute: str


class _Answer(ConfigModel):
    """A right or wrong answer: as it is, or an expression."""

    answer: int | float | str | Annotated[tuple[str, ...], Field(strict=False)] | None = None
    compute: str = ""

    @model_validator(mode="after")
    def _has_one(self) -> "_Answer":
        if (self.answer is None) == (not self.compute):
            raise ValueError("must have either the key `answer` or the key `compute`")
        return self


class _Mistake(_Answer):
    reason: str


class _Question(_Answer):
    text: str
    hint: str
    why: str
    unit: str = ""
    within: float = 0.02
    mistakes: Annotated[tuple[_Mistake, ...], Field(strict=False)] = ()


class _Run(ConfigModel):
    experiment: str
    overrides: Annotated[tuple[str, ...], Field(strict=False)] = ()
    plugin: str = ""
    plugin_name: str = ""
    stand_in: str = ""
    goal: str = ""


class _Starter(ConfigModel):
    file: str
    text: str
    solution: str


class _Discussion(ConfigModel):
    question: str
    answer: str


class _FrontMatter(ConfigModel):
    """The YAML of a lab's file. `values`: a list of which one item is drawn, a template, a number or an expression."""

    name: PlainName
    number: int
    title: str
    summary: str
    minutes: int
    functions: str = ""
    values: dict[str, list[Any] | str | int | float | _Computed] = Field(default_factory=dict)
    plan_45: str
    plan_90: str
    starter: _Starter | None = None
    runs: dict[str, _Run] = Field(default_factory=dict)
    questions: dict[str, _Question]
    discuss: Annotated[tuple[_Discussion, ...], Field(strict=False)] = ()


def register_file(path: Path, origin: Origin) -> Lab:
    """Read a lab from a Markdown file and register it, once. BadInput names the file and the key at fault."""
    file = file_in_project(path)
    for name, lab in LABS.registered().items():
        if LABS.source(name).file == file:
            return lab
    try:
        content = decoded(read_input(path, "--plugin", MAX_BYTES, file))
    except UnicodeDecodeError as error:
        raise BadInput("--plugin", file, "is not text in UTF-8") from error
    lab = read_lab(content, file)
    return LABS.add(lab.name, lab, Source(origin, file, 1))


def read_lab(content: str, file: str) -> Lab:
    """Return the lab of a file's content. BadInput names the file and the key at fault."""
    match = _FILE.fullmatch(content)
    if match is None:
        raise BadInput("--plugin", file, "must begin with YAML between two lines `---`")
    data = parse_yaml(match["front_matter"], "--plugin", file)
    try:
        front_matter = parse_model(_FrontMatter, data)
    except BadInput as error:
        raise BadInput(f"{file}: {error.field}", error.value, error.allowed) from error
    return _LabMaker(front_matter, file).lab(match["text"])


class _LabMaker:
    """Makes a lab of its front matter. Every expression is compiled, and its names are checked, before it is used."""

    def __init__(self, front_matter: _FrontMatter, file: str) -> None:
        self._front_matter = front_matter
        self._file = file
        self._functions = self._load_functions()
        self._names = {"setting", "range", *_DRAWS, *self._functions}
        for key in front_matter.values:
            self._names.update(_names_of(key))

    def lab(self, text: str) -> Lab:
        """Return the lab. `text`: the text for students."""
        data = self._front_matter
        return Lab(
            name=data.name,
            number=data.number,
            title=data.title,
            summary=data.summary,
            minutes=data.minutes,
            text=text,
            choose_values=self._value_chooser(),
            questions=tuple(self._question(name, question) for name, question in data.questions.items()),
            plan_45=data.plan_45,
            plan_90=data.plan_90,
            runs=tuple(self._run(name, run) for name, run in data.runs.items()),
            starter=Starter(**data.starter.model_dump()) if data.starter else None,
            discuss=tuple(Discussion(item.question, item.answer) for item in data.discuss),
        )

    def _load_functions(self) -> dict[str, Any]:
        """Return what the module `functions` defines and imports, by name."""
        module_name = self._front_matter.functions
        if not module_name:
            return {}
        try:
            module = import_module(module_name)
        except ImportError as error:
            raise self._error("functions", module_name, f"can't be imported: {error}") from error
        public_names = [name for name in vars(module) if not name.startswith("_")]
        return {name: getattr(module, name) for name in public_names}

    def _value_chooser(self) -> Callable[[random.Random], dict[str, Any]]:
        """Return the function that draws the values of a variant, in the order in which the file has them."""
        rules: list[tuple[list[str], _Rule]] = []
        for key, entry in self._front_matter.values.items():
            rules.append((_names_of(key), self._rule(f"values.{key}", entry)))

        def choose_values(choose: random.Random) -> dict[str, Any]:
            draws = {name: getattr(choose, name) for name in _DRAWS}
            values: dict[str, Any] = {}
            for names, rule in rules:
                value = rule(choose, {**draws, **values})
                if len(names) == 1:
                    values[names[0]] = value
                else:
                    values |= zip(names, value, strict=True)
            return values

        return choose_values

    def _rule(self, field: str, entry: object) -> _Rule:
        """Return the function that gives one value, or several of one key, for a random source and earlier values."""
        if isinstance(entry, list):
            return lambda choose, values: choose.choice(entry)
        if isinstance(entry, _Computed):
            expression = self._expression(f"{field}.compute", entry.compute)
            return lambda choose, values: expression(values)
        if isinstance(entry, str):
            return lambda choose, values: fill(entry, values)
        return lambda choose, values: entry

    def _question(self, name: str, question: _Question) -> Question:
        field = f"questions.{name}"
        mistakes: list[Mistake] = []
        for number, mistake in enumerate(question.mistakes):
            answer = self._answer(f"{field}.mistakes.{number}", mistake)
            mistakes.append(Mistake(answer, mistake.reason))
        return Question(
            name=name,
            text=question.text,
            right=self._answer(field, question),
            hint=question.hint,
            why=question.why,
            within=question.within,
            mistakes=tuple(mistakes),
            unit=question.unit,
        )

    def _answer(self, field: str, item: _Answer) -> Callable[[Setting], Answer]:
        """Return the function that gives an answer for a student's setting. A list is a set of names."""
        if item.answer is not None:
            return partial(_constant_answer, item.answer)
        expression = self._expression(f"{field}.compute", item.compute)

        def compute(setting: Setting) -> Answer:
            result: Answer = expression({**setting.values, "setting": setting})
            return result

        return compute

    def _run(self, name: str, run: _Run) -> LabRun:
        fields = run.model_dump(exclude={"goal"})
        if not run.goal:
            return LabRun(name, **fields)
        if run.goal not in self._functions:
            raise self._error(f"runs.{name}.goal", run.goal, "is not a function of the module `functions`")
        return LabRun(name, **fields, goal=self._functions[run.goal])

    def _expression(self, field: str, text: str) -> _Expression:
        """Compile a Jinja expression. BadInput if it isn't one, or uses a name that is no value and no function."""
        try:
            tree = _EXPRESSIONS.parse("{{ (" + text + ") }}")
            compiled = _EXPRESSIONS.compile_expression(text, undefined_to_none=False)
        except TemplateSyntaxError as error:
            raise self._error(field, text, f"is not a Jinja expression: {error.message}") from error
        for name in sorted(find_undeclared_variables(tree) - self._names):
            raise self._error(field, text, f"uses the name {name}, which is no value and no function")
        return lambda values: compiled({**self._functions, **values})

    def _error(self, field: str, value: object, problem: str) -> BadInput:
        return BadInput(f"{self._file}: {field}", value, problem)


def _constant_answer(answer: float | str | tuple[str, ...], setting: Setting) -> Answer:
    """Return an answer that doesn't depend on the student's setting."""
    if isinstance(answer, tuple):
        return frozenset(answer)
    return answer


def _names_of(key: str) -> list[str]:
    """Return the names of the values that a key below `values` stands for: one, or several with commas between them."""
    return [name.strip() for name in key.split(",")]

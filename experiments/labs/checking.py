"""Checks of a student's work: the answers of answers.yaml, and the records of the runs that a lab asks for."""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from railyard.core.config import read_yaml
from railyard.core.errors import BadInput, RailyardError, one_line, printable, unknown_name_hint
from railyard.core.units import parse_quantity
from railyard.experiments.labs.definition import Answer, Lab, NotDone, Question, Setting, fill, find
from railyard.experiments.labs.pages import numbered
from railyard.results import run_folder

ANSWERS: Final = "answers.yaml"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,39}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a question or a run: `item` is its name, `message` says what to look at."""

    item: str
    state: Literal["right", "wrong", "missing"]
    message: str = ""


def check_student(name: str) -> str:
    """Return a student's name. BadInput if it can't be part of a folder's name."""
    if name and not _NAME.fullmatch(name):
        raise BadInput("--student", name, "must have 1 to 40 letters, digits, dots, dashes and underscores")
    return name


def answer_sheet(setting: Setting) -> str:
    """Return an empty answers.yaml: a key for each question."""
    lines = [
        f"# Lab {setting.lab.number}: {setting.lab.title}. Write each answer after its colon.",
        f"lab: {setting.lab.name}",
        f"student: '{setting.student}'",
        "answers:",
    ]
    for text, question in zip(numbered(setting).values(), setting.lab.questions, strict=True):
        lines.append(f"  # {' '.join(text.split())}")
        lines.append(f"  {question.name}:")
    return "\n".join(lines) + "\n"


def read_answers(path: Path, lab: Lab | None = None) -> tuple[Lab, str, dict[str, Any]]:
    """Return lab, student and answers by question. BadInput, with the key, for another file than `answer_sheet`'s."""
    data = read_yaml(path, ANSWERS, str(path))
    if not isinstance(data, dict) or not isinstance(data.get("answers") or {}, dict):
        raise BadInput(ANSWERS, str(path), "must have the keys lab, student and answers")
    answered_lab = find(str(data.get("lab")))
    if lab is not None and answered_lab is not lab:
        raise BadInput("lab", data.get("lab"), f"is not lab {lab.number}, which is to be checked")
    answers = data.get("answers") or {}
    names = [question.name for question in answered_lab.questions]
    for name in answers:
        if name not in names:
            raise BadInput(f"answers.{name}", answers[name], f"{unknown_name_hint(str(name), names)}")
    return answered_lab, check_student(str(data.get("student") or "")), answers


def check(setting: Setting, answers: dict[str, Any]) -> list[Outcome]:
    """Return an outcome for each run that the lab asks for, then for each question. BadInput for records without sense:
    a student may have changed them, and their manifest.
    """
    try:
        outcomes = list(_runs(setting))
        outcomes += [judge(setting, question, answers.get(question.name)) for question in setting.lab.questions]
        return outcomes
    except RailyardError:
        raise
    except Exception as error:
        raise run_folder.unfit("FOLDER", str(setting.folder), "checked by", error) from error


def _runs(setting: Setting) -> Iterator[Outcome]:
    for run in setting.lab.runs:
        try:
            analysis = setting.records(run.name)
            judgement = analysis.judgement
        except NotDone as error:
            yield Outcome(f"run {run.name}", "missing", f"{error}; type: {setting.command(run)}")
            continue
        if judgement.verdict == "invalid":
            advice = f"repeat it with --out {setting.folder / run.name}-2"
            yield Outcome(f"run {run.name}", "wrong", f"its verdict is invalid ({judgement.reasons[0]}): {advice}")
        elif problem := run.goal(analysis):
            yield Outcome(f"run {run.name}", "wrong", problem)
        else:
            yield Outcome(f"run {run.name}", "right", f"verdict {judgement.verdict}")


def judge(setting: Setting, question: Question, answer: object) -> Outcome:
    """Compare an answer with the right one. The message is a hint, which doesn't contain the right answer."""
    if answer is None or answer == "":
        return Outcome(question.name, "missing", "no answer yet")
    hint = fill(question.hint, setting.values)
    try:
        right = question.right(setting)
        if isinstance(right, int | float) and isinstance(answer, str):
            answer = parse_quantity(answer, question.unit)
        if is_same(answer, right, question.within):
            return Outcome(question.name, "right")
        for mistake in question.mistakes:
            if is_same(answer, mistake.answer(setting), question.within):
                return Outcome(question.name, "wrong", f"{mistake.reason}. {hint}")
    except NotDone as error:
        return Outcome(question.name, "missing", f"it needs a run: {error}")
    except (ValueError, OverflowError) as error:
        return Outcome(question.name, "wrong", f"the answer {error}")
    return Outcome(question.name, "wrong", hint)


def is_same(answer: object, right: Answer, within: float) -> bool:
    """Return whether what a student wrote is the answer: numbers within a share; sets of names in
    any order, separated by commas or spaces; words in any case.
    """
    # YAML reads yes and no as booleans
    if isinstance(answer, bool):
        answer = "yes" if answer else "no"
    if isinstance(right, frozenset):
        words = re.split(r"[,\s]+", str(answer).strip())
        if isinstance(answer, list):
            words = list(map(str, answer))
        expected_words = set(map(str.lower, right)) or {"none"}
        return set(map(str.lower, words)) == expected_words
    if isinstance(right, int | float):
        return isinstance(answer, int | float) and abs(answer - right) <= within * abs(right) + 1e-9
    return " ".join(str(answer).lower().split()) == right.lower()


GRADE_COLUMNS: Final = (
    "folder", "lab", "student", "right", "questions", "runs", "runs_asked", "wrong", "missing", "problem",
)  # fmt: skip


def grades(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each folder of a student below `folder`, by name. BadInput if there is none.

    A student's file that can't be used is a row with its problem, and ends nothing.
    """
    folders: list[Path] = []
    for levels in ("", "*/", "*/*/"):
        folders += [path.parent for path in folder.glob(levels + ANSWERS)]
    if not folders:
        raise BadInput("FOLDER", str(folder), f"has no folder with {ANSWERS}")
    return [_grade(path) for path in sorted(folders)]


def _grade(path: Path) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(GRADE_COLUMNS, "")
    row["folder"] = printable(path.name)
    try:
        lab, student, answers = read_answers(path / ANSWERS)
        outcomes = check(Setting.of(lab, student, path), answers)
    except RailyardError as error:
        row["problem"] = one_line(str(error))
        return row
    run_outcomes = outcomes[: len(lab.runs)]
    answer_outcomes = outcomes[len(lab.runs) :]
    row["lab"] = lab.number
    row["student"] = student
    row["right"] = len(_items(answer_outcomes, "right"))
    row["questions"] = len(answer_outcomes)
    row["runs"] = len(_items(run_outcomes, "right"))
    row["runs_asked"] = len(lab.runs)
    row["wrong"] = " ".join(_items(answer_outcomes, "wrong"))
    row["missing"] = " ".join(_items(answer_outcomes, "missing"))
    return row


def _items(outcomes: list[Outcome], state: str) -> list[str]:
    return [outcome.item for outcome in outcomes if outcome.state == state]


def to_csv(rows: list[dict[str, Any]]) -> str:
    """Return grades as CSV. A cell that a spreadsheet would take for a formula begins with an apostrophe."""
    text = io.StringIO()
    writer = csv.DictWriter(text, GRADE_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({column: _cell(value) for column, value in row.items()})
    return text.getvalue()


def _cell(value: object) -> object:
    if str(value).lstrip().startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return value

"""`lab`: exercises for a class: a student's variant, what is left to do, checks of answers and runs, and grades."""

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from railyard.core.errors import BadInput, MissingRequirement, one_line, unknown_name_hint
from railyard.core.installation import RUN
from railyard.core.safe_files import Folder, write_file
from railyard.experiments.labs import checking, pages
from railyard.experiments.labs.definition import LABS, Setting, find
from railyard.experiments.options import PluginFiles, console, plain_table
from railyard.experiments.run.folder import reporting_path_errors

PURPOSE = "Learn and teach"
_VERBS = ("check", "grade")
_USAGE = "must be: N [FOLDER], check N [FOLDER], or grade FOLDER [CSV]"


def command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[check|grade] [N] [FOLDER]",
            help="A lab's number, to begin or go on; check and its number; or grade and a folder of students' folders.",
            default_factory=list,
            show_default=False,
        ),
    ],
    student: Annotated[str, typer.Option(help="The student's name, which decides the variant.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="With check: print the outcomes as JSON.")] = False,
    *,
    plugin_files: PluginFiles,
) -> int:
    """Begin a lab, check it, or grade a class. Without a number: list the labs.

    `lab 3 --student ada` makes the folder lab3-ada with the text and the answer sheet, and shows what comes next.
    `lab check 3 --student ada` says what is right, and gives hints; exit status 1 if something is wrong or missing.
    `lab grade FOLDER` writes grades.csv there, a row for each student's folder.
    """
    checking.check_student(student)
    if words:
        _check_word(words[0])
    match words:
        case []:
            return _list()
        case ["grade", folder, *rest] if len(rest) <= 1:
            return _grade(Path(folder), Path(rest[0]) if rest else Path(folder, "grades.csv"))
        case ["check", number, *rest] if len(rest) <= 1:
            return _check(number, student, rest[0] if rest else None, as_json)
        case [number, *rest] if len(rest) <= 1 and number not in ("check", "grade"):
            return _guide(Setting.of(find(number), student, Path(rest[0]) if rest else None))
    raise BadInput("lab", " ".join(words), _USAGE)


def _check_word(word: str) -> None:
    """Raise BadInput for a first word that is closer to `check` or `grade` than to any lab's number or name."""
    if word not in _VERBS and get_close_matches(word, [*_VERBS, *LABS], n=1) in ([verb] for verb in _VERBS):
        raise BadInput("lab", word, f"{unknown_name_hint(word, _VERBS)}, or a lab's number")


def _list() -> int:
    table = plain_table("LAB", "NAME", "MINUTES", "TITLE", right=("LAB", "MINUTES"))
    for name, lab in sorted(LABS.items(), key=lambda item: item[1].number):
        table.add_row(str(lab.number), name, str(lab.minutes), lab.title)
    console().print(table)
    return 0


def _guide(setting: Setting) -> int:
    """Make the student's folder at the first call; show the first section with something that is left to do."""
    with reporting_path_errors("FOLDER", setting.folder), Folder(setting.folder, make=True) as folder:
        page = pages.student_page(setting)
        files = {"lab.md": page}
        with suppress(MissingRequirement):  # only the notebook needs jupytext
            files["lab.ipynb"] = pages.notebook(page)
        if not folder.has(checking.ANSWERS):
            files[checking.ANSWERS] = checking.answer_sheet(setting)
        own, text = setting.lab.starter
        if own and not folder.has(own):
            files[own] = text
        for name, text in files.items():
            folder.write(name, text.encode())
    _, _, answers = checking.read_answers(setting.folder / checking.ANSWERS, setting.lab)
    left = [outcome.item for outcome in checking.check(setting, answers) if outcome.state != "right"]
    head, *sections = page.split("\n## ")
    marks = [str(setting.folder / item[4:]) if item.startswith("run ") else f"`{item}`" for item in left]
    open_sections = [text for text in sections if any(mark in text for mark in marks)]
    out = console()
    every = len(setting.lab.questions) + len(setting.lab.runs)
    out.print(Markdown(head if len(left) == every else head.splitlines()[0]))
    out.print(Markdown(f"## {(open_sections or sections[-1:])[0]}"))
    out.print(f"{every - len(left)} of {every} done; the whole text: {setting.folder / 'lab.md'}", highlight=False)
    return 0


def _check(number: str, student: str, given: str | None, as_json: bool) -> int:
    lab = find(number)
    path = Path(given) if given else Setting.of(lab, student).folder
    path = path if path.name.endswith((".yaml", ".yml")) else path / checking.ANSWERS
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists fails if the name is too long
        start = f"{RUN.removeprefix('sudo ')} lab {number}"
        start += f" --student {student}" if student else ""
        raise BadInput("FOLDER", str(path), f"is not there: {start} makes it")
    _, owner, answers = checking.read_answers(path, lab)
    if student and owner != student:
        raise BadInput("--student", student, f"is not the student of {path}: {owner or 'none'}")
    outcomes = checking.check(Setting.of(lab, owner, path.parent), answers)
    right = sum(outcome.state == "right" for outcome in outcomes)
    if as_json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
        return 0 if right == len(outcomes) else 1
    out = console()
    styles = {"right": "[green]right  [/]", "wrong": "[red]wrong  [/]", "missing": "[yellow]missing[/]"}
    for outcome in outcomes:
        line = f"{styles[outcome.state]} {outcome.item}"
        out.print(f"{line}: {outcome.message}" if outcome.message else line, highlight=False, soft_wrap=True)
    out.print(f"{right} of {len(outcomes)} right", highlight=False)
    return 0 if right == len(outcomes) else 1


def _grade(folder: Path, csv: Path) -> int:
    with reporting_path_errors("FOLDER", folder):
        rows = checking.grades(folder)
    with reporting_path_errors("CSV", csv):
        write_file(csv, checking.to_csv(rows).encode())
    for row in rows:
        if row["problem"]:
            print(one_line(f"{row['folder']}: {row['problem']}"), file=sys.stderr)
    print(csv)
    return 0

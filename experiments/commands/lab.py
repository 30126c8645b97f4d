"""`lab`: exercises for a class: a student's variant, what is left to do, checks, grades, and the teacher's page."""

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
from railyard.experiments.labs.definition import LABS, Setting, find, in_order
from railyard.experiments.options import console, load_plugins, plain_table, plugin_option, shows_progress
from railyard.experiments.run.folder import reporting_path_errors

PURPOSE = "Learn and teach"
_VERBS = ("check", "grade", "teach")
_USAGE = "must be: N [FOLDER], check N [FOLDER], grade FOLDER [CSV], or teach N"
_STATES = {"right": "[green]right  [/]", "wrong": "[red]wrong  [/]", "missing": "[yellow]missing[/]"}


def load_labs(files: list[Path]) -> list[Path]:
    """Load plugin files while the command line is read: labs in Markdown, and Python files."""
    for file in files:
        if file.suffix == ".md":
            from railyard.core.safe_files import real_path
            from railyard.experiments.labs.reading import register_file

            register_file(real_path(file.absolute()), "plugin")
        else:
            load_plugins([file])
    return files


@shows_progress
def command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[check|grade|teach] [N] [FOLDER]",
            help="A lab's number, to begin or go on; check or teach and its number; or grade and a folder of students' "
            "folders.",
            default_factory=list,
            show_default=False,
        ),
    ],
    student: Annotated[str, typer.Option(help="The student's name, which decides the variant.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="With check: print the outcomes as JSON.")] = False,
    *,
    plugin_files: Annotated[
        list[Path],
        plugin_option(load_labs, "Load your own lab, a Markdown file, or other definitions (docs/extending.md)."),
    ],
) -> int:
    """Begin a lab, check it, or grade a class. Without a number: list the labs.

    `lab 3 --student ada` makes the folder lab3-ada with the text and the answer sheet, and shows what comes next.
    `lab check 3 --student ada` says what is right, and gives hints; exit status 1 if something is wrong or missing.
    `lab grade FOLDER` writes grades.csv there, a row for each student's folder.
    `lab teach 3` prints the teacher's page in Markdown: plans of lessons, answers with reasons, and recorded output.
    """
    checking.check_student(student)
    if words:
        _check_word(words[0])
    match words:
        case []:
            return _list()
        case ["grade", folder]:
            return _grade(Path(folder), Path(folder, "grades.csv"))
        case ["grade", folder, csv]:
            return _grade(Path(folder), Path(csv))
        case ["check", number]:
            return _check(number, student, None, as_json)
        case ["check", number, folder]:
            return _check(number, student, Path(folder), as_json)
        case ["teach", number]:
            return _teach(number, student)
        case [number] if number not in _VERBS:
            return _guide(Setting.of(find(number), student))
        case [number, folder] if number not in _VERBS:
            return _guide(Setting.of(find(number), student, Path(folder)))
    raise BadInput("lab", " ".join(words), _USAGE)


def _check_word(word: str) -> None:
    """Raise BadInput for a first word that is closer to a verb than to any lab's number or name."""
    nearest_words = get_close_matches(word, [*_VERBS, *LABS], n=1)
    if word not in _VERBS and nearest_words and nearest_words[0] in _VERBS:
        raise BadInput("lab", word, f"{unknown_name_hint(word, _VERBS)}, or a lab's number")


def _list() -> int:
    table = plain_table("LAB", "NAME", "MINUTES", "TITLE", right=("LAB", "MINUTES"))
    for lab in in_order():
        table.add_row(str(lab.number), lab.name, str(lab.minutes), lab.title)
    console().print(table)
    return 0


def _guide(setting: Setting) -> int:
    """Make the student's folder at the first call; show the first section with something that isn't done."""
    page = pages.student_page(setting)
    _write_folder(setting, page)
    _, _, answers = checking.read_answers(setting.folder / checking.ANSWERS, setting.lab)
    outcomes = checking.check(setting, answers)
    open_items = [outcome.item for outcome in outcomes if outcome.state != "right"]
    head, *sections = page.split("\n## ")
    marks = [_mark(setting, item) for item in open_items]
    open_sections = [text for text in sections if any(mark in text for mark in marks)]
    out = console()
    out.print(Markdown(head if len(open_items) == len(outcomes) else head.splitlines()[0]))
    out.print(Markdown(f"## {(open_sections or sections[-1:])[0]}"))
    done = len(outcomes) - len(open_items)
    out.print(f"{done} of {len(outcomes)} done; the whole text: {setting.folder / 'lab.md'}", highlight=False)
    return 0


def _write_folder(setting: Setting, page: str) -> None:
    """Write the page and the notebook; the answer sheet and the starter only if they aren't there."""
    with reporting_path_errors("FOLDER", setting.folder), Folder(setting.folder, make=True) as folder:
        files = {"lab.md": page}
        # only the notebook needs jupytext
        with suppress(MissingRequirement):
            files["lab.ipynb"] = pages.notebook(page)
        if not folder.has(checking.ANSWERS):
            files[checking.ANSWERS] = checking.answer_sheet(setting)
        starter = setting.lab.starter
        if starter and not folder.has(starter.file):
            files[starter.file] = starter.text
        for name, text in files.items():
            folder.write(name, text.encode())


def _mark(setting: Setting, item: str) -> str:
    """Return the text by which a section contains a question or a run: its name in backticks, or its folder."""
    if item.startswith("run "):
        return str(setting.folder / item.removeprefix("run "))
    return f"`{item}`"


def _teach(number: str, student: str) -> int:
    """Print the teacher's page."""
    lab = find(number)
    sys.stdout.write(pages.teacher_page(Setting.of(lab, student), pages.recorded(lab)))
    return 0


def _check(number: str, student: str, folder: Path | None, as_json: bool) -> int:
    lab = find(number)
    path = folder or Setting.of(lab, student).folder
    if not path.name.endswith((".yaml", ".yml")):
        path = path / checking.ANSWERS
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists fails if the name is too long
        start = f"{RUN.removeprefix('sudo ')} lab {number}"
        if student:
            start += f" --student {student}"
        raise BadInput("FOLDER", str(path), f"is not there: {start} makes it")
    _, owner, answers = checking.read_answers(path, lab)
    if student and owner != student:
        raise BadInput("--student", student, f"is not the student of {path}: {owner or 'none'}")
    outcomes = checking.check(Setting.of(lab, owner, path.parent), answers)
    right = sum(outcome.state == "right" for outcome in outcomes)
    if as_json:
        print(json.dumps(list(map(asdict, outcomes)), indent=1))
    else:
        out = console()
        for outcome in outcomes:
            line = f"{_STATES[outcome.state]} {outcome.item}"
            if outcome.message:
                line += f": {outcome.message}"
            out.print(line, highlight=False, soft_wrap=True)
        out.print(f"{right} of {len(outcomes)} right", highlight=False)
    return int(right < len(outcomes))


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

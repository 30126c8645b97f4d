"""Pages of a lab: the student's text with a variant's values, the teacher's page, and the notebook."""

import json
import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Final

from railyard.core.errors import MissingRequirement
from railyard.core.installation import IS_CHECKOUT, RUN, python_extra
from railyard.experiments.labs.definition import Answer, NotDone, Question, Setting, fill, folder_name

_HEADER: Final = (
    "---\njupyter:\n  kernelspec:\n    display_name: Python 3\n    language: python\n    name: python3\n---\n\n"
)
NOTEBOOK_START: Final = """```python
# commands start in the checkout
import os
from pathlib import Path

if not Path("run_experiment.py").exists():
    os.chdir("..")
```

"""


def numbered(setting: Setting) -> dict[str, str]:
    """Return each question's Markdown by its name: its number, the name, and the text."""
    return {
        question.name: f"**Question {n}, `{question.name}`:** {fill(question.text, setting.values)}"
        for n, question in enumerate(setting.lab.questions, 1)
    }


def student_page(setting: Setting) -> str:
    """Return the lab's text in Markdown. jinja2's UndefinedError for a name that the lab doesn't define."""
    lab = setting.lab
    folder = str(setting.folder)
    student = f" --student {setting.student}" if setting.student else ""
    values = {
        **setting.values,
        "railyard": RUN,
        "unprivileged": RUN.removeprefix("sudo "),
        "python": ".venv/bin/python" if IS_CHECKOUT else "python3",
        "folder": folder,
        "own_name": folder_name(lab, setting.student),
        "run": SimpleNamespace(**{run.name: setting.command(run) for run in lab.runs}),
        "ask": SimpleNamespace(**numbered(setting)),
    }
    check = f"{values['unprivileged']} lab check {lab.number}{student}"
    head = f"# Lab {lab.number}: {lab.title}\n\n{lab.minutes} minutes, on two cores. "
    head += f"Make your folder with `{values['unprivileged']} lab {lab.number}{student}`, write your answers into\n"
    head += f"`{folder}/answers.yaml`, and check them at any time with `{check}`.\n"
    head += f"`{values['unprivileged']} doctor` shows whether runs work here. Of output, only the lines to look at\n"
    head += "are shown, with … for what differs; times are examples.\n\n"
    discuss = "".join(f"\n- {fill(question, values)}" for question, _ in lab.discuss)
    discuss = f"\n## Discuss\n{discuss}\n" if discuss else ""
    return f"{head}{fill(lab.text.strip(), values)}\n{discuss}\n## Check\n\n```sh\n{check}\n```\n"


def shown(answer: Answer) -> str:
    """Return an answer as a student would write it."""
    if isinstance(answer, frozenset):
        return ", ".join(sorted(answer)) or "none"
    return f"{answer:.4g}" if isinstance(answer, float) else str(answer)


def answers(setting: Setting, question: Question) -> list[str]:
    """Return the right answer, then the mistakes, as a student would write them; nothing without the run they need."""
    try:
        return [shown(question.right(setting)), *(shown(mistake.answer(setting)) for mistake in question.mistakes)]
    except NotDone:
        return []


def teacher_page(setting: Setting, outputs: str = "", typical: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return answers with reasons, common mistakes, and plans of lessons. `outputs`: of the lab's commands, Markdown.

    `typical`: `answers` of a run by question, for those that depend on a run.
    """
    lab = setting.lab
    parts = [f"# Lab {lab.number}: {lab.title} (for teachers)"]
    parts.append(
        "Answers are of the variant without a name; `lab check` and `lab grade` compute those of each student."
    )
    if typical:
        parts.append("Where an answer is called typical, the student's own run decides: these are of the run below.")
    parts.append(f"## Plans\n\n**45 minutes:** {lab.plan_45}\n\n**90 minutes:** {lab.plan_90}\n\n## Answers")
    for n, question in enumerate(lab.questions, 1):
        found = answers(setting, question)
        right, *wrong = found or (typical or {}).get(question.name) or ["of the student's own run"]
        mistakes = [f"- **{value}**: {mistake.what}" for value, mistake in zip(wrong, question.mistakes, strict=False)]
        common = "\n\nCommon mistakes:\n\n" + "\n".join(mistakes) if mistakes else ""
        parts.append(
            f"**{n}. `{question.name}`** {fill(question.text, setting.values)}\n\n"
            f"{'Answer' if found else 'Typical answer'}: **{right}**{_tolerance(question, right)}. "
            f"{fill(question.why, setting.values)}{common}"
        )
    if lab.solution:
        parts.append(f"## A solution\n\n`{lab.starter[0]}`:\n\n```python\n{lab.solution.strip()}\n```")
    if lab.discuss:
        parts.append("## Discussion")
        parts += [fill(f"**{question}** {answer}", setting.values) for question, answer in lab.discuss]
    return "\n\n".join(parts) + "\n" + outputs


def _tolerance(question: Question, answer: str) -> str:
    """Return by which share a number may differ; nothing for a word or a name."""
    return f" (± {question.within:.0%})" if question.within and re.fullmatch(r"\d+(\.\d+)?(e[+-]\d+)?", answer) else ""


def notebook(page: str) -> str:
    """Return a page as a Jupyter notebook: each block of commands is a cell. MissingRequirement without jupytext."""
    try:
        import jupytext
    except ImportError:
        raise MissingRequirement("notebooks need jupytext", python_extra("labs")) from None
    start = NOTEBOOK_START if IS_CHECKOUT else ""
    cells = page.replace("```sh\n", "```bash\n").replace("sudo script/run", "script/run")
    made = jupytext.reads(_HEADER + start + cells, fmt="md")
    made.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    made.nbformat_minor = 5
    for n, cell in enumerate(made.cells):
        cell["id"], cell["metadata"] = f"cell-{n}", {}
        cell["source"] = re.sub(r"\A%%bash\n", "%%bash -e\n", cell["source"])  # else the last status alone counts
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"

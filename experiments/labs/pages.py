"""Pages of a lab: the student's text with a variant's values, the teacher's page, and the notebook."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from railyard.core.errors import MissingRequirement
from railyard.core.installation import IS_CHECKOUT, RUN, data_file, python_extra
from railyard.experiments.labs.definition import Answer, Lab, NotDone, Question, Setting, fill, folder_name

RECORDED: Final = "labs/recorded"
"""The folder with the output of each shipped lab's commands on packets, and with the answers of these runs."""
TYPICAL: Final = "typical.json"
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


@dataclass(frozen=True, slots=True)
class Recorded:
    """Output of a lab on packets, recorded once.

    outputs: the output of its commands, Markdown; "" if nothing was recorded.
    typical: `answers` of each question that depends on a run.
    """

    outputs: str = ""
    typical: Mapping[str, Sequence[str]] = field(default_factory=dict)


def stem(lab: Lab) -> str:
    """Return the name of a shipped lab's files, without their ending."""
    return f"{lab.number:02}-{lab.name}"


def recorded(lab: Lab) -> Recorded:
    """Return what was recorded of a lab; nothing for a lab of a plugin."""
    folder = data_file(RECORDED)
    path = folder / f"{stem(lab)}.md"
    if not path.exists():
        return Recorded()
    return Recorded(path.read_text(encoding="utf-8"), typical_answers(folder / TYPICAL).get(lab.name, {}))


def typical_answers(path: Path) -> dict[str, dict[str, list[str]]]:
    """Return recorded answers by lab and question."""
    answers_by_lab: dict[str, dict[str, list[str]]] = json.loads(path.read_text(encoding="utf-8"))
    return answers_by_lab


def numbered(setting: Setting) -> dict[str, str]:
    """Return each question's Markdown by its name: its number, the name, and the text."""
    texts: dict[str, str] = {}
    for number, question in enumerate(setting.lab.questions, 1):
        text = fill(question.text, setting.values)
        texts[question.name] = f"**Question {number}, `{question.name}`:** {text}"
    return texts


def student_page(setting: Setting) -> str:
    """Return the lab's text in Markdown. jinja2's UndefinedError for a name that the lab doesn't define."""
    lab = setting.lab
    unprivileged = RUN.removeprefix("sudo ")
    student = f" --student {setting.student}" if setting.student else ""
    check = f"{unprivileged} lab check {lab.number}{student}"
    values: dict[str, Any] = {
        **setting.values,
        "railyard": RUN,
        "unprivileged": unprivileged,
        "python": ".venv/bin/python" if IS_CHECKOUT else "python3",
        "folder": str(setting.folder),
        "own_name": folder_name(lab, setting.student),
        "run": SimpleNamespace(**{run.name: setting.command(run) for run in lab.runs}),
        "ask": SimpleNamespace(**numbered(setting)),
    }
    parts = [
        f"# Lab {lab.number}: {lab.title}\n",
        f"{lab.minutes} minutes, on two cores. "
        f"Make your folder with `{unprivileged} lab {lab.number}{student}`, write your answers into\n"
        f"`{setting.folder}/answers.yaml`, and check them at any time with `{check}`.\n"
        f"`{unprivileged} doctor` shows whether runs work here. Of output, only the lines to look at\n"
        "are shown, with … for what differs; times are examples.\n",
        f"{fill(lab.text.strip(), values)}\n",
    ]
    if lab.discuss:
        questions = [f"- {fill(discussion.question, values)}\n" for discussion in lab.discuss]
        parts.append(f"## Discuss\n\n{''.join(questions)}")
    parts.append(f"## Check\n\n```sh\n{check}\n```\n")
    return "\n".join(parts)


def shown(answer: Answer) -> str:
    """Return an answer as a student would write it."""
    if isinstance(answer, frozenset):
        return ", ".join(sorted(answer)) or "none"
    if isinstance(answer, float):
        return f"{answer:.4g}"
    return str(answer)


def answers(setting: Setting, question: Question) -> list[str]:
    """Return the right answer, then the mistakes, as a student would write them; nothing without the run they need."""
    try:
        values = [question.right(setting)]
        for mistake in question.mistakes:
            values.append(mistake.answer(setting))
    except NotDone:
        return []
    return list(map(shown, values))


def teacher_page(setting: Setting, runs: Recorded | None = None) -> str:
    """Return answers with reasons, common mistakes, and plans of lessons. `runs`: what the lab gave on packets."""
    lab = setting.lab
    runs = runs or Recorded()
    variant = "the variant without a name"
    if setting.student:
        variant = f"the variant of {setting.student}"
    parts = [
        f"# Lab {lab.number}: {lab.title} (for teachers)",
        f"Answers are of {variant}; `lab check` and `lab grade` compute those of each student.",
    ]
    if runs.typical:
        parts.append("Where an answer is called typical, the student's own run decides: these are of the run below.")
    parts.append(f"## Plans\n\n**45 minutes:** {lab.plan_45}\n\n**90 minutes:** {lab.plan_90}\n\n## Answers")
    for number, question in enumerate(lab.questions, 1):
        parts.append(f"**{number}. `{question.name}`** {fill(question.text, setting.values)}")
        parts.extend(_explained(setting, question, runs.typical.get(question.name, ())))
    if lab.starter:
        parts.append(f"## A solution\n\n`{lab.starter.file}`:\n\n```python\n{lab.starter.solution.strip()}\n```")
    if lab.discuss:
        parts.append("## Discussion")
    for discussion in lab.discuss:
        parts.append(fill(f"**{discussion.question}** {discussion.answer}", setting.values))
    page = "\n\n".join(parts) + "\n"
    if runs.outputs:
        return f"{page}\n{runs.outputs}"
    return page


def _explained(setting: Setting, question: Question, typical: Sequence[str]) -> list[str]:
    """Return the paragraphs with the answer to a question and with common mistakes."""
    computed = answers(setting, question)
    right, *wrong = computed or typical or ["of the student's own run"]
    label = "Answer" if computed else "Typical answer"
    why = fill(question.why, setting.values)
    paragraphs = [f"{label}: **{right}**{_tolerance(question, right)}. {why}"]
    mistakes: list[str] = []
    # without the student's own run, no mistake has a value
    for value, mistake in zip(wrong, question.mistakes, strict=False):
        mistakes.append(f"- **{value}**: {mistake.reason}")
    if mistakes:
        paragraphs.append("Common mistakes:")
        paragraphs.append("\n".join(mistakes))
    return paragraphs


def _tolerance(question: Question, answer: str) -> str:
    """Return by which share a number may differ; nothing for a word or a name."""
    if question.within and re.fullmatch(r"\d+(\.\d+)?(e[+-]\d+)?", answer):
        return f" (± {question.within:.0%})"
    return ""


def notebook(page: str) -> str:
    """Return a page as a Jupyter notebook: each block of commands is a cell. MissingRequirement without jupytext."""
    try:
        import jupytext
    except ImportError:
        raise MissingRequirement("notebooks need jupytext", python_extra("labs")) from None
    start = NOTEBOOK_START if IS_CHECKOUT else ""
    cells = page.replace("```sh\n", "```bash\n").replace("sudo script/run", "script/run")
    document = jupytext.reads(_HEADER + start + cells, fmt="md")
    document.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    document.nbformat_minor = 5
    for number, cell in enumerate(document.cells):
        cell["id"] = f"cell-{number}"
        cell["metadata"] = {}
        # without -e the status of the last command alone would count
        cell["source"] = re.sub(r"\A%%bash\n", "%%bash -e\n", cell["source"])
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"

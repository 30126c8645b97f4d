"""Write labs/*.md, their notebooks and the teacher's pages from the labs: `python -m tests.unit.lab_pages`.

The teacher's pages keep the output of commands that they have; `python -m tests.emulation.lab_blocks N` renews it.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from railyard.core.errors import MissingRequirement
from railyard.experiments.labs.definition import LABS, Lab, Setting, name_of
from railyard.experiments.labs.pages import notebook, student_page, teacher_page

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "labs"
OUTPUTS: Final = "\n## Real output\n"
TYPICAL: Final = FOLDER / "teacher" / "typical.json"
"""Answers of the runs whose output the teacher's pages have, by lab and question."""


def stem(lab: Lab) -> str:
    """Return the name of a lab's files, without their ending."""
    return f"{lab.number:02}-{name_of(lab)}"


def typical() -> dict[str, dict[str, list[str]]]:
    """Return the content of `TYPICAL`."""
    found: dict[str, dict[str, list[str]]] = json.loads(TYPICAL.read_text(encoding="utf-8"))
    return found


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each Markdown page with the text that it must have."""
    for lab in map(LABS.__getitem__, LABS):
        setting = Setting.of(lab)
        teacher = FOLDER / "teacher" / f"{stem(lab)}.md"
        written = teacher.read_text(encoding="utf-8") if teacher.exists() else ""
        _, has_outputs, outputs = written.partition(OUTPUTS)
        yield FOLDER / f"{stem(lab)}.md", student_page(setting)
        yield teacher, teacher_page(setting, has_outputs + outputs, typical().get(name_of(lab)))
    yield ROOT / "docs" / "labs.md", index((ROOT / "docs" / "labs.md").read_text(encoding="utf-8"))


def index(text: str) -> str:
    """Return docs/labs.md with a row for each lab."""
    labs = sorted(map(LABS.__getitem__, LABS), key=lambda lab: lab.number)
    rows = [
        f"| [{lab.number}. {lab.title}](../labs/{stem(lab)}.md) | {lab.minutes} "
        f"| [answers, plans](../labs/teacher/{stem(lab)}.md) |"
        for lab in labs
    ]
    head, _, rest = text.partition("|---|---|---|\n")
    return f"{head}|---|---|---|\n" + "\n".join(rows) + "\n\n" + rest[rest.index("```sh") :]


def notebooks() -> Iterator[tuple[Path, str]]:
    """Yield each notebook with the text that it must have. MissingRequirement without jupytext."""
    for lab in map(LABS.__getitem__, LABS):
        yield FOLDER / f"{stem(lab)}.ipynb", notebook(student_page(Setting.of(lab)))


def main() -> None:
    """Write all pages, and the notebooks if jupytext is there."""
    files = list(pages())
    try:
        files += notebooks()
    except MissingRequirement as error:
        print(error)
    for path, text in files:
        path.parent.mkdir(exist_ok=True)
        path.write_text(re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE), encoding="utf-8")


if __name__ == "__main__":
    main()

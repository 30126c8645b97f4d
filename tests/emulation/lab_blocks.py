"""The commands of a lab's text, as a student types them, and what the text says that they print.

`python -m tests.emulation.lab_blocks 3 7`, as root, renews recorded output and typical answers of labs 3
and 7 in labs/recorded.
"""

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from railyard.core.installation import RUN, data_file
from railyard.experiments.labs import checking
from railyard.experiments.labs.definition import Answer, Lab, NotDone, Setting, find
from railyard.experiments.labs.pages import RECORDED, TYPICAL, answers, stem, student_page, typical_answers
from tests.emulation.programs import RUN_EXPERIMENT

BLOCK_S: Final = 150.0
_BLOCK: Final = re.compile(r"^```(sh|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_BUSY: Final = re.compile("^✗ the emulation is believable: .*", re.MULTILINE)
"""The one check of a run that a busy machine may fail."""
_INVALID: Final = re.compile(r"^\S+  fidelity invalid ", re.MULTILINE)
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True)
class Block:
    """A fenced block of commands, and the blocks of text after it, which are expected of its output."""

    commands: str
    expected: tuple[str, ...]


def blocks(page: str) -> list[Block]:
    """Return the blocks of commands in order. The last one, which checks the answers, is left out."""
    found: list[Block] = []
    for kind, content in _BLOCK.findall(page):
        if kind == "sh":
            found.append(Block(content, ()))
        else:
            found[-1] = Block(found[-1].commands, (*found[-1].expected, content))
    return found[:-1]


def absent_lines(expected: str, output: str) -> list[str]:
    """Return the expected lines that the output hasn't. Numbers may differ, and so may the width of gaps."""
    plain = " ".join(output.split())
    lines = [line.strip() for line in expected.splitlines() if line.strip(" …")]
    return [line for line in lines if not re.search(pattern(line), plain)]


def pattern(line: str) -> str:
    """Return a regular expression for a line: any number for a number, anything for an ellipsis."""
    parts = [_NUMBER.sub("\0", part) for part in line.split("…")]
    words = [r"\s*".join(re.escape(word).replace("\0", r"[\d.,]+") for word in part.split()) for part in parts]
    return ".*".join(words)


def failed_only_by_load(output: str) -> bool:
    """Return whether a run failed no other check than the one that a busy machine may fail."""
    return bool(failed := re.findall(r"^✗ \S.*", output, re.MULTILINE)) and failed == _BUSY.findall(output)


def run(setting: Setting, block: Block, within_s: float) -> str:
    """Run a block in the parent of the student's folder and return its output. AssertionError unless it succeeds."""
    commands = block.commands.replace(".venv/bin/python", sys.executable)
    commands = commands.replace(RUN, shlex.join(RUN_EXPERIMENT)).replace(
        RUN.removeprefix("sudo "), shlex.join(RUN_EXPERIMENT)
    )
    with (
        tempfile.TemporaryFile("w+") as written,  # what is left in the background may hold it open
        subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=setting.folder.parent,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not done within {within_s:g} s:\n{commands}") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        written.seek(0)
        output = written.read()
    busy = process.returncode == 1 and failed_only_by_load(output)
    assert process.returncode == 0 or busy, f"exit status {process.returncode}:\n{commands}\n{output}"
    assert "Traceback" not in output, output
    return output


def runs_solution(lab: Lab, commands: str) -> bool:
    """Return whether commands make a run with the file that the student has completed by then."""
    return any(f"/{run.name}\n" in f"{commands}\n" for run in lab.runs if run.plugin)


def run_all(setting: Setting, within_s: float) -> dict[str, str]:
    """Run every block of a student's page in order. Return the outputs by commands, and check what is expected.

    A file that the student completes has its first text until the first block that makes a run with it.
    """
    found = {}
    setting.folder.mkdir(parents=True, exist_ok=True)
    page = student_page(setting).replace(str(setting.folder), setting.folder.name)
    starter = setting.lab.starter
    if starter:
        (setting.folder / starter.file).write_text(starter.text, encoding="utf-8")
    for block in blocks(page):
        if starter and runs_solution(setting.lab, block.commands):
            (setting.folder / starter.file).write_text(starter.solution, encoding="utf-8")
        found[block.commands] = output = run(setting, block, within_s)
        for expected in block.expected:
            assert not (absent := absent_lines(expected, output)), f"{absent}\nis not in\n{output}"
    return found


def assert_checked(setting: Setting) -> None:
    """Assert that the check of a lab whose blocks were run tells right answers from wrong ones."""
    lab = setting.lab
    answers = {question.name: as_written(question.right(setting)) for question in lab.questions}
    outcomes = {outcome.item: outcome for outcome in checking.check(setting, answers)}
    for each in lab.runs:
        outcome = outcomes.pop(f"run {each.name}")
        assert outcome.state == "right" or "verdict is invalid" in outcome.message, outcome
    assert {outcome.state for outcome in outcomes.values()} == {"right"}
    strangers = [Setting.of(lab, f"student{n}", setting.folder) for n in range(20)]
    for each in lab.runs:
        stranger = next(other for other in strangers if other.overrides(each) != setting.overrides(each))
        with pytest.raises(NotDone, match="another experiment"):
            stranger.records(each.name)
    for question in lab.questions:
        for mistake in question.mistakes:
            given = as_written(mistake.answer(setting))
            state = checking.judge(setting, question, given).state
            assert state == "wrong" or checking.is_same(given, question.right(setting), question.within)
        assert checking.judge(setting, question, "no such thing").state == "wrong"


def as_written(answer: Answer) -> object:
    """Return an answer as a student writes it."""
    return ", ".join(answer) if isinstance(answer, frozenset) else answer


def outputs_page(found: dict[str, str]) -> str:
    """Return the outputs as Markdown, for the end of the teacher's page."""
    parts = [f"```sh\n{commands}```\n\n```text\n{output.rstrip()}\n```\n" for commands, output in found.items()]
    return "\n".join(["## Real output\n", *parts])


def main() -> None:
    """Run the labs of these numbers on packets, and record their output.

    Exit status 1 if a run was invalid: its output teaches nothing, so the file has what was printed before it.
    """
    disturbed = []
    folder_of_records = data_file(RECORDED)
    for number in sys.argv[1:]:
        lab = find(number)
        typical = typical_answers(folder_of_records / TYPICAL)
        with tempfile.TemporaryDirectory() as folder:
            setting = Setting.of(lab, "", Path(folder) / f"lab{lab.number}")
            found = run_all(setting, BLOCK_S)
            assert_checked(setting)
            by_run = [question for question in lab.questions if not answers(Setting.of(lab), question)]
            measured = {question.name: answers(setting, question) for question in by_run}
        believable = dict(itertools.takewhile(lambda item: not _INVALID.search(item[1]), found.items()))
        if believable != found:
            disturbed.append(number)
        elif measured:
            typical[lab.name] = measured
            (folder_of_records / TYPICAL).write_text(json.dumps(typical, indent=1) + "\n", encoding="utf-8")
        text = outputs_page(believable)
        path = folder_of_records / f"{stem(lab)}.md"
        path.write_text(re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE), encoding="utf-8")
    if disturbed:
        sys.exit(f"a run was invalid, repeat when the machine is idle: lab {', '.join(disturbed)}")


if __name__ == "__main__":
    main()

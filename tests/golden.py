"""Outputs of commands as golden files: printed at a fixed width, without colour, and without the version.

A golden file is text that a test compares with the output of today, byte for byte. `pytest --regen-all` writes the
output of today into it (CONTRIBUTING.md).
"""

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final

import railyard
from railyard.core.installation import PROJECT
from railyard.experiments import cli

FOLDER: Final = Path(__file__).parent / "golden"
WIDTHS: Final = (120, 80)
"""Columns: 120 is the width of a file or pipe, 80 that of a terminal."""
LISTS: Final = {"experiments": ["list"], "kinds": ["list", "--kinds"], "json": ["list", "--json"]}
"""Forms of `list` by the names of their golden files."""
COMMANDS: Final = ("describe", "dry-run", "predict")
"""Commands with a golden file for each shipped experiment."""
SHARED_PARTS: Final = {"style": "page.css", "script": "page.js"}
"""Elements that are the same in the report of every run, by their tag: the golden file that has their content, once."""


class Terminal(io.StringIO):
    """A stream that is a terminal for programs that ask."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@contextmanager
def terminal_of(width: int) -> Iterator[None]:
    """Describe a terminal of so many columns, which shows no colours, by the variables that Rich reads."""
    variables = {"TERM": "dumb", "COLUMNS": str(width), "LINES": "50"}
    before = dict(os.environ)
    os.environ.update(variables)
    os.environ.pop("FORCE_COLOR", None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def printed(arguments: list[str], width: int) -> str:
    """Run a command in this process; return its command line, output, error output and exit status as text."""
    output = io.StringIO() if width == WIDTHS[0] else Terminal()
    errors = io.StringIO()
    with terminal_of(width), redirect_stdout(output), redirect_stderr(errors):
        status = cli.main(arguments)
    text = f"$ {' '.join(arguments)}  # {width} columns\n{output.getvalue()}"
    if errors.getvalue():
        text += f"error output:\n{errors.getvalue()}"
    return without_version(f"{text}exit status: {status}\n")


def without_shared_parts(page: str) -> tuple[str, dict[str, str]]:
    """Return a page with names of files in place of the shared parts, and the content of each such file."""
    parts: dict[str, str] = {}
    for tag, file in SHARED_PARTS.items():
        before, start, remainder = page.partition(f"<{tag}>")
        content, end, after = remainder.partition(f"</{tag}>")
        assert (start, end) == (f"<{tag}>", f"</{tag}>")
        assert f"<{tag}" not in after, f"a page has one element {tag}"
        parts[file] = content
        page = f"{before}{start}{file}{end}{after}"
    return page, parts


def without_version(text: str) -> str:
    """Return a text with a fixed word in place of the version, and without spaces at the ends of lines.

    The text must not name the checkout: a word in place of its path would not help, as the length of the path decides
    where lines are broken and how wide columns are.
    """
    assert str(PROJECT) not in text, "an output of a command names the folder of the checkout"
    text = text.replace(f"railyard {railyard.__version__}", "railyard VERSION")
    return re.sub(r"[ \t]+\n", "\n", text)

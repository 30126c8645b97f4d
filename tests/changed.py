"""Select the test files that a change touches: `python -m tests.changed [BASE] --write FILE`, for script/test changed.

A test file is touched if it is changed itself, carries the name of a changed module, reads a kind of changed file
(READERS), or imports a changed file directly or through one other file. Importers at a greater distance are left out:
of most modules they are nearly all tests. The estimated time is limited too (SECONDS_PER_CORE): the nearest importers
come first, and of equally near ones those that take the least time.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Final

import networkx

from tests import costs
from tests.import_graph import ROOT, Graph, file_graph

MAX_DISTANCE: Final = 2
SECONDS_PER_CORE: Final = 25.0
"""Sum of the times of test files; several run at a time, beside mypy."""
UNKNOWN_SECONDS: Final = 2.0
"""Estimate for a test file that has not been run in this checkout; the average of all unit tests' files."""
DATA_SUFFIXES: Final = frozenset({".css", ".csv", ".et", ".j2", ".html", ".js", ".json", ".sh"})
SHOWN: Final = 6
"""Test files that are listed by name of those that don't run."""
DOCS: Final = ("tests/unit/test_docs.py", "tests/unit/test_docs_tables.py", "tests/unit/test_vocabulary.py")
GOLDEN: Final = ("tests/unit/test_golden_commands.py", "tests/unit/test_golden_reports.py")
READERS: Final[Mapping[str, tuple[str, ...]]] = {
    "*.md": DOCS,
    "*.py": ("tests/unit/test_imports.py", "tests/unit/test_docstrings.py", "tests/unit/test_vocabulary.py"),
    "docs/examples/*": ("tests/unit/test_docs.py",),
    "experiments/*.yaml": ("tests/unit/test_docs.py", GOLDEN[0]),
    "labs/*": ("tests/unit/experiments/labs/test_labs.py",),
    "tests/golden/report/*": (GOLDEN[1],),
    "tests/golden/[!r]*": (GOLDEN[0],),
    "tests/data/runs/*": (GOLDEN[1],),
    "pyproject.toml": ("tests/unit/test_packaging.py", "tests/unit/test_install.py"),
    "script/*": ("tests/unit/test_ci_files.py", "tests/unit/test_install.py", "tests/unit/test_script_test.py"),
    ".ci/*": ("tests/unit/test_ci_files.py",),
    "action.yml": ("tests/unit/test_ci_files.py",),
    "Dockerfile": ("tests/unit/test_ci_files.py",),
}
"""Pattern of a changed file (`*` matches slashes too) -> test files that read such files and do not import them."""
PRINTERS: Final[Mapping[str, tuple[str, ...]]] = {"experiments/*.py": GOLDEN, "results/*.py": GOLDEN}
"""As READERS, but the tests compare output to which most of these files don't contribute: they come with importers."""


@dataclass(frozen=True, slots=True, order=True)
class Choice:
    """A test file that a change touches: its distance in imports (0: run in any case), its path and the reason."""

    distance: int
    path: str
    reason: str


def is_test(path: str) -> bool:
    """Whether a path is that of a file with tests."""
    return path.startswith("tests/") and fnmatch(PurePosixPath(path).name, "test_*.py")


def carries_name(test: str, module: str) -> bool:
    """Whether a test file is named after a module: its words end with the module's and are words of the module's path.

    `tests/unit/experiments/sweep/test_folder.py` and `tests/unit/experiments/test_folder.py` carry the name of
    `experiments/sweep/folder.py`.
    """
    file = PurePosixPath(module)
    if file.suffix != ".py" or file.parts[0] == "tests":
        return False
    path = PurePosixPath(test).relative_to("tests")
    words = [*path.parts[1:-1], *path.stem.removeprefix("test_").split("_")]
    name = file.stem.split("_")
    folders = {word for part in file.parts[:-1] for word in (part, *part.split("_"))}
    return words[-len(name) :] == name and set(words[: -len(name)]) <= folders


def touched(graph: Graph, changed: Iterable[str]) -> list[Choice]:
    """Return the test files that a change of files touches, nearest first, each with its first reason.

    `graph` has an edge from each file to every file that it imports; `changed` are paths of changed files. All paths
    are below the checkout.
    """
    tests = {path for path in graph if is_test(path)}
    choices: dict[str, Choice] = {}
    for choice in sorted(_reasons(graph, tests, sorted(changed))):
        if choice.path in tests:
            choices.setdefault(choice.path, choice)
    return list(choices.values())


def _reasons(graph: Graph, tests: set[str], changed: list[str]) -> Iterator[Choice]:
    """Yield every reason to run a test file; several may be of the same file."""
    for file in changed:
        yield Choice(0, file, "is changed")
        for distance, table in ((0, READERS), (1, PRINTERS)):
            for pattern, readers in table.items():
                if fnmatch(file, pattern):
                    yield from (Choice(distance, reader, f"reads {pattern}") for reader in readers)
        yield from (Choice(0, test, f"carries the name of {file}") for test in tests if carries_name(test, file))
        if file in graph:
            yield from _importers(graph, file)


def _importers(graph: Graph, file: str) -> Iterator[Choice]:
    """Yield the files that import a file directly or through others, up to MAX_DISTANCE."""
    paths = networkx.single_source_shortest_path(graph.reverse(copy=False), file, cutoff=MAX_DISTANCE)
    for importer, (_, *between, _) in ((name, path) for name, path in paths.items() if name != file):
        verb = "imports" if file.endswith(".py") else "names"
        reason = f"{verb} {file}"
        if between:
            reason = f"imports {between[-1]}, which {verb} {file}"
        yield Choice(len(between) + 1, importer, reason)


def limited(choices: Iterable[Choice], seconds: Mapping[str, float], limit: float) -> tuple[list[Choice], list[Choice]]:
    """Split choices into those to run and those that would exceed the limit of estimated seconds.

    Those at distance 0 are run in any case. `seconds` has what a file took when it was last run.
    """
    run: list[Choice] = []
    excess: list[Choice] = []
    total = 0.0
    for choice in sorted(choices, key=lambda choice: (choice.distance, seconds.get(choice.path, UNKNOWN_SECONDS))):
        estimate = seconds.get(choice.path, UNKNOWN_SECONDS)
        if choice.distance == 0 or total + estimate <= limit:
            run.append(choice)
            total += estimate
        else:
            excess.append(choice)
    return run, excess


def with_data_files(graph: Graph, changed: Iterable[str]) -> Graph:
    """Return the graph with an edge to each changed data file, such as page.css, from the files that have its name."""
    extended: Graph = networkx.DiGraph(graph)
    data = [file for file in changed if PurePosixPath(file).suffix in DATA_SUFFIXES]
    if data:
        texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in graph}
        for file in data:
            name = re.compile(rf"\b{re.escape(PurePosixPath(file).name)}\b")
            extended.add_edges_from((path, file) for path, text in texts.items() if name.search(text))
    return extended


def git(*arguments: str) -> str:
    """Return what a git command prints; exit with its error in one line."""
    command = ["git", "-c", f"safe.directory={ROOT}", *arguments]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        sys.exit("railyard: script/test changed needs git; type: sudo apt-get install git")
    if done.returncode:
        sys.exit(f"railyard: git {arguments[0]}: {(done.stderr.strip() or 'failed').splitlines()[0]}")
    return done.stdout


def base_commit(name: str | None) -> str:
    """Return where HEAD left the branch `name`; by default origin/main, or main where there is no such branch."""
    if name is None:
        branches = git("for-each-ref", "--format=%(refname)", "refs/remotes/origin/main", "refs/heads/main").split()
        if not branches:
            sys.exit("railyard: neither origin/main nor main is a branch; type: script/test changed BASE")
        name = branches[-1]  # in the order of names: heads, remotes
    git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    return git("merge-base", "--", name, "HEAD").strip()


def changed_files(base: str) -> list[str]:
    """Return the files that differ from a commit: committed since, uncommitted, or not yet tracked."""
    listed = git("diff", "--name-only", "--no-renames", "-z", base)
    listed += git("ls-files", "--others", "--exclude-standard", "-z")
    return sorted({file for file in listed.split("\0") if file})


def explain(base: str, changed: list[str], run: list[Choice], excess: list[Choice], emulation: list[Choice]) -> None:
    """Print which tests run and why, and which do not."""
    print(f"{len(changed)} changed files since {base[:12]}: {len(run)} files of unit tests run")
    for choice in run:
        print(f"  {choice.path}  {choice.reason}")
    if excess:
        names = ", ".join(PurePosixPath(choice.path).stem for choice in excess[:SHOWN])
        print(f"{len(excess)} more would take too long; the nearest are {names}; to run all, type: script/test unit")
    if emulation:
        paths = " ".join(choice.path for choice in emulation[:SHOWN])
        print(f"{len(emulation)} files of tests on real packets are touched; to run the nearest, type:")
        print(f"  sudo script/test emulation {paths}")


def main() -> None:
    """Write the paths of the unit tests to run to a file, one a line, and print why they run."""
    parser = argparse.ArgumentParser(prog="script/test changed", description="Run the tests that a change touches.")
    parser.add_argument("base", nargs="?", help="branch or commit to compare with; default: origin/main, else main")
    parser.add_argument("--write", type=Path, required=True, help="file for the paths of the tests")
    arguments = parser.parse_args()
    base = base_commit(arguments.base)
    changed = changed_files(base)
    choices = touched(with_data_files(file_graph(), changed), changed)
    unit = [choice for choice in choices if choice.path.startswith("tests/unit/")]
    emulation = [choice for choice in choices if choice.path.startswith("tests/emulation/")]
    run, excess = limited(unit, costs.stored_seconds(), SECONDS_PER_CORE * (os.cpu_count() or 1))
    explain(base, changed, run, excess, emulation)
    arguments.write.write_text("".join(f"{choice.path}\n" for choice in run))


if __name__ == "__main__":
    main()

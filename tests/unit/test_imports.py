"""Imports go one way (docs: the house). A wrong one is named by file and line."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = frozenset({"topologies", "controller", "workloads", "failure", "results"})
TOOLS = frozenset({"experiments", "benchmarks", "labs", "tests"})
# who may import whom, besides itself; the tools are doors to the rest, and nothing of the house leads back to them
MAY_IMPORT: dict[str, frozenset[str]] = {
    "topologies": frozenset(),
    "controller": frozenset({"topologies"}),
    "workloads": frozenset({"topologies"}),
    "failure": frozenset({"topologies"}),
    "results": frozenset({"topologies", "workloads"}),
    "experiments": PARTS,
    "benchmarks": PARTS,
    "labs": PARTS,
    "tests": PARTS | TOOLS | {"run_experiment"},
}


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of every import, wherever it stands; relative ones stay at home."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name.partition(".")[0]) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]


def wrong_imports(part: str, source: str, file: str) -> list[str]:
    """`file:line: part must not import other`, for every such import."""
    ours = MAY_IMPORT.keys() | {"run_experiment"}
    allowed = MAY_IMPORT[part] | {part}
    return [
        f"{file}:{line}: {part} must not import {other}"
        for line, other in imported(ast.parse(source, file))
        if other in ours - allowed
    ]


def house() -> list[tuple[str, Path]]:
    """(top folder, file) of every Python file below a folder of the checkout."""
    files = ((path.relative_to(ROOT), path) for path in sorted(ROOT.glob("[a-z]*/**/*.py")))
    return [(short.parts[0], path) for short, path in files if short.parts[0] != "runs"]


def test_every_folder_has_its_rule() -> None:
    assert {part for part, _ in house()} <= MAY_IMPORT.keys()
    assert {part for part, _ in house()} >= {"topologies", "workloads", "results", "tests"}


def test_imports_go_one_way() -> None:
    wrong = [
        line for part, path in house() for line in wrong_imports(part, path.read_text(), str(path.relative_to(ROOT)))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("part", "source", "expected"),
    [
        ("topologies", "import os\n\nimport controller.app\n", ["x.py:3: topologies must not import controller"]),
        ("results", "def f():\n    from experiments import spec\n", ["x.py:2: results must not import experiments"]),
        ("experiments", "import run_experiment\n", ["x.py:1: experiments must not import run_experiment"]),
        ("workloads", "import os, results.store as s\n", ["x.py:1: workloads must not import results"]),
        ("results", "import workloads.schedule\nfrom topologies import plan\nfrom . import rows\nimport numpy\n", []),
    ],
)
def test_the_rule_finds_what_it_should(part: str, source: str, expected: list[str]) -> None:
    assert wrong_imports(part, source, "x.py") == expected

"""Cyclomatic complexity of the product's functions: at most 15, and at most what ALLOWED says for those above it.

Ruff's rule C901 counts statements alone; here conditional expressions, `and`, `or` and comprehensions count too, since
a function that is packed into expressions has as many branches. A function's own functions count for themselves.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.import_graph import syntax_tree

ROOT = Path(__file__).parents[2]
PACKAGES = ("core", "topologies", "controller", "workloads", "failure", "results", "experiments")
MAX_COMPLEXITY = 15
ALLOWED: dict[str, int] = {"is_over": 17}
"""Name of each function above `MAX_COMPLEXITY`, with its complexity. It may only shrink. Modules may move: no paths."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.comprehension,
)  # fmt: skip


def complexity(function: Function) -> int:
    """Return 1 and one for each branch: each condition of a comprehension and each further part of `and`, `or` too."""
    count = 1
    for node in own_nodes(function):
        if isinstance(node, BRANCHES):
            count += 1
        if isinstance(node, ast.comprehension):
            count += len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.match_case):
            is_default = isinstance(node.pattern, ast.MatchAs) and node.pattern.pattern is None and node.guard is None
            count += not is_default
    return count


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield what a function consists of, but for the functions in it."""
    nodes = list(ast.iter_child_nodes(function))
    while nodes:
        node = nodes.pop()
        yield node
        if not isinstance(node, Function):
            nodes.extend(ast.iter_child_nodes(node))


@cache
def complex_functions() -> dict[str, int]:
    """Return the complexity of each function above the limit, by `path: name`."""
    result: dict[str, int] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(syntax_tree(path)):
                if isinstance(node, Function) and complexity(node) > MAX_COMPLEXITY:
                    result[f"{path.relative_to(ROOT)}: {node.name}"] = complexity(node)
    return result


def test_functions_have_few_branches() -> None:
    counts = complex_functions()
    limits = {place: ALLOWED.get(place.rpartition(": ")[2], MAX_COMPLEXITY) for place in counts}
    too_complex = {place: count for place, count in counts.items() if count > limits[place]}
    assert not too_complex, f"split them: at most {MAX_COMPLEXITY} branches"


def test_allowed_names_are_still_complex() -> None:
    names = {place.rpartition(": ")[2] for place in complex_functions()}
    assert not ALLOWED.keys() - names, "remove them from ALLOWED"


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("return 1", 1),
        ("return a if b else c", 2),
        ("return a and b or c", 3),
        ("return [x for x in y if x if z]", 4),
        ("if a:\n  return 1\n elif b:\n  return 2", 3),
        ("match a:\n  case 1: pass\n  case _ if b: pass\n  case _: pass", 3),
        ("def inner():\n  return a if b else c\n return inner", 1),
    ],
)
def test_every_kind_of_branch_counts(body: str, count: int) -> None:
    (function,) = ast.parse(f"def f():\n {body}").body
    assert isinstance(function, Function)
    assert complexity(function) == count

"""Plain code, as CONTRIBUTING.md describes it: counts over the whole product that may improve, but not get worse.

A change that improves a count lowers its limit here. The aim of each is beside its limit; a count never justifies code
that is harder to read.
"""

import ast
from collections import Counter
from functools import cache

import networkx
import pytest

from tests.import_graph import ROOT, folders_that_import_each_other, imports_between, modules, syntax_tree

LIMITS = {
    "comprehensions": 36.0,
    "conditional expressions": 13.5,
    "multiple assignments": 0.8,
}
"""The most per 1,000 lines of code."""
MAX_VAGUE_PERCENT = 0.3
MIN_COMMENT_PERCENT = 1.9  # aim: 3
MAX_TWO_WAY_PAIRS = 6  # none of them in results
VAGUE_NAMES = frozenset(
    {"found", "what", "own", "known", "one", "given", "left", "seen", "others", "rest", "of"}
)  # fmt: skip
"""Names that don't say what their value is."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def count(source: str, tree: ast.Module) -> Counter[str]:
    """Return the counts of a module: lines, lines of code, and each thing that has a limit."""
    counts: Counter[str] = Counter()
    documented = lines_of_strings(tree)
    for number, line in enumerate(source.splitlines(), 1):
        counts["lines"] += 1
        text = line.strip()
        if not text or number in documented:
            continue
        if text.startswith("#"):
            counts["comments"] += 1
        else:
            counts["code"] += 1
    for node in ast.walk(tree):
        if isinstance(node, COMPREHENSIONS):
            counts["comprehensions"] += 1
        elif isinstance(node, ast.IfExp):
            counts["conditional expressions"] += 1
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            counts["multiple assignments"] += isinstance(node.value, ast.Tuple)
        name = bound_name(node)
        if name:
            counts["names"] += 1
            counts["vague names"] += name in VAGUE_NAMES
    return counts


def lines_of_strings(tree: ast.Module) -> set[int]:
    """Return the lines of docstrings and of other strings that stand alone."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def bound_name(node: ast.AST) -> str:
    """Return the name that a node binds; "" if it binds none."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    return ""


@cache
def counts_of_product() -> Counter[str]:
    """Return the counts of all modules of the product."""
    total: Counter[str] = Counter()
    for path in modules().values():
        total += count(path.read_text(encoding="utf-8"), syntax_tree(path))
    return total


@pytest.mark.parametrize("kind", LIMITS)
def test_packed_expressions_stay_rare(kind: str) -> None:
    counts = counts_of_product()
    assert 1000 * counts[kind] / counts["code"] <= LIMITS[kind]


def test_vague_names_stay_rare() -> None:
    counts = counts_of_product()
    assert 100 * counts["vague names"] / counts["names"] <= MAX_VAGUE_PERCENT


def test_comments_with_reasons_do_not_become_fewer() -> None:
    counts = counts_of_product()
    assert 100 * counts["comments"] / counts["lines"] >= MIN_COMMENT_PERCENT


def test_few_folders_import_each_other() -> None:
    folders = {name: str(path.parent.relative_to(ROOT)) for name, path in modules().items()}
    pairs = folders_that_import_each_other(imports_between(modules()), folders)
    assert len(pairs) <= MAX_TWO_WAY_PAIRS, pairs
    assert [pair for pair in pairs if pair[0].startswith("results/")] == []


def test_folders_that_import_each_other_are_found() -> None:
    edges = [("a.x", "b.y"), ("b.z", "a.x"), ("a.x", "a.sub.w"), ("a.sub.w", "a.x"), ("b.y", "c.v")]
    folders = {"a.x": "a", "b.y": "b", "b.z": "b", "a.sub.w": "a/sub", "c.v": "c"}
    assert folders_that_import_each_other(networkx.DiGraph(edges), folders) == [("a", "b")]


@pytest.mark.parametrize(
    ("source", "kind", "expected"),
    [
        ("a = [x for x in y]", "comprehensions", 1),
        ("a = max(x for x in y if any(z for z in x))", "comprehensions", 2),
        ("a = 1 if b else 2", "conditional expressions", 1),
        ("a, b = 1, 2", "multiple assignments", 1),
        ("a, b = pair", "multiple assignments", 0),
        ("found = 1", "vague names", 1),
        ("def f(what): pass", "vague names", 1),
        ("a = found.what", "vague names", 0),
        ("# reason\na = 1  # remark", "comments", 1),
        ('"""Text.\n\n# no comment\n"""\na = 1', "comments", 0),
        ('"""Text."""\n\na = 1\n', "code", 1),
    ],
)
def test_counts_are_those_of_a_short_source(source: str, kind: str, expected: int) -> None:
    assert count(source, ast.parse(source))[kind] == expected

"""Imports of the product's modules and of its tests, read from the syntax trees of their files."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import networkx

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("core", "topologies", "controller", "workloads", "failure", "results", "experiments")
"""Packages of the product, each a folder of the checkout and importable as `railyard.NAME`."""
TEST_FOLDERS: Final = ("tests", "benchmarks", "docs/examples")
"""Folders of modules that import the product and that tests import."""

Graph: TypeAlias = "networkx.DiGraph[str]"


def modules() -> dict[str, Path]:
    """Return every product module by its name, such as `railyard.core.errors`."""
    paths = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            paths[f"railyard.{module_name(path.relative_to(ROOT))}".removesuffix(".__init__")] = path
    return paths


@cache
def syntax_tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file; read once, since several tests walk all of them."""
    return ast.parse(path.read_text(encoding="utf-8"))


def module_name(path: Path) -> str:
    """`tests/unit/core/test_units.py` -> `tests.unit.core.test_units`."""
    return ".".join(path.with_suffix("").parts)


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, wherever it stands; `from a import b` gives both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names)


def imports_between(paths: Mapping[str, Path]) -> Graph:
    """Return the graph of module -> module that it imports, among the modules of `paths` (name -> file)."""
    graph: Graph = networkx.DiGraph()
    graph.add_nodes_from(paths)
    for name, path in paths.items():
        for _, other in imported(syntax_tree(path)):
            if other in paths and other != name:
                graph.add_edge(name, other)
    return graph


def folders_that_import_each_other(graph: Graph, folders: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each pair of folders with imports in both directions. `folders`: of each module.

    A folder and one inside it count as one.
    """
    directions = set()
    for importer, module in graph.edges:
        pair = (folders[importer], folders[module])
        if f"{pair[0]}/".startswith(f"{pair[1]}/") or f"{pair[1]}/".startswith(f"{pair[0]}/"):
            continue
        directions.add(pair)
    return sorted(pair for pair in directions if pair[::-1] in directions and pair[0] < pair[1])


def file_graph() -> Graph:
    """Return the graph of file -> file that it imports, of product and tests, with paths below the checkout."""
    paths = modules()
    for folder in TEST_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            paths[module_name(path.relative_to(ROOT)).removesuffix(".__init__")] = path
    names = {name: path.relative_to(ROOT).as_posix() for name, path in paths.items()}
    graph: Graph = networkx.relabel_nodes(imports_between(paths), names)
    return graph

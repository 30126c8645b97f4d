"""Imports point one way: core <- topologies <- {controller, workloads} <- failure <- results <- experiments.

The kernel imports no extension; docs/architecture.md has the table of extensions.
"""

import ast
import re
from collections.abc import Iterable
from functools import cache

import networkx
import pytest

from tests.import_graph import PACKAGES, ROOT, imported, imports_between, modules, syntax_tree

MAY_IMPORT: dict[str, frozenset[str]] = {
    "core": frozenset(),
    "topologies": frozenset({"core"}),
    "controller": frozenset({"core", "topologies"}),
    "workloads": frozenset({"core", "topologies"}),
    "failure": frozenset({"core", "topologies", "controller", "workloads"}),
    "results": frozenset({"core", "topologies", "controller", "workloads", "failure"}),
    "experiments": frozenset(PACKAGES),
}
MAX_FILES = 20
"""Python files in one folder of the product."""
RESULTS = "railyard.results."
LAYERS_OF_RESULTS = (
    "format", "measured", "theory", "runs", "analysis", "plots", "published", "views", "timeline", "run_folder",
    "sources",
)  # fmt: skip
"""Folders and modules of `results`, the lowest first: each may import those before it."""
ONE_FILE_EACH = ("experiments/commands",)
"""Folders that grow by a file with each command."""
IMPORT_OF_A_PACKAGE = re.compile(rf"^\s*(?:from|import)\b.*(?<![.\w])(?:{'|'.join(PACKAGES)})\b", re.MULTILINE)
"""A line that may import a package of the product without `railyard.` before its name."""


def wrong_imports(package: str, tree: ast.Module, file: str) -> list[str]:
    """`file:line: package must not import other`, for every such import, each once."""
    allowed = {*MAY_IMPORT[package], package}
    wrong: dict[str, None] = {}
    for line, name in imported(tree):
        top, _, rest = name.partition(".")
        other = rest.partition(".")[0] if top == "railyard" else top
        if (top == "railyard" and other in PACKAGES and other not in allowed) or (
            top in {*PACKAGES, "run_experiment", "benchmarks", "tests"}
        ):
            wrong[f"{file}:{line}: {package} must not import {name if top != 'railyard' else other}"] = None
    return list(wrong)


def test_imports_point_one_way() -> None:
    wrong = [
        line
        for name, path in modules().items()
        for line in wrong_imports(name.split(".")[1], syntax_tree(path), str(path.relative_to(ROOT)))
    ]
    assert not wrong, "\n".join(wrong)


def test_tests_and_benchmarks_import_railyard_by_its_name() -> None:
    paths = [path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    wrong: list[str] = []
    for path in paths:
        if IMPORT_OF_A_PACKAGE.search(path.read_text(encoding="utf-8")):  # to parse all of them takes seconds
            lines = [line for line, name in imported(syntax_tree(path)) if name.partition(".")[0] in PACKAGES]
            wrong.extend(f"{path.relative_to(ROOT)}:{line}" for line in lines)
    assert not wrong, "\n".join(wrong)


@cache
def graph() -> "networkx.DiGraph[str]":
    """Module -> module that it imports."""
    return imports_between(modules())


def test_no_two_modules_import_each_other() -> None:
    cycles = [sorted(part) for part in networkx.strongly_connected_components(graph()) if len(part) > 1]
    assert not cycles, cycles


def layer_of(module: str) -> str:
    """Return the folder of a module of `results`, or the module itself: `views` for railyard.results.views.table."""
    return module.split(".")[2]


def imports_of_higher_layers(edges: Iterable[tuple[str, str]]) -> list[str]:
    """Return `importer imports module` for every module of `results` that imports one of a layer above its own."""
    higher: list[str] = []
    for importer, module in edges:
        if not (importer.startswith(RESULTS) and module.startswith(RESULTS)):
            continue
        importer_level = LAYERS_OF_RESULTS.index(layer_of(importer))
        module_level = LAYERS_OF_RESULTS.index(layer_of(module))
        if module_level > importer_level:
            higher.append(f"{importer} imports {module}")
    return sorted(higher)


def test_every_part_of_results_has_a_layer() -> None:
    parts = {layer_of(module) for module in modules() if module.startswith(RESULTS)}
    assert parts == set(LAYERS_OF_RESULTS)


def test_results_import_no_layer_above_their_own() -> None:
    assert imports_of_higher_layers(graph().edges) == []


def test_an_import_of_a_higher_layer_of_results_is_found() -> None:
    edges = [
        ("railyard.results.runs.records", "railyard.results.views.report"),
        ("railyard.results.views.report", "railyard.results.views.table"),
        ("railyard.results.run_folder", "railyard.results.runs.journal"),
        ("railyard.experiments.run.runner", "railyard.results.run_folder"),
    ]
    assert imports_of_higher_layers(edges) == ["railyard.results.runs.records imports railyard.results.views.report"]


ENTRY_POINTS = ("experiments/commands/", "experiments/api/")
"""Modules that start what the user asks for: they import the kernel and extensions."""


def extension_paths() -> dict[str, str]:
    """Return the folders and files of the table in docs/architecture.md, each with the name of its extension."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("| extension | modules |")[2].partition("\n\n")[0]
    paths: dict[str, str] = {}
    for name, cell in re.findall(r"^\| ([^|-]+) \| ([^|]+) \|$", table, re.MULTILINE):
        for path in re.findall(r"`(.*?)`", cell):
            paths[path] = name
    return paths


def extension_of(module: str, paths: dict[str, str]) -> str:
    """Return the extension that a module belongs to, "" for the kernel. `paths`: as `extension_paths` returns them."""
    file = module.removeprefix("railyard.").replace(".", "/")
    for path, name in paths.items():
        if f"{file}.py" == path or f"{file}/".startswith(path):
            return name
    return ""


def imports_of_extensions(edges: Iterable[tuple[str, str]]) -> list[str]:
    """Return `importer imports module` for each module of an extension that the kernel imports."""
    paths = extension_paths()
    wrong: list[str] = []
    for importer, module in edges:
        if importer.removeprefix("railyard.").replace(".", "/").startswith(ENTRY_POINTS):
            continue
        if extension_of(module, paths) and not extension_of(importer, paths):
            wrong.append(f"{importer} imports {module}")
    return wrong


def test_the_kernel_imports_no_extension() -> None:
    assert imports_of_extensions(graph().edges) == []


def test_every_path_of_an_extension_exists() -> None:
    paths = extension_paths()
    assert len(set(paths.values())) == 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_an_import_of_an_extension_is_found() -> None:
    edges = [
        ("railyard.experiments.run.runner", "railyard.experiments.labs.pages"),
        ("railyard.experiments.commands.lab", "railyard.experiments.labs.pages"),
        ("railyard.experiments.labs.pages", "railyard.experiments.sweep.spec"),
        ("railyard.results.views.report", "railyard.results.views.sweep"),
        ("railyard.results.views.report", "railyard.results.views.table"),
    ]
    assert imports_of_extensions(edges) == [
        "railyard.experiments.run.runner imports railyard.experiments.labs.pages",
        "railyard.results.views.report imports railyard.results.views.sweep",
    ]


def test_no_folder_has_too_many_files() -> None:
    folders = [path.parent for path in modules().values()]
    wide = {str(folder.relative_to(ROOT)): folders.count(folder) for folder in set(folders)}
    assert [folder for folder, files in wide.items() if files > MAX_FILES and folder not in ONE_FILE_EACH] == []


def test_no_module_changes_the_search_path() -> None:
    """But for one that runs a user's script, whose own folder comes first there."""
    files = [*modules().values(), ROOT / "run_experiment.py", *(ROOT / "benchmarks").glob("*.py")]
    files.remove(modules()["railyard.workloads.recording.ranks.child"])
    assert [str(path) for path in files if re.search(r"sys\.path(\.\w+\(| *\+?=)", path.read_text())] == []


@pytest.mark.parametrize(
    ("package", "source", "expected"),
    [
        ("topologies", "import os\n\nimport railyard.controller.openflow.app\n", [(3, "controller")]),
        ("results", "def f():\n    from railyard.experiments import spec\n", [(2, "experiments")]),
        ("experiments", "import run_experiment\n", [(1, "run_experiment")]),
        ("workloads", "import os, railyard.results.run_folder as s\n", [(1, "results")]),
        ("core", "from topologies import plan", [(1, "topologies"), (1, "topologies.plan")]),
        ("results", "import railyard.workloads.schedule\nfrom railyard.topologies import plan\nimport numpy\n", []),
    ],
)
def test_wrong_imports_are_found(package: str, source: str, expected: list[tuple[int, str]]) -> None:
    lines = [f"x.py:{line}: {package} must not import {imported}" for line, imported in expected]
    assert wrong_imports(package, ast.parse(source), "x.py") == lines

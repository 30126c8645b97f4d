"""Which test files a change touches, on a small made-up repository."""

from pathlib import Path

import networkx
import pytest

from tests import changed
from tests.changed import Choice
from tests.import_graph import ROOT, Graph, imports_between

UNITS, SPEC, RUN = "core/units.py", "core/spec.py", "experiments/run/steps.py"
SAMPLE = "tests/unit/sample.py"


@pytest.fixture
def graph() -> Graph:
    """Return units <- spec <- steps; each is imported by a test file, and steps by a test on packets too."""
    edges = [
        (SPEC, UNITS),
        (RUN, SPEC),
        ("tests/unit/test_lengths.py", UNITS),
        ("tests/unit/test_words.py", SPEC),
        ("tests/unit/test_progress.py", RUN),
        ("tests/emulation/test_runs.py", RUN),
        (SAMPLE, RUN),
        ("tests/unit/test_shown.py", SAMPLE),
    ]
    return networkx.DiGraph(edges)


def paths(choices: list[Choice]) -> dict[str, int]:
    return {choice.path: choice.distance for choice in choices}


def test_importers_are_chosen_up_to_one_module_between(graph: Graph) -> None:
    choices = changed.touched(graph, [UNITS])
    assert paths(choices) == {"tests/unit/test_lengths.py": 1, "tests/unit/test_words.py": 2}
    assert [choice.reason for choice in choices] == [f"imports {UNITS}", f"imports {SPEC}, which imports {UNITS}"]


def test_tests_on_packets_and_importers_of_helpers_are_chosen(graph: Graph) -> None:
    assert paths(changed.touched(graph, [RUN])) == {
        "tests/emulation/test_runs.py": 1,
        "tests/unit/test_progress.py": 1,
        "tests/unit/test_shown.py": 2,
    }
    assert paths(changed.touched(graph, [SAMPLE])) == {"tests/unit/test_shown.py": 1}


def test_changed_test_file_is_chosen_and_a_deleted_one_is_not(graph: Graph) -> None:
    choices = changed.touched(graph, ["tests/unit/test_words.py", "tests/unit/test_deleted.py", SPEC])
    assert choices[0] == Choice(0, "tests/unit/test_words.py", "is changed")
    assert "tests/unit/test_deleted.py" not in paths(choices)


@pytest.mark.parametrize(
    ("test", "module", "expected"),
    [
        ("tests/unit/test_units.py", "core/units.py", True),
        ("tests/unit/test_sweep_folder.py", "experiments/sweep/folder.py", True),
        ("tests/unit/failure/test_active.py", "failure/active.py", True),
        ("tests/unit/test_run_queue.py", "experiments/run/run_queue.py", True),
        ("tests/unit/test_sweep_folder.py", "experiments/labs/folder.py", False),
        ("tests/unit/test_units.py", "core/spec.py", False),
        ("tests/unit/test_units.py", "tests/data/units.py", False),
        ("tests/unit/test_units.py", "docs/units.md", False),
    ],
)
def test_test_file_carries_the_name_of_a_module(test: str, module: str, expected: bool) -> None:
    assert changed.carries_name(test, module) is expected


def test_namesake_of_a_changed_module_needs_no_import(graph: Graph) -> None:
    graph.add_node("tests/unit/test_units.py")
    choice = changed.touched(graph, [UNITS])[0]
    assert (choice.distance, choice.path) == (0, "tests/unit/test_units.py")


def test_readers_of_documents_and_experiments_are_chosen(graph: Graph) -> None:
    graph.add_nodes_from((*changed.DOCS, *changed.GOLDEN))
    assert paths(changed.touched(graph, ["docs/results.md"])) == dict.fromkeys(changed.DOCS, 0)
    assert paths(changed.touched(graph, ["experiments/quickstart.yaml"]))["tests/unit/test_golden_commands.py"] == 0
    assert paths(changed.touched(graph, [RUN]))["tests/unit/test_golden_reports.py"] == 1


def test_all_readers_exist() -> None:
    tables = [*changed.READERS.values(), *changed.PRINTERS.values()]
    assert [reader for readers in tables for reader in readers if not (ROOT / reader).is_file()] == []


def test_files_that_name_a_data_file_count_as_its_importers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    (tmp_path / "server.py").write_text('STYLE = "page.css"')
    (tmp_path / "other.py").write_text('STYLE = "homepage.css, page.cssx"')
    graph: Graph = networkx.DiGraph([("tests/unit/test_live.py", "server.py")])
    (tmp_path / "tests/unit").mkdir(parents=True)
    (tmp_path / "tests/unit/test_live.py").write_text("import server")
    graph.add_node("other.py")
    choices = changed.touched(changed.with_data_files(graph, ["page.css"]), ["page.css"])
    assert paths(choices) == {"tests/unit/test_live.py": 2}
    assert choices[0].reason.endswith("which names page.css")


def test_graph_has_every_import_among_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    from b.c import d\n")
    (tmp_path / "c.py").write_text("import a, json\n")
    graph = imports_between({"a": tmp_path / "a.py", "b.c": tmp_path / "c.py"})
    assert sorted(graph.edges) == [("a", "b.c"), ("b.c", "a")]


def test_nearest_and_cheapest_files_run_within_the_limit() -> None:
    choices = [Choice(2, "far", ""), Choice(1, "slow", ""), Choice(1, "cheap", ""), Choice(0, "changed", "")]
    seconds = {"far": 1.0, "slow": 9.0, "cheap": 2.0, "changed": 50.0}
    run, excess = changed.limited(choices, seconds, limit=53.5)
    assert [choice.path for choice in run] == ["changed", "cheap", "far"]
    assert [choice.path for choice in excess] == ["slow"]
    run, _ = changed.limited(choices, seconds | {"changed": 60.0}, limit=53.5)
    assert [choice.path for choice in run] == ["changed"]


def test_changes_are_committed_uncommitted_and_untracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    commit = ["-c", "user.name=n", "-c", "user.email=e", "commit", "--quiet", "--all", "--allow-empty", "--message=m"]
    changed.git("init", "--quiet", "--initial-branch=main")
    for name in ("committed", "uncommitted", "same"):
        (tmp_path / name).write_text("1")
    changed.git("add", ".")
    changed.git(*commit)
    changed.git("checkout", "--quiet", "-b", "topic")
    (tmp_path / "committed").write_text("2")
    changed.git(*commit)
    (tmp_path / "uncommitted").write_text("2")
    (tmp_path / "a b").write_text("untracked")
    base = changed.base_commit(None)
    assert base == changed.git("rev-parse", "main").strip()
    assert changed.changed_files(base) == ["a b", "committed", "uncommitted"]
    with pytest.raises(SystemExit, match=r"^railyard: git rev-parse: .*$"):
        changed.base_commit("nowhere")

"""The documentation: links resolve, every page is reachable, and its command lines parse and run.

Examples that send packets are run by tests/emulation/test_docs_examples.py.
"""

import re
import shlex
import shutil
from collections.abc import Iterator
from functools import cache
from itertools import chain, filterfalse
from pathlib import Path

import pytest

from railyard.experiments import cli
from railyard.experiments.labs.definition import Setting
from railyard.experiments.labs.pages import student_page
from railyard.experiments.labs.reading import read_lab
from railyard.experiments.spec import loading
from railyard.results import run_folder
from railyard.results.published.catalogue import FIGURES
from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.models.catalogue import model_names
from tests import golden
from tests.import_graph import PACKAGES
from tests.unit import docs_examples
from tests.unit.sample_runs import sample_run

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "labs").glob("*.md")), ROOT / "README.md"]
PAGES.append(ROOT / "CONTRIBUTING.md")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
MAX_README_LINES = 130
PLACEHOLDERS = {"quiet_check.py", "commsTraceReplay.py", "mine.py"}
"""Of a user's own files, or another project's."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def text_of(path: Path) -> str:
    """Return the text that a reader sees: of a lab the student's page."""
    text = path.read_text(encoding="utf-8")
    if path.parent == ROOT / "labs":
        return student_page(Setting.of(read_lab(text, path.name)))
    return text


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """(file, anchor) of each link that is no URL."""
    for target, anchor in LINK.findall(text_of(page)):
        if not target.startswith(("http:", "https:")):
            yield (page.parent / target).resolve() if target else page, anchor


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def command_lines(page: Path) -> Iterator[list[str]]:
    """The arguments of every command line in code blocks and inline code, without comments."""
    code = re.findall(r"```(?:sh)?\n(.*?)```|`([^`\n]+)`", text_of(page), re.DOTALL)
    text = "\n".join(block or inline for block, inline in code)
    for line in text.replace("\\\n", " ").splitlines():
        line = line.replace("\\|", "|").partition("  #")[0].partition(" > ")[0]
        for command in re.findall(r"(?:^|\s)(?:sudo )?\S*(?:script/run|run_experiment\.py)(?=\s|$)(.*)", line):
            yield shlex.split(re.split(r"[;&|] | <<|\s< <", command)[0], comments=True)
        if installed := re.match(r"\s*(?:sudo )?(?:\S*/)?railyard (?!.*COMMAND)(.*)", line):
            yield shlex.split(installed[1], comments=True)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_resolve(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{target} of {name_of(page)}"
        assert not anchor or anchor in anchors(target), f"{target}#{anchor} of {name_of(page)}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_files_that_a_page_names_exist(page: Path) -> None:
    """A name may leave out the first folders, as on the page of a package."""
    names = set(re.findall(r"`([\w/-]+\.py)`", text_of(page))) - PLACEHOLDERS
    folders = (*PACKAGES, "tests", "benchmarks", "docs", "examples", "railyard", "script")
    paths = chain.from_iterable((ROOT / folder).rglob("*.py") for folder in folders)
    files = ["/run_experiment.py", *(f"/{path.relative_to(ROOT)}" for path in paths)]
    assert {name for name in names if not any(file.endswith(f"/{name}") for file in files)} == set()


def test_questions_take_short_commands() -> None:
    """Each of the five questions has a command of at most 80 characters."""
    parts = text_of(ROOT / "docs" / "questions.md").split("\n## ")[1:]
    commands = [part.partition("```sh\n")[2].partition("\n```")[0] for part in parts]
    assert len(commands) == 5
    assert all(command.startswith("script/run ") and len(command) <= 80 for command in commands)
    assert all("**How sure:**" in part for part in parts)


def test_every_page_is_reachable_from_the_index() -> None:
    seen: set[Path] = set()
    pages = [ROOT / "docs" / "index.md"]
    while pages:
        page = pages.pop()
        if page not in seen:
            seen.add(page)
            pages += [target for target, _ in links(page) if target.suffix == ".md"]
    assert {name_of(page) for page in PAGES} - {name_of(page) for page in seen} <= {"README.md"}
    assert ROOT / "docs" / "index.md" in {target for target, _ in links(ROOT / "README.md")}


def test_readme_is_a_front_page() -> None:
    assert len(text_of(ROOT / "README.md").splitlines()) <= MAX_README_LINES


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_command_lines_parse(page: Path) -> None:
    for arguments in command_lines(page):
        if not arguments or arguments[0].isupper() or arguments[0].startswith(("-", "[", "...", "DIR")):
            continue
        name, *rest = arguments
        assert name in cli.commands(), f"{name_of(page)}: {arguments}"
        if any(word.endswith("...") or word.startswith("[") for word in rest) or not rest:
            continue
        cli.load_command(name).make_context(name, list(rest), resilient_parsing=name == "search")
        known = {*loading.names(), *FIGURES, "busbw"}
        if name == "describe":
            known |= {*model_names(), *PLATFORMS}
        if name in ("run", "predict", "describe", "shell") and re.match(r"[a-z][^/]*$", rest[0]):
            assert rest[0] in known or "." in rest[0], f"{name_of(page)}: {arguments}"


def examples(*names: str) -> list[list[str]]:
    """The command lines of all pages that call one of these commands, each once; not those with placeholders."""
    lines = {tuple(line): line for page in PAGES for line in command_lines(page) if line and line[0] in names}
    return [line for words, line in sorted(lines.items()) if not {"NAME", "FILE", "DIR", "RUN", "..."} & set(words)]


def has_golden_file(line: list[str]) -> bool:
    """Return True for a command on a shipped experiment without options but --out: a golden file has its output."""
    words = line[:-2] if line[-2:-1] == ["--out"] else line
    command, *names = words
    return words in golden.LISTS.values() or (
        command in golden.COMMANDS and len(names) == 1 and names[0] in loading.names()
    )


NO_PACKETS = examples("list", "describe", "dry-run", "lint", "check", "predict", "search", "cost", "claims", "report")


@pytest.fixture
def example_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the examples: what they read is there, and they write nothing elsewhere."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests" / "traces" / "ddp.json", "trace.json")
    shutil.copytree(ROOT / "tests" / "recordings", "recordings")
    for name in ("docs", "tests"):
        Path(name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.usefixtures("figures_as_text")
@pytest.mark.parametrize("line", [*filterfalse(has_golden_file, NO_PACKETS)], ids=" ".join)
def test_examples_without_packets_succeed(
    line: list[str], example_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`/tmp/...` is the folder of an earlier example, or one to write."""
    words = [str(example_folder) if word.startswith("/tmp") else word for word in line]
    if line[0] == "report":
        run_folder.save(sample_run(domains=2, rails=2, repeats=1), example_folder)
    assert cli.main(words) == 0
    shown = capsys.readouterr()
    assert shown.out
    assert not shown.err


@pytest.mark.usefixtures("figures_as_text")
def test_examples_of_compare_succeed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`/tmp/before` and `/tmp/after` are runs that don't differ."""
    run_folder.save(sample_run(2, 2, repeats=6), tmp_path / "before")
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    for line in examples("compare"):
        if not line[1].startswith("/tmp"):
            continue  # of a revision; test_comparison.py has one
        assert cli.main([word.replace("/tmp", str(tmp_path)) for word in line]) == 0
        assert " same" in capsys.readouterr().out


@pytest.mark.parametrize("line", examples("sweep"), ids=" ".join)
def test_examples_of_sweeps_name_runs_that_can_be_done(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*line, "--dry-run"]) == 0
    assert " to do" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(cli.commands()))
def test_cli_page_has_every_command(name: str) -> None:
    assert re.search(rf"^\| `{name}\b", text_of(ROOT / "docs" / "cli.md"), re.MULTILINE)


def test_extending_includes_every_example_unchanged() -> None:
    """If it fails after an example has changed: `.venv/bin/python -m tests.unit.docs_examples`."""
    text = text_of(docs_examples.PAGE)
    assert docs_examples.with_examples(text) == text
    blocks = re.findall(r"```(?:python|markdown)\n(.*?)```", text, re.DOTALL)
    for path in docs_examples.examples():
        assert path.read_text(encoding="utf-8") in blocks, path.name


def test_examples_are_short_and_tested() -> None:
    tests = "".join(
        path.read_text(encoding="utf-8")
        for path in [
            *ROOT.glob("tests/emulation/test_plugin_*.py"),
            ROOT / "tests" / "unit" / "results" / "views" / "test_report_sections.py",
            ROOT / "tests" / "unit" / "experiments" / "labs" / "test_labs.py",
        ]
    )
    for path, registry in docs_examples.examples().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= (120 if registry in ("FABRIC_KINDS", "MEASURES") else 60), path.name
        assert path.name in tests, f"no test runs {path.name}"

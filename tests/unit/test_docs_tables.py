"""Tables of the documentation that list what the code has: keys of files, and headings of the program's tables."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from railyard.core.config import ConfigModel
from railyard.failure.faults import FAULTS
from railyard.failure.faults.support import links, processes
from railyard.topologies.platforms import PLATFORMS, LowPrecisionPeaks, Platform
from railyard.workloads.models.catalogue import KINDS, Layer, load_model, load_transformer
from railyard.workloads.models.layer_kind import LatentAttention
from railyard.workloads.placement.layout import Parallelism
from railyard.workloads.schedule import Program

ROOT = Path(__file__).parents[2]
WORKLOADS = (ROOT / "docs" / "workloads.md").read_text(encoding="utf-8")
EXTENDING = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FAILURE = (ROOT / "docs" / "failure.md").read_text(encoding="utf-8")
NOT_FOR_PLUGINS = {"set_groups", "link_state", "loss_rules"}
"""What only the other helpers of faults call."""
MODEL_KEYS = "### Keys of a model file"
PLATFORM_KEYS = "### Keys of a platform file"


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading."""
    return page.partition(f"{heading}\n")[2].partition("\n#")[0]


def names_in_rows(text: str) -> set[str]:
    """Return what stands in backquotes in tables."""
    rows = (line for line in text.splitlines() if line.startswith("|"))
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize("kind", [kind for kind, definition in FAULTS.items() if definition.Parameters.model_fields])
def test_row_of_a_fault_kind_has_its_parameters(kind: str) -> None:
    (row,) = (line for line in FAILURE.splitlines() if line.startswith(f"| `{kind}` |"))
    assert set(FAULTS[kind].Parameters.model_fields) <= set(re.findall(r"`(\w+)`", row))


@pytest.mark.parametrize("model", [*KINDS.values(), LatentAttention, Layer, Parallelism])
def test_page_has_every_key_of_a_model_file(model: type[ConfigModel]) -> None:
    assert model.model_fields.keys() <= names_in_rows(section(WORKLOADS, MODEL_KEYS))


def test_page_has_every_key_of_a_platform_file() -> None:
    keys = Platform.model_fields.keys() | LowPrecisionPeaks.model_fields.keys()
    assert keys == names_in_rows(section(WORKLOADS, PLATFORM_KEYS))


def test_model_file_of_the_page_is_a_model() -> None:
    path = ROOT / "docs" / "examples" / "models" / "mine.yaml"
    assert f"```yaml\n{path.read_text(encoding='utf-8')}```" in WORKLOADS
    assert isinstance(load_model(str(path)), KINDS["gpt"])


def test_modern_model_of_the_page_is_its_example() -> None:
    path = ROOT / "docs" / "examples" / "models" / "modern.yaml"
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert f"```yaml\n{path.read_text(encoding='utf-8')}```" in page
    assert load_transformer(str(path)).moe_layers == 24


def test_figures_of_models_are_counted_from_their_shape() -> None:
    rows = 0
    for line in (ROOT / "docs" / "models.md").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"\| `([a-z0-9-]+)` \| ([\d,.]+) B \| ([\d.]+) B \| (\d+) \|", line):
            name, parameters, active, layers = match.groups()
            model = load_transformer(name)
            assert model.all_parameters / 1e9 == pytest.approx(float(parameters.replace(",", "")), rel=0.005)
            assert model.active_parameters / 1e9 == pytest.approx(float(active), abs=0.051)
            assert model.layers == int(layers)
            rows += 1
    assert rows == 14


def test_figures_of_platforms_equal_their_files() -> None:
    rows = [re.split(r" *\| *", line.strip("| ")) for line in WORKLOADS.splitlines() if line.startswith("| `")]
    described = {row[0].split("`")[1]: row[1:] for row in rows if row[0].split("`")[1] in PLATFORMS}
    assert described.keys() == set(PLATFORMS)
    for name, row in described.items():
        platform = PLATFORMS[name]
        low = platform.low_precision_flops
        peaks = (platform.flops, low.fp8, low.mxfp8, low.nvfp4)
        assert row == [
            str(platform.domain_gpus),
            f"{platform.hb_bps / 1e9:,.0f}, {platform.rail_bps / 1e9:,.0f}",
            f"{platform.memory_bytes / 1e9:.0f} GB, {(platform.memory_bytes_per_s or 0) / 1e12:.2f} TB/s",
            ", ".join(f"{peak / 1e12:,.0f}" if peak else "-" for peak in peaks),
        ]


MAKERS = {"Column", "text", "texts", "text_table", "plain_table", "add_column"}
"""Functions that take the heading of a column, or several."""
VIEWS = ("results/views", "experiments/measures", "experiments/predict", "experiments/run", "experiments/commands")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
PLAIN_WORDS = {
    *("at", "cores", "ended", "figure", "for", "kernel", "kind", "longest", "max", "measured", "metric", "min"),
    *("operation", "reason", "repeat", "repeats", "run", "runs", "size", "steps", "switches", "times", "to", "took"),
    *("training", "value", "what", "workload", "faults", "gpus", "source"),
    *("file", "formats", "from", "hosts", "lines", "meaning", "setting"),
}
"""Headings that mean what a dictionary, or the page of the experiment's YAML, says."""


def literals(node: ast.expr, names: dict[str, list[str]]) -> Iterator[str]:
    """Yield the texts that an expression stands for: a literal, several, or the variable of a comprehension."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Tuple | ast.List):
        for element in node.elts:
            yield from literals(element, names)
    elif isinstance(node, ast.Name):
        yield from names.get(node.id, ())


def titles_of(loop: ast.comprehension) -> tuple[str, list[str]]:
    """Return the variable of a comprehension, the first if it has several, and the texts that it stands for."""
    if not isinstance(loop.target, ast.Tuple):
        return ast.unparse(loop.target), list(literals(loop.iter, {}))
    elements = loop.iter.elts if isinstance(loop.iter, ast.Tuple) else []
    first = [element.elts[0] for element in elements if isinstance(element, ast.Tuple)]
    return ast.unparse(loop.target.elts[0]), [text for element in first for text in literals(element, {})]


def makers_in(tree: ast.Module) -> set[str]:
    """Return the functions of a module that pass a parameter on as a heading, and those that they call for it."""
    makers = set(MAKERS)
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        parameters = {argument.arg for argument in function.args.args}
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            is_maker = ast.unparse(call.func) in MAKERS and call.args
            if is_maker and isinstance(call.args[0], ast.Name) and call.args[0].id in parameters:
                makers.add(function.name)
    return makers


def headings_of(path: Path) -> Iterator[str]:
    """Yield the headings of columns, and of groups of columns, that a module has as literals."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    makers = makers_in(tree)
    names: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.comprehension):
            name, texts = titles_of(node)
            names[name] = texts
        elif isinstance(node, ast.AnnAssign) and node.value:
            names.setdefault(ast.unparse(node.target), list(literals(node.value, {})))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func).rpartition(".")[2]
        if name in makers:
            arguments = call.args if name in ("texts", "plain_table") else call.args[:1]
            groups = [keyword.value for keyword in call.keywords if keyword.arg == "group"]
            for argument in (*arguments, *groups):
                yield from literals(argument, names)


@cache
def headings() -> set[str]:
    """Return all headings of tables, without their units; not those in capitals, which lists of commands have."""
    paths = (path for folder in VIEWS for path in (ROOT / folder).rglob("*.py"))
    texts = (text.replace("-\n", "-").replace("\n", " ") for path in paths for text in headings_of(path))
    lower = (re.sub(r",? ms$", "", text).strip().lower() for text in texts if len(text) < 3 or not text.isupper())
    return {text.replace("pre-dicted", "predicted") for text in lower} - {""}


def test_glossary_has_every_heading_of_a_table() -> None:
    """A cell of the glossary may have several headings, and a heading a comma."""
    cells = [line.split("|")[1].strip().lower() for line in GLOSSARY.splitlines() if line.startswith("|")]
    terms = [f", {cell}," for cell in cells]
    missing = {heading for heading in headings() if not any(f", {heading}," in term for term in terms)}
    assert missing == PLAIN_WORDS & headings()


@pytest.mark.parametrize("column", ["m/p", "detected", "worst 100", "h(d1)", "rail-only's path", "slow motion"])
def test_headings_of_helpers_and_loops_are_read(column: str) -> None:
    assert column in headings()


def public_names(owner: object, module: str) -> set[str]:
    """Return the public classes and functions that a module defines, or the methods of a class."""
    members = vars(owner).items()
    is_class = isinstance(owner, type)
    return {
        name
        for name, member in members
        if name[0] != "_" and (is_class or getattr(member, "__module__", "") == module) and not name.isupper()
    }


@pytest.mark.parametrize("owner", [links, processes, Program], ids=lambda owner: owner.__name__)
def test_extending_names_every_public_name_for_plugins(owner: ModuleType | type) -> None:
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", EXTENDING))))
    assert public_names(owner, owner.__name__) - named == NOT_FOR_PLUGINS & public_names(owner, owner.__name__)

"""`list`: the named experiments, the papers' figures; every registered definition; or models and platforms.

Of experiments, only the keys are checked: to check whether fabrics can have the items would build every schedule.
"""

import ast
import inspect
import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console

from railyard.core.installation import PACKAGE, PROJECT
from railyard.core.units import format_time
from railyard.experiments.options import PluginFiles, console, plain_table
from railyard.experiments.spec import loading
from railyard.results.published.catalogue import FIGURES, describe

if TYPE_CHECKING:
    from railyard.experiments.measures.definition import Counts
    from railyard.experiments.spec.experiment import ExperimentSpec

PURPOSE = "Compute and check, without packets"
NUMBERS = ("TAKES", "GPUS", "REPLAYS", "FAULTS")
OWN = "other"  # topic of an experiment that names none
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where PyYAML has its C part


def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME|FILE]...", show_default=False, help="List these experiments alone."),
    ] = None,
    kinds: Annotated[
        bool, typer.Option("--kinds", help="List every definition instead: faults, policies, workloads, ...")
    ] = False,
    models: Annotated[bool, typer.Option("--models", help="List the models and the platforms instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the experiments as JSON.")] = False,
    *,
    plugin_files: PluginFiles,
) -> None:
    """List the named experiments, and the figures and tables that `predict` computes."""
    out = console()
    if kinds:
        _print_definitions(out)
        return
    if models:
        _print_models(out)
        return
    specs = [_read(name) for name in files or loading.names()]
    if as_json:
        print(json.dumps([_plain(spec) for spec in specs], indent=1))
        return
    _print_by_topic(specs, out)
    figures = plain_table("PREDICT", "SHOWS, WITH THE VALUES THAT THE PAPERS STATE")
    for name in FIGURES:
        figures.add_row(name, describe(name))
    figures.add_row("busbw", "What nccl-tests should show on a platform, in its own columns")
    out.print(figures)


def _print_models(out: Console) -> None:
    """Print a table of models and one of platforms."""
    from railyard.results.views import models

    table = plain_table(*models.MODEL_COLUMNS, right=models.MODEL_COLUMNS[1:])
    for row in models.model_rows():
        table.add_row(*row)
    out.print(table, "")
    table = plain_table(*models.PLATFORM_COLUMNS, right=models.PLATFORM_COLUMNS[1:])
    for row in models.platform_rows():
        table.add_row(*row)
    out.print(table, "peaks in TFLOP/s, dense", highlight=False)


def _print_definitions(out: Console) -> None:
    table = plain_table("SORT", "NAME", "WHAT IT IS", "SOURCE")
    for definition in definitions():
        table.add_row(*definition)
    out.print(table)


def _print_by_topic(specs: "Sequence[ExperimentSpec]", out: Console) -> None:
    """Print a table of experiments for each topic."""
    topics = dict.fromkeys(spec.topic or OWN for spec in specs)
    for topic in topics:
        table = plain_table("RUN", "SHOWS", *NUMBERS, right=NUMBERS, title=topic)
        for spec in specs:
            if (spec.topic or OWN) != topic:
                continue
            _, gpus, counts = facts(spec)
            numbers = [str(number or "-") for number in counts]
            table.add_row(spec.name, spec.title, takes(spec), ", ".join(map(str, gpus)), *numbers)
        out.print(table, "")


def _read(name: str) -> "ExperimentSpec":
    """Return an experiment, of which each key was checked, but not whether its fabrics can have its items."""
    from railyard.experiments.spec.parsing import parse_keys

    if name in loading.names():
        return parse_keys(yaml.load(loading.path_of(name).read_text(encoding="utf-8"), _Loader))
    data = loading.read(name)
    loading.load_plugins(data, name)
    return parse_keys(data)


def _plain(spec: "ExperimentSpec") -> dict[str, Any]:
    """Return an experiment as plain data, for --json."""
    kinds, gpus, counts = facts(spec)
    texts = {"title": spec.title or None, "topic": spec.topic or None, "takes": takes(spec)}
    return {"name": spec.name, **texts, "fabrics": kinds, "gpus": gpus, **counts._asdict()}


def takes(spec: "ExperimentSpec") -> str:
    """Return about how long a run takes: by its times, else as its file says."""
    from railyard.experiments.spec.duration import about, duration_s, expected_s

    # a file states its time as people read it
    if spec.takes and spec.takes % 60 and duration_s(spec) is None:
        return format_time(spec.takes)
    return about(expected_s(spec))


def facts(spec: "ExperimentSpec") -> "tuple[list[str], list[int], Counts]":
    """Return the kinds of fabrics, their GPUs (or nodes), and how many replays and faults there are."""
    from railyard.experiments.measures.definition import Counts, measures_of

    kinds = dict.fromkeys(fabric.kind for fabric in spec.fabrics)
    gpus = dict.fromkeys(fabric.host_count for fabric in spec.fabrics)
    replays = 0
    faults = 0
    for measure in measures_of(spec):
        counts = measure.counts(spec)
        replays += counts.replays
        faults += counts.faults
    return list(kinds), list(gpus), Counts(replays, faults)


def definitions() -> Iterator[tuple[str, str, str, str]]:
    """Yield (sort, name, first paragraph of its docstring, origin and file:line) of every registered definition.

    An object that is no class or function is described by its `summary`, or by the docstring of its file.
    """
    from railyard.core.registry import REGISTRIES

    for path in (path for link in sorted(PACKAGE.iterdir()) if link.is_dir() for path in sorted(link.glob("**/*.py"))):
        if "= Registry" in path.read_text(encoding="utf-8"):
            import_module(".".join(("railyard", *path.relative_to(PACKAGE).with_suffix("").parts)))
    for sort, registry in sorted(REGISTRIES.items()):
        for name, definition in registry.items():
            source = registry.source(name)
            if inspect.isclass(definition) or inspect.isroutine(definition):
                text = inspect.getdoc(definition)
            elif summary := getattr(definition, "summary", ""):
                text = summary
            else:
                file = PROJECT / source.file
                module_text = ""
                # a topology of --topo has no file
                if file.is_file():
                    module_text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
                text = module_text or inspect.getdoc(type(definition))
            first = " ".join((text or "").split("\n\n")[0].split()).rstrip(".")
            yield sort, name, first, f"{source.origin} {source.file}:{source.line}"

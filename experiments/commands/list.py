"""`list`: the named experiments, the papers' figures, and with --kinds every registered definition.

Experiments are counted from their files as they are: a whole specification would build every schedule to check it.
"""

import ast
import inspect
import json
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any

import typer
import yaml

from railyard.controller.health.policy import HEALTH_POLICIES
from railyard.core.installation import PACKAGE, PROJECT
from railyard.experiments.options import PluginFiles, console, plain_table
from railyard.experiments.spec import loading
from railyard.experiments.spec.duration import GRID, about, duration_s, is_on
from railyard.results.published.catalogue import FIGURES, describe

PURPOSE = "Compute and check, without packets"
NUMBERS = ("TAKES", "GPUS", "REPLAYS", "FAULTS")
OWN = "other"  # topic of an experiment that names none
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where PyYAML has its C part


def command(
    kinds: Annotated[
        bool, typer.Option("--kinds", help="List every definition instead: faults, policies, workloads, ...")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the experiments as JSON.")] = False,
    *,
    plugin_files: PluginFiles,
) -> None:
    """List the named experiments, and the figures and tables that `predict` computes."""
    out = console()
    if kinds:
        table = plain_table("SORT", "NAME", "WHAT IT IS", "SOURCE")
        for definition in definitions():
            table.add_row(*definition)
        out.print(table)
        return
    found = {name: yaml.load(loading.path_of(name).read_text(encoding="utf-8"), _Loader) for name in loading.names()}
    if as_json:
        print(json.dumps([_plain(name, data) for name, data in found.items()], indent=1))
        return
    for topic in dict.fromkeys(str(data.get("topic", OWN)) for data in found.values()):
        table = plain_table("RUN", "SHOWS", *NUMBERS, right=NUMBERS, title=topic)
        for name, data in found.items():
            if data.get("topic", OWN) == topic:
                table.add_row(name, str(data.get("title", "")), takes(data), *counts(data)[1:])
        out.print(table, "")
    figures = plain_table("PREDICT", "SHOWS, WITH THE VALUES THAT THE PAPERS STATE")
    for name in FIGURES:
        figures.add_row(name, describe(name))
    out.print(figures)


def _plain(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return an experiment as plain data, for --json."""
    fabrics, gpus, replays, faults = counts(data)
    numbers = {"replays": 0 if replays == "-" else int(replays), "faults": 0 if faults == "-" else int(faults)}
    texts = {"title": data.get("title"), "topic": data.get("topic"), "takes": takes(data)}
    return {"name": name, **texts, "fabrics": fabrics.split(", "), "gpus": list(map(int, gpus.split(", "))), **numbers}


def takes(data: dict[str, Any]) -> str:
    """Return about how long a run takes: by its times, else as its file says."""
    seconds = duration_s(data)
    return str(data.get("takes", "-")) if seconds is None else about(seconds)


def counts(data: dict[str, Any]) -> tuple[str, str, str, str]:
    """Return the kinds of fabrics, their GPUs (or nodes), how many workload runs, and how many faults there are."""
    fabrics = data["fabrics"]
    gpus = [f["nodes"] if "nodes" in f else f.get("domains", GRID) * f.get("rails", GRID) for f in fabrics]
    policies = len(data["routing"].get("policies") or HEALTH_POLICIES) if "routing" in data else 1
    workloads = sum(is_on(item, fabric) for fabric in range(len(fabrics)) for item in data.get("workloads", []))
    replays = workloads * policies * data.get("repeats", 1)
    faults = sum(_faults(data, fabric) for fabric in range(len(fabrics)))
    kinds, sizes = dict.fromkeys(f["kind"] for f in fabrics), dict.fromkeys(map(str, gpus))
    return ", ".join(kinds), ", ".join(sizes), str(replays or "-"), str(faults or "-")


def _faults(data: dict[str, Any], fabric: int) -> int:
    """Return how many faults are injected on a fabric, counting repeats and runs with and without rerouting."""
    reroutes = 1 if "nodes" in data["fabrics"][fabric] else len(data.get("reroute", ["on", "off"]))
    total = 0
    for key in ("fault", "script", "replacement"):
        limit = data.get(f"{key}_repeats", 1)
        for item in data.get(f"{key}s", []):
            if is_on(item, fabric):
                script = item.get("random_faults") or {}
                size = script.get("count", len(item.get("faults", [0])))
                total += min(item.get("repeats", limit), limit) * size * (reroutes if key in ("fault", "script") else 1)
    trained = sum(len(t.get("faults", [])) for t in data.get("trainings", []) if is_on(t, fabric))
    return total + trained * int(data.get("training_repeats", 1)) * reroutes


def definitions() -> Iterator[tuple[str, str, str, str]]:
    """Yield (sort, name, first paragraph of its docstring, origin and file:line) of every registered definition.

    An object that is no class or function is described by the docstring of its file.
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
            else:
                file = PROJECT / source.file
                module_text = ""
                if file.is_file():  # a topology of --topo has none
                    module_text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
                text = module_text or inspect.getdoc(type(definition))
            first = " ".join((text or "").split("\n\n")[0].split()).rstrip(".")
            yield sort, name, first, f"{source.origin} {source.file}:{source.line}"

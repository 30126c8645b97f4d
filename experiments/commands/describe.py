"""`describe`: print what an experiment shows, and its YAML; or what a model or a platform is."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from railyard.core.config import dump_yaml
from railyard.core.installation import IS_CHECKOUT, RUN, file_in_project
from railyard.experiments.measures.definition import MEASURES, measures_of
from railyard.experiments.options import (
    PluginFiles,
    catalogue_names,
    completion,
    console,
    experiment_names,
    plain_table,
    platform_names,
    shows_progress,
)
from railyard.experiments.spec import loading
from railyard.experiments.spec.duration import about, duration_s
from railyard.experiments.spec.loading import load_any
from railyard.results.views import models
from railyard.workloads.models.catalogue import model_title

PURPOSE = "Compute and check, without packets"

if TYPE_CHECKING:
    from railyard.experiments.spec.experiment import ExperimentSpec


def _names() -> list[str]:
    return [*experiment_names(), *catalogue_names(), *platform_names()]


@shows_progress
def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="An experiment, model or platform of `list`; your own YAML file, or a model's config.json.",
            autocompletion=completion(_names),
        ),
    ],
    keys: Annotated[bool, typer.Option("--keys", help="List every key as `-o` takes it, with its value.")] = False,
    *,
    plugin_files: PluginFiles,
) -> None:
    """Print what an experiment shows, by which equations, and its YAML to start your own from.

    Of a model or a platform, print its sizes.
    """
    out = console()
    kind = models.kind_of(name)
    if kind == "platform":
        _print_facts(name, models.facts_of_platform(name), out)
        return
    if kind == "model":
        _print_model(name, out)
        return
    spec = load_any(name)
    written_spec = loading.read(name)
    if keys:
        table = plain_table("KEY", "VALUE", "")
        written_keys = dict(loading.leaves(written_spec))
        for key, value in loading.leaves(shown(spec)):
            table.add_row(key, scalar(value), "" if key in written_keys else "default")
        out.print(table)
        return
    out.print(f"[bold]{spec.name}[/]: {spec.title}\n", highlight=False)
    out.print(spec.description, highlight=False)
    print(*block(shown(spec), written_spec), sep="\n")
    seconds = duration_s(spec)
    length = about(seconds) if seconds is not None or not spec.takes else about(spec.takes)
    out.print(f"\nrun it: {RUN} run {name}  # {length} on two idle cores", highlight=False)
    if name in loading.names():
        # RUN of a checkout is relative to its folder too
        path = loading.path_of(name)
        file = file_in_project(path) if IS_CHECKOUT else str(path)
        start = f"cp {shlex.quote(file)} mine.yaml; {RUN} run ./mine.yaml"
        out.print(f"change it: {start}", highlight=False)


def _print_facts(name: str, facts: Iterable[Sequence[str]], out: Console) -> None:
    """Print a name, the facts below it, and their source."""
    out.print(f"[bold]{model_title(name)}[/]", highlight=False)
    for fact, value in facts:
        out.print(f"  {fact:<14} {value}", highlight=False, soft_wrap=True)
    if source := models.source_of(name):
        out.print(f"  {'source':<14} {source}", highlight=False, soft_wrap=True)


def _print_model(name: str, out: Console) -> None:
    """Print a model as a whole, and a row for each kind of layer."""
    _print_facts(name, models.facts_of_model(name), out)
    columns, rows = models.layer_rows(name)
    table = plain_table(*columns, right=[column for column in columns if column != "KIND"])
    for row in rows:
        table.add_row(*row)
    out.print("", table)
    if columns == models.LAYER_COLUMNS:
        out.print(
            "of one layer; widths in values, FLOPs and ACTIVE of one token, forward", style="dim", highlight=False
        )


def block(data: object, written: object, indent: str = "") -> Iterator[str]:
    """Yield the YAML of nested data, a key a line, with a comment on what its `written` file doesn't give."""
    is_list = isinstance(data, list)
    for key, value in _items(data):
        written_value = _value_of(written, key)
        start = f"{indent}-" if is_list else f"{indent}{scalar(key)}:"
        note = "" if is_list or _has(written, key) else "  # default"
        if not _is_nested(value):
            yield f"{start} {scalar(value)}{note}"
        elif is_list:
            first, *later_lines = block(value, written_value, f"{indent}  ")
            yield f"{start} {first.removeprefix(indent).removeprefix('  ')}"
            yield from later_lines
        else:
            yield f"{start}{note}"
            yield from block(value, written_value, f"{indent}  ")


def _items(data: object) -> Iterable[tuple[Any, object]]:
    """Return the values of a list by their numbers, or of a mapping by their keys; nothing of other data."""
    if isinstance(data, list):
        return enumerate(data)
    if isinstance(data, dict):
        return data.items()
    return ()


def _value_of(written: Any, key: Any) -> object:
    """Return the value of a key, or the item of a list with this number; None without one."""
    if isinstance(written, dict):
        # YAML 1.1 reads the key `on` as true
        return written.get(key, written.get(True))
    if _has(written, key):
        return written[key]
    return None


def _is_nested(value: object) -> bool:
    """Return whether a value takes lines of its own: a mapping, or a list with mappings or lists in it."""
    return bool(value) and (
        isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict | list) for item in value))
    )


def _has(written: object, key: Any) -> bool:
    if isinstance(written, dict):
        # YAML 1.1 reads a bare `on` as true
        return key in written or (key == "on" and True in written)
    return isinstance(written, list) and isinstance(key, int) and key < len(written)


def scalar(value: object) -> str:
    """Return a value, or a list of values, as YAML in one line."""
    text = dump_yaml(value, default_flow_style=True, allow_unicode=True, width=100_000)
    return text.removesuffix("...\n").strip()


def shown(spec: "ExperimentSpec") -> dict[str, Any]:
    """Return all keys with their defaults, but none without effect on this experiment."""
    idle = {"title", "topic", "takes", "description", *spec.fabric_class.unused_keys}
    for measure in MEASURES.values():
        idle |= {section.repeats_key for section in measure.spec_sections if not getattr(spec, section.key)}
    if not any(measure.injects_faults for measure in measures_of(spec)):
        idle |= {"reroute", "heartbeats"}
    shown = {key: value for key, value in spec.resolved().items() if key not in idle and value != []}
    for measure in measures_of(spec):
        for section in measure.spec_sections:
            if section.key in shown and section.hides_defaults:
                items = getattr(spec, section.key)
                shown[section.key] = [item.model_dump(mode="json", exclude_defaults=True) for item in items]
    return shown

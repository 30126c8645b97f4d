"""Inputs of the fuzzer: mutated copies of what Railyard brings along, by number and seed.

Each kind writes its files in the working folder and returns a command line. Commands that build a fabric are left out:
they read their input as `dry-run` does.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Final

import yaml

from railyard.core.installation import PROJECT
from railyard.experiments.spec import loading
from railyard.results import run_folder
from railyard.results.views import report
from railyard.topologies.platforms import SYSTEMS
from railyard.workloads.models.catalogue import CATALOGUE
from tests.fuzz.mutate import changed_bytes, changed_data, changed_messages, changed_text, same_type, value
from tests.unit.experiments.measures.allreduce.sample_results import run_of, sample
from tests.unit.sample_runs import recovery_run, sample_run
from tests.unit.steered_runs import steered_run

EXPERIMENTS: Final = tuple(name for name in loading.names() if "64" not in name)  # those take seconds each
MODELS: Final = tuple(sorted(CATALOGUE.glob("*.yaml")))
PLATFORMS: Final = tuple(sorted(SYSTEMS.glob("*.yaml")))
TRACES: Final = tuple(
    sorted(path for path in (PROJECT / "tests/traces").iterdir() if path.is_file() and path.suffix != ".py")
)
PLUGINS: Final = tuple(sorted((PROJECT / "docs/examples").glob("*.py")))
PLUGIN_SPECS: Final = {
    path: import_module(f"tests.emulation.{test.stem}").SPEC
    for path in PLUGINS
    if (test := PROJECT / f"tests/emulation/test_plugin_{path.stem}.py").exists()
}
COMMANDS: Final = ("dry-run", "dry-run", "describe", "lint", "predict")
SMALL: Final = {"kind": "rail-only", "domains": 2, "rails": 2}


def case(seed: int, number: int, samples: Path) -> tuple[str, list[str]]:
    """Write the files of one input in the working folder; return its kind and its command line."""
    dice = Random(f"{seed}-{number}")
    kinds = list(KINDS)
    kind = dice.choices(kinds, [KINDS[kind][0] for kind in kinds])[0]
    return kind, KINDS[kind][1](dice, samples)


def _written(name: str, text: str, dice: Random) -> str:
    """Write YAML, at times with its bytes changed."""
    content = text.encode(errors="surrogatepass")
    Path(name).write_bytes(changed_bytes(content, dice) if dice.random() < 0.1 else content)
    return f"./{name}"


def _changed_yaml(path: Path, dice: Random) -> str:
    text = path.read_text()
    return changed_text(text, dice) if dice.random() < 0.4 else dumped(changed_data(yaml.safe_load(text), dice))


def dumped(data: Any) -> str:
    """Plain data as YAML."""
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _spec(dice: Random, _: Path) -> list[str]:
    text = _changed_yaml(loading.path_of(dice.choice(EXPERIMENTS)), dice)
    return [dice.choice(COMMANDS), _written("x.yaml", text, dice)]


def _script(dice: Random, _: Path) -> list[str]:
    chosen = [loading.read(name) for name in ("gpu-failures", "faults-in-moe", "flapping", "random-faults")]
    data = dice.choice(chosen)
    for key in ("scripts", "faults", "replacements"):
        if key in data:
            data[key] = changed_data(data[key], dice)
    return ["dry-run", _written("x.yaml", dumped(data), dice)]


def _override(dice: Random, _samples: Path) -> list[str]:
    name = dice.choice(EXPERIMENTS)
    values = dict(_items(loading.read(name)))
    values |= {"repeats": 1, "workloads.0.global_batch": 8, "workloads.0.rounds": 1, "workloads.0.bytes": "1MB"}
    values |= {"workloads.0.pairs_per_pass": 1, "workloads.0.duration": "1s", "domains": 4, "rails": 4, "spines": 2}
    keys = list(values)
    options = []
    for _ in range(dice.choice([1, 1, 2, 4])):
        key = dice.choice(keys)
        new = same_type(values[key], dice) if dice.random() < 0.7 else value(dice)
        key = dice.choice([key, key, key, key, key, key.rpartition(".")[2], f"{key}x", key.replace("0", "*")])
        text = yaml.safe_dump(new, default_flow_style=True).removesuffix("...\n").strip()
        text = text.replace("\0", "").encode(errors="replace").decode()
        options += ["-o", f"{key}={text}"]
    return [dice.choice(["dry-run", "predict"]), name, *options]


def _items(data: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in data.items() if isinstance(data, dict) else enumerate(data):
        yield f"{at}{key}", item
        if isinstance(item, dict | list):
            yield from _items(item, f"{at}{key}.")


def _model(dice: Random, _: Path) -> list[str]:
    model = dice.choice(MODELS)
    name = _written("m.yaml", _changed_yaml(model, dice), dice)
    kind = yaml.safe_load(model.read_text())["kind"]
    if dice.random() < 0.3:
        return ["lint", name]
    if dice.random() < 0.3:
        return ["search", name, "--gpus", "64", "--batch", "64"]
    workload = {"kind": "data-parallel" if kind == "layers" else kind, "model": name}
    if kind == "gpt":
        workload["parallelism"] = {"tensor": 2, "pipeline": 1, "data": 2, "micro_batch": 1, "global_batch": 4}
    return _with(workload, dice)


def _with(workload: dict[str, Any], dice: Random, **fabric: Any) -> list[str]:
    data = {"name": "x", "fabrics": [{**SMALL, **fabric}], "workloads": [workload]}
    Path("x.yaml").write_text(dumped(data))
    return [dice.choice(["dry-run", "predict"]), "./x.yaml"]


def _platform(dice: Random, _: Path) -> list[str]:
    name = _written("p.yaml", _changed_yaml(dice.choice(PLATFORMS), dice), dice)
    if dice.random() < 0.3:
        return ["search", "gpt-7.5b", "--gpus", "64", "--batch", "64", "--platform", name]
    return _with({"kind": "moe", "model": "moe-1.3b-128"}, dice, platform=name)


def _trace(dice: Random, _: Path) -> list[str]:
    chosen = dice.choice(TRACES)
    stem = chosen.name.partition(".")[0]
    files = [path for path in TRACES if path.name.partition(".")[0] == stem]
    broken, renamed = dice.choice(files), dice.choice([stem] * 19 + ["[] [bold]$\\frac$ \x1b[31m"])
    for path in files:
        content = path.read_bytes()
        if path == broken:
            content = _changed_trace(content, path.suffix, dice)
        Path(path.name.replace(stem, renamed)).write_bytes(content)
    name = "./" + (stem if len(files) > 1 else chosen.name).replace(stem, renamed)
    fabric = ["-o", f"domains={dice.choice([2, 4])}", "-o", f"rails={dice.choice([2, 4])}"]
    if dice.random() < 0.7:
        return ["dry-run", name, *fabric]
    workload: dict[str, Any] = {"kind": "trace", "path": name}
    if dice.random() < 0.5:
        workload[dice.choice(["bytes_factor", "duration", "format", "compute", "path"])] = value(dice)
    return _with(workload, dice, domains=dice.choice([2, 4]), rails=dice.choice([2, 4]))


def _changed_trace(content: bytes, suffix: str, dice: Random) -> bytes:
    if dice.random() < 0.2:
        return changed_bytes(content, dice)
    if suffix == ".et":
        return changed_messages(content, dice)
    if suffix == ".json" and dice.random() < 0.8:
        text, objects = content.decode().strip(), list[Any]()
        while text:  # one object, or one after the other
            found, end = json.JSONDecoder().raw_decode(text)
            objects, text = [*objects, found], text[end:].lstrip()
        chosen = dice.randrange(len(objects))
        objects[chosen] = changed_data(objects[chosen], dice)
        return "\n".join(map(json.dumps, objects)).encode()
    return changed_text(content.decode(), dice).encode(errors="replace")


def _plugin(dice: Random, _: Path) -> list[str]:
    plugin = dice.choice(PLUGINS)
    _written("x.py", changed_text(plugin.read_text(), dice), dice)
    if plugin in PLUGIN_SPECS and dice.random() < 0.7:
        Path("x.yaml").write_text(dumped(PLUGIN_SPECS[plugin]))
        return [dice.choice(["dry-run", "predict"]), "./x.yaml", "--plugin", "x.py"]
    return [*dice.choice([["list", "--kinds"], ["dry-run", "quickstart"]]), "--plugin", "x.py"]


class _Records:
    """A folder that takes the records of a run and its summary, and stops before the report is drawn."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, data: bytes) -> None:
        (self._folder / name).write_bytes(data)
        if name == "summary.json":
            raise StopIteration


def make_samples(folder: Path) -> None:
    """Save a run's folder of each kind, as small as can be."""
    for name, run in (
        ("plain", sample_run(2, 2, 1)),
        ("recovery", recovery_run(2, 2, 1, 2)),
        ("steered", steered_run()),
        ("multi-rail", run_of(sample())),
    ):
        (folder / name).mkdir(parents=True)
        with suppress(StopIteration):
            run_folder.save(run, _Records(folder / name))


def _run(dice: Random, samples: Path) -> list[str]:
    chosen = dice.choice(sorted(samples.iterdir()))
    files = sorted(path.name for path in chosen.iterdir())
    broken = set(dice.choices(files, k=dice.choice([1, 1, 2])))
    Path("run").mkdir()
    for name in files:
        content = (chosen / name).read_bytes()
        if name in broken:
            content = _changed_record(content, Path(name).suffix, dice)
            if dice.random() < 0.1:
                continue
        Path("run", name).write_bytes(content)
    if dice.random() < 0.9:  # drawing takes seconds
        report.render = lambda _: ""  # type: ignore[assignment]
    return ["report", "run"]


def _changed_record(content: bytes, suffix: str, dice: Random) -> bytes:
    change = dice.randrange(5)
    if change == 0:
        return content[: dice.choice([0, len(content) // 2, len(content) - 1])]
    if change == 1 or suffix == ".parquet":
        return changed_bytes(content, dice)
    if suffix == ".json" and change < 4:
        return json.dumps(changed_data(json.loads(content), dice)).encode()
    if suffix == ".yaml" and change < 4:
        return dumped(changed_data(yaml.safe_load(content), dice)).encode(errors="replace")
    return changed_text(content.decode(), dice).encode(errors="replace")


KINDS: Final[dict[str, tuple[int, Callable[[Random, Path], list[str]]]]] = {
    "spec": (25, _spec),
    "script": (10, _script),
    "override": (20, _override),
    "model": (10, _model),
    "platform": (5, _platform),
    "trace": (20, _trace),
    "plugin": (5, _plugin),
    "run": (5, _run),
}
"""Each kind of input: how many of a hundred, and what writes it."""

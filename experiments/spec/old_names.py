"""Keys of experiment files and names of experiments that were renamed: accepted for one release, with a notice.

The only place that knows them: `rename_keys` and `rename_path` are applied before anything else reads a file or an
override, so the rest of the program sees the new keys alone.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final

KEYS: Final[Mapping[str, str]] = {
    "takeovers": "replacements",
    "takeover_repeats": "replacement_repeats",
    "replacements.*.light_off": "switching_time",
    "fabrics.*.optical.light_off": "switching_time",
    "scripts.*.storm": "random_faults",
    "scripts.*.random_faults.together": "group_share",
    "scripts.*.random_faults.down": "duration",
    "scripts.*.random_faults.every": "mean_interval",
    "scripts.*.random_faults.at_once": "max_concurrent",
    "background.*.first": "start",
    "background.*.lasts": "duration",
    "background.*.every": "period",
}
"""Path of an old key -> its new name. Later paths use the new names of earlier ones. `*` is any item of a list."""
EXPERIMENTS: Final[Mapping[str, str]] = {"storm": "random-faults", "optical-takeover": "optical-replacement"}
"""Old name of a shipped experiment -> new name."""


def rename_keys(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's data with old keys renamed. A key whose new name is given too is left, and refused later."""
    renamed = dict(data)
    for path, new in KEYS.items():
        *parents, old = path.split(".")
        renamed = _renamed(renamed, parents, old, new)
    try:
        return _multirail_workloads(renamed)
    except (AttributeError, KeyError, TypeError, ValueError):  # no mappings in lists: the specification's checks say so
        return renamed


_SHARED: Final = ("policies", "only", "learning")
_OF_SIZES: Final = ("sizes", "operations", "point", "starts")


def _multirail_workloads(data: dict[str, Any]) -> dict[str, Any]:
    """Return a multi-rail experiment whose sizes, trainings and DDP runs are keys of their own as one of workloads."""
    fabrics = [f for f in data.get("fabrics") or () if isinstance(f, Mapping) and f.get("kind") == "multi-rail"]
    old = {key: data[key] for key in (*_SHARED, *_OF_SIZES, "trainings", "ddp") if key in data}
    faults = data.get("faults") or []
    has_rails = any(isinstance(fault, Mapping) and "rail" in fault for fault in faults)
    if not fabrics or not (old or has_rails):
        return data
    notify(
        "the form of multi-rail experiments with policies and sizes at the top", "workloads: [{kind: allreduce, ...}]"
    )
    shared = {key: old[key] for key in _SHARED if old.get(key) not in (None, {})}
    workloads = [*(data.get("workloads") or ())]
    if old.get("sizes"):
        workloads.append({"kind": "allreduce", **shared, **{key: old[key] for key in _OF_SIZES if key in old}})
    for training in old.get("trainings") or ():
        own = {key: value for key, value in shared.items() if key != "only" or not training.get("policies")}
        workloads.append({"kind": "training", **own, **training})
    workloads += [{"kind": "ddp", **ddp_run} for ddp_run in old.get("ddp") or ()]
    changed = {key: value for key, value in data.items() if key not in old} | {"workloads": workloads}
    if has_rails:
        learning = {"learning": old["learning"]} if "learning" in old else {}
        changed["faults"] = [learning | {"repeats": 1} | _with_target(fault, fabrics) for fault in faults]
        changed["fault_repeats"] = max(fault["repeats"] for fault in changed["faults"])
    return changed


def _with_target(fault: Mapping[str, Any], fabrics: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a fault with its `rail` and `node` as a target: `tcp0 of n1`, or the rail's switch."""
    from railyard.failure.faults import FAULTS  # only where an old file is read

    rail, node = fault.get("rail"), fault.get("node", 1)
    target = f"{rail} of n{node}"
    if fault.get("kind") in FAULTS and FAULTS[fault["kind"]].layer is None:
        names = [r.get("name") or f"{r.get('kind')}{n}" for f in fabrics for n, r in enumerate(f.get("rails") or ())]
        numbers = [n for f in fabrics for n, _ in enumerate(f.get("rails") or ())]
        target = f"rail{numbers[names.index(rail)]}" if rail in names else str(rail)
    return {key: value for key, value in fault.items() if key not in ("rail", "node")} | {"target": target}


def _renamed(value: Any, parents: list[str], old: str, new: str) -> Any:
    """Return a value with the key `old` renamed in all mappings that the path `parents` leads to."""
    if isinstance(value, list) and parents[:1] == ["*"]:
        return [_renamed(item, parents[1:], old, new) for item in value]
    if not isinstance(value, Mapping):
        return value
    if parents:
        step, *rest = parents
        return {k: _renamed(v, rest, old, new) if k == step else v for k, v in value.items()}
    if old not in value or new in value:
        return dict(value)
    notify(f"key {old!r}", new)
    return {new if key == old else key: item for key, item in value.items()}


def rename_path(path: list[str]) -> list[str]:
    """Return an override's path with old keys renamed: `storm.count` -> `random_faults.count`."""
    renamed = list(path)
    for pattern, new in KEYS.items():
        steps = pattern.split(".")
        # in full, or from the key of a list's item on
        for shown in (steps, steps[2:]):
            if shown and len(renamed) >= len(shown) and all(map(_matches, shown, renamed)):
                notify(f"key {renamed[len(shown) - 1]!r}", new)
                renamed[len(shown) - 1] = new
    return renamed


def _matches(step: str, word: str) -> bool:
    return step == word or (step == "*" and (word == "*" or word.isdigit()))


def experiment_name(name: str) -> str:
    """Return an experiment's name of today."""
    if name in EXPERIMENTS:
        notify(f"experiment {name!r}", EXPERIMENTS[name])
    return EXPERIMENTS.get(name, name)


_notified: Final[set[str]] = set()


def notify(old: str, new: str) -> None:
    """Print a line to stderr, once for each name."""
    if old not in _notified:
        _notified.add(old)
        print(f"note: {old} is now {new!r}; the old name will be removed in the next release", file=sys.stderr)

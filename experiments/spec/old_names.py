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
    return renamed


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

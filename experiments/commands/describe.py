"""`describe`: print what an experiment shows, and its YAML."""

from typing import Any

import yaml

from railyard.core.installation import RUN
from railyard.experiments.commands.options import Name, PluginFiles, console, shows_progress
from railyard.experiments.spec import loading
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.loading import load_any


@shows_progress
def command(name: Name, plugin_files: PluginFiles) -> None:
    """Print what an experiment shows, by which equations, and its YAML to start your own from."""
    spec = load_any(name)
    out = console()
    out.print(f"[bold]{spec.name}[/]: {spec.title}\n", highlight=False)
    out.print(spec.description, highlight=False)
    text = yaml.safe_dump(shown(spec), sort_keys=False, allow_unicode=True, width=1000, default_flow_style=None)
    print(text, end="")
    out.print(f"\nrun it: {RUN} run {name}", highlight=False)
    if name in loading.names():
        start = f"cp {loading.path_of(name)} mine.yaml; {RUN} run ./mine.yaml"
        out.print(f"change it: {start}", highlight=False)


def shown(spec: ExperimentSpec) -> dict[str, Any]:
    """Return all keys with their defaults, but none without effect on this experiment."""
    idle = {"title", "description", *spec.family.without}
    idle |= set() if spec.faults else {"fault_repeats"}
    idle |= set() if spec.scripts else {"script_repeats"}
    idle |= set() if spec.replacements else {"replacement_repeats"}
    idle |= set() if spec.faults or spec.scripts else {"reroute", "heartbeats"}
    shown = {key: value for key, value in spec.resolved().items() if key not in idle and value != []}
    if spec.background:
        shown["background"] = [item.model_dump(mode="json", exclude_defaults=True) for item in spec.background]
    return shown

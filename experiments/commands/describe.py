"""`describe`: print what an experiment shows, and its YAML."""

import yaml

from railyard.experiments.commands.options import Name, PluginFiles, console
from railyard.experiments.spec import loading
from railyard.experiments.spec.kind import kind_of
from railyard.experiments.spec.loading import load_any


def command(name: Name, plugin_files: PluginFiles) -> None:
    """Print what an experiment shows, by which equations, and its YAML to start your own from."""
    spec = load_any(name)
    out = console()
    out.print(f"[bold]{spec.name}[/]: {spec.title}\n", highlight=False)
    out.print(spec.description, highlight=False)
    text = yaml.safe_dump(
        kind_of(spec).shown(spec), sort_keys=False, allow_unicode=True, width=1000, default_flow_style=None
    )
    print(text, end="")
    out.print(f"\nrun it: sudo script/run run {name}", highlight=False)
    if name in loading.names():
        start = f"cp {loading.path_of(name)} mine.yaml; sudo script/run run ./mine.yaml"
        out.print(f"change it: {start}", highlight=False)

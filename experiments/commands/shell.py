"""`shell`: Mininet's command line on a built fabric."""

from railyard.core.sandbox import launcher
from railyard.core.sandbox.hidden import files_meant
from railyard.experiments.commands.options import Name, Overrides, PluginFiles
from railyard.experiments.run.sandboxed import check_machine, own_command
from railyard.experiments.spec.loading import load_any


def command(name: Name, overrides: Overrides, plugin_files: PluginFiles) -> int:
    """Build an experiment's first fabric, with its controller, and open Mininet's command line on it."""
    spec = load_any(name, overrides)
    check_machine(spec)
    task, run = {"do": "shell", "spec": spec.resolved()}, f"{spec.name} shell-{spec.name}"
    return launcher.enter(own_command(), task, run=run, interactive=True, visible=files_meant(task["spec"]))

"""`shell`: Mininet's command line on a built fabric."""

from railyard.core.sandbox import launcher
from railyard.core.sandbox.hidden import files_meant
from railyard.experiments.options import Live, Name, Overrides, PluginFiles, SaveScript
from railyard.experiments.spec.loading import load_any


def command(
    name: Name,
    overrides: Overrides,
    live: Live = None,
    save_script: SaveScript = None,
    *,
    plugin_files: PluginFiles,
) -> int:
    """Build an experiment's first fabric, with its controller, and open Mininet's command line on it."""
    # slow to load, and shell completion needs neither
    from railyard.experiments.live.launch import opened_page
    from railyard.experiments.machines.joining import refuse_several
    from railyard.experiments.run.sandboxed import check_machine, own_command

    spec = load_any(name, overrides)
    refuse_several(spec, "shell")
    check_machine(spec)
    run = f"{spec.name} shell-{spec.name}"
    with opened_page(live, save_script) as page:
        task = {"do": "shell", "spec": spec.resolved(), "live": page.task}
        visible = files_meant(task["spec"])
        return launcher.enter(own_command(), task, run=run, interactive=True, visible=visible, inherited=page.fds)

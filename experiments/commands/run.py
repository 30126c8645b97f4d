"""`run`: run an experiment in a sandbox and write its folder."""

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer

from railyard.core import crash
from railyard.core.errors import BadInput, print_error
from railyard.core.installation import PROGRAM
from railyard.core.safe_files import Folder
from railyard.core.sandbox import launcher, run_queue
from railyard.core.sandbox.hidden import files_meant
from railyard.experiments.options import (
    AsJson,
    ControllerApp,
    Insecure,
    Junit,
    KeyFile,
    Live,
    Markdown,
    OptionalName,
    Overrides,
    PluginFiles,
    SaveScript,
    Topo,
    experiment_of,
)
from railyard.experiments.run import folder
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.loading import command_line, load_any
from railyard.experiments.sweep import access
from railyard.topologies.measure import other_programs

if TYPE_CHECKING:
    from railyard.experiments.live.launch import OpenedPage

PURPOSE = "Run experiments"


def command(
    overrides: Overrides,
    name: OptionalName = "",
    topo: Topo = "",
    controller: ControllerApp = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write (default: runs/<utc time>-NAME).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random choices; kept in spec.yaml.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print the events of each step, in the order of their times.")
    ] = False,
    live: Live = None,
    save_script: SaveScript = None,
    junit: Junit = None,
    markdown: Markdown = None,
    as_json: AsJson = False,
    no_queue: Annotated[
        bool, typer.Option("--no-queue", help="Start at once, also while other runs measure on this machine.")
    ] = False,
    on: Annotated[
        str,
        typer.Option(
            metavar="tls://SCHEDULER|ssh:H1,H2",
            show_default=False,
            help="With hosts of 2 or more: Dask workers that start the other machines' agents.",
        ),
    ] = "",
    keys: KeyFile = None,
    insecure: Insecure = False,
    *,
    plugin_files: PluginFiles,
) -> int:
    """Run an experiment and write its folder: tables, figures, report.html."""
    options = RunOptions(
        name=experiment_of(name, topo),
        overrides=overrides,
        topo=topo,
        controller=controller,
        plugin_files=plugin_files,
        seed=seed,
        out=out,
        quiet=quiet,
        verbose=verbose,
        as_json=as_json,
        junit=junit,
        markdown=markdown,
        live=live,
        save_script=save_script,
        no_queue=no_queue,
        on=on,
        keys=keys,
        insecure=insecure,
    )
    return run(options)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `run`, by the names of the command's parameters; see their help."""

    name: str
    overrides: Sequence[str] = ()
    topo: str = ""
    controller: Path | None = None
    plugin_files: Sequence[Path] = ()
    seed: int | None = None
    out: Path | None = None
    quiet: bool = False
    verbose: bool = False
    as_json: bool = False
    junit: Path | None = None
    markdown: Path | None = None
    live: str | None = None
    save_script: Path | None = None
    no_queue: bool = False
    on: str = ""
    keys: Path | None = None
    insecure: bool = False

    @property
    def prints_text(self) -> bool:
        """True if people read the output."""
        return not (self.quiet or self.as_json)


def _tell(line: str) -> None:
    print(f"{line} (--no-queue starts at once)", file=sys.stderr, flush=True)


def _killed(where: Folder) -> str:
    """Return the line about a run that was killed, with what can be done about its folder."""
    # these imports take a second, and help does without them
    from railyard.experiments.live import recorded
    from railyard.results.runs import journal

    killed = "the run was killed, by a signal or for lack of memory"
    if journal.is_left(where):
        return f"{killed}: {PROGRAM} report {where.path} finishes its folder"
    # the live page begins its record before the run its journal: left alone, it would keep the folder from the next run
    where.remove(recorded.RECORD)
    return f"{killed}, before it recorded anything: start it again"


def _cluster_of(
    spec: ExperimentSpec, options: RunOptions
) -> tuple[Mapping[str, Any] | None, AbstractContextManager[object]]:
    """Return what the sandbox needs to know of the other machines, None without any, and what starts their agents."""
    # these imports are slow, and help does without them
    from railyard.experiments.machines import dask, joining

    if options.on and spec.machine_count == 1:
        raise BadInput("--on", options.on, "is for hosts of 2 or more: their agents are started there")
    access.check(options.on or access.LOCAL, options.keys, options.insecure)
    if options.on:
        dask.require()
        dask.ensure_token()
    loaded_keys = access.load_keys(options.keys)
    cluster = joining.prepare(spec)
    if cluster and options.live is not None:
        joining.refuse_several(spec, "--live")
    if not (cluster and options.on):
        return cluster, nullcontext()
    return cluster, dask.agents(options.on, loaded_keys, spec, *joining.address_and_token(cluster, spec))


def run(options: RunOptions, tell: Callable[[str], object] = _tell) -> int:
    """Check whatever can be checked before the sandbox is made, then run the experiment in one.

    `tell` is called with each change of its place in the queue.
    """
    # slow to load, and shell completion needs neither
    from railyard.experiments.live.launch import opened_page
    from railyard.experiments.run.sandboxed import check_machine
    from railyard.topologies.topology_kind import hosts_line, hosts_of

    folder.check_outputs({"--junit": options.junit, "--markdown": options.markdown})
    spec = load_any(options.name, options.overrides, options.seed, options.topo, options.controller)
    if options.topo and options.prints_text:
        print(f"{options.topo}: {hosts_line(hosts_of(spec.gpu_fabrics[0].definition))}")
    choices = [options.out] if options.out else folder.default_choices(spec.name)
    # a wrong folder is refused before the machine is looked at
    folder.check(choices[0])
    machine = check_machine(spec)
    cluster, agents = _cluster_of(spec, options)
    runs_at_once = 0
    if not options.no_queue:
        runs_at_once = run_queue.runs_at_once(machine.cores, psutil.virtual_memory().total)
    with (
        folder.made(*choices) as run_folder,  # before the queue, so that a folder in use is refused at once
        run_queue.turn(spec.name, runs_at_once, tell=tell),
        agents,
        opened_page(options.live, options.save_script) as page,
        folder.Spare() as spare,
    ):
        # from outside: in the sandbox, the processes of other programs can't be seen
        other_load = other_programs.Watch(machine.cores)
        status = _enter_sandbox(spec, options, run_folder, spare, page, cluster)
        other_programs_load = other_load.end()
        problem = _killed(run_folder) if status == 128 + signal.SIGKILL else spare.problem(run_folder)
        reason = problem or f"ended with exit status {status}"
        folder.write_outputs(run_folder, options.junit, options.markdown, options.as_json, reason)
        has_report = run_folder.has("report.html")
    if problem:
        return print_error(problem, status or 1)
    if status == 128 + signal.SIGINT and not has_report:
        print(f"{crash.STOPPED}: nothing was measured yet", file=sys.stderr)
    if options.prints_text:
        _print_report(run_folder.path / "report.html", other_programs_load)
    return status


def _enter_sandbox(
    spec: ExperimentSpec,
    options: RunOptions,
    run_folder: Folder,
    spare: folder.Spare,
    page: "OpenedPage",
    cluster: Mapping[str, Any] | None,
) -> int:
    """Run the experiment in a sandbox, and return its exit status. `cluster`: as of `_cluster_of`."""
    from railyard.experiments.run.sandboxed import own_command

    inherited = [spare.fd, *page.fds]
    extensions: dict[str, Any] = {}
    # in the order in which they begin: the page shows a run whose machines are there
    if cluster:
        extensions["railyard.experiments.machines.joining"] = {**cluster, "quiet": options.quiet}
        inherited.append(cluster["machine_net"])
    extensions |= page.extensions
    task = {
        "do": "run",
        "spec": spec.resolved(),
        "folder": str(run_folder.real_path),
        "identity": run_folder.identity,
        "quiet": options.quiet,
        "json": options.as_json,
        "verbose": options.verbose,
        "spare": spare.fd,
        "extensions": extensions,
        "command": command_line(
            options.name, options.overrides, options.seed, options.plugin_files, options.topo, options.controller
        ),
    }
    return launcher.enter(
        own_command(),
        task,
        run=f"{spec.name} {run_folder.real_path}",
        visible=[run_folder.real_path, *files_meant(spec.resolved())],
        inherited=inherited,
    )


def _print_report(report: Path, other_load: other_programs.OtherPrograms) -> None:
    """Print the path of the report, and whether other programs disturbed the run."""
    if not report.exists():
        # other programs disturbed nothing if nothing was measured
        return
    if other_load.disturb:
        print(f"other programs used {other_load.amount}, while it ran")
    print(f"{report}")

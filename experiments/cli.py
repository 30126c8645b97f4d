"""The commands of run_experiment.py, and how each ends.

Exit status: 0 done, 1 a check of the experiment failed, 2 bad input, 3 the machine lacks something, 130 or 143 stopped.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml
from rich.console import Console
from rich.table import Table

from railyard.core import plugins
from railyard.core.errors import MissingRequirement, RailyardError
from railyard.core.host import BOOTSTRAP, Machine, detect, require
from railyard.core.project import PROJECT
from railyard.core.sandbox import init, launcher
from railyard.experiments.commands import live, measure
from railyard.experiments.multirail.spec import MultirailExperiment
from railyard.experiments.run import folder, sandboxed
from railyard.experiments.run.budget import check_budget
from railyard.experiments.spec import catalogue
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.loading import AnyExperiment, listed, load_any, names_multirail, resolved
from railyard.results.published.catalogue import FIGURES

PROGRAM: Final = "run_experiment.py"
SCRIPT: Final = PROJECT / PROGRAM
MAX_PROBES: Final = 64
"""What the buffer of a packet socket holds, seen twice each, with room to spare."""
MAX_COUNT: Final = 2**20
"""GPUs, or sequences of a batch: beyond any cluster, and still weighed in seconds."""
_CLICK_ERROR: Final[type[Exception]] = typer.BadParameter.__mro__[2]  # typer may bring a Click of its own

Name = Annotated[str, typer.Argument(metavar="NAME|FILE", help="An experiment of `list`, or your own YAML file.")]
Overrides = Annotated[
    list[str],
    typer.Option(
        "-o",
        metavar="KEY=VALUE",
        default_factory=list,
        show_default=False,
        help="Change the experiment: domains=8, workloads.0.duration=2s.",
    ),
]


def _load_plugins(files: list[Path]) -> list[Path]:
    """Load plugin files while the command line is read, before any name in it is looked up."""
    for file in files:
        plugins.load(file)
        launcher.check_visible("--plugin", file)
    return files


PluginFiles = Annotated[
    list[Path],
    typer.Option(
        "--plugin",
        metavar="FILE",
        default_factory=list,
        show_default=False,
        is_eager=True,
        callback=_load_plugins,
        help="Load definitions of your own: faults, policies, workloads, ... (docs/extending.md).",
    ),
]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""[bold]Examples[/]

    sudo script/run
      quickstart: both fabrics, whole and broken, in two minutes

    run_experiment.py predict moe-slowdown
      the papers' formulas alone: no root, no packets

    sudo script/run run recovery -o fault_repeats=3 --out /tmp/recovery
      every fault three times instead of ten

    sudo script/run run collectives -o domains=8 -o rails=2
      on another fabric; `describe collectives` shows what can be changed

    sudo script/run shell quickstart
      ping, iperf, tcpdump and link down on a built fabric

    sudo script/run exec quickstart d0g1 ss -ti
      look into a GPU of a run that is going on

    [bold]Exit status[/]
      0 done and believable, 1 a check of the experiment failed, 2 bad input,
      3 the machine lacks something, 130 or 143 stopped by Ctrl-C or SIGTERM
      (what was measured so far is kept)

    Without root it works too where the machine allows it: doctor tells.""",
)


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> int:
    """Railyard: GPU training fabrics, emulated on real packets on this machine.

    With no command: run quickstart.
    """
    return _run("quickstart") if context.invoked_subcommand is None else 0


@app.command("run")
def run_command(
    name: Name,
    overrides: Overrides,
    out: Annotated[Path | None, typer.Option(help="The folder to write (default: runs/<utc time>-NAME).")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the bytes that are sent; kept in spec.yaml.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no summary.")] = False,
    *,
    plugin_files: PluginFiles,
) -> int:
    """Run an experiment and write its folder: tables, figures, report.html."""
    return _run(name, overrides, out, seed, quiet)


def _run(
    name: str, overrides: Sequence[str] = (), out: Path | None = None, seed: int | None = None, quiet: bool = False
) -> int:
    """All that can be checked is checked out here, before the capsule."""
    spec = load_any(name, overrides, seed)
    out = out or folder.default(spec.name)
    folder.check(out)
    machine = _check_machine(spec)
    if isinstance(spec, ExperimentSpec) and spec.needs_etcd and not machine.programs.get("etcd"):
        raise MissingRequirement("this machine lacks etcd, for the registry", BOOTSTRAP)
    with folder.made(out) as where:
        status = launcher.enter(_own_command(), sandboxed.task_of_run(spec, where, quiet), run=f"{spec.name} {where}")
    if status == 128 + signal.SIGKILL:
        return _print_error(
            "the run was killed, by somebody or for want of memory; nothing of it is left but its folder", status
        )
    report = out / "report.html"
    if not quiet and report.exists():
        print(f"{report}")
    return status


def _check_machine(spec: AnyExperiment) -> Machine:
    machine = detect()
    require(machine)
    if isinstance(spec, ExperimentSpec):
        check_budget(spec, machine)
    return machine


def _own_command() -> list[str]:
    """The same command: for whoever looks at `ps`. What to do there comes by the capsule's pipe."""
    return [sys.executable, str(SCRIPT), *sys.argv[1:]]


@app.command("list")
def list_command() -> None:
    """The named experiments, and the figures and tables that `predict` computes anew."""
    table = Table(box=None, pad_edge=False)
    for column in ("RUN", "SHOWS", "FABRICS", "GPUS", "REPLAYS", "FAULTS"):
        table.add_column(column, justify="right" if column in ("GPUS", "REPLAYS", "FAULTS") else "left")
    for name in catalogue.names():
        spec = load_any(name)
        table.add_row(name, spec.title, ", ".join(spec.labels), *listed(spec))
    figures = Table(box=None, pad_edge=False)
    figures.add_column("PREDICT")
    figures.add_column("SHOWS, BESIDE WHAT THE PAPERS STATE")
    for name, shows in FIGURES.items():
        figures.add_row(name, shows)
    console = _console()
    console.print(table, "", figures)


@app.command()
def describe(name: Name, plugin_files: PluginFiles) -> None:
    """What an experiment shows, and by which equations; and its YAML, to start your own from."""
    spec = load_any(name)
    console = _console()
    console.print(f"[bold]{spec.name}[/]: {spec.title}\n", highlight=False)
    console.print(spec.description, highlight=False)
    print(
        yaml.safe_dump(_shown(spec), sort_keys=False, allow_unicode=True, width=1000, default_flow_style=None), end=""
    )
    console.print(f"\nrun it: sudo script/run run {name}", highlight=False)
    if name in catalogue.names():
        start = f"cp {catalogue.path_of(name)} mine.yaml; sudo script/run run ./mine.yaml"
        console.print(f"change it: {start}", highlight=False)


def _shown(spec: AnyExperiment) -> dict[str, Any]:
    """What can be changed: all of it with its defaults, but no key that is of no use to this one."""
    idle = {"title", "description"}
    if isinstance(spec, MultirailExperiment):
        return {key: value for key, value in resolved(spec).items() if key not in idle and value != []}
    idle |= set() if spec.faults else {"fault_repeats"}
    idle |= set() if spec.scripts else {"script_repeats"}
    idle |= set() if spec.faults or spec.scripts else {"reroute", "heartbeats"}
    shown = {key: value for key, value in resolved(spec).items() if key not in idle and value != []}
    if spec.background:
        shown["background"] = [item.model_dump(mode="json", exclude_defaults=True) for item in spec.background]
    return shown


@app.command()
def predict(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE|FIGURE",
            help="An experiment, or a figure or table of the papers: fig8, table2 (`list` shows all).",
        ),
    ],
    overrides: Overrides,
    out: Annotated[Path, typer.Option(help="The folder for NAME.csv and NAME.png.")] = Path(),
    seed: Annotated[int | None, typer.Option(help="Of what is drawn: shuffled transfers, uneven experts.")] = None,
    *,
    plugin_files: PluginFiles,
) -> int:
    """What the formulas say, without running anything; writes NAME.csv and NAME.png. No root needed."""
    from railyard.experiments.commands import published
    from railyard.experiments.multirail import predict as multirail
    from railyard.experiments.predict import (
        steered,
        unsteered,  # takes a second to load
    )

    if catalogue.is_figure(name):
        return published.show(name, overrides, out, _console())
    spec = load_any(name, overrides, seed)
    if isinstance(spec, MultirailExperiment):
        return multirail.predict(spec, out, _console())
    return (steered.show if spec.routing else unsteered.show)(spec, out, _console())


@app.command()
def lint(
    name: Annotated[
        str,
        typer.Argument(metavar="FILE|NAME", help="A placement file, an experiment, or a model as it was published."),
    ],
) -> int:
    """Does a job need traffic between rails? Status 1 if it does, and who, where and why."""
    from railyard.experiments.commands import lint as linter

    return linter.show(name, _console())


@app.command()
def search(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help="A GPT of the catalogue, or your own YAML file.")],
    gpus: Annotated[int, typer.Option(min=1, max=MAX_COUNT, show_default=False, help="Of the cluster.")],
    batch: Annotated[
        int, typer.Option(min=1, max=MAX_COUNT, show_default=False, help="The global batch, in sequences.")
    ],
    platform: Annotated[str, typer.Option(help="Whose GPUs and links; or your own YAML file.")] = "h100",
    domain_gpus: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, show_default="the platform's", help="GPUs in an HB domain.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many to print.")] = 10,
) -> int:
    """The fastest parallelization strategies for a model on a real cluster, by the formulas. No root needed."""
    from railyard.experiments.commands import search as searcher

    return searcher.show(model, platform, gpus, domain_gpus, batch, top, _console())


@app.command("dry-run")
def dry_run_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE|TRACE",
            help="An experiment; or a trace of Chakra, PARAM or SimAI: a file, or the folder of a file a rank.",
        ),
    ],
    overrides: Overrides,
    plugin_files: PluginFiles,
) -> int:
    """What would be sent, by whom and over what, without sending it. No root needed."""
    from railyard.experiments.commands import dry_run  # takes a second to load
    from railyard.experiments.multirail import predict as multirail

    spec = load_any(name, overrides) if names_multirail(name) else None
    if isinstance(spec, MultirailExperiment):
        return multirail.dry_run(spec, _console())
    return dry_run.show(dry_run.experiment(name, overrides), _console())


@app.command()
def report(run: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")]) -> None:
    """Draw a run's report, summary and timeline anew from its records, and print the summary."""
    from railyard.results.runs import store
    from railyard.results.views import summary

    loaded = store.load(run)
    with folder.reporting_path_errors("DIR", run):
        store.save_drawn(loaded, run)
    summary.print_summary(loaded, _console())
    print(run / "report.html")


@app.command()
def doctor() -> int:
    """What this machine can do, and what to type to get the rest. Status 3 if nothing runs here yet."""
    from railyard.core import doctor as table

    machine = detect()
    runs = _runs_here(machine)
    with Console(stderr=True).status("measuring what it carries"):
        frames = measure.frames_per_s() if runs else None
    table.print_table(machine, _console(), frames)
    return 0 if runs else 3


def _runs_here(machine: Machine) -> bool:
    try:
        require(machine)
    except MissingRequirement:
        return False
    return True


@app.command()
def shell(name: Name, overrides: Overrides, plugin_files: PluginFiles) -> int:
    """Build an experiment's first fabric, with its controller, and open Mininet's command line on it."""
    spec = load_any(name, overrides)
    _check_machine(spec)
    return launcher.enter(
        _own_command(), sandboxed.task_of_shell(spec), run=f"{spec.name} shell-{spec.name}", interactive=True
    )


@app.command()
def ps() -> None:
    """The runs that are alive now."""
    live.print_table(live.find(), _console())


@app.command("exec", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def execute(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run that `ps` shows: its name, experiment or pid.")],
    gpu: Annotated[str, typer.Argument(metavar="GPU", help="d0g1, or a switch: rail1.")],
    command: Annotated[list[str], typer.Argument(metavar="CMD...", help="What to run there.")],
) -> None:
    """A command in a GPU of a live run, from another terminal."""
    live.execute(run, gpu, command)


@app.command()
def trace(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run that `ps` shows: its name, experiment or pid.")],
    src: Annotated[str, typer.Argument(metavar="SRC", help="The GPU that sends: d0g1.")],
    dst: Annotated[str, typer.Argument(metavar="DST", help="The GPU to reach.")],
    probes: Annotated[
        int, typer.Option(min=1, max=MAX_PROBES, help="Each a flow of its own, for spines to share.")
    ] = 8,
) -> None:
    """The way that packets really take in a live run. Status 1 if it isn't the policy's, or they are lost."""
    from railyard.experiments.commands import trace as tracer  # takes half a second to load

    tracer.enter(run, src, dst, probes)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 120)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; errors of the user's and lacks of the machine's become one line."""
    try:
        if init.inside():
            return sandboxed.main()
        status: Any = app(arguments, standalone_mode=False, prog_name=PROGRAM)
    except RailyardError as error:
        return _print_error(str(error), error.exit_status)
    except _CLICK_ERROR as error:
        return _print_error(_usage(error, sys.argv[1:] if arguments is None else arguments), 2)
    except KeyboardInterrupt:
        return 130
    return status if isinstance(status, int) else 0


def _usage(error: Any, arguments: Sequence[str]) -> str:
    """What is wrong with the command line, and where the right one is told."""
    message = " ".join(error.format_message().split()).rstrip(".")
    word = next((a for a in arguments if not a.startswith("-")), "")
    if word in catalogue.names():
        return f"{word} is an experiment, not a command; type: {PROGRAM} run {word}"
    context = getattr(error, "ctx", None)
    return f"{message}; see {context.command_path if context else PROGRAM} --help"


def _print_error(message: str, status: int) -> int:
    print("error:", " ".join(message.split()), file=sys.stderr)
    return status

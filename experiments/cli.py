"""The command line: finds the command, runs it, and turns errors into one line and an exit status.

A command is a file in experiments/commands/ with a function `command`, whose docstring is its help; `dry_run.py` is
`dry-run`. Its `PURPOSE` is the heading under which `--help` lists it. A command's module is imported only when that
command is called, so that `--help` is quick (signatures.py).
"""

import logging
import os
import re
import resource
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

import railyard
from railyard.core import crash
from railyard.core.errors import MissingRequirement, print_error
from railyard.core.host import raise_open_file_limit
from railyard.core.installation import PROGRAM, RUN
from railyard.experiments import signatures

FOLDER: Final = Path(__file__).parent / "commands"
PURPOSES: Final = (
    "Run experiments",
    "Compute and check, without packets",
    "Look into a live run",
    "Work with results",
    "Learn and teach",
    "Set up machines",
)
"""Headings of the list of commands, in their order."""
OTHER: Final = "Other commands"  # those without a purpose
MIN_MEMORY_BYTES: Final = {"numpy": 300_000_000, "matplotlib": 600_000_000, "pandas": 600_000_000}  # to import them
_CLICK_ERROR: Final[type[Exception]] = typer.BadParameter.__mro__[2]  # typer may bring a Click of its own


class Summary(NamedTuple):
    """Help text of a command, and the heading above it in the list of commands."""

    text: str
    purpose: str


@cache
def commands() -> dict[str, Summary]:
    """Return every command's name with its summary, read from the files without importing them."""
    summaries: dict[str, Summary] = {}
    for path in sorted(FOLDER.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "\ndef command(" not in source:
            continue  # shared by commands
        # ast.parse takes ten times as long
        docstring = re.search(r'\ndef command\(.*?\n    """(.*?)"""', source, re.DOTALL)
        purpose = re.search(r'^PURPOSE = "(.*)"$', source, re.MULTILINE)
        summary = Summary("", OTHER)
        if docstring:
            summary = summary._replace(text=cleandoc(docstring[1]))
        if purpose:
            summary = summary._replace(purpose=purpose[1])
        summaries[path.stem.replace("_", "-")] = summary
    in_order = [*PURPOSES, *(summary.purpose for summary in summaries.values())]
    return dict(sorted(summaries.items(), key=lambda item: in_order.index(item[1].purpose)))


class _MemoryLimit:
    """Import hook for numerical libraries, which end a process that has too little memory for them."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Leave the module to the other hooks; MissingRequirement if the limit of address space is too low for it."""
        memory = resource.getrlimit(resource.RLIMIT_AS)[0]
        need = MIN_MEMORY_BYTES.get(name, 0)
        if memory < need:
            problem = f"not enough memory: {memory:,} bytes of address space, {need:,} needed"
            raise MissingRequirement(problem, "raise the limit: ulimit -v unlimited")


class _Command(TyperCommand):
    """A command whose options may have an optional value, which is in brackets as their metavar: `[control]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with an empty value for each such option that is given without one."""
        optional = self._optional_values()
        arguments: list[str] = []
        for word, following in pairwise([*args, ""]):
            value = optional.get(word, following)
            if value == following:
                arguments.append(word)
                continue
            # the next argument isn't the option's value, unless it is a mistyped one
            if get_close_matches(following, [value]):
                hint = f"did you mean {value!r}? allowed is {value}, or nothing"
                raise typer.BadParameter(f"{word}: {following!r} is not known: {hint}", ctx)
            arguments.append(f"{word}=")
        return list(super().parse_args(ctx, arguments))

    def _optional_values(self) -> dict[str, str]:
        """Return the options whose value may be left out, with that value."""
        values: dict[str, str] = {}
        for param in self.params:
            metavar = param.metavar or ""
            for option in param.opts:
                if option.startswith("--") and metavar.startswith("["):
                    values[option] = metavar[1:-1]
        return values

    def invoke(self, ctx: Any) -> Any:
        """Call the command, which Ctrl-C ends with one line."""
        return _interruptible(lambda: super(_Command, self).invoke(ctx))


def _interruptible(command: Callable[[], Any]) -> Any:
    """Return the exit status of a command. Ctrl-C ends it with one line, after it has cleaned up.

    Typer would end with the status alone.
    """
    crash.raise_at_ctrl_c()
    try:
        return command()
    except KeyboardInterrupt:
        print(crash.STOPPED, file=sys.stderr)
        return crash.STOPPED_STATUS


def load_command(name: str) -> Any:
    """Return the Click command that imports a command's module and calls its `command`."""
    os.environ["MPLBACKEND"] = "agg"  # figures go to files; with a wrong one, matplotlib can't be imported
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no large matrices here, and no threads to run out of
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns of a home folder that it can't write
    stem = name.replace("-", "_")
    function, settings = signatures.load(FOLDER / f"{stem}.py", f"railyard.experiments.commands.{stem}")
    only = typer.Typer(add_completion=False, rich_markup_mode="rich")
    only.command(name, cls=_Command, context_settings=settings)(function)
    return typer.main.get_command(only)


class CommandGroup(TyperGroup):
    """The commands of the folder; each is imported when it is called, and only named before."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, (text, purpose) in commands().items():  # stands for the command in the list of --help
            self.add_command(TyperCommand(name, help=text, rich_markup_mode="rich", rich_help_panel=purpose))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the purposes."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that a command line names, imported."""
        name, command, arguments = super().resolve_command(ctx, args)
        if name:
            command = load_command(name)
        return name, command, arguments


app = typer.Typer(
    cls=CommandGroup,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"""[bold]Examples[/]

    {RUN}
      quickstart: both fabrics, intact and with faults, in two minutes

    {PROGRAM} predict moe-slowdown
      the papers' formulas alone: no root, no packets

    {RUN} run recovery -o fault_repeats=3 --out /tmp/recovery
      every fault three times instead of ten

    {RUN} run collectives -o domains=8 -o rails=2
      on another fabric; `describe collectives` shows what can be changed

    {RUN} shell quickstart
      ping, iperf, tcpdump and link down on a built fabric

    {RUN} exec quickstart d0g1 ss -ti
      run a command in a GPU of a live run

    [bold]Exit status[/]
      0 done, and all checks passed; 1 a check of the experiment failed;
      2 bad input; 3 the machine lacks something; 70 a defect, with a
      crash report; 130 or 143 stopped by Ctrl-C or SIGTERM (the results
      until then are kept)

    Many machines need no root: `doctor` shows whether yours does.""",
)


def print_version(wanted: bool) -> None:
    """Print the version and exit, if `--version` is given."""
    if wanted:
        print(f"railyard {railyard.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version, help="Show the version and exit.")
    ] = False,
) -> int:
    """Railyard: emulated GPU training fabrics, on real packets, on this machine.

    With no command: run quickstart.
    """
    if context.invoked_subcommand is not None:
        return 0
    from railyard.experiments.commands.run import RunOptions, run

    return int(_interruptible(lambda: run(RunOptions(name="quickstart"))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status; errors become one line."""
    return crash.guarded(lambda: _main(arguments), own_streams=arguments is None)


def _main(arguments: Sequence[str] | None) -> int:
    raise_open_file_limit()
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        sys.meta_path.insert(0, _MemoryLimit)
    if os.getpid() == 1:  # only then can this be a sandbox init, whose modules take a while to import
        from railyard.core.sandbox import init

        if init.inside():
            from railyard.experiments.run import sandboxed

            return sandboxed.main()
    try:
        status: Any = app(arguments, standalone_mode=False, prog_name=PROGRAM)
    except _CLICK_ERROR as error:
        if arguments is None:
            arguments = sys.argv[1:]
        return print_error(_usage(error, arguments), 2)
    # a command without a result has succeeded
    return status if isinstance(status, int) else 0


def _usage(error: Any, arguments: Sequence[str]) -> str:
    from railyard.experiments.spec import loading

    message = " ".join(error.format_message().split()).rstrip(".").removeprefix("Invalid value: ")
    words = [argument for argument in arguments if not argument.startswith("-")]
    word = words[0] if words else ""
    if word in loading.names():
        return f"{word} is an experiment, not a command; type: {PROGRAM} run {word}"
    context = getattr(error, "ctx", None)
    path = context.command_path if context else PROGRAM
    option = getattr(error, "option_name", "")
    if option and path == PROGRAM and (hint := _misplaced(option, arguments)):
        return hint
    if option.removeprefix("--") in commands():
        name = option.removeprefix("--")
        message = f"{option}: {name} is a command of its own, so type {PROGRAM} {name} ..."
    return f"{message}; see {path} --help"


def _misplaced(option: str, arguments: Sequence[str]) -> str:
    """Return what to type for an option of a command that is given before the command, "" for an unknown one."""
    owners = [name for name in commands() if _parameter(name, option)]
    if not owners:
        return ""
    for word in arguments:
        if word in owners:
            where = f"write it after {word}, as in {PROGRAM} {word} ... {option}"
            return f"{option} is an option of a command: {where}; see {PROGRAM} --help"
    example = f"{owners[0]} ..."
    if "run" in owners:
        example = "run quickstart"
    example += f" {option}"
    if not getattr(_parameter(owners[0], option), "is_flag", False):
        example += " ..."
    return f"{option} is an option of {_listed(owners)}: type {PROGRAM} {example}"


def _parameter(command: str, option: str) -> Any:
    """Return the parameter of a command that an option sets; None if the command has no such option."""
    for param in load_command(command).params:
        if option in param.opts:
            return param
    return None


def _listed(names: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))

"""Options and arguments that several commands share, their console and tables. Light to import: `list` needs it."""

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, ParamSpec, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.errors import MarkupError
from rich.segment import Segment
from rich.text import Text

from railyard.core import plugins
from railyard.core.errors import printable
from railyard.core.terminal import FittingTable


def load_plugins(files: list[Path]) -> list[Path]:
    """Load plugin files while the command line is read, before any name in it is looked up."""
    for file in files:
        from railyard.core.sandbox.hidden import check_visible

        plugins.load(file)
        check_visible("--plugin", file)
    return files


def completion(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return the shell completion of a parameter that takes one of these names. They are looked up when it runs."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def experiment_names() -> list[str]:
    """Return the names of the shipped experiments."""
    from railyard.experiments.spec import loading

    return loading.names()


def catalogue_names() -> list[str]:
    """Return the names of the published models."""
    from railyard.workloads.models.catalogue import model_names

    return list(model_names())


def platform_names() -> list[str]:
    """Return the names of the platforms of GPUs and links."""
    from railyard.topologies.platforms import PLATFORMS

    return list(PLATFORMS)


def plugin_option(load: Callable[[list[Path]], list[Path]], about: str) -> Any:
    """Return the option `--plugin`. `load` is called with the files while the command line is read."""
    return typer.Option(
        "--plugin",
        metavar="FILE",
        default_factory=list,
        show_default=False,
        is_eager=True,
        callback=load,
        help=about,
    )


Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE",
        help="An experiment of `list`, or your own YAML file.",
        autocompletion=completion(experiment_names),
    ),
]
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
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        metavar="FILE",
        show_default=False,
        help="With --on tls://: the key that the scheduler was started with; made if the file isn't there.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Allow --on tcp://, where everyone in the network runs programs on all machines."),
]
PluginFiles = Annotated[
    list[Path],
    plugin_option(load_plugins, "Load your own definitions: faults, policies, workloads, ... (docs/extending.md)."),
]
OptionalName = Annotated[
    str,
    typer.Argument(
        metavar="[NAME|FILE]",
        help="An experiment of `list`, or your own YAML file. With --topo, the default is topology.",
        show_default=False,
        autocompletion=completion(experiment_names),
    ),
]
Topo = Annotated[
    str,
    typer.Option(
        "--topo",
        metavar="FILE:CLASS[,ARGS]",
        show_default=False,
        help="Run it on a Mininet topology of yours: a Topo class, and its arguments (docs/mininet-users.md).",
    ),
]
ControllerApp = Annotated[
    Path | None,
    typer.Option(
        "--controller",
        metavar="FILE",
        show_default=False,
        help="Let an app of yours, for os-ken or Ryu, decide how switches forward (docs/mininet-users.md).",
    ),
]
Live = Annotated[
    str | None,
    typer.Option(
        "--live",
        metavar="[control]",
        show_default=False,
        help="Serve a page of the running fabric on this machine; with control, a click breaks and repairs.",
    ),
]
SaveScript = Annotated[
    Path | None,
    typer.Option("--save-script", metavar="FILE", help="Write the faults that are clicked, to run them again."),
]
Junit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write checks and steps as JUnit XML, for CI.")
]
Markdown = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="Write the result as Markdown, for a job's summary.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print summary.json to stdout; everything else goes to stderr.")]
_NO_TAG: Final = re.compile(r"(\\*)\[(?!(?:/|(?:bold|dim|red|green|yellow| )+)\])")  # a bracket of no tag that we use
TOPOLOGY: Final = "topology"  # the experiment that --topo runs where none is named
NOTEBOOK_WIDTH: Final = 100  # columns of a cell's output that are visible without scrolling
PROGRESS_AFTER_S: Final = 2.0
PROGRESS_EVERY_S: Final = 5.0
MAX_DIGITS: Final = 9  # of a whole number, far beyond any size that is taken
P = ParamSpec("P")
T = TypeVar("T")


def shows_progress(command: Callable[P, T]) -> Callable[P, T]:
    """Let a command that computes print to a terminal that it is still at work: after 2 s, then every 5 s.

    Whole lines, because the command may print its own meanwhile.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        if not sys.stderr.isatty():
            return command(*args, **kwargs)
        done = threading.Event()
        started = time.monotonic()

        def report() -> None:
            wait_s = PROGRESS_AFTER_S
            while not done.wait(wait_s):
                print(f"computing, {time.monotonic() - started:.0f} s so far", file=sys.stderr, flush=True)
                wait_s = PROGRESS_EVERY_S

        thread = threading.Thread(target=report, name="progress", daemon=True)
        thread.start()
        try:
            return command(*args, **kwargs)
        finally:
            done.set()
            thread.join()

    return wrapped


class PrintableConsole(Console):
    """Console for text with names in it, which may be any: they neither control the terminal nor are markup."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text with our few tags as markup, and any other bracket as it is."""
        text = _escaped(text)
        if options.get("markup") is False:
            return super().render_str(text, **options)
        try:
            return super().render_str(_NO_TAG.sub(r"\1\1\[", text), **options)
        except MarkupError:  # a name with a closing tag
            return super().render_str(text, **{**options, "markup": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments, with other control characters than Rich's own as escapes."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(_escaped(segment.text), segment.style)


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    escaped = ""
    for character in text:
        # line ends, tabs and no-break spaces are of tables
        if character not in "\n\t\u00a0":
            character = printable(character)
        escaped += character
    return escaped


def experiment_of(name: str, topo: str) -> str:
    """Return the experiment that an OptionalName means. BadParameter if it is missing."""
    if not (name or topo):
        raise typer.BadParameter("Missing argument 'NAME|FILE'")
    return name or TOPOLOGY


def console(stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or 120 columns where there is none.

    FORCE_COLOR asks for colours in a pipe or a file too, which does not make it a terminal. The output of a notebook's
    cell is none either: Jupyter gives it a terminal of 80 columns, but shows no line that is drawn again, and keeps
    escape codes in the notebook's file. A kernel and what it starts have JPY_PARENT_PID in their environment.
    """
    stream = sys.stderr if stderr else sys.stdout
    is_notebook = bool(os.environ.get("JPY_PARENT_PID"))
    if stream.isatty() and not is_notebook:
        return PrintableConsole(stderr=stderr)
    is_coloured = bool(os.environ.get("FORCE_COLOR")) and not os.environ.get("NO_COLOR") and not is_notebook
    return PrintableConsole(
        width=NOTEBOOK_WIDTH if is_notebook else 120,
        stderr=stderr,
        force_terminal=False,
        force_jupyter=False,
        color_system="standard" if is_coloured else None,
    )


def plain_table(*columns: str, right: Collection[str] = (), title: str | None = None) -> FittingTable:
    """Return a table without lines; the columns in `right` are right-aligned."""
    table = FittingTable(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def count_or_zero(text: str) -> int:
    """Return the whole number that a text is, or 0 for any other text."""
    digits = text.strip()
    # int() takes digits of all scripts, and fails on thousands of them
    if digits.isascii() and digits.isdecimal() and len(digits) <= MAX_DIGITS:
        return int(digits)
    return 0

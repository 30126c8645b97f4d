"""`record`: run a training script without GPUs, and write what its ranks would send as a trace.

The script is run unmodified on the CPU by a few of its ranks (`railyard.workloads.recording`, docs/recording.md).
"""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from railyard.core.errors import BadInput, CheckFailed, nearest_multiples
from railyard.core.installation import RUN
from railyard.core.safe_files import Folder
from railyard.core.terminal import FittingTable
from railyard.core.units import format_size, parse_time
from railyard.experiments import options
from railyard.topologies.platforms import PLATFORMS
from railyard.topologies.spec import FabricSpec
from railyard.workloads.recording.chakra_files import chakra_files, reason_against
from railyard.workloads.recording.command_line import TrainingCommand, parse_command
from railyard.workloads.recording.comparison import Comparison, compare, real_request, recorded_request
from railyard.workloads.recording.iterations import Iteration
from railyard.workloads.recording.launcher import Recording, Request, record
from railyard.workloads.recording.trace_file import CommunicatorTotal, check_agreement, notes, totals, trace_data
from railyard.workloads.traces.common import MAX_BYTES
from railyard.workloads.traces.formats.recorded import FILE, encode

PURPOSE = "Compute and check, without packets"
CONTEXT_SETTINGS: Final = {"allow_interspersed_args": False, "ignore_unknown_options": False}
ROUTINGS: Final = ("real", "balanced")
CHAKRA: Final = "chakra"
EXPERIMENT: Final = "replay.yaml"
NEXT_COMMANDS: Final = {
    "lint": "which traffic needs to change rails, and of whom",
    "predict": "how long it takes on both fabrics by the formulas",
    "run": "replay it on packets, scaled to 5 s",
}
"""The next commands to type, with what each answers."""
SHOWN_RANKS: Final = 8


def command(
    words: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="python train.py ARGS, python -m MODULE, or torchrun ..."),
    ],
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            min=2,
            max=65_536,
            show_default=False,
            help="Ranks of the job. Default: as torchrun says.",
        ),
    ] = None,
    only: Annotated[
        str,
        typer.Option(
            "--only", metavar="R,...|all", show_default=False, help="Run these ranks. Default: as few as suffice."
        ),
    ] = "",
    platform: Annotated[
        str,
        typer.Option(
            "--platform",
            metavar="NAME",
            help="Platform that the job is for: it says how many GPUs a node has.",
            autocompletion=options.completion(options.platform_names),
        ),
    ] = "h100",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", show_default=False, help="Folder of the trace. Default: recordings/SCRIPT-RANKS."
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", min=0, max=1000, help="Optimizer steps to run; 0: to the script's end.")
    ] = 4,
    whole: Annotated[bool, typer.Option("--whole", help="Keep all operations, not one steady iteration.")] = False,
    limit: Annotated[str, typer.Option("--limit", metavar="TIME", help="Give up after this time.")] = "10min",
    routing: Annotated[
        str,
        typer.Option(
            "--routing", metavar="real|balanced", help="Route tokens to experts by the script's own topk, or evenly."
        ),
    ] = "real",
    fake: Annotated[
        bool, typer.Option("--fake", help="Keep no contents of large tensors: for models larger than this machine.")
    ] = False,
    real: Annotated[
        int | None,
        typer.Option(
            "--real", min=2, max=64, show_default=False, help="Also run N ranks for real over Gloo, and compare."
        ),
    ] = None,
    in_fabric: Annotated[
        str,
        typer.Option(
            "--fabric",
            metavar="DOMAINSxGPUS",
            show_default=False,
            help="Run the ranks of --real at the GPUs of such a fabric, and compare what their NICs send.",
        ),
    ] = "",
    show: Annotated[bool, typer.Option("--show", help="Print what the script prints.")] = False,
) -> int:
    """Run a training script without GPUs, and write the traffic of one iteration of all its ranks as a trace."""
    training = parse_command(words)
    if routing not in ROUTINGS:
        raise BadInput("--routing", routing, f"is not known: allowed are {', '.join(ROUTINGS)}")
    count = rank_count(training, ranks, real)
    spec = fabric_spec(in_fabric, real)
    request = Request(
        command=training,
        ranks=count,
        ranks_per_node=ranks_per_node(training, platform, count) if spec is None else spec.rails,
        platform=platform,
        only=parse_ranks(only, count),
        steps=steps,
        keep_all=whole,
        limit_s=parse_limit(limit),
        fake=fake,
        balanced=routing == "balanced",
    )
    folder = out or Path("recordings") / f"{Path(training.name).stem}-{request.ranks}"
    progress = options.console(stderr=True)

    def report(line: str) -> None:
        progress.print(f"{training.name}: {line}", highlight=False, soft_wrap=True)

    def show_line(rank: int, line: str) -> None:
        if show:
            print(f"rank {rank}: {line}", file=sys.stderr)

    recording = None
    if real is not None:
        compared_request = recorded_request(request, real)
        compared = record(compared_request, report, show_line)
        really_run = run_really(real_request(request, real), spec, report, show_line)
        print_comparison(compare(compared, really_run), options.console())
        if compared_request == request:
            recording = compared
    if recording is None:
        recording = record(request, report, show_line)
    write(folder, recording)
    print_recording(folder, recording, options.console())
    return 0


def fabric_spec(in_fabric: str, real: int | None) -> FabricSpec | None:
    """Return the fabric of `--fabric`; None without it."""
    if not in_fabric:
        return None
    if real is None:
        raise BadInput("--fabric", in_fabric, "is for a real run: give --real too")
    from railyard.experiments import real_run

    return real_run.parse_shape(in_fabric, real)


def run_really(
    request: Request, spec: FabricSpec | None, report: Callable[[str], None], show: Callable[[int, str], None]
) -> Recording:
    """Run all ranks over Gloo, at the GPUs of a fabric if there is one; print what its NICs then sent."""
    if spec is None:
        return record(request, report, show)
    # the API of fabrics takes half a second to load
    from railyard.experiments import real_run

    report(f"building a fabric of {spec.domains} x {spec.rails} GPUs")
    with real_run.gpus_of(spec, request.command) as gpus:
        before = gpus.sent_bytes()
        recording = record(request, report, show, gpus)
        after = gpus.sent_bytes()
    sent = {key: count - before[key] for key, count in after.items()}
    rows = real_run.carried(spec, recording, sent)
    options.console().print(real_run.carried_table(rows, spec.mtu))
    return recording


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print that all operations are equal. CheckFailed says which isn't."""
    if comparison.difference:
        raise CheckFailed(f"--real: {comparison.difference}")
    counts = f"{comparison.operations:,} operations of {comparison.ranks} ranks"
    console.print(f"{counts} recorded are those of a real run over Gloo", highlight=False, soft_wrap=True)


def rank_count(training: TrainingCommand, ranks: int | None, real: int | None) -> int:
    """Return the ranks of the job, from --ranks, torchrun's options or --real."""
    count = ranks or training.ranks or real
    if count is None:
        raise BadInput("--ranks", "", "is missing: how many ranks has the job?")
    if count < 2:
        raise BadInput("--ranks", count, "has no other rank to send to: 2 or more are needed")
    if training.ranks_per_node and count % training.ranks_per_node:
        # else a slip would record another job than the one of the command
        nodes = f"must be whole nodes of the {training.ranks_per_node} ranks that --nproc-per-node gives"
        nearest = nearest_multiples(count, training.ranks_per_node)
        raise BadInput("--ranks", count, f"{nodes}: {nearest}")
    return count


def ranks_per_node(training: TrainingCommand, platform: str, count: int) -> int:
    """Return the ranks of a node: as torchrun says, or as many as the platform's HB domain has GPUs."""
    if platform not in PLATFORMS:
        raise BadInput("--platform", platform, f"is not known: allowed are {', '.join(PLATFORMS)}")
    return min(training.ranks_per_node or PLATFORMS[platform].domain_gpus, count)


def parse_limit(limit: str) -> float:
    """Return the time limit, s."""
    try:
        return parse_time(limit)
    except ValueError as error:
        raise BadInput("--limit", limit, str(error)) from error


def parse_ranks(only: str, count: int) -> tuple[int, ...] | None:
    """Return the ranks of `--only`; None without it. BadInput for one that the job doesn't have."""
    if not only:
        return None
    if only == "all":
        return tuple(range(count))
    chosen: set[int] = set()
    for word in only.split(","):
        text = word.strip()
        if not (text.isascii() and text.isdigit()) or int(text) >= count:
            raise BadInput("--only", only, f"must be all, or ranks from 0 to {count - 1}, such as 0,8")
        chosen.add(int(text))
    return tuple(sorted(chosen))


def write(folder: Path, recording: Recording) -> None:
    """Write the trace, Chakra's files if it can be such, and an experiment that replays it."""
    data = trace_data(recording)
    content = encode(data)
    if len(content) > MAX_BYTES:
        allowed = f"makes a trace of {len(content):,} bytes, of which {MAX_BYTES:,} can be read: record fewer ranks"
        raise BadInput("--ranks", recording.request.ranks, allowed)
    check_agreement(content)
    try:
        with Folder(folder, make=True) as opened:
            if opened.names() and not opened.has(FILE):
                raise BadInput("--out", str(folder), "is there already and no recording: choose another folder")
            opened.write(FILE, content)
            opened.write(EXPERIMENT, experiment_text(folder.name, recording.request).encode())
            opened.remove_tree(CHAKRA)
            if not reason_against(data):
                for name, text in chakra_files(folder.name, data).items():
                    opened.write(f"{CHAKRA}/{name}", text)
    except OSError as error:
        raise BadInput("--out", str(folder), f"can't be written: {error.strerror or error}") from error


def experiment_text(name: str, request: Request) -> str:
    """Return an experiment that replays the trace on both kinds of fabrics, with a rank for each GPU."""
    domains = -(-request.ranks // request.ranks_per_node)
    shape = f"domains: {domains}, rails: {request.ranks_per_node}, platform: {request.platform}"
    return f"""# Replays the recording in this folder; written by record.
name: {json.dumps(name)}
fabrics:
  - {{kind: rail-only, {shape}}}
  - {{kind: rail-optimized, {shape}}}
workloads:
  - {{kind: trace, path: {FILE}, duration: 5s}}
"""


def print_recording(folder: Path, recording: Recording, console: Console) -> None:
    """Print how the trace was made, its communicators, and what to type next."""
    request = recording.request
    kept = "everything"
    if recording.iteration is not None:
        kept = iteration_text(recording.iteration)
    run = ", ".join(map(str, sorted(recording.programs)[:SHOWN_RANKS]))
    more = ", ..." if len(recording.programs) > SHOWN_RANKS else ""
    console.print(
        f"[bold]{request.command.name}[/]: {request.ranks} ranks, of which {len(recording.programs)} were run "
        f"({run}{more}); kept is {kept}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(communicator_table(totals(recording)))
    flops = [operation["flops"] for operation in recording.programs[min(recording.programs)] if "flops" in operation]
    console.print(f"computing of rank {min(recording.programs)}: {sum(flops):,} FLOPs", highlight=False)
    for note in notes(recording):
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    reason = reason_against(trace_data(recording))
    chakra = f"{reason}, so there are no files for it" if reason else f"for Chakra in {folder / CHAKRA}"
    console.print(f"trace: {folder / FILE}; {chakra}", highlight=False, soft_wrap=True)
    experiment = shlex.quote(str(folder / EXPERIMENT))
    for command_name, purpose in NEXT_COMMANDS.items():
        program = RUN
        if command_name != "run":
            # packets alone need root
            program = RUN.removeprefix("sudo ")
        console.print(f"  {program} {command_name} {experiment}  # {purpose}", highlight=False, soft_wrap=True)


def iteration_text(iteration: Iteration) -> str:
    """Return which optimizer steps an iteration is."""
    first = iteration.first + 1
    if first == iteration.last:
        return f"step {first} of {iteration.steps}, which repeats the one before"
    return f"steps {first} to {iteration.last} of {iteration.steps}, which repeat those before"


def communicator_table(communicators: list[CommunicatorTotal]) -> FittingTable:
    """Return a row for each kind of operation of each communicator, of the rank that sends most."""
    table = options.plain_table(
        "communicator", "groups", "ranks", "operation", "times", "bytes", "size", right=("times", "bytes", "size")
    )
    for communicator in communicators:
        first = communicator.groups[0]
        ranks = ", ".join(map(str, first[:SHOWN_RANKS])) + (", ..." if len(first) > SHOWN_RANKS else "")
        cells = [communicator.name, f"{len(communicator.groups)} of {len(first)}", ranks]
        for op, (count, size) in communicator.operations.items():
            table.add_row(*cells, op, f"{count:,}", f"{size:,}", format_size(size))
            cells = ["", "", ""]
    return table

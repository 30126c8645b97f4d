"""`search`: the fastest strategies for a model on a cluster, by Eq. 6 to 11, and where their time goes."""

import json
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.terminal import FittingTable
from railyard.experiments import options
from railyard.results.format import digits
from railyard.results.theory.iteration.iteration_time import Job, Recipe, make_cluster, taken_from_a100
from railyard.results.theory.iteration.search import weigh
from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.models.catalogue import GptModel

PURPOSE = "Compute and check, without packets"
# beyond any cluster, and still computed in seconds
MAX_COUNT: Final = 2**20
COLUMNS = (
    "", "p", "t", "d", "v", "b", "t_h x t_l", "p_h x p_l", "d_h x d_l", "GB", "iteration s",
    "stage", "TP+PP", "bubble", "DP", "Adam",
)  # fmt: skip


@options.shows_progress
def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|FILE",
            help="A GPT of the catalogue, or your own YAML file.",
            autocompletion=options.completion(options.catalogue_names),
        ),
    ],
    gpus: Annotated[int, typer.Option(min=1, max=MAX_COUNT, show_default=False, help="GPUs of the cluster.")],
    batch: Annotated[
        int, typer.Option(min=1, max=MAX_COUNT, show_default=False, help="The global batch, in sequences.")
    ],
    platform: Annotated[
        str,
        typer.Option(
            help="The platform of GPUs and links; or your own YAML file.",
            autocompletion=options.completion(options.platform_names),
        ),
    ] = "h100",
    domain_gpus: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, show_default="the platform's", help="GPUs in an HB domain.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many strategies to print.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print the strategies as JSON, times in seconds.")] = False,
) -> int:
    """Find the fastest parallelization strategies for a model on a real cluster, by the formulas. Needs no root."""
    console = options.console()
    job = make_job(model, platform, gpus, domain_gpus, batch)
    weighed = weigh(job)
    cluster = job.cluster
    times = weighed.times
    terms = (
        times.total_s, times.last_stage_compute_s, times.last_stage_network_s,
        times.bubble_compute_s + times.bubble_network_s, times.sync_s, times.optimizer_s,
    )  # fmt: skip
    fastest = list(map(int, weighed.order()[:top]))
    if as_json:
        names = ("iteration_s", "stage_s", "tp_pp_s", "bubble_s", "dp_s", "optimizer_s")
        rows: list[dict[str, Any]] = []
        for index in fastest:
            row = asdict(weighed.strategy(index))
            row["gpu_bytes"] = int(weighed.gpu_bytes[index])
            row |= {name: float(term[index]) for name, term in zip(names, terms, strict=True)}
            rows.append(row)
        print(json.dumps(rows, indent=1))
        return 0
    title = (
        f"{model}, batch {batch:,}, on {gpus:,} GPUs ({platform}) in HB domains of {cluster.domain_gpus:,}: "
        f"{min(top, len(weighed.gpu_bytes)):,} fastest of {len(weighed.gpu_bytes):,} strategies that divide and fit "
        f"{cluster.memory_bytes / 1e9:,.0f} GB"
    )
    console.print(title, style="bold", highlight=False, soft_wrap=True)
    table = FittingTable(box=None, pad_edge=False, padding=(0, 1))
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for position, index in enumerate(fastest, start=1):
        s = weighed.strategy(index)
        pairs = (
            (s.tensor_hb, s.tensor_network), (s.pipeline_hb, s.pipeline_network), (s.data_hb, s.data_network),
        )  # fmt: skip
        t, p, d = (inside * across for inside, across in pairs)
        split = (f"{inside} x {across}" for inside, across in pairs)
        seconds = (digits(float(term[index]), 4) for term in terms)
        numbers = map(str, (position, p, t, d, s.virtual_stages, s.micro_batch))
        table.add_row(*numbers, *split, f"{weighed.gpu_bytes[index] / 1e9:.1f}", *seconds)
    console.print(table)
    notes = [
        "terms of Eq. 6 in s: the last stage's computing (Eq. 9) and its TP and PP traffic (10), the bubble (7, 8), DP "
        "(11), and the optimizer; _h lies in an HB domain, _l over the network",
        "selective recomputation, sequence parallelism, 16-bit gradients; v > 1 only where m is a multiple of p, as "
        "its schedule needs",
    ]
    if missing := taken_from_a100(PLATFORMS[platform]):
        notes.append(
            f"not in the file of {PLATFORMS[platform].name}, so the A100's, as fitted on published times, with "
            f"latencies assumed: {', '.join(missing)}"
        )
    for note in notes:
        console.print(f"note: {note}", style="dim", highlight=False, soft_wrap=True)
    return 0


def make_job(model: str, platform: str, gpus: int, domain_gpus: int | None, batch: int) -> Job:
    """HB domains are the platform's if not given, or one smaller domain where there are fewer GPUs than in its."""
    loaded = GptModel.load(model)
    if platform not in PLATFORMS:
        raise BadInput("platform", platform, f"{unknown_name_hint(platform, PLATFORMS)}, or the path of a .yaml file")
    size = domain_gpus or min(gpus, PLATFORMS[platform].domain_gpus)
    if gpus % size:
        raise BadInput("gpus", gpus, f"must be a multiple of the {size:,} GPUs of an HB domain")
    return Job(loaded, Recipe(batch), make_cluster(platform, gpus, size))

"""`check`: say from a cluster's logs and files whether its communicators stay on their rails."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from railyard.core.errors import BadInput
from railyard.core.safe_files import write_file
from railyard.core.units import parse_rate
from railyard.experiments.options import Markdown, PluginFiles, console, shows_progress
from railyard.experiments.run import folder
from railyard.results.views import cluster as views
from railyard.workloads.cluster.check import RailCheck
from railyard.workloads.cluster.fabric import experiment_text
from railyard.workloads.cluster.rails import RailMap, read_rail_map
from railyard.workloads.cluster.reading import read

PURPOSE = "Compute and check, without packets"


@shows_progress
def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|FOLDER...", help="A log, NCCL's topology as XML, a trace, or a folder of such files."
        ),
    ],
    rails: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="The rail of each NIC, as YAML: {mlx5_0: 0, mlx5_1: 1}. Without it, NIC n is on rail n.",
        ),
    ] = "",
    ranks_per_host: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", show_default=False, help="Ranks of a host, for a trace that has no hosts."),
    ] = None,
    gpus_per_nic: Annotated[
        int, typer.Option(min=1, metavar="N", help="GPUs that share a NIC, where no file says which NIC a GPU takes.")
    ] = 1,
    nic_rate: Annotated[
        str,
        typer.Option(metavar="RATE", show_default=False, help="Rate of every NIC, as 400Gbit, for the expected busbw."),
    ] = "",
    markdown: Markdown = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", show_default=False, help="Write the page as HTML.")
    ] = None,
    fabric: Annotated[
        Path | None,
        typer.Option(
            "--fabric",
            metavar="FILE",
            show_default=False,
            help="Write an experiment on fabrics with the cluster's map of GPUs to rails.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the page as JSON to stdout.")] = False,
    *,
    plugin_files: PluginFiles,
) -> int:
    """Check a cluster's logs: the NIC and rail of each GPU, and the connections that cross rails.

    Exit status 1 if a connection crosses rails: on isolated rails it would wait for ever.
    """
    outputs = {
        "--markdown": (markdown, views.markdown),
        "--html": (html, views.html),
        "--fabric": (fabric, lambda check: experiment_text(check, "--fabric").encode()),
    }
    folder.check_outputs({option: path for option, (path, _) in outputs.items()})
    rail_map = read_rail_map(rails, "--rails") if rails else RailMap()
    rail_map = replace(rail_map, gpus_per_nic=gpus_per_nic)
    check = RailCheck(read(paths, ranks_per_host=ranks_per_host), rail_map, _rate(nic_rate))
    for option, (path, render) in outputs.items():
        if path:
            with folder.reporting_path_errors(option, path):
                write_file(path, render(check))
    if as_json:
        sys.stdout.write(json.dumps(views.to_dict(check), indent=2) + "\n")
    else:
        views.show(check, console())
    return int(check.verdict == "crosses")


def _rate(text: str) -> float | None:
    if not text:
        return None
    try:
        return float(parse_rate(text))
    except ValueError as error:
        raise BadInput("--nic-rate", text, str(error)) from error

"""Print what an experiment or a trace would send, its faults and first routes: the command `dry-run`."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from railyard.core.errors import BadInput
from railyard.core.memory import keep_freed_memory
from railyard.experiments import options
from railyard.experiments.measures.definition import measures_of
from railyard.experiments.options import (
    Overrides,
    PluginFiles,
    Topo,
    completion,
    experiment_of,
    plain_table,
    shows_progress,
)
from railyard.experiments.spec import loading
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.experiments.spec.parsing import parse
from railyard.topologies import from_mininet
from railyard.topologies.topology_kind import TopologyKind
from railyard.workloads.traces.common import is_trace_prefix

PURPOSE = "Compute and check, without packets"


@shows_progress
def command(
    overrides: Overrides,
    plugin_files: PluginFiles,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME|FILE|TRACE]",
            show_default=False,
            help="An experiment; or a trace of Chakra, PARAM or SimAI: a file, or a folder with a file per rank.",
            autocompletion=completion(loading.names),
        ),
    ] = "",
    topo: Topo = "",
) -> int:
    """Print what would be sent, by which GPUs and over which links, without sending it. Needs no root."""
    keep_freed_memory()
    spec = experiment(experiment_of(name, topo), overrides, topo)
    if not measures_of(spec):
        raise BadInput("NAME", spec.name, "has no workloads and no faults: what it does depends on time")
    print_all(spec, options.console())
    return 0


def experiment(name_or_file: str, overrides: Iterable[str], topo: str = "") -> ExperimentSpec:
    """Return an experiment; for a trace, one that replays its bytes unscaled on the default rail-only fabric.

    BadInput as for `run`. Overrides may change the fabric, and scale the trace.
    """
    is_file_or_folder = os.path.exists(name_or_file)  # noqa: PTH110 - no error if it is too long
    trace = "/" in name_or_file or is_file_or_folder or Path(name_or_file).suffix in (".et", ".json", ".txt")
    if name_or_file not in loading.names() and not trace and is_trace_prefix(name_or_file):
        raise BadInput("NAME", name_or_file, f"begins the names of a trace's files here: write ./{name_or_file}")
    if name_or_file in loading.names() or name_or_file.endswith((".yaml", ".yml")) or not trace:
        return loading.load_any(name_or_file, overrides, topo=topo)
    workload = {"kind": "trace", "path": name_or_file}
    fabric = from_mininet.load(topo) if topo else {"kind": "rail-only"}
    data: dict[str, Any] = {"name": "dry-run", "fabrics": [fabric], "workloads": [workload]}
    data = loading.apply(data, overrides)
    replayed = data["workloads"][0]
    if isinstance(replayed, dict) and not {"duration", "bytes_factor"} & set(replayed):
        replayed["bytes_factor"] = 1.0
    return parse(data)


def _print_topologies(spec: ExperimentSpec, console: Console) -> None:
    """Print for each fabric made of a Mininet topology which GPU is which host, and the ports of its switches."""
    for fabric in spec.gpu_fabrics:
        if not isinstance(fabric.definition, TopologyKind):
            continue
        plan = nominal_plan(fabric)
        hosts = plain_table("host", "GPU", "address", "switch", "port", right=("port",))
        for host, gpu in zip(fabric.definition.hosts, plan.gpus, strict=True):
            end = plan.network_end(gpu, "rail")
            hosts.add_row(host, gpu.name, gpu.ip, end.node, str(end.port))
        console.print(f"[bold]hosts[/] of {fabric.kind}", highlight=False)
        console.print(hosts, "")
        switches = plain_table("switch", "datapath id", "ports to other switches")
        for switch in plan.switches:
            ports = [f"{name} {port}" for name, port in plan.graph.ports[switch.name].items()]
            switches.add_row(switch.name, f"{switch.dpid:#x}", ", ".join(ports))
        console.print(f"[bold]switches[/] of {fabric.kind}", highlight=False)
        console.print(switches, "")


def print_all(spec: ExperimentSpec, console: Console) -> None:
    """Print the topologies of Mininet, and what each measure does."""
    _print_topologies(spec, console)
    for measure in measures_of(spec):
        measure.dry_run(spec, console)

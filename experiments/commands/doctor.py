"""`doctor`: what this machine can do, and how many frames a second its switches carry, measured in a sandbox."""

import json
import subprocess
from collections.abc import Mapping
from math import ceil
from typing import Annotated, Any, Final, NamedTuple

import psutil
import typer

from railyard.core import provenance
from railyard.core.config import parse_model
from railyard.core.errors import MissingRequirement
from railyard.core.host import datapath_choice, detect, require
from railyard.core.installation import PROJECT, module_command
from railyard.core.sandbox.run_queue import runs_at_once
from railyard.core.units import format_size, format_time
from railyard.experiments.options import console
from railyard.experiments.spec.hosts import MAX_HOSTS, UnderlaySpec
from railyard.topologies.measure import other_programs

PURPOSE = "Set up machines"
TIMEOUT_S: Final = 60.0


RUN_S: Final = 60.0
"""How long a run of a lab takes on two cores, at most and with the seconds between two runs."""


def command(
    students: Annotated[
        int | None, typer.Option("--class", metavar="N", min=1, max=1000, help="Say how N students share this machine.")
    ] = None,
    hosts: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            max=MAX_HOSTS,
            help="Check N machines instead: this one, and those on which `agent` runs.",
        ),
    ] = None,
    underlay: Annotated[str, typer.Option(metavar="NAME", help="With --hosts: the interface that joins them.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> int:
    """Show what this machine can do, and how to install what is missing. Exit status 3 if no experiment can run yet."""
    if hosts is not None:
        return check_hosts(hosts, underlay, as_json)

    machine = detect()
    problem = ""
    try:
        require(machine)
    except MissingRequirement as error:
        problem = str(error)
    with console(stderr=True).status("watching other programs"):
        other_load = other_programs.watch(machine.cores)
    with console(stderr=True).status("measuring the switches"):
        frames = None if problem else frames_per_s()
    shares = None
    if students is not None:
        shares = class_size(students, machine.cores, psutil.virtual_memory().total)
    if as_json:
        facts = {**provenance.machine_data(machine, frames), "runs": not problem, "problem": problem}
        facts["other_programs"] = other_load._asdict()
        if shares:
            facts["class"] = shares._asdict()
        print(json.dumps(facts, indent=1))
    else:
        console().print(f"Other programs {other_load}.", style="yellow" if other_load.disturb else "", highlight=False)
        # the last line of this output says whether runs work
        provenance.print_machine(machine, console(), frames)
        if shares:
            console().print(class_text(shares), highlight=False)
    return 3 if problem else 0


def check_hosts(hosts: int, interface: str, as_json: bool) -> int:
    """Wait for the other machines, check all of them and the network between; print a line for each, or all as JSON.

    MissingRequirement if a run could not use them, or if its times would be degraded.
    """
    # these imports take a second, and help does without them
    from railyard.experiments.machines import joining
    from railyard.results.analysis.limits import CLOCKS

    underlay = parse_model(UnderlaySpec, {"interface": interface}, "--underlay")
    machines = joining.look(hosts, underlay)
    if as_json:
        print(json.dumps(machines, indent=1))
    else:
        for number, machine in enumerate(machines, 1):
            print(f"machine {number}: {_machine_text(machine)}")
    limit_us = CLOCKS.degraded * 1e6
    if any(machine["clock_uncertainty_us"] > limit_us for machine in machines):
        remedy = "use a network in which packets take less time, or always the same"
        raise MissingRequirement(f"hosts: clocks must be known to {limit_us:.0f} us", remedy)
    return 0


def _machine_text(machine: Mapping[str, Any]) -> str:
    """Return what is known of a machine of a run on several."""
    from railyard.topologies.build.machine_part import TUNNEL_HEADERS

    place = f"{machine['name']}, {machine['address']} at {machine['interface']}"
    mtu = machine["mtu"] - TUNNEL_HEADERS
    text = f"{place}, Linux {machine['kernel']}, {machine['cores']:g} cores, fabrics with mtu {mtu} or less"
    # times are those of the first machine's clock
    if machine["clock_uncertainty_us"]:
        text += f", clock known to {machine['clock_uncertainty_us']:.0f} us"
    return text


class ClassSize(NamedTuple):
    """Share of a machine for a class: lab runs at once and per hour, and when the last of all has its first result."""

    students: int
    cores: float
    memory_bytes: float
    runs_at_once: int
    runs_per_hour: int
    last_result_s: float


def class_size(students: int, cores: float, memory_bytes: float) -> ClassSize:
    """Return how many runs of labs fit."""
    at_once = runs_at_once(cores, memory_bytes)
    last_s = ceil(students / at_once) * RUN_S
    return ClassSize(students, cores, memory_bytes, at_once, int(3600 / RUN_S * at_once), last_s)


def class_text(size: ClassSize) -> str:
    """Return it as two sentences."""
    runs = f"{size.runs_at_once} run{'s' if size.runs_at_once > 1 else ''} at once, the others queue"
    return (
        f"A class of {size.students} on {size.cores:g} cores and {format_size(size.memory_bytes, 2)}: {runs}. "
        f"{size.runs_per_hour} lab runs an hour, {size.runs_per_hour / size.students:.3g} for each student; "
        f"if all start one together, the last has its result after {format_time(size.last_result_s, 2)}."
    )


def frames_per_s() -> float | None:
    """Return the full frames a second through a switch, of shaped links; None if they could not be measured.

    Takes about 4 s.
    """
    argv = module_command("railyard.core.sandbox", *module_command("railyard.experiments.commands.doctor"))
    try:
        done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
        return float(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return None


def main() -> None:
    """Print the figure, in the sandbox."""
    from railyard.controller.processes.clients import ControllerProcess
    from railyard.topologies.measure.capacity import measure_costs

    datapath, _ = datapath_choice(detect())
    print(measure_costs(datapath, ControllerProcess()).single_frames_per_s)


if __name__ == "__main__":
    main()

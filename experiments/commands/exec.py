"""`exec`: run a command in a GPU or switch of a live run."""

import time
from typing import Annotated, Final

import typer

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.experiments.commands import ps
from railyard.experiments.live_run_options import LiveRunName, complete_node
from railyard.topologies.build.ovs import OVS_DIR
from railyard.topologies.plan import PLAN_FILE

PURPOSE = "Look into a live run"
CONTEXT_SETTINGS: Final = {"allow_interspersed_args": False, "ignore_unknown_options": True}
SWITCH_COMMANDS: Final = {"flows": "dump-flows", "groups": "dump-groups", "ports": "dump-ports"}
"""What ovs-ofctl calls the things that a switch can be asked for by one word."""
_POLL_S: Final = 0.5


def command(
    run: LiveRunName,
    gpu: Annotated[str, typer.Argument(metavar="GPU", help="d0g1, or a switch: rail1.", autocompletion=complete_node)],
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="CMD...", help="The command to run there; at a switch also flows, groups or ports."),
    ],
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, max=3600, help="How long to wait until the run's fabric is built."
        ),
    ] = 0.0,
) -> int:
    """Run a command in a GPU or switch of a live run, from another terminal."""
    chosen, nodes = _await_fabric(run, wait) if wait else ps.choose_up(run)
    if gpu not in nodes:
        raise BadInput("GPU", gpu, unknown_name_hint(gpu, nodes).replace("known", f"in {chosen.name}", 1))
    # names of hosts have a digit second: d0g1, n0
    is_switch = not gpu[1:2].isdigit()
    if is_switch and len(arguments) == 1 and arguments[0] in SWITCH_COMMANDS:
        management = f"unix:{OVS_DIR / gpu / gpu}.mgmt"
        arguments = ["ovs-ofctl", "-O", "OpenFlow13", SWITCH_COMMANDS[arguments[0]], management]
    at = str(OVS_DIR / gpu)
    # with these variables ovs-vsctl talks to this switch
    return ps.run_inside(chosen, arguments, {"OVS_RUNDIR": at, "OVS_DBDIR": at}, gpu)


def _await_fabric(run: str, within_s: float) -> tuple[ps.LiveRun, list[str]]:
    """Return a live run and its nodes once its fabric is built. BadInput if there is no such fabric in time."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            chosen, nodes = ps.choose_up(run)
            if ps.run_inside(chosen, ["test", "-e", str(PLAN_FILE)], {}) == 0:
                return chosen, nodes
            raise BadInput("RUN", run, ps.NO_FABRIC)
        except BadInput:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)

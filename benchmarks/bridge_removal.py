"""How long the kernel takes to remove a fabric's namespaces, with and without bridges and cables in them.

    sudo .venv/bin/python -m benchmarks.bridge_removal [--domains 128] [--rails 8] [--repeats 2]

No fabric of so many domains can be freed faster than its bridges alone. See "Building fabrics" in docs/measurements.md.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from benchmarks.command import run_benchmark
from benchmarks.teardown_check import wait_for_kernel
from railyard.core.errors import BadInput
from railyard.core.host import detect, require
from railyard.core.sandbox import init, launcher
from railyard.topologies.build import namespaces

CONTENTS: Final = ((False, False), (False, True), (True, False), (True, True))  # bridges, cables
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def removal_s(domains: int, rails: int, bridges: bool, cables: bool) -> float:
    """Return how long it takes to remove a namespace for each domain, GPU and rail, s.

    `bridges`: each domain has one. `cables`: each domain has one to each of its GPUs, at the bridge if there is one.
    """
    names = [f"hb{d}" for d in range(domains)] + [f"d{d}g{r}" for d in range(domains) for r in range(rails)]
    namespaces.create([*names, *(f"rail{rail}" for rail in range(rails))])
    for domain in range(domains):
        lines = ["link add bridge type bridge mcast_snooping 0", "link set bridge up"] if bridges else []
        for rail in range(rails if cables else 0):
            lines.append(f"link add port{rail} type veth peer name hb netns d{domain}g{rail}")
            lines += [f"link set port{rail} master bridge up"] if bridges else []
        command = ["ip", "-n", f"hb{domain}", "-batch", "-"]
        subprocess.run(command, input="\n".join(lines), text=True, check=True)
    begun = time.monotonic()
    namespaces.remove([*names, *(f"rail{rail}" for rail in range(rails))])
    wait_for_kernel()
    return time.monotonic() - begun


def run_in_sandbox() -> int:
    """Measure, and print a line for each removal."""
    task = init.prepare()
    domains, rails = task["domains"], task["rails"]
    try:
        init.install_signal_handlers()
        for _ in range(task["repeats"]):
            for bridges, cables in CONTENTS:
                took_s = removal_s(domains, rails, bridges, cables)
                print(
                    f"{domains + domains * rails + rails:,} namespaces, {domains * bridges:,} bridges, "
                    f"{domains * rails * cables:,} cables: freed after {took_s:.2f} s",
                    flush=True,
                )
    except init.StoppedBySignal as stopped:
        return stopped.exit_status
    return 0


@app.command()
def bridge_removal(
    domains: Annotated[int, typer.Option(help="HB domains.")] = 128,
    rails: Annotated[int, typer.Option(help="GPUs in each.")] = 8,
    repeats: Annotated[int, typer.Option(help="How often each is removed.")] = 2,
) -> None:
    """Remove a fabric's namespaces: empty, with cables, with bridges, and with both."""
    task = {"domains": domains, "rails": rails, "repeats": repeats}
    for name, value in task.items():
        if value < 1:
            raise BadInput(f"--{name}", value, "must be 1 or more")
    require(detect())
    again = [sys.executable, "-m", "benchmarks.bridge_removal", *sys.argv[1:]]
    raise typer.Exit(launcher.enter(again, task))


def main(arguments: Sequence[str] | None = None) -> int:
    return run_benchmark(app, arguments, run_in_sandbox)


if __name__ == "__main__":
    sys.exit(main())

"""Makes the stored runs of this folder anew: `sudo .venv/bin/python -m tests.data.runs.make [NAME ...]`.

Each NAME.yaml is an experiment that is run on packets; the records of its run are stored in the folder NAME. What is
drawn from records (summary.json, report.html, the timeline) is left out: tests draw it. Nothing in a stored run names
the machine that it was made on. `--from FOLDER` stores a run that has been made already.

| run         | shows                                                                                            |
|-------------|--------------------------------------------------------------------------------------------------|
| fabrics     | a workload and two faults on rail-only and rail-optimized, with and without rerouting            |
| script      | a failure script whose two faults overlap                                                        |
| steering    | three health-routing policies beside background load                                             |
| replacement | an idle GPU behind optical switches, and a spare HB domain                                       |
| training    | a training program (sums.py) without a fault, with a link that fails and with a GPU that crashes |
| multirail   | an allreduce on two rails, a training that is replayed, and a NIC that is cut                    |
| trace       | traces of Chakra and PARAM                                                                       |
| plugin      | a workload of the example plugin docs/examples/broadcast.py                                      |
"""

import argparse
import getpass
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from railyard.core.installation import PROJECT
from railyard.results import run_folder
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.manifest import with_manifest
from railyard.results.runs.records import Run

FOLDER: Final = Path(__file__).parent
STARTED: Final = "2026-01-01T00:00:00+00:00"
BINARY: Final = ".parquet"
MAX_BYTES: Final = 200_000
MACHINE: Final[dict[str, Any]] = {
    "kernel": "6.1.0",
    "cpu": "processor",
    "cores": 2,
    "root": True,
    "git_commit": "0" * 40,
    "git_changed": False,
}
"""Fixed values of provenance.json in place of the machine's."""


def names() -> list[str]:
    """Return the names of the stored runs."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def store_run(run: Run, target: Path) -> None:
    """Store the records of a run, without what names the machine."""
    run.started_utc = STARTED
    fixed = {key: value for key, value in MACHINE.items() if key in run.provenance}
    run.provenance |= fixed
    run.provenance["libraries"] = dict.fromkeys(run.provenance["libraries"], "1.0")
    run.provenance.pop("command", None)
    if target.exists():
        shutil.rmtree(target)
    target.mkdir()
    for name, data in records(run):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target.name}: {size:,} bytes")
    if size > MAX_BYTES:
        raise SystemExit(f"{target.name} takes {size:,} bytes, more than {MAX_BYTES:,}: shorten its experiment")


def records(run: Run) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file of a run's records, and of the manifest last."""
    recorded = run_folder._recorded(run, Analysis(run).judgement)
    return with_manifest((name, without_machine(name, data), rows) for name, data, rows in recorded)


def without_machine(name: str, data: bytes) -> bytes:
    """Return the content of a text file with fixed words in place of paths, of the host's name and of the user's.

    SystemExit if a binary file has one of them.
    """
    replaced = {str(PROJECT): "/railyard", platform.node(): "host", f"/home/{getpass.getuser()}": "/home/user"}
    for private, public in replaced.items():
        pattern = rb"(?<!\w)" + re.escape(private.encode()) + rb"(?!\w)"
        if not name.endswith(BINARY):
            data = re.sub(pattern, public.encode(), data)
        elif re.search(pattern, data):
            raise SystemExit(f"{name} names {private}")
    return data


def make(name: str) -> None:
    """Run an experiment on packets, and store its records."""
    with tempfile.TemporaryDirectory() as home:
        out = Path(home, "run")
        argv = [sys.executable, str(PROJECT / "run_experiment.py"), "run", str(FOLDER / f"{name}.yaml")]
        subprocess.run([*argv, "--out", str(out)], check=False)  # 1: the machine was too busy to be believed
        store_run(run_folder.load(out), FOLDER / name)


def main() -> None:
    """Make the named runs, or all."""
    parser = argparse.ArgumentParser(description="Make the stored runs of tests anew, on packets.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names()))
    parser.add_argument("--from", dest="folder", type=Path, metavar="FOLDER", help="store this run as the one NAME")
    options = parser.parse_args()
    os.environ["MPLBACKEND"] = "agg"
    if options.folder:
        store_run(run_folder.load(options.folder), FOLDER / options.names[0])
        return
    for name in options.names or names():
        make(name)


if __name__ == "__main__":
    main()

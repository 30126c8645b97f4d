"""Small experiments that are run to their end by the command line, and what they stored."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, RECOVERIES
from railyard.results import run_folder
from railyard.results.analysis.run_analysis import BELIEVABLE
from railyard.results.runs.records import Event, Run
from tests.emulation.programs import ROOT, RUN_EXPERIMENT, finished

RUN_S: Final = 240.0
EXAMPLES: Final = ROOT / "docs/examples"
FABRIC: Final[dict[str, Any]] = {"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "10Mbit"}
ALL_TO_ALL: Final = {"kind": "collective", "collective": "all-to-all", "algorithm": "direct", "duration": "200ms"}
CUT: Final = {"kind": "link-down", "target": "d0g1", "at": "500ms", "repair": "1s"}
FILES: Final = {
    "spec.yaml", "results.csv", "results.parquet", "flows.parquet", "recovery.csv", "events.jsonl", "summary.json",
    "provenance.json", "report.html", "timeline.pftrace",
}  # fmt: skip
"""Files that every run's folder has."""


def small_spec(**keys: Any) -> dict[str, Any]:
    """Return an experiment of one attempt: an all-to-all on a rail-only fabric of 2 x 2, unless `keys` change it."""
    return {"name": "small", "attempts": 1, "fabrics": [FABRIC], "workloads": [ALL_TO_ALL], **keys}


def written(spec: Mapping[str, Any], folder: Path) -> str:
    """Write a spec into a folder, and return the name of the file."""
    path = folder / f"{spec['name']}.yaml"
    path.write_text(yaml.safe_dump(dict(spec)))
    path.chmod(0o644)
    return str(path)


def run_command(experiment: Mapping[str, Any] | str, folder: Path, *options: str) -> list[str]:
    """Return the command line that runs a spec, or an experiment by its name, into `folder`/out."""
    name = experiment if isinstance(experiment, str) else written(experiment, folder)
    return [*RUN_EXPERIMENT, "run", name, "--out", str(folder / "out"), *options]


def overrides(*changes: str) -> list[str]:
    """Return the options for these KEY=VALUE."""
    return [word for change in changes for word in ("-o", change)]


@dataclass(frozen=True)
class Stored:
    """A run's folder, read as anybody would read it; `output` is what the run printed."""

    folder: Path
    output: str = ""

    @cached_property
    def run(self) -> Run:
        return run_folder.load(self.folder)

    @cached_property
    def summary(self) -> dict[str, Any]:
        return dict(json.loads(self.text("summary.json")))

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def rows(self, name: str) -> list[dict[str, str]]:
        """Return the rows of a CSV file."""
        return list(csv.DictReader(self.text(name).splitlines()))

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the objects of a file with a JSON object a line."""
        return [json.loads(line) for line in self.text(name).splitlines()]

    def events(self, source: str, what: str) -> list[Event]:
        """Return the events of a source by their name, in order."""
        return [event for event in self.run.events if (event.source, event.what) == (source, what)]

    def failed_checks(self) -> set[str]:
        return {check["name"] for check in self.summary["checks"] if not check["passed"]}

    def verdicts(self, key: str) -> dict[Any, str]:
        """Return the verdict of the last interval of each repeat, fabric or what else the key names."""
        return {interval[key]: interval["verdict"] for interval in self.summary["intervals"]}

    def assert_no_byte_is_missing(self) -> None:
        """Every flow arrived whole, between the right GPUs. How long it took is not looked at."""
        assert self.run.flows
        assert [flow for flow in self.run.flows if flow.delivered != flow.bytes] == []
        assert [check for check in self.run.bytes if check.pairs_wrong] == []

    def assert_ports_counted_every_byte(self) -> None:
        """No finding of the verdict says that ports counted other bytes than were delivered."""
        assert [reason for reason in self.summary["reasons"] if "ports counted" in reason] == []

    def assert_only_the_machine_failed(self) -> None:
        """No check failed but that of the machine's speed, which other tests beside this one may take."""
        assert self.failed_checks() <= {BELIEVABLE}, self.output

    def assert_recovered(self, faults: int) -> None:
        """Every pair that has a path left is answered after each step, and no byte is lost."""
        assert len(self.run.rows(RECOVERIES)) == faults
        assert [row for row in self.run.rows(RECOVERIES) if row.lost_bytes or row.connections_lost] == []
        checks = [check for check in self.run.rows(CONNECTIVITY_CHECKS) if check.done]
        assert checks
        assert [check.mismatches for check in checks if check.not_recovered or check.unexpected_answers] == []
        self.assert_no_byte_is_missing()


def run_experiment(
    experiment: Mapping[str, Any] | str,
    folder: Path,
    *options: str,
    plugins: Sequence[str] = (),
    within_s: float = RUN_S,
) -> Stored:
    """Run a spec, or an experiment by its name, with these plugins of docs/examples; return what it stored.

    Its exit status may be 1, as of a run that the load of the machine made invalid.
    """
    loaded = [word for plugin in plugins for word in ("--plugin", str(EXAMPLES / plugin))]
    done = finished(run_command(experiment, folder, *loaded, *options), within_s)
    stored = Stored(folder / "out", done.stdout + done.stderr)
    assert "Traceback" not in stored.output, stored.output
    assert done.returncode in (0, 1), stored.output
    assert (stored.folder / "summary.json").exists(), stored.output
    assert done.returncode == (0 if stored.summary["passed"] else 1), stored.output
    for plugin in plugins:  # a run's folder keeps its definitions
        assert (stored.folder / "plugins" / plugin).read_bytes() == (EXAMPLES / plugin).read_bytes()
    return stored

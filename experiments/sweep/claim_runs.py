"""The runs that measure claims of the papers: a sweep whose axis is the experiment, and what it says of each claim."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from railyard.core.errors import BadInput
from railyard.core.host import detect, require
from railyard.core.provenance import git_commit
from railyard.core.safe_files import Folder
from railyard.experiments.options import console
from railyard.experiments.run.folder import reporting_path_errors
from railyard.experiments.spec import loading
from railyard.experiments.sweep.driver import Driver
from railyard.experiments.sweep.folder import FAILED, SweepFolder
from railyard.experiments.sweep.local import Local
from railyard.experiments.sweep.spec import Cell, Sweep
from railyard.results.published.claims import measured
from railyard.results.published.claims.definition import Measured, Paper, PublishedClaim
from railyard.results.sources import RUNS

SWEEP: Final = "sweep"
AXIS: Final = "experiment"
"""The axis of the sweep. It is no key of an experiment: each cell is an experiment of its own."""


def run_claims(papers: Mapping[str, Paper], out: Path) -> list[str]:
    """Run what measures the claims of papers, and keep it in `out`/measured.csv; return what went wrong.

    A run that is there and valid is not run again; those of another version are named. An invalid run is not kept.
    BadInput if no claim is measured.
    """
    require(detect())
    claims: list[tuple[PublishedClaim, Measured]] = []
    for paper in papers.values():
        claims += [(claim, claim.measured) for claim in paper.claims if claim.measured]
    if not claims:
        raise BadInput("claims", ", ".join(papers), "has none that is measured on packets")
    cells = _cells([how for _, how in claims])
    sweep = Sweep("claims", {}, {AXIS: list(cells)}, tuple(cells.values()))
    with reporting_path_errors("--out", out):
        opened = Folder(out, make=True)
    with opened, SweepFolder(out / SWEEP, sweep) as folder:
        folder.claim()
        # another attempt may succeed where the machine was busy
        missing = [cell for cell in sweep.cells if folder.state(cell.name) in ("", FAILED, measured.INVALID)]
        driver = Driver(folder, Local(), console(stderr=True), folder.write_results)
        problems = list(driver.run(missing, seed=len(cells)).failed)
        measurements = measured.read(out / measured.NAME)
        for claim, how in claims:
            # one run that says nothing leaves the other claims as they are
            try:
                measurements[claim.id] = measured.measure(claim, folder.path / RUNS / cells[how.run_name].name)
            except BadInput as error:
                problems.append(str(error))
        kept = [measurements[claim.id] for claim, _ in claims if claim.id in measurements]
        note = measured.of_other_versions(kept, measured.version(git_commit()))
        if note:
            # a run of hours is kept until its folder is removed
            console(stderr=True).print(f"note: {note}; without their folders in {folder.path / RUNS} they run again")
        opened.write(measured.NAME, measured.to_csv(measurements).encode())
    return problems


def _cells(claims: Sequence[Measured]) -> dict[str, Cell]:
    """Return the run of each experiment with its overrides, by its name: several claims may be of one run."""
    cells: dict[str, Cell] = {}
    for how in claims:
        if how.run_name not in cells:
            spec = loading.make(loading.read(how.experiment), how.experiment, how.options)
            cells[how.run_name] = Cell({AXIS: how.run_name}, spec.resolved())
    return cells

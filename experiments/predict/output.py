"""Result of `predict`, of an experiment or of a figure of a paper: written to files, printed as text or as JSON."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from railyard.core.errors import BadInput
from railyard.core.safe_files import Folder
from railyard.experiments.run.folder import reporting_path_errors
from railyard.results.plots import style

# a drawing with this mark may be overwritten
PNG_METADATA: Final = {"Software": "Railyard"}
PNG_DPI: Final = 120


class Prediction(NamedTuple):
    """A row of NAME.csv, named as in results.csv. `predicted` is of one run of the phase, in s.

    `predicted_by_uplink`: with the loads of uplinks that ECMP or the policy is expected to give; None without a choice.
    `predicted` is None, and `not_compared` the reason, where no prediction applies.
    `sequential_steps`: how often a run waits for the latency of a path, which calibration measures in a run; it comes
    on top of `predicted`.
    """

    fabric: str
    policy: str
    workload: str
    phase: str
    metric: str
    predicted: float | None
    unit: str
    equation: str
    predicted_by_uplink: float | None = None
    sequential_steps: int = 0
    not_compared: str = ""


@dataclass(frozen=True)
class Predicted:
    """`rows` have a value for each of `columns`. `draw` returns the figure, `show` prints what people read.

    `details`: what JSON has beside the rows, as plain data. `status`: the exit status.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    draw: Callable[[], Figure]
    show: Callable[[Console], None]
    details: dict[str, Any] = field(default_factory=dict)
    status: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, a mapping for each row."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"name": self.name, "title": self.title, "rows": rows, **self.details}

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write NAME.csv and NAME.png, over older ones of their kind.

        BadInput if a file of that name is something else.
        """
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        table = text.getvalue().encode()
        files = {
            f"{self.name}.csv": (table.partition(b"\n")[0] + b"\n", table),
            f"{self.name}.png": (f"tEXtSoftware\0{PNG_METADATA['Software']}".encode(), self.to_png()),
        }
        with reporting_path_errors("--out", folder):
            opened = Folder(folder, make=True)
        with opened:
            for file, (mark, _) in files.items():
                path = folder / file
                with reporting_path_errors("--out", path):
                    try:
                        old = opened.read(file)
                    except IsADirectoryError:
                        allowed = "is there already and no file: move it away, or choose another --out"
                        raise BadInput("--out", str(path), allowed) from None
                if old and mark not in old:
                    allowed = "is there already and no prediction like this one, so it is left as it is"
                    raise BadInput("--out", str(path), f"{allowed}: choose another --out")
            for file, (_, content) in files.items():
                with reporting_path_errors("--out", folder / file):
                    opened.write(file, content)
        first, second = files
        return folder / first, folder / second

    def to_png(self) -> bytes:
        """Draw the figure in the common style and return it as PNG, with the mark that allows overwriting it."""
        with style.styled():
            figure = self.draw()
            figure.set_facecolor("white")
            figure.suptitle(self.title, fontweight="bold", x=0.01, ha="left")
            sink = io.BytesIO()
            figure.set_dpi(PNG_DPI)
            # not savefig, which draws twice: the first time to lay out
            FigureCanvasAgg(figure).print_png(sink, metadata=PNG_METADATA)  # type: ignore[no-untyped-call]
        return sink.getvalue()

"""Fabrics in the report: drawings, and what was built."""

from typing import Any

from railyard.results.analysis.run_analysis import Analysis
from railyard.results.measured import policies_in_turn
from railyard.results.plots import fabric as plot_fabric
from railyard.results.runs.records import FabricRun
from railyard.results.views.report import Section, section
from railyard.results.views.table import Column, Table, text


@section("fabrics")
class _Fabrics(Section):
    """What was built."""

    title = "Fabrics"
    order = 40
    template = "fabrics.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        return bool(analysis.run.fabrics)

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        fabrics = analysis.run.fabrics
        return {
            "drawings": [(fabric.label, plot_fabric.draw(fabric)) for fabric in fabrics],
            # a graph lists its cables, and has no rails
            "have_rails": any(not fabric.cables for fabric in fabrics),
            "are_small": all(map(plot_fabric.is_small, fabrics)),
            "built": _built_table(analysis),
        }

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        return {"fabrics": list(analysis.labels.values())}


def _built_table(analysis: Analysis) -> Table:
    """Return what the drawings and their captions don't show."""
    names = policies_in_turn(analysis.run)
    in_turn = " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))

    def policy(fabric: FabricRun) -> str:
        return f"{in_turn} in turn" if in_turn else fabric.policy

    columns = (
        text("fabric", "label"),
        text("policy", policy),
        text("datapath"),
        Column("switches", lambda fabric: len(fabric.switches)),
        Column("HB", "hb_bps", unit="bit/s"),
        Column("rail", "rail_bps", unit="bit/s"),
        Column("uplink", lambda fabric: fabric.uplink_bps if fabric.spines else None, unit="bit/s"),
        Column("MTU", "mtu"),
        Column("built in", "build_s", unit="s"),
        Column("down in", "stop_s", unit="s"),
    )
    return Table(columns, analysis.run.fabrics)

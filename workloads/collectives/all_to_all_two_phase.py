"""Two-phase all-to-all: HB domains first, then rails; Rail-only section IV-B, Eq. 3."""

from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import ALGORITHMS, Algorithm, Exchange, Stages, columns, shifts
from railyard.workloads.collectives.all_to_all_direct import all_to_all_direct_s
from railyard.workloads.schedule import Grid, Phase


def all_to_all_two_phase_s(pair_bytes: float, x: int, y: int, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
    """Rail-only Eq. 3, as printed: uniform all-to-all on rail-only, HB domains first, then rails."""
    forwarding = y * (x - 1) * pair_bytes / hb_bytes_per_s
    on_rails = x * (y - 1) * pair_bytes / rail_bytes_per_s
    return forwarding + on_rails


def forwarding_share(x: int, y: int, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
    """Rail-only section IV-B: what Eq. 3 adds to Eq. 2, as a share of Eq. 2.

    Where rails decide Eq. 2, it is y (x-1) C_S / (x (y-1) C_F).
    """
    # The paper's text says 8.2% and 11.2% for A100 and H100; at x = 8, y = 16 it is 7.78% and 10.37%, and the paper's
    # C_S/C_F, the limit for x = y, is 8.33% and 11.11%.
    direct = all_to_all_direct_s(1.0, x, y, hb_bytes_per_s, rail_bytes_per_s)
    return all_to_all_two_phase_s(1.0, x, y, hb_bytes_per_s, rail_bytes_per_s) / direct - 1


@ALGORITHMS.register("all-to-all-two-phase")
class TwoPhaseAllToAll(Algorithm):
    """D bytes for every pair of the grid, by way of the GPU of the sender's domain that has the receiver's rank."""

    collective = "all-to-all"
    algorithm = "two-phase"
    equation = "Eq. 3"
    formula = "y·(x−1)·D/C_F + x·(y−1)·D/C_S"

    def stages(self, phase: Phase, grid: Grid) -> Stages:
        """Exchange in the HB domains, then on the rails."""
        # First G(d, g) sends G(d, h) the data for rank h of all y domains. Then G(d, h) sends G(e, h) the data that the
        # x GPUs of its domain have for that GPU.
        yield [Exchange(shifts(domain), phase.data_bytes * len(grid)) for domain in grid]
        yield [Exchange(shifts(rail), phase.data_bytes * len(grid[0])) for rail in columns(grid)]

    def closed_form_s(self, phase: Phase, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
        return all_to_all_two_phase_s(phase.data_bytes, phase.x, phase.y, hb_bytes_per_s, rail_bytes_per_s)

    def is_default(self, fabric: FabricSpec) -> bool:
        """Return whether a fabric joins its rails by HB domains only."""
        return not fabric.definition.joins_rails

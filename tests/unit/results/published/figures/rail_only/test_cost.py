"""The papers' claims on cost, power and the AllGather bound, compared with computed values."""

from fractions import Fraction

import pytest
from matplotlib.figure import Figure as Drawing

from railyard.results.published.catalogue import FIGURES, Claim, Figure
from railyard.results.published.figures.rail_only import allgather, table2
from railyard.results.theory import equations as bound

# Rail-only Table II: GPUs, radix; switches rail-optimized, rail-only; transceivers; savings in percent.
TABLE_2 = [
    (32768, 64, 2560, 1536, 196608, 131072, 38, 37),
    (32768, 128, 1280, 256, 196608, 65536, 77, 75),
    (32768, 256, 384, 128, 131072, 65536, 62, 60),
    (65536, 64, 5120, 3072, 393216, 262144, 38, 37),
    (65536, 128, 2560, 1536, 393216, 262144, 38, 37),
    (65536, 256, 1280, 256, 393216, 131072, 77, 75),
]


def as_printed(percent: float) -> int:
    """The nearest whole percent; the paper has 37 for 37.5."""
    return -int(-(percent - 0.5) // 1)


@pytest.mark.parametrize("row", TABLE_2, ids=lambda row: f"{row[0]}-{row[1]}")
def test_table_2_row(row: tuple[int, ...]) -> None:
    both = table2.pair(next(each for each in table2.printed() if tuple(each) == row))
    assert (both.wide.switches, both.narrow.switches) == row[2:4]
    assert (both.wide.transceivers, both.narrow.transceivers) == row[4:6]
    assert (as_printed(both.cost_saving_pct), as_printed(both.power_saving_pct)) == row[6:]


def test_the_table_that_claims_are_made_of_is_the_papers() -> None:
    assert [tuple(row) for row in table2.printed()] == TABLE_2
    assert table2.PRINTED.read_text().startswith("# Rail-only Table II")


def test_only_domains_of_256_give_all_rows() -> None:
    fits = [table2.fitting_domains(row) for row in table2.printed()]
    assert set.intersection(*map(set, fits)) == {table2.DOMAIN}
    assert [(min(sizes), max(sizes)) for sizes in fits] == [
        (16, 256), (256, 32768), (128, 32768), (32, 512), (8, 256), (256, 65536),
    ]  # fmt: skip


def test_table_2_agrees_everywhere() -> None:
    made = FIGURES["table2"]()
    assert len(made.claims) == 36
    assert [claim.what for claim in made.claims if not claim.agrees] == []


def claims(made: Figure) -> dict[tuple[str, float], Claim]:
    return {(claim.what, claim.published): claim for claim in made.claims}


def test_fig_1_agrees_or_says_why_not() -> None:
    made = claims(FIGURES["fig1"]())
    agreeing = [published for (_, published), claim in made.items() if claim.agrees]
    assert agreeing == [300, 38, 77, 37, 75, 234]
    assert all(claim.agrees or claim.note for claim in made.values())


def test_notes_explain_the_differing_figures() -> None:
    """Each sum by hand: GPUs times ports, and transceivers, a GPU."""
    made = claims(FIGURES["fig1"]())
    assert made["65,536 GPUs, Spine-free", 6].ours == pytest.approx(65_536 * (5 * 18 + 6 * 9) / 1e6)
    assert f"{65_536 * 5 * 18 / 1e6:.2f} MW" in made["65,536 GPUs, Spine-free", 6].note
    assert made["30,000 GPUs, Rail-only", 200].ours == pytest.approx(30_000 * (5 * 694 + 6 * 199) / 1e6, rel=1e-3)
    assert f"{30_000 * (7 * 694 + 8 * 199) / 1e6:.1f} million" in made["30,000 GPUs, Rail-only", 200].note
    assert f"{32_768 * (5 * 18 + 6 * 9) / 1024e3:.2f} in units" in made["30,000 GPUs, Rail-only", 4.6].note


def test_fig_6_layers_add_up_to_table_2() -> None:
    rows = FIGURES["fig6"]().rows
    for gpus, radix, wide, narrow, tr_wide, tr_narrow, _, _ in TABLE_2:
        for design, switches, transceivers in (("rail-optimized", wide, tr_wide), ("rail-only", narrow, tr_narrow)):
            layers = [row for row in rows if row[:3] == (gpus, radix, design)]
            assert sum(int(row[5] or 0) for row in layers) == switches
            assert sum(int(row[6] or 0) for row in layers) == transceivers
            assert layers[0][4] == "rail"


def test_the_texts_three_quarters_are_contradicted_by_its_table() -> None:
    switches = [claim for claim in FIGURES["fig6"]().claims if claim.unit == "%"]
    assert [(claim.published, claim.ours, claim.agrees) for claim in switches] == [(75, 60, False)] * 2


def test_radix_64_takes_a_tier_more_and_saves_least() -> None:
    tiers = [claim.ours for claim in FIGURES["fig6"]().claims if claim.unit == "tiers"]
    assert tiers == [3, 2, 3, 2]
    (least,) = [claim for claim in FIGURES["fig6"]().claims if claim.unit == "of 2 clusters"]
    assert least.agrees
    assert least.ours == 2


def test_the_conjecture_fails_only_below_its_ratio() -> None:
    found = allgather.counterexamples(allgather.search())
    assert found[8, 2, Fraction(9)] == Fraction(15, 10)
    assert (8, 8, Fraction(9)) not in found
    assert all(ratio < bound.least_ratio(x, y) for x, y, ratio in found)
    assert [claim.agrees for claim in FIGURES["allgather"]().claims] == [False, True, True, False, True, False, True]


def test_allgather_rows_have_small_grids_and_platforms() -> None:
    columns = allgather.COLUMNS
    rows = [dict(zip(columns, row, strict=True)) for row in FIGURES["allgather"]().rows]
    h100 = next(row for row in rows if row["platform"] == "h100" and row["y"] == 8)
    assert h100["eq12"] == h100["eq13"] == h100["conjectured"] == 7
    assert h100["eq1"] == pytest.approx(7 + 8 * 7 / 9)  # (y-1)/C_S + y(x-1)/C_F
    assert h100["cut"] == "1 / 0 / 8"
    assert h100["pipelined_over_eq13"] == pytest.approx((7 + 7 / 9 / 4) / 7)  # 4 pieces of each share
    assert {row["platform"] for row in rows} == {"–", *allgather.SHOWN}


@pytest.mark.parametrize("name", ["fig1", "fig6", "table2", "allgather"])
def test_rows_fill_their_columns_and_axes_have_labels(name: str) -> None:
    made = FIGURES[name]()  # computed once for all tests
    assert {len(row) for row in made.rows} == {len(made.columns)}
    drawing = Drawing()
    made.draw(drawing)
    assert all(axes.get_xlabel() for axes in drawing.axes)
    assert all(axes.has_data() for axes in drawing.axes)

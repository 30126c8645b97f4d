"""Rail-only Fig. 2 to 5 and the all-to-all's slowdown: each claim of the paper, and what ours comes to."""

import pytest

from railyard.results.plots import style
from railyard.results.published.catalogue import Claim, Figure
from railyard.results.published.figures.rail_only import fig2, fig3, fig4, fig5, rail_only_text, slowdown

MODULES = {"fig2": fig2, "fig3": fig3, "fig4": fig4, "fig5": fig5, "slowdown": slowdown}
MODULES["text"] = rail_only_text


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    return {name: module.figure() for name, module in MODULES.items()}


def claim(figure: Figure, words: str) -> Claim:
    (found,) = [claim for claim in figure.claims if words in claim.what]
    return found


def column(figure: Figure, name: str, **where: object) -> list[object]:
    """The cells of a column in the rows that have the given cells."""
    at = {key: figure.columns.index(key) for key in figure.columns}
    return [row[at[name]] for row in figure.rows if all(row[at[key]] == value for key, value in where.items())]


@pytest.mark.parametrize("name", MODULES)
def test_figure_has_complete_rows_and_axes(figures: dict[str, Figure], name: str) -> None:
    figure = figures[name]
    assert figure.source.startswith("Rail-only")
    assert all(len(row) == len(figure.columns) for row in figure.rows)
    assert all(claim.agrees or claim.note for claim in figure.claims)
    drawn = style.new_figure(*figure.inches)
    figure.draw(drawn)
    assert all(axes.get_xlabel() or not axes.get_title() for axes in drawn.axes)


@pytest.mark.parametrize(
    ("name", "words", "ours"),
    [
        ("fig2", "TP's share", 95.33),
        ("fig2", "pairs without traffic", 99.74),
        ("fig2", "pairs with TP traffic, gpt-529.6b", 100 / 2519),
        ("fig2", "pairs with TP traffic, gpt-1008b", 100 / 3071),
        ("fig2", "of two kinds", 0),
        ("fig3", "neighbouring stages (PP)", 6.7108864),
        ("fig3", "replicas (DP)", 6.5539),
        ("fig3", "across rails", 0),
        ("fig4", "AllReduce volume in HB domains", 100 * 62 / 63),
        ("fig4", "AllReduce volume on rails", 100 / 63),
        ("fig4", "across rails", 0),
        ("text", "MoE-1.3B: FLOPs", 1 + 6 * 128 * 12 / (72 * 24 * 2048 * 7 / 6)),
        ("text", "another rail", 100 * 15 * 7 / 127),
        ("text", "a100: sums", 100 * (3 / 2039) / (2 / 25)),
    ],
)
def test_agreeing_claims_have_our_value(figures: dict[str, Figure], name: str, words: str, ours: float) -> None:
    found = claim(figures[name], words)
    assert found.agrees
    assert found.ours == pytest.approx(ours, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "words", "ours", "why"),
    [
        ("fig2", "pairs with TP traffic, gpt-145.6b", 100 / 1535, "from 2,501 GPUs on"),
        ("fig2", "pairs with TP traffic, gpt-310.1b", 100 / 1919, "they are 0.020%"),
        ("fig3", "pair in an HB domain", 751.6, "of two 376 GB"),
        ("fig4", "DP on NICs", 0.1206, "t=2, 32 bits: 0.83%"),
        ("fig5", "all-to-all", 30.56, "output embedding: 28.3%"),
        ("slowdown", "a100: C_S/C_F", 100 / 12, "200 over 2400 Gbit/s"),
        ("slowdown", "h100: C_S/C_F", 100 / 9, "400 over 3600 Gbit/s"),
        ("slowdown", "a100: Eq. 3 over Eq. 2", 7.778, "x = y"),
        ("slowdown", "h100: Eq. 3 over Eq. 2", 10.37, "x = y"),
        ("slowdown", "a100: throughput", 100 * (1 - 1 / 1.00882582), "only a part of the step"),
        ("text", "load of a link", 7 / 8, "at full bisection"),
        ("text", "K = 8, clusters", 4, "of 1,024 and 2,048 GPUs"),
    ],
)
def test_differing_claims_have_our_value_and_a_reason(
    figures: dict[str, Figure], name: str, words: str, ours: float, why: str
) -> None:
    found = claim(figures[name], words)
    assert not found.agrees
    assert found.ours == pytest.approx(ours, rel=1e-3)
    assert why in found.note


def test_pairs_with_and_without_traffic_are_all_pairs(figures: dict[str, Figure]) -> None:
    for name, gpus in (("gpt-145.6b", 1536), ("gpt-1008b", 3072)):
        counts = column(figures["fig2"], "pairs", model=name)
        assert sum(int(str(count)) for count in counts) == gpus * (gpus - 1)


@pytest.mark.parametrize("name", ["fig3", "fig4", "fig5"])
def test_shares_of_a_count_add_up(figures: dict[str, Figure], name: str) -> None:
    for count in set(column(figures[name], "count")):
        shares = column(figures[name], "share_pct", count=count)
        assert sum(float(str(share)) for share in shares) == pytest.approx(100)


def test_gh200_has_data_parallelism_of_32_by_2_whatever_t() -> None:
    for tensor in fig4.TENSORS:
        groups = fig4.layout(tensor).data_groups
        domains = [sorted(int(gpu) // 256 for gpu in group) for group in groups]
        assert all(len(set(d)) == 2 and d[31] < d[32] and d[0] == d[31] for d in domains)


def test_equal_grids_have_the_nominal_slowdown(figures: dict[str, Figure]) -> None:
    """Rail-only IV-B: y(x-1) and x(y-1) are the same where x = y."""
    assert column(figures["slowdown"], "slowdown_pct", platform="a100", x=8, y=8) == [pytest.approx(100 / 12)]
    (two,) = column(figures["slowdown"], "slowdown_pct", platform="a100", x=8, y=2)
    assert float(str(two)) == pytest.approx(14.583, abs=1e-3)
    assert column(figures["slowdown"], "slowdown_pct", platform="gh200", x=256, y=256) == [pytest.approx(100 / 9)]

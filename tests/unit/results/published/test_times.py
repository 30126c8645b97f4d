"""Fig. 7 to 10, both tables of times and the 530B's data parallelism, against what the papers state."""

import re
import subprocess
import sys
import time

import pytest
from matplotlib.patches import Rectangle

from railyard.results.plots.style import new_figure
from railyard.results.published.catalogue import FIGURES
from railyard.results.published.figures.rail_only import fig8
from railyard.results.published.iteration_figures import OTHERS

TIMES = ("fig7", "fig8", "fig9", "fig10", "korthikanti", "megatron", "dp530b", "nezha")


@pytest.mark.parametrize("name", TIMES)
def test_every_row_has_a_cell_for_each_column(name: str) -> None:
    figure = FIGURES[name]()
    assert all(len(row) == len(figure.columns) for row in figure.rows)


def test_megatron_claims_are_met() -> None:
    claims = FIGURES["megatron"]().claims
    assert claims
    assert [claim for claim in claims if not claim.agrees] == []


def test_fig_10_is_off_only_beside_the_ideal() -> None:
    """Within 3 points and half of the distance from the ideal: 2.3% below it is no match of 1%."""
    *claims, falling, by_size = FIGURES["fig10"]().claims
    assert falling.agrees
    assert by_size.agrees
    assert [abs(claim.ours - claim.published) < 3 for claim in claims] == [True] * 4
    assert [claim.published for claim in claims if not claim.agrees] == [99]
    assert claims[3].note.startswith("2.3% below the ideal")


def test_korthikanti_misses_its_bars_only_with_shapes_left_out() -> None:
    """A row may be held out, with its shape fitted in the other table, and misses the stricter claim.

    The model of `search` meets all bars.
    """
    claims = FIGURES["korthikanti"]().claims
    apart = [(claim.what.partition(",")[0], claim.stated) for claim in claims if not claim.agrees]
    assert apart == [("mean error", "our bar"), ("worst error", "our bar"), ("mean error", "calculon's")]
    assert all("left out" in claim.what and "extrapolation" in claim.note for claim in claims if not claim.agrees)
    assert len(claims) == 15


def test_fig_8_agrees_but_for_a_multiple_and_a_plateau() -> None:
    """A claim agrees within 3 points and half of itself: 2.8% is no match of 0.9%."""
    claims = {claim.published: claim for claim in FIGURES["fig8"]().claims[:5]}
    assert [claim.published for claim in claims.values() if not claim.agrees] == [0.9, 0]
    assert "3.1 times the paper's" in claims[0.9].note
    assert "1.4 times the paper's" in claims[4.1].note
    assert "times" not in claims[43.3].note + claims[30.6].note
    assert claims[0].what.startswith("GPT-1T, K=32 to 256")
    longer, gain, marginal, *scaling = FIGURES["fig8"]().claims[5:]
    assert longer.ours == 1
    assert "GPT-146B on 65,536 GPUs with K=65,536 by 0.3%" in longer.note
    assert gain.agrees
    assert marginal.ours == 1
    assert marginal.note.startswith("GPT-1T on 16,384 GPUs above K=512")
    assert [claim.what for claim in scaling if not claim.agrees] == ["FLOPs of a layer with twice the sequence"]


def test_fig_7_claims_errors_of_constants_fitted_on_other_shapes() -> None:
    """The paper's 1.8% of GPT-1T isn't met: 5.1%, against 1.7% as a fitted row."""
    claims = {claim.published: claim for claim in FIGURES["fig7"]().claims}
    assert not claims[1.8].agrees
    assert claims[1.8].ours == pytest.approx(5.1, abs=0.1)
    assert claims[10.8].agrees
    assert not claims[3].agrees, "GPT-1T is further off than GPT-22B"


WHOLE_ROUNDS = OTHERS[0].name


def percents(note: str) -> list[float]:
    """Return the numbers of a note: `reading: 2.8%, 5.5%`."""
    return [float(number) for number in re.findall(r"(-?[\d.]+)%", note.partition(": ")[2])]


def test_only_three_numbers_depend_on_unlimited_interleaving() -> None:
    """As the notes and docs say: the other claims of Fig. 8 to 10 differ by less than a point."""
    for name, depends in (("fig8", 1), ("fig9", 0), ("fig10", 2)):
        figure = FIGURES[name]()
        (note,) = [note for note in figure.notes if note.startswith(WHOLE_ROUNDS)]
        apart = [
            claim for claim, other in zip(figure.claims, percents(note), strict=False) if abs(claim.ours - other) > 1
        ]
        assert len(apart) == depends, name


def test_fig_7_tells_fitted_bars_and_keeps_its_legend_inside() -> None:
    drawn = new_figure(9.0, 4.5)
    FIGURES["fig7"]().draw(drawn)
    (axes,) = drawn.axes
    legend = axes.get_legend()
    assert legend is not None
    labels = [text.get_text().partition(",")[0] for text in legend.get_texts()]
    assert labels == ["measured", "predicted", "predicted"]
    assert drawn.legends == []
    hatched = [bar.get_x() for bar in axes.patches if isinstance(bar, Rectangle) and bar.get_hatch()]
    assert [round(x) for x in hatched] == [0, 3], "GPT-22B and GPT-1T"


def test_fig_10_says_where_its_axis_starts() -> None:
    drawn = new_figure(10.0, 4.6)
    FIGURES["fig10"]().draw(drawn)
    right = drawn.axes[1]
    assert right.get_ylim()[0] == 60
    assert right.get_ylabel().endswith("axis from 60%")


def test_fig_9_differs_in_one_claim_and_says_why() -> None:
    """K = 8 gains 4 points less from network bandwidth than stated; with less batch for each GPU, all four agree."""
    figure = FIGURES["fig9"]()
    numbers = figure.claims[:4]
    comparisons = figure.claims[4:]
    apart = [claim for claim in numbers if not claim.agrees]
    assert [(claim.published, round(claim.published - claim.ours)) for claim in apart] == [(35.9, 4)]
    assert all("doesn't state" in claim.note for claim in apart)
    assert all("32,768 GPUs and batch 1,024 meet all four" in claim.note for claim in apart)
    assert [claim.agrees for claim in comparisons] == [True, False, True, True]
    near = next(note for note in figure.notes if note.startswith("as printed, 32,768 GPUs, batch 1,024"))
    assert percents(near) == pytest.approx([8.0, 35.9, 13.3, 8.0], abs=3)


@pytest.mark.parametrize("name", ["fig8", "fig9", "fig10"])
def test_every_other_reading_is_shown(name: str) -> None:
    figure = FIGURES[name]()
    shown = {row[0] for row in figure.rows}
    for reading in OTHERS:
        assert reading.name in shown
        assert any(note.startswith(reading.name) for note in figure.notes)


def test_fig_8_takes_less_than_five_seconds() -> None:
    """Every K for both models on three clusters, and nine other readings: about half a second on two cores."""
    started = time.process_time()
    figure = fig8.figure()  # FIGURES computes one only once
    assert time.process_time() - started < 5
    assert len([row for row in figure.rows if row[0] == "as printed"]) == 2 * (15 + 16 + 17)


def test_small_batches_need_interleaving_without_whole_rounds() -> None:
    """The finding in the notes: with Megatron-LM's rule, K = 8 at batch 256 stands 25 points above the 65% stated."""
    rows = {(row[0], row[1], row[2]): row[4] for row in FIGURES["fig10"]().rows}
    ours, ruled = rows["as printed", 8, 256], rows[WHOLE_ROUNDS, 8, 256]
    assert isinstance(ours, float)
    assert isinstance(ruled, float)
    assert abs(ours - 65) < 3
    assert ruled > 88


def test_eq_11_explains_a_fifth_of_the_530b_s_data_parallelism() -> None:
    """39.15 s against 37.83 s measured; 0.27 s by Eq. 11 in 16 bits, 0.53 s in 32, to the two digits published."""
    sixteen, thirty_two = FIGURES["dp530b"]().claims
    assert sixteen.published == thirty_two.published == pytest.approx(1.32)
    assert sixteen.ours == pytest.approx(0.27, abs=0.01)
    assert thirty_two.ours == pytest.approx(0.53, abs=0.01)
    assert "gap" in sixteen.note


def test_descriptions_are_read_without_matplotlib() -> None:
    code = """
import sys
from railyard.results.published.catalogue import FIGURES, describe
print([describe(name) for name in FIGURES][1:3])
print(FIGURES.names())
assert "matplotlib" not in sys.modules
"""
    message = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "530B" in message
    assert "'fig2', 'fig3', 'fig4', 'fig5', 'fig6', 'fig7', 'fig8', 'fig9', 'fig10'" in message


def test_nezha_claims_disagree_only_where_noted_in_the_docs() -> None:
    apart = [claim.what for claim in FIGURES["nezha"]().claims if not claim.agrees]
    noted = re.compile(
        r"slicing|mptcp|^64 MB, equal$|^tcp\+glex, 4 nodes: mrib|(over|of) mrib|most of|threshold"
        r"|over that on (4|one rail)|^128 KB, .* on TCP alone"
    )
    assert list(filter(noted.search, apart)) == apart
    assert len(apart) == 30

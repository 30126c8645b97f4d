"""The order of passes in a 1F1B pipeline, plain and interleaved."""

from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.pipeline import Pass, next_pass, one_forward_one_backward


def test_1f1b_is_megatrons() -> None:
    """Narayanan et al. 2021, Fig. 4 top: four stages, eight micro-batches."""
    words = [
        "".join(f"{'F' if s.forward else 'B'}{s.micro_batch + 1}" for s in one_forward_one_backward(i, 4, 8))
        for i in (0, 3)
    ]
    assert words[0] == "F1F2F3F4B1F5B2F6B3F7B4F8B5B6B7B8"
    assert words[1] == "F1B1F2B2F3B3F4B4F5B5F6B6F7B7F8B8"


def test_interleaved_takes_micro_batches_in_groups_of_p() -> None:
    """Narayanan et al. 2021, Fig. 4 bottom: four stages, two chunks each; the first stage's warm-up."""
    order = one_forward_one_backward(0, 4, 8, 2)
    forward = [(s.chunk, s.micro_batch + 1) for s in order if s.forward]
    assert forward[:8] == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2), (1, 3), (1, 4)]
    assert [s.forward for s in order].index(False) == 11  # ten to fill the pipeline, and one before the first backward
    assert order[11] == Pass(False, 1, 0)


@given(p=st.integers(1, 4), groups=st.integers(1, 3), v=st.integers(1, 3))
def test_every_pass_comes_once_and_has_a_place_to_go(p: int, groups: int, v: int) -> None:
    m = p * groups
    everything = {Pass(f, c, b) for f in (True, False) for c in range(v) for b in range(m)}
    handed_on = 0
    for stage in range(p):
        order = one_forward_one_backward(stage, p, m, v)
        assert len(order) == len(everything)
        assert set(order) == everything
        handed_on += sum(next_pass(stage, p, v, step) is not None for step in order)
    assert handed_on == (2 * m * (p * v - 1) if p > 1 else 0)

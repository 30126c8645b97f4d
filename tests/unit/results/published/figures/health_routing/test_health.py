"""Health routing's claims over scores, in cases whose answer is plain."""

import pytest

from railyard.controller.health.policy import Scores
from railyard.results.published.figures.health_routing.health import healthier_by_rdr


@pytest.mark.parametrize(
    ("domains", "count"),
    [((1, 1), 1), ((100, 100), 0), ((1, 100), 0), ((100, 1), 0)],
)
def test_rdr_is_best_where_both_ends_domains_are_loaded(domains: tuple[int, int], count: int) -> None:
    """With idle rails dr or rd is as good as any path if one of the domains is idle."""
    assert healthier_by_rdr([Scores(rails=(100,) * 4, domains=domains)]) == count

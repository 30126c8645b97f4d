"""Defaults of comparisons, apart from the numerical libraries that compare: the help of `compare` shows them."""

from typing import Final

LIMIT: Final = 0.02  # of a change that is none: what medians of unchanged runs differ by
CONFIDENCE: Final = 0.95  # that no verdict of a comparison is wrong by chance

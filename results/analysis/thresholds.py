"""Defaults of comparisons, apart from the numerical libraries that compare: the help of `compare` shows them."""

from typing import Final

# medians of unchanged runs differ by as much: a smaller change is none
LIMIT: Final = 0.02
# that no verdict of a comparison is wrong by chance
CONFIDENCE: Final = 0.95

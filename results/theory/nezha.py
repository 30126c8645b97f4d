"""Numbers that Nezha states about allreduces over several rails: times, gains, thresholds and limits.

Every number is stated in the paper's text or tables: where a plot shows more without numbers, nothing is read from it.
"""

from typing import Final

KB: Final = 1024
MB: Final = 1024 * KB
# Nezha 5.2.1: small-scale data are 2 KB to 128 KB, large-scale 512 KB to 64 MB
SMALL: Final = 128 * KB
LARGE: Final = 512 * KB
LARGEST: Final = 64 * MB

TABLE_1: Final[dict[int, dict[str, float]]] = {
    1 * KB: {"single:sharp": 9e-6, "single:tcp": 982e-6, "equal": 987e-6, "99/1": 984e-6, "1/99": 991e-6,
             "slicing": 1002e-6},
    8 * MB: {"single:sharp": 22140e-6, "single:tcp": 37137e-6, "equal": 21265e-6, "99/1": 37141e-6, "1/99": 23911e-6,
             "slicing": 31013e-6},
    64 * MB: {"single:sharp": 181484e-6, "single:tcp": 316323e-6, "equal": 178373e-6, "99/1": 314913e-6,
              "1/99": 188137e-6, "slicing": 257135e-6},
}  # fmt: skip
"""Table 1: seconds on 4 nodes, TCP and SHARP, by policy (x/y: percents to TCP and to SHARP)."""

GAINS: Final[dict[tuple[str, int, str], float]] = {
    ("tcp+tcp", 4, "nezha"): 1.84,
    ("tcp+tcp", 4, "mrib"): 1.84,
    ("tcp+tcp", 4, "mptcp"): 1.58,
    ("tcp+tcp", 8, "nezha"): 1.87,
    ("tcp+tcp", 8, "mrib"): 1.87,
    ("tcp+tcp", 8, "mptcp"): 1.50,
    ("tcp+sharp", 4, "nezha"): 1.52,
    ("tcp+glex", 4, "nezha"): 1.46,
    ("tcp+sharp", 8, "nezha"): 1.63,
    ("tcp+glex", 8, "nezha"): 1.47,
    ("tcp+glex", 4, "mptcp"): 1.08,
    ("tcp+glex", 4, "mrib"): 1.08,
}
"""5.2.1 and 5.2.2: the most throughput over the better single rail, of large data, by rails, nodes and policy."""

THRESHOLDS: Final[dict[tuple[str, int], int]] = {("tcp+tcp", 4): 256 * KB, ("tcp+tcp", 8): 128 * KB}
"""5.2.1: up to this size Nezha uses one rail."""
MEAN_RAIL_TIME_SPREAD: Final = 0.093  # 5.3.2: the average scheduling error
CONVERGENCE_OPERATIONS: Final = 100  # 4.3: operations within which the coefficients converge

TRAINING_GAINS: Final[dict[tuple[str, str, int, str], tuple[float, bool]]] = {
    ("alexnet batch 32", "tcp+tcp", 4, "single"): (319.0 / 215.7, False),  # Fig. 16, as the next three
    ("alexnet batch 64", "tcp+tcp", 4, "single"): (612.5 / 426.6, False),
    ("vgg-11 batch 32", "tcp+tcp", 4, "single"): (154.8 / 114.8, False),
    ("vgg-11 batch 64", "tcp+tcp", 4, "single"): (303.7 / 253.2, False),
    ("vgg-11 batch 64", "tcp+tcp", 4, "gloo"): (1.199, False),  # 5.3, as the rest
    ("vgg-11 batch 64", "tcp+tcp", 8, "gloo"): (1.504, False),
    ("alexnet batch 32", "tcp+glex", 8, "single"): (1.116, True),
    ("vgg-11 batch 32", "tcp+glex", 8, "single"): (1.111, True),
    ("alexnet batch 32", "tcp+sharp", 8, "single"): (1.201, True),
    ("vgg-11 batch 32", "tcp+sharp", 8, "single"): (1.201, True),
}
"""By training, rails, nodes and baseline: training speed over the baseline's, and if the text says `up to`."""

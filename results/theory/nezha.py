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
LARGE_SIZES: Final = tuple(LARGE << power for power in range(8))

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
GAIN_SIZES: Final[dict[tuple[str, int, str], tuple[int, ...]]] = {
    ("tcp+glex", 4, "mptcp"): (2 * MB,),
    ("tcp+glex", 4, "mrib"): (32 * MB, 64 * MB),
}
"""5.2.2: the sizes of the gains that the text states for some sizes alone."""
GAINS_OVER_POLICIES: Final[dict[tuple[str, int, str], float]] = {
    ("tcp+sharp", 4, "mrib"): 1.41,
    ("tcp+sharp", 4, "mptcp"): 1.80,
    ("tcp+tcp", 8, "mptcp"): 1.74,
}
"""5.2.2 and the abstract: the most throughput of Nezha over another policy's, of large data."""
STATIC_LATENCY_RATIO: Final = 1.09  # 4.3: of static shares, over shares that follow the load
LIKE_RAILS: Final = (1.58, 1.87)  # 1: throughput of two TCP rails over that of one
OVER_GLOO: Final = (1.7, 4.3)  # abstract: latency of Gloo over that of Nezha

THRESHOLDS: Final[dict[tuple[str, int], int]] = {("tcp+tcp", 4): 256 * KB, ("tcp+tcp", 8): 128 * KB}
"""5.2.1: up to this size Nezha uses one rail."""
MEAN_RAIL_TIME_SPREAD: Final = 0.093  # 5.3.2: the average scheduling error
CONVERGENCE_OPERATIONS: Final = 100  # 4.3: operations within which the coefficients converge

TAU: Final = 5  # 2.3.1: the ratio of efficiencies above which nothing is split
EXISTING_SHARE_PCT: Final = 41.2  # 1: of the rails' bandwidth that existing systems reach
EXISTING_SHARE_SPREAD_PCT: Final = 9.7
GPT2_MEMORY_PCT: Final = 35  # 2.1.1: of a V100's memory that the gradients of GPT-2 take
SHARP_GAIN: Final = (1.8, 3.2)  # 2.2.2: throughput of SHARP for tensors of medium size, over that without it
RATES_AT_32_KB: Final[dict[str, float]] = {"sharp": 0.73e9, "tcp": 0.06e9}
"""2.3.1: bytes per second of an allreduce of 32 KB on one rail."""
GLEX_FASTER_FROM: Final = (64 * KB, 256 * KB)
"""2.3.1: GLEX has the most throughput from the first size on, SHARP the least latency below the second."""
NIC_RATE: Final = 900_000 * KB  # 4.4, Fig. 8: bytes per second of each NIC, two TCP rails
ONE_PERCENT_S: Final = (1024e-6, 8192e-6)  # 5.3.2: of TCP with 1% of the data of AlexNet's allreduces
SLICING_EXTRA_PCT: Final = (18.0, 27.0)  # 4.3: latency that slices add
LONGER_BESIDE_ANOTHER_PCT: Final[dict[tuple[str, int], float]] = {
    ("glex", 4): 17.5,
    ("sharp", 4): 15.6,
    ("tcp", 4): 9.7,
    ("glex", 8): 15.7,
    ("sharp", 8): 13.4,
    ("tcp", 8): 8.3,
}
"""5.3.2: percent by which a rail takes longer for 99% of the data while another one has 1%, by rail and nodes."""

CORES_OF_A_RAIL: Final = 26  # 2.3.2: cores for each rail, of 52
LOSS_WITH_26_CORES_PCT: Final[dict[str, float]] = {"sharp": 42.0, "glex": 35.0, "tcp": 0.0}
"""2.3.2: throughput that a rail loses with 26 cores, of its peak. TCP reaches its peak with them."""
GLEX_AND_TCP_PCT: Final = 68.0  # 2.3.2: both with 26 cores, of the sum of their peaks

FIG_16: Final[dict[tuple[str, int, int], tuple[float, float, float, float, float]]] = {
    ("alexnet", 32, 4): (215.7, 319.0, 376.8, 420.3, 516.5),
    ("alexnet", 64, 4): (426.6, 612.5, 753.2, 846.3, 1075.5),
    ("vgg-11", 32, 4): (114.8, 154.8, 179.2, 207.0, 242.3),
    ("vgg-11", 64, 4): (253.2, 303.7, 362.5, 395.7, 508.5),
    ("alexnet", 32, 6): (283.9, 415.4, 462.1, 559.7, 731.7),
    ("alexnet", 64, 6): (569.3, 835.7, 929.7, 1132.4, 1471.9),
    ("vgg-11", 32, 6): (147.2, 215.9, 244.5, 286.5, 366.5),
    ("vgg-11", 64, 6): (292.1, 412.7, 456.7, 569.4, 722.4),
}
"""Fig. 16: samples/s by model, batch and nodes, of `FIG_16_COLUMNS`."""
FIG_16_COLUMNS: Final = ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2))
"""GPUs and NICs of a node."""
SECOND_NIC_GAIN: Final = 1.3  # 5.3.3: with two GPUs a node, over one NIC ("over 30%")
THIRD_NIC_GAIN: Final = 1.1  # 5.3.3: on 6 nodes with one GPU, over two NICs ("around 10%")

GPT_GAIN_128: Final = 2.38  # 5.3.4, Fig. 18: with two rails, ring, 128 nodes
GPT_GAIN_ABSTRACT: Final = 2.36  # abstract and introduction, on 128 nodes; the paper doesn't say in which figure
GPT_BATCHES: Final[dict[int, int]] = {16: 128, 32: 512, 64: 512, 128: 512}
"""Table 3: global batch by nodes. All have TP 2 and PP 8, so DP is an eighth of the nodes."""
GPT_PIPELINE: Final = 8


def _fig_16_gains() -> dict[tuple[str, str, int, str], tuple[float, bool]]:
    """Return the gains of two and three NICs over one, with one GPU a node."""
    gains: dict[tuple[str, str, int, str], tuple[float, bool]] = {}
    for (model, batch, nodes), (one_nic, two_nics, three_nics, *_) in FIG_16.items():
        training = f"{model} batch {batch}"
        gains[training, "tcp+tcp", nodes, "single"] = (two_nics / one_nic, False)
        gains[training, "tcp+tcp+tcp", nodes, "single"] = (three_nics / one_nic, False)
    return gains


TRAINING_GAINS: Final[dict[tuple[str, str, int, str], tuple[float, bool]]] = {
    **_fig_16_gains(),
    ("vgg-11 batch 64", "tcp+tcp", 4, "gloo"): (1.199, False),  # 5.3, as the rest
    ("vgg-11 batch 64", "tcp+tcp", 8, "gloo"): (1.504, False),
    ("alexnet batch 32", "tcp+tcp", 8, "nccl"): (1.701, False),
    ("vgg-11 batch 32", "tcp+tcp", 8, "nccl"): (1.521, False),
    ("alexnet batch 32", "tcp+glex", 8, "single"): (1.116, True),
    ("vgg-11 batch 32", "tcp+glex", 8, "single"): (1.111, True),
    ("alexnet batch 32", "tcp+sharp", 8, "single"): (1.201, True),
    ("vgg-11 batch 32", "tcp+sharp", 8, "single"): (1.201, True),
}
"""By training, rails, nodes and baseline: training speed over the baseline's, and if the text says `up to`."""


def gain_tolerance(gain: float, most: float) -> float:
    """Return by how much another gain may differ and still agree: `most`, and at most half of what is gained.

    Twice the gain is another claim, also where it is small: 1.08 and 1.20 times don't agree.

    gain: times; most: of it
    """
    return min(most, (gain - 1) / 2)

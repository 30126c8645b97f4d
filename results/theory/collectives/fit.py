"""Constants of collectives by platform, from published outputs of nccl-tests or from a user's own.

Half of the rows of measured.csv set the constants, the other half tests them: least squares on relative errors, and no
constant is negative. What rows of a platform don't tell is the A100's, in proportion to the rates of links: how latency
and bandwidth depend on the size of the group, where only one size was measured.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from typing import Final

import numpy as np

from railyard.core.installation import data_file
from railyard.results.theory.collectives.times import (
    CollectiveConstants,
    FloatArray,
    Links,
    Operation,
    collective_s,
    link_times,
)
from railyard.topologies.platforms import PLATFORMS, Platform

ROWS: Final = data_file("results/theory/collectives/measured.csv")
REFERENCE: Final = "a100"
"""The platform of which several group sizes were measured."""
SIMILAR: Final = {
    "h200": "h100", "h800": "h100", "gh200": "h100",
    "b300": "b200", "gb200-nvl72": "b200", "gb300-nvl72": "b200",
}  # fmt: skip
"""Platforms whose links are those of another one: they have its constants, fitted on the rows of all of them.

Platforms without rows take the A100's.
"""
RAIL_EFFICIENCY: Final = 0.94
"""Where rows don't tell: 46 to 48 GB/s of a NIC's 50, as NCCL's authors expect (nccl-tests, issue 290)."""
LARGE: Final = 2**26
"""From this size on, bytes, latency hardly counts, and intervals are narrower."""
LEAST_ROWS: Final = 5  # for an interval of a platform's own
COARSE_PERCENT: Final = 8
"""Steps in which the efficiency of trees is first searched."""
LEAST_OF_REGIME: Final = 2
"""Rows that show each of NCCL's algorithms, trees and rings, at least."""
QUANTILE: Final = 0.9
"""Of the errors of held-out rows: the half width of an interval."""


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """A row of nccl-tests. `use`: fit or held out. `x` GPUs in each of `y` HB domains."""

    source: str
    platform: str
    operation: Operation
    x: int
    y: int
    size: int
    seconds: float
    use: str = "fit"


@cache
def measured() -> tuple[MeasuredCollective, ...]:
    """Return every row of measured.csv, in its order."""
    lines = [line for line in ROWS.read_text().splitlines() if not line.startswith("#")]
    rows: list[MeasuredCollective] = []
    for row in csv.DictReader(lines):
        gpus = int(row["gpus"])
        x = min(gpus, int(row["domain_gpus"]))
        seconds = float(row["time_us"]) * 1e-6
        rows.append(
            MeasuredCollective(
                source=row["source"],
                platform=row["platform"],
                operation="all-reduce",
                x=x,
                y=gpus // x,
                size=int(row["bytes"]),
                seconds=seconds,
                use=row["use"],
            )
        )
    return tuple(rows)


def links_of(platform: Platform) -> Links:
    """Return the rates of a platform's links in bytes/s."""
    return Links(platform.hb_bps / 8, platform.rail_bps / 8)


def constants_from(platform: str) -> str:
    """Return the platform whose rows the constants of a platform come from."""
    if platform in SIMILAR:
        return SIMILAR[platform]
    if platform in {row.platform for row in measured()}:
        return platform
    return REFERENCE


def _network_of(platform: str) -> str:
    """Return the platform whose rows of several HB domains a platform's constants of rails come from.

    Its own, where it has any: latency between servers is that of the network, not of the GPUs.
    """
    if any(row.platform == platform and row.y > 1 for row in measured()):
        return platform
    return constants_from(platform)


@cache
def platform_constants(platform: str) -> CollectiveConstants:
    """Return the constants of a platform, by its name or its file's path, from the rows of measured.csv."""
    source = constants_from(platform)
    network = _network_of(platform)
    rows: list[MeasuredCollective] = []
    for row in measured():
        in_domain = row.y == 1 and constants_from(row.platform) == source
        between_domains = row.y > 1 and row.platform == network
        if row.use == "fit" and (in_domain or between_domains):
            rows.append(row)
    if source != REFERENCE:
        return fit(rows, links_of(PLATFORMS[source]), platform_constants(REFERENCE))
    constants = _reference(rows, links_of(PLATFORMS[source]))
    if platform != REFERENCE:
        constants = _without_trees(constants)
    return constants


def fit(rows: Sequence[MeasuredCollective], links: Links, reference: CollectiveConstants) -> CollectiveConstants:
    """Return the constants of rows. What they don't tell is that of `reference`.

    Rows of single HB domains set latency, efficiency and pipelining there; rows of several set those of rails.
    """
    constants = reference
    single: list[MeasuredCollective] = []
    several: list[MeasuredCollective] = []
    for row in rows:
        if row.y == 1:
            single.append(row)
        else:
            several.append(row)
    if single:
        constants = _with_domain(single, links, constants)
    if several:
        constants = _with_rails(several, links, _without_trees(constants))
    return constants


def _reference(rows: Sequence[MeasuredCollective], links: Links) -> CollectiveConstants:
    """Return the constants of rows with several sizes of groups."""
    single = [row for row in rows if row.y == 1]
    hb_s, _, steps = _columns(single, links)
    _, gpus, _ = _sizes(single)
    # a start, steps, bytes, bytes in small groups, and pipelining
    columns = [np.ones_like(hb_s), steps, hb_s, hb_s / gpus, np.sqrt(hb_s)]
    base_s, step_s, per_byte, per_byte_small, pipeline = _least_squares(columns, _seconds(single))
    constants = CollectiveConstants(
        base_s=base_s,
        step_s=step_s,
        hb_efficiency=1 / per_byte,
        ring_efficiency=1 / per_byte,
        small_group=per_byte_small / per_byte,
        hb_pipeline=pipeline,
        rail_base_s=0.0,
        rail_efficiency=RAIL_EFFICIENCY,
        rail_pipeline=0.0,
    )
    several = [row for row in rows if row.y > 1]
    return _with_trees(several, links, _with_rails(several, links, constants))


def _with_domain(
    rows: Sequence[MeasuredCollective], links: Links, constants: CollectiveConstants
) -> CollectiveConstants:
    """Return constants with latency, efficiency and pipelining of single HB domains as in the rows."""
    hb_s, _, steps = _columns(rows, links)
    _, gpus, _ = _sizes(rows)
    # one group size doesn't tell a start from a step: the reference says in which proportion they are
    latency_s = constants.base_s + constants.step_s * steps
    columns = [latency_s, hb_s * (1 + constants.small_group / gpus), np.sqrt(hb_s)]
    latency, per_byte, pipeline = _least_squares(columns, _seconds(rows))
    return replace(
        constants,
        base_s=latency * constants.base_s,
        step_s=latency * constants.step_s,
        hb_efficiency=1 / per_byte,
        hb_pipeline=pipeline,
    )


def _with_rails(
    rows: Sequence[MeasuredCollective], links: Links, constants: CollectiveConstants
) -> CollectiveConstants:
    """Return constants with latency and pipelining of rails as in the rows, and the efficiency, if they tell it.

    They do where NICs take longer than the HB domain. Then another efficiency at least halves the squared errors.
    """
    # without this margin, a few odd rows would be taken for slow NICs, which cost far more with many domains
    best = _with_efficiency(constants.rail_efficiency, rows, links, constants)
    least_error = _squared_error(rows, links, best) / 2
    for percent in range(100, 9, -1):
        trial = _with_efficiency(percent / 100, rows, links, constants)
        error = _squared_error(rows, links, trial)
        if error < least_error:
            best = trial
            least_error = error
    return best


def _without_trees(constants: CollectiveConstants) -> CollectiveConstants:
    """Return constants of a network on which all AllReduces run by rings."""
    return replace(constants, tree_bytes=0.0, tree_efficiency=1.0)


def _with_trees(
    rows: Sequence[MeasuredCollective], links: Links, constants: CollectiveConstants
) -> CollectiveConstants:
    """Return constants with the sizes that NCCL sends by trees and their efficiency, if the rows tell them.

    They do where two efficiencies, below and from some row's size on, at least halve the squared errors again. NCCL
    chooses by its own model of both algorithms (NVIDIA/nccl, src/graph/tuning.cc), in which trees between A100s have
    less bandwidth than rings. Later GPUs hardly have that limit.
    """
    sizes = sorted({row.size for row in rows})
    # a regime of fewer rows would be noise
    first_by_ring = sizes[LEAST_OF_REGIME : 1 - LEAST_OF_REGIME]
    highest = round(100 * constants.rail_efficiency)
    coarse = product(first_by_ring, range(highest, 9, -COARSE_PERCENT))
    best = _best_trees(coarse, rows, links, constants)
    percent = round(100 * best.tree_efficiency)
    fine = product([best.tree_bytes], range(percent + COARSE_PERCENT, percent - COARSE_PERCENT, -1))
    best = _best_trees(fine, rows, links, constants)
    if _squared_error(rows, links, best) < _squared_error(rows, links, constants) / 2:
        return best
    return constants


def _best_trees(
    choices: Iterable[tuple[float, int]],
    rows: Sequence[MeasuredCollective],
    links: Links,
    constants: CollectiveConstants,
) -> CollectiveConstants:
    """Return constants with the choice of tree_bytes and percents of NICs that leaves the least squared errors."""

    def trial(choice: tuple[float, int]) -> CollectiveConstants:
        tree_bytes, percent = choice
        trees = replace(constants, tree_bytes=float(tree_bytes), tree_efficiency=percent / 100)
        return _with_efficiency(constants.rail_efficiency, rows, links, trees)

    return min(map(trial, choices), key=lambda constants: _squared_error(rows, links, constants))


def _with_efficiency(
    share: float, rows: Sequence[MeasuredCollective], links: Links, constants: CollectiveConstants
) -> CollectiveConstants:
    """Return constants with an efficiency of rails, and the latency and pipelining that the rows then have."""
    start = replace(constants, rail_efficiency=share, rail_base_s=0.0, rail_pipeline=0.0)
    _, rail_s, _ = _columns(rows, links)
    _, _, domains = _sizes(rows)
    columns = [np.log2(domains), np.sqrt(rail_s)]
    rail_base_s, rail_pipeline = _least_squares(columns, _seconds(rows), _predicted(rows, links, start))
    return replace(start, rail_base_s=rail_base_s, rail_pipeline=rail_pipeline)


def _squared_error(rows: Sequence[MeasuredCollective], links: Links, constants: CollectiveConstants) -> float:
    return float(np.sum(constants_error(rows, links, constants) ** 2))


def constants_error(rows: Sequence[MeasuredCollective], links: Links, constants: CollectiveConstants) -> FloatArray:
    """Return predicted over measured - 1 of rows of one operation."""
    return _predicted(rows, links, constants) / _seconds(rows) - 1


def errors(rows: Iterable[MeasuredCollective]) -> FloatArray:
    """Return predicted over measured - 1 of rows, each with the constants of its platform."""
    differences = [
        constants_error([row], links_of(PLATFORMS[row.platform]), platform_constants(row.platform)) for row in rows
    ]
    return np.concatenate(differences)


@cache
def interval_share(platform: str, several: bool, large: bool) -> float:
    """Return the half width of the interval of predictions, as a share: `QUANTILE` of the rows not fitted lie within.

    Rows of the platform that the constants come from count, and of those that take the same; where these are too few,
    those of all platforms.

    Args:
        platform: its name, or its file's path.
        several: the group has several HB domains.
        large: of sizes from `LARGE` on.
    """
    tested = [row for row in measured() if row.use != "fit" and (row.y > 1) == several and (row.size >= LARGE) == large]
    source = constants_from(platform)
    similar = [row for row in tested if constants_from(row.platform) == source]
    if platform in (source, *SIMILAR) and len(similar) >= LEAST_ROWS:
        tested = similar
    return float(np.quantile(np.abs(errors(tested)), QUANTILE))


def _seconds(rows: Sequence[MeasuredCollective]) -> FloatArray:
    return np.array([row.seconds for row in rows])


def _columns(rows: Sequence[MeasuredCollective], links: Links) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the seconds of each row's bytes on both tiers at full rate, and the steps of its ring."""
    ideal = link_times(rows[0].operation, *_sizes(rows), links)
    return ideal.hb_s, ideal.rail_s, ideal.steps


def _predicted(rows: Sequence[MeasuredCollective], links: Links, constants: CollectiveConstants) -> FloatArray:
    """Return the seconds of rows, which are all of one operation."""
    return collective_s(rows[0].operation, *_sizes(rows), links, constants)


def _sizes(rows: Sequence[MeasuredCollective]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return size, x and y of each row."""
    size, x, y = np.array([(row.size, row.x, row.y) for row in rows], dtype=np.float64).T
    return size, x, y


def _least_squares(
    columns: Sequence[FloatArray], seconds: FloatArray, known_s: FloatArray | float = 0.0
) -> list[float]:
    """Return the factors of columns, none negative, whose sum and `known_s` has the smallest relative errors.

    Every choice of columns is tried: there are five at most.
    """
    # relative errors: otherwise the largest messages alone would count
    matrix = np.array(columns).T / seconds[:, None]
    target = 1 - known_s / seconds
    # factors of latency and of bytes differ by ten orders of magnitude
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    best = np.zeros(len(columns))
    best_error = float(np.sum(np.square(target)))
    for count in range(1, len(columns) + 1):
        for chosen in combinations(range(len(columns)), count):
            part = matrix[:, chosen] / scale[list(chosen)]
            factors, *_ = np.linalg.lstsq(part, np.broadcast_to(target, len(seconds)), rcond=None)
            error = float(np.sum((part @ factors - target) ** 2))
            if (factors >= 0).all() and error < best_error * (1 - 1e-12):
                best = np.zeros(len(columns))
                best[list(chosen)] = factors / scale[list(chosen)]
                best_error = error
    return list(map(float, best))

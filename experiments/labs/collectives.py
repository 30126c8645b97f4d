"""Lab 2: times of collectives by the formulas of Rail-only (Eq. 1, 11), and how a measurement differs from them."""

import random
from typing import Any

from railyard.core.units import format_rate
from railyard.experiments.labs.definition import LABS, Lab, LabRun, Mistake, Question, Setting
from railyard.results.runs.records import Measurement
from railyard.workloads.collectives.all_gather import all_gather_s
from railyard.workloads.collectives.all_reduce import all_reduce_s

HB_FACTOR = 12
"""C_F over C_S of the platform a100."""


def gather_s(s: Setting, rank_gpus: float = 0, hb_factor: float = HB_FACTOR) -> float:
    """Return the time of the hierarchical AllGather (Eq. 1) on the variant's grid, or on a grid of other width, s."""
    rail = s["rail_mbit"] * 1e6 / 8
    return float(all_gather_s(s["gather_mb"] * 1e6, rank_gpus or s["rails"], s["domains"], rail * hb_factor, rail))


def measured(s: Setting, workload: str) -> Measurement:
    """Return the completion time of a workload in the student's run."""
    return s.measurement("measured", workload=workload)


def deviation(s: Setting, workload: str) -> float:
    """Return by which share a measured time differs from its prediction."""
    row = measured(s, workload)
    return abs(row.value / (row.predicted or row.value) - 1)


@LABS.register("collectives")
class Collectives(Lab):
    """Compute, measure, compare."""

    number = 2
    title = "Collectives and their formulas"
    minutes = 30
    plan_45 = (
        "Compute (20 minutes, on paper, then with `predict`), then all groups start the run, which queues on a shared "
        "machine. Collect the ratios of all groups on the board: the spread is the point. Discussion as homework."
    )
    plan_90 = (
        "Everything, then the run again with half and with twice the bytes, to see which deviation is a share of the "
        "time and which is a constant per step."
    )

    def values(self, choose: random.Random) -> dict[str, Any]:
        """Choose a grid, a rate and sizes."""
        domains, rails = choose.choice([(3, 2), (4, 2), (3, 3), (4, 3)])
        rail_mbit = choose.choice([40, 50, 80])
        return {
            "domains": domains,
            "rails": rails,
            "rail_mbit": rail_mbit,
            "rail_rate": format_rate(rail_mbit * 1_000_000),
            "hb_rate": format_rate(HB_FACTOR * rail_mbit * 1_000_000),
            "reduce_mb": choose.choice([2, 3, 4]),
            "gather_mb": choose.choice([6, 8, 12]),
        }

    text = """
In a ring AllReduce of y GPUs every GPU sends 2(y-1) messages, each a y-th of the data: y-1 to add up, y-1 to hand out.
A hierarchical AllGather of D bytes first runs on the rails, then in the HB domains (Rail-only, Eq. 1):

    T = (y-1) D / (x y C_S) + (x-1) D / (x C_F)

with x GPUs in an HB domain, y domains, and the rates C_S of a rail and C_F of an HB link in bytes per second.

## Compute

Your fabric has {{ domains }} domains of {{ rails }} GPUs, rails of {{ rail_rate }}/s and HB links of {{ hb_rate }}/s.
Answer on paper:

{{ ask.ring_mb }}

{{ ask.messages }}

{{ ask.ring_s }}

{{ ask.hb_share }}

{{ ask.half_hb }}

`predict` computes the same formulas, with the rate that is left for data when headers are taken off:

```sh
{{ unprivileged }} predict collectives --out {{ folder }} \\
    -o domains={{ domains }} -o rails={{ rails }} -o rail_rate={{ rail_rate }} -o hb_rate={{ hb_rate }} \\
    -o 'workloads=[{kind: collective, collective: all-reduce, algorithm: ring, bytes: {{ reduce_mb }}MB}]'
```

```text
all-reduce-ring  all-reduce-ring  …  1  twice Eq. 1, one row or column
```

## Measure

```sh
{{ run.measured }}
```

```sh
cut -d, -f3-8,18,19 {{ folder }}/measured/results.csv
```

```text
workload,phase,metric,value,unit,predicted,predicted_with_latency,verdict
all-reduce-ring,,completion_time,…,s,…
```

`value` is measured, `predicted` is by the formula, and `predicted_with_latency` adds the latency of each message that
waits for another one, as it was measured when the links were calibrated.

{{ ask.ratio }}

{{ ask.worst }}

{{ ask.latency }}
"""
    runs = (
        LabRun(
            "measured",
            "collectives",
            (
                "domains={{ domains }}",
                "rails={{ rails }}",
                "rail_rate={{ rail_rate }}",
                "hb_rate={{ hb_rate }}",
                "workloads=[{kind: collective, collective: all-reduce, algorithm: ring, bytes: {{ reduce_mb }}MB}, "
                "{kind: collective, collective: all-gather, algorithm: hierarchical, bytes: {{ gather_mb }}MB}]",
                "repeats=1",
            ),
        ),
    )
    questions = (
        Question(
            "ring_mb",
            "A ring AllReduce of {{ reduce_mb }} MB among the {{ domains }} GPUs of a rail: how many MB "
            "does each GPU send?",
            lambda s: 2 * (s["domains"] - 1) / s["domains"] * s["reduce_mb"],
            "Each of the messages is one part of the data: how many parts are there, and how many messages?",
            "2(y-1)/y of the data: nearly twice the data, however many GPUs there are.",
            unit="MB",
            mistakes=(
                Mistake(
                    lambda s: (s["domains"] - 1) / s["domains"] * s["reduce_mb"], "This is one half, ReduceScatter"
                ),
                Mistake(lambda s: 2.0 * s["reduce_mb"], "This is the limit for very many GPUs"),
            ),
        ),
        Question(
            "messages",
            "How many messages in a row does each GPU send in it?",
            lambda s: 2 * (s["domains"] - 1),
            "y-1 to add up, and as many to hand out",
            "2(y-1). Each waits for the one before it, so the latency counts as often.",
            within=0,
            mistakes=(
                Mistake(lambda s: s["domains"] - 1, "This is one half of the ring"),
                Mistake(lambda s: 2 * s["domains"], "A GPU sends nothing to itself"),
            ),
        ),
        Question(
            "ring_s",
            "How many seconds does it take at the rail's rate?",
            lambda s: all_reduce_s(s["reduce_mb"] * 1e6, 1, s["domains"], 1.0, s["rail_mbit"] * 1e6 / 8),
            "Divide the bytes that a GPU sends by the bytes per second of its rail; a byte has 8 bits",
            "All GPUs send at the same time, so the time is that of one GPU's bytes.",
            within=0.03,
            unit="s",
            mistakes=(
                Mistake(lambda s: gather_s(s), "This is the AllGather"),
                Mistake(
                    lambda s: all_reduce_s(s["reduce_mb"] * 1e6, 1, s["domains"], 1.0, s["rail_mbit"] * 1e6),
                    "Rates are in bits per second",
                ),
            ),
        ),
        Question(
            "hb_share",
            "In the hierarchical AllGather of {{ gather_mb }} MB, which share of the time, in percent, is "
            "the HB domains'?",
            lambda s: 100 * (1 - gather_s(s, hb_factor=1e12) / gather_s(s)),
            "It is the second term of Eq. 1 over the sum of both",
            "x(y-1) and so on cancel: the share doesn't depend on the bytes.",
            within=0.03,
            unit="%",
            mistakes=(
                Mistake(lambda s: 100 * gather_s(s, hb_factor=1e12) / gather_s(s), "This is the share of the rails"),
            ),
        ),
        Question(
            "half_hb",
            "If HB links were half as fast, how many percent longer would this AllGather take?",
            lambda s: 100 * (gather_s(s, hb_factor=HB_FACTOR / 2) / gather_s(s) - 1),
            "Only one of the two terms doubles",
            "The HB domains' term doubles, so the time grows by that term's share.",
            within=0.03,
            unit="%",
            mistakes=(Mistake(lambda s: 100.0, "This would be so if no byte crossed the rails"),),
        ),
        Question(
            "ratio",
            "In your run, what is measured over predicted time of the AllReduce?",
            lambda s: measured(s, "all-reduce-ring").ratio or 0.0,
            "Divide `value` by `predicted` in the line `all-reduce-ring` with the metric completion_time",
            "Typically 1.00 to 1.05; above by the latency of the messages in a row and by waiting for a core.",
            0.01,
        ),
        Question(
            "worst",
            "Which of the two collectives differs more from its prediction, `all-reduce` or `all-gather`?",
            lambda s: max(
                ("all-reduce", "all-gather"),
                key=lambda name: deviation(s, {"all-reduce": "all-reduce-ring"}.get(name, "all-gather-hierarchical")),
            ),
            "Compare how far each `value` is from its `predicted`, as a share",
            "It is a measurement: mostly the one with more messages in a row for the time that it takes.",
        ),
        Question(
            "latency",
            "By how many ms does latency lengthen the AllReduce, according to `predicted_with_latency`?",
            lambda s: (
                1000 * ((row := measured(s, "all-reduce-ring")).predicted_with_latency or 0.0)
                - 1000 * (row.predicted or 0.0)
            ),
            "Subtract `predicted` from `predicted_with_latency`; both are in seconds",
            "The latency of a rail times the messages in a row: a constant, whatever the size of the data.",
            within=0.05,
            unit="ms",
        ),
    )
    discuss = (
        (
            "Why does a ring AllReduce of 1,000 GPUs take hardly longer than one of 10, and when does that end?",
            "The bytes per GPU approach twice the data. But the messages in a row grow with the GPUs, and each "
            "becomes smaller, so from some size on latency decides: trees and hierarchies are for that.",
        ),
        (
            "Your ratio is above 1. Which causes can you tell apart by a second run with twice the bytes?",
            "Latency is a constant number of milliseconds, so its share halves; a rate that is too low is "
            "the same share.",
        ),
    )

"""Lab 3: all-to-all without spines: what forwarding in HB domains costs, on paper and by prediction."""

import random
from typing import Any

from railyard.experiments.labs.definition import LABS, Lab, LabRun, Mistake, Question, Setting
from railyard.workloads.collectives.all_to_all_two_phase import forwarding_share


def cost(domains: int, rails: int, hb_factor: float = 12.0) -> float:
    """Return by how many percent Eq. 3 exceeds Eq. 2 on a grid, for C_F = `hb_factor` C_S."""
    return 100 * forwarding_share(rails, domains, hb_factor, 1.0)


def measured_s(s: Setting, kind: str, phase: str = "moe-a2a") -> float:
    """Return the time of a phase in the student's run, s; by default of its all-to-alls, of the step if it is ""."""
    metric = "completion_time" if phase else "iteration_time"
    return s.measurement("measured", fabric=kind, phase=phase, metric=metric).value


@LABS.register("moe")
class Moe(Lab):
    """Compute what a mixture of experts costs on rail-only."""

    number = 3
    title = "What mixtures of experts cost without spines"
    minutes = 35
    plan_45 = (
        "Compute together on the board (20 minutes), then predict; discuss why a step slows down less than "
        "its all-to-all. Dense models as homework."
    )
    plan_90 = (
        "Everything; then each group takes another grid of 16 or 12 GPUs, and predicts its cost. Put all "
        "points into one diagram. Close with: for which cluster would you buy spines?"
    )

    def values(self, choose: random.Random) -> dict[str, Any]:
        """Choose a small grid and a large one."""
        domains, rails = choose.choice([(3, 4), (4, 3), (2, 4), (4, 2)])
        big_domains, big_rails = choose.choice([(16, 8), (32, 8), (64, 4), (12, 8)])
        return {"domains": domains, "rails": rails, "big_domains": big_domains, "big_rails": big_rails}

    text = """
In a mixture of experts (MoE) every GPU sends to every other. On rail-only, traffic between rails passes the HB domain
first. With x GPUs in a domain, y domains, and the rates C_S of a rail and C_F of an HB link, all-to-all takes longer by

    y (x-1) C_S / (x (y-1) C_F)

as a share of its time on rail-optimized (Rail-only, section IV-B, Eq. 3 over Eq. 2). For the A100, C_F = 12 C_S; for
the H100, C_F = 9 C_S.

## Compute

{{ ask.cost }}

{{ ask.cost_big }}

{{ ask.cost_h100 }}

{{ ask.worse_grid }}

{{ ask.cross }}

## Predict

```sh
{{ unprivileged }} predict moe-slowdown --out {{ folder }} -o domains={{ domains }} -o rails={{ rails }}
```

```text
moe-1.3b-128  moe-a2a  … s  … s  … s  … s  …  Eq. 3, Eq.
```

Compare the columns of rail-only and rail-optimized with your result for each platform. `iteration` is the whole step,
in which experts compute and gradients are added up, too.

{{ ask.whole_step }}

## Measure

The same step with a tenth of the bytes, and little computing, on packets. Uplinks are used in turn, so that no flows
collide on the spines:

```sh
{{ run.measured }}
```

```sh
cut -d, -f1,4-8,19 {{ folder }}/measured/results.csv
```

```text
rail-only,moe-a2a,completion_time
rail-optimized,moe-a2a,completion_time
```

{{ ask.measured_a2a }}

{{ ask.measured_cost }}

{{ ask.measured_step }}

## And dense models?

```sh
{{ unprivileged }} dry-run dense-cross-rail -o domains={{ domains }} -o rails={{ rails }}
```

```text
pp PP
crossing rails: none
```

{{ ask.dense }}

{{ ask.rail_group }}
"""
    runs = (
        LabRun(
            "measured",
            "moe-slowdown",
            (
                "fabrics=[{kind: rail-only, domains: {{ domains }}, rails: {{ rails }}, rail_rate: 10Mbit, "
                "hb_rate: 120Mbit}, {kind: rail-optimized, domains: {{ domains }}, rails: {{ rails }}, "
                "rail_rate: 10Mbit, hb_rate: 120Mbit, policy: round-robin}]",
                "workloads=[{kind: moe, model: moe-1.3b-128, duration: 3s, compute: 0.02, all_to_alls: 1}]",
                "repeats=1",
            ),
        ),
    )
    questions = (
        Question(
            "cost",
            "By how many percent is all-to-all slower on rail-only of {{ domains }} domains x {{ rails }} rails, "
            "for the A100?",
            lambda s: cost(s["domains"], s["rails"]),
            "x is the number of GPUs in a domain, y the number of domains",
            "Insert x = {{ rails }} and y = {{ domains }}.",
            unit="%",
            mistakes=(
                Mistake(lambda s: 100 / 12, "C_S/C_F is the limit for large grids of as many rails as domains"),
                Mistake(lambda s: cost(s["rails"], s["domains"]), "x and y are exchanged"),
            ),
        ),
        Question(
            "cost_big",
            "And with {{ big_domains }} domains of {{ big_rails }}?",
            lambda s: cost(s["big_domains"], s["big_rails"]),
            "The same formula",
            "With many domains y/(y-1) is about 1, and (x-1)/x is what is left of C_S/C_F.",
            unit="%",
            mistakes=(Mistake(lambda s: cost(s["big_rails"], s["big_domains"]), "x and y are exchanged"),),
        ),
        Question(
            "cost_h100",
            "And with {{ big_domains }} domains of {{ big_rails }} H100?",
            lambda s: cost(s["big_domains"], s["big_rails"], 9.0),
            "Only C_F changes: its HB links are slower, compared with its rails",
            "C_F/C_S falls from 12 to 9, so the cost grows by a third.",
            unit="%",
            mistakes=(Mistake(lambda s: cost(s["big_domains"], s["big_rails"]), "This is for the A100"),),
        ),
        Question(
            "worse_grid",
            "16 GPUs as 8 domains of 2, or as 2 domains of 8: on which grid is the cost higher (`8x2` or `2x8`)?",
            lambda s: max(("8x2", "2x8"), key=lambda grid: cost(*map(int, grid.split("x")))),
            "Compute y(x-1) / (x(y-1)) for both",
            "With few large domains most traffic must be handed to another rank first, and only half crosses rails.",
            mistakes=(Mistake(lambda s: "8x2", "x is the number of GPUs in a domain, and not of domains"),),
        ),
        Question(
            "cross",
            "Of the bytes that a GPU of your {{ domains }} x {{ rails }} grid sends in a uniform all-to-all, how many "
            "percent are for GPUs of another domain and another rank?",
            lambda s: 100 * (s["domains"] - 1) * (s["rails"] - 1) / (s["domains"] * s["rails"] - 1),
            "Count these GPUs, and divide by all other GPUs",
            "(x-1)(y-1) of xy-1. These are what spines are for, and what HB domains forward without them.",
            unit="%",
            mistakes=(
                Mistake(
                    lambda s: 100 * (s["domains"] - 1) * s["rails"] / (s["domains"] * s["rails"] - 1),
                    "GPUs of the same rank are reached by the rail alone",
                ),
            ),
        ),
        Question(
            "whole_step",
            "Is the whole step slowed down by a larger or a smaller share than its all-to-all (`larger` or `smaller`)?",
            lambda s: "smaller",
            "Compare the ratios of the rows `iteration` and `moe-a2a`",
            "Computing and the AllReduce of gradients take as long on both fabrics.",
            mistakes=(Mistake(lambda s: "larger", "Compare shares, and not seconds"),),
        ),
        Question(
            "measured_a2a",
            "In your run: how many seconds did `moe-a2a` take on rail-only?",
            lambda s: measured_s(s, "rail-only"),
            "The line with the fabric `rail-only` and the phase `moe-a2a`, column `value`",
            "The phase from its first byte to its last.",
            unit="s",
            mistakes=(Mistake(lambda s: measured_s(s, "rail-optimized"), "This is rail-optimized"),),
            within=0.01,
        ),
        Question(
            "measured_cost",
            "By which factor did `moe-a2a` take longer on rail-only than on rail-optimized?",
            lambda s: measured_s(s, "rail-only") / measured_s(s, "rail-optimized"),
            "Divide the two values of the phase",
            "Near 1 and the share that you computed: Eq. 3 over Eq. 2.",
            within=0.01,
        ),
        Question(
            "measured_step",
            "And the whole step?",
            lambda s: measured_s(s, "rail-only", "") / measured_s(s, "rail-optimized", ""),
            "Divide the two values of the lines without a phase and with the metric iteration_time",
            "Nearer to 1: the AllReduce of gradients takes as long on both.",
            within=0.01,
        ),
        Question(
            "dense",
            "How many bytes does an iteration of the dense GPT send between rails?",
            lambda s: 0,
            "The last line of `dry-run` about the traffic says what crosses rails",
            "None: tensor parallelism stays in HB domains, and pipeline and data parallelism between GPUs of one rank.",
            unit="B",
            within=0,
        ),
        Question(
            "rail_group",
            "Which kind of parallelism sends over the rails in it: `TP` or `PP`?",
            lambda s: "PP",
            "See the column `over rails` of `dry-run`",
            "Pipeline stages lie in different domains; the GPUs of a tensor-parallel group share one.",
            mistakes=(Mistake(lambda s: "TP", "These groups lie in HB domains"),),
        ),
    )
    discuss = (
        (
            "For which cluster would you buy spines?",
            "Where all-to-all dominates, HB links are slow compared with rails, and many jobs share the "
            "cluster so that "
            "groups don't lie in domains. Else the spines are idle: dense training sends nothing between rails.",
        ),
    )

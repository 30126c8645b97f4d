"""Lab 8: rails as domains of failure and of load: what a dead or hot rail means for the others."""

import random
from itertools import permutations
from typing import Any

from railyard.controller.failover.detours import Broken, choose, usable
from railyard.experiments.labs.definition import LABS, Lab, LabRun, Mistake, Question, Setting
from railyard.topologies.addresses import Gpu


def cut_pairs(s: Setting, broken: Broken, kind: str = "rail-only") -> int:
    """Return how many ordered pairs of GPUs have a primary path that crosses something broken."""
    fabric = s.fabric(kind=kind)
    return sum(
        not all(usable(share.path, src, dst, broken, kind) for share in fabric.paths(src, dst))
        for src, dst in permutations(s.plan(kind=kind).gpus, 2)
    )


def unreachable(s: Setting, broken: Broken) -> int:
    """Return how many ordered pairs have no path left at all, with detours."""
    return sum(not choose(s.fabric(), src, dst, broken) for src, dst in permutations(s.plan().gpus, 2))


def ring(domains: int, rank: int) -> str:
    """Return a pair for each GPU of a rank and the one in the next domain, as YAML."""
    pairs = ((Gpu(each, rank), Gpu((each + 1) % domains, rank)) for each in range(domains))
    return f"[{', '.join(f'[{src.name}, {dst.name}]' for src, dst in pairs)}]"


def measured_s(s: Setting, workload: str) -> float:
    """Return the time of a workload in the student's run, s: `transfers` is on the hot rail."""
    return s.measurement("measured", workload=workload).value


def dead_rails(*rails: int) -> Broken:
    """Return dead rail switches."""
    return Broken(rails=frozenset(rails))


@LABS.register("isolation")
class Isolation(Lab):
    """Count what a dead rail cuts, and compute what a hot rail slows down."""

    number = 8
    title = "Rails as islands"
    minutes = 30
    plan_45 = (
        "Count (20 minutes): draw the grid on the board and colour the pairs that a dead rail switch cuts. "
        "Discussion: what must a scheduler know about rails?"
    )
    plan_90 = (
        "Everything; then repeat the count for rail-optimized and for two dead switches, and let each "
        "group run the crash of a switch as in lab 4."
    )

    def values(self, choose: random.Random) -> dict[str, Any]:
        """Choose a grid, a rail that dies or is loaded, and one that isn't."""
        domains, rails = choose.choice([(3, 4), (4, 3), (2, 4), (4, 4)])
        hot, cold = choose.sample(range(rails), 2)
        return {
            "domains": domains,
            "rails": rails,
            "hot": hot,
            "cold": cold,
            "load": choose.choice([0.6, 0.7, 0.75]),
            "hot_pairs": ring(domains, hot),
            "cold_pairs": ring(domains, cold),
        }

    text = """
The rails of a rail-only fabric share no switch and no cable. So a dead or overloaded rail concerns the traffic that
crosses it, and nothing else; a job that is placed well keeps each of its flows on one rail. Your fabric has
{{ domains }} domains of {{ rails }} GPUs.

## Count

A pair's primary path is that of the policy `dr`: the HB domain to the GPU of the destination's rank, then the
destination's rail. Count ordered pairs: d0g0 to d1g0 and back are two.

{{ ask.same_rail }}

{{ ask.cut }}

{{ ask.untouched }}

{{ ask.left }}

{{ ask.two_links }}

`list --kinds` names the fault that the questions are about, and `dry-run` resolves its targets:

```sh
{{ unprivileged }} dry-run recovery -o domains={{ domains }} -o rails={{ rails }} -o fault_repeats=1 \\
    -o 'faults=[{kind: rail-switch-crash, target: rail{{ hot }}, at: 1s, repair: 1s}]'
```

```text
rail-switch-crash  rail{{ hot }}
```

## A hot rail

Rail {{ hot }} is loaded to {{ load }} of its rate. On an empty rail each GPU would send to the GPU of its rank in the
next domain for 1 s.

{{ ask.slowdown }}

First the GPUs of rail {{ hot }} send (`transfers`), then those of rail {{ cold }} (`transfers 2`), while rail {{ hot }}
is loaded:

```sh
{{ run.measured }}
```

```sh
cut -d, -f1,3-7,19 {{ folder }}/measured/results.csv
```

```text
transfers,,completion_time
transfers 2,,completion_time
```

{{ ask.hot_s }}

{{ ask.cold_s }}

{{ ask.measured_slowdown }}
"""
    runs = (
        LabRun(
            "measured",
            "hot-rail",
            (
                "domains={{ domains }}",
                "rails={{ rails }}",
                "background=[{rails: [{{ hot }}], load: {{ load }}}]",
                "routing.policies=[dr]",
                "workloads=[{kind: transfers, pairs: {{ hot_pairs }}, duration: 1s}, "
                "{kind: transfers, pairs: {{ cold_pairs }}, duration: 1s}]",
                "repeats=1",
            ),
        ),
    )
    questions = (
        Question(
            "same_rail",
            "How many ordered pairs of GPUs are of the same rail?",
            lambda s: s["rails"] * s["domains"] * (s["domains"] - 1),
            "Each rail has one GPU in each domain; a GPU is no pair with itself",
            "rails x domains x (domains - 1).",
            within=0,
            mistakes=(
                Mistake(lambda s: s["rails"] * s["domains"] * (s["domains"] - 1) // 2, "Count both directions"),
                Mistake(lambda s: s["domains"] * (s["domains"] - 1), "This is of one rail"),
            ),
        ),
        Question(
            "cut",
            "How many ordered pairs have a primary path that crosses the switch rail{{ hot }}?",
            lambda s: cut_pairs(s, dead_rails(s["hot"])),
            "With `dr` a path crosses the rail of its destination: who sends to the GPUs of this rank from "
            "another domain?",
            "{{ domains }} destinations of this rank, each with all GPUs of the other domains as sources.",
            within=0,
            mistakes=(
                Mistake(
                    lambda s: s["domains"] * (s["domains"] - 1),
                    "Pairs that change rails cross it, too: `dr` uses it last",
                ),
            ),
        ),
        Question(
            "untouched",
            "How many percent of all ordered pairs keep their primary path when rail{{ hot }} dies?",
            lambda s: 100 * (1 - cut_pairs(s, dead_rails(s["hot"])) / (n := s["domains"] * s["rails"]) / (n - 1)),
            "All pairs less those of the previous question, over all pairs",
            "With K rails a dead one cuts about a K-th of the pairs between domains.",
            unit="%",
            mistakes=(
                Mistake(
                    lambda s: 100 * cut_pairs(s, dead_rails(s["hot"])) / (n := s["domains"] * s["rails"]) / (n - 1),
                    "These are cut",
                ),
            ),
        ),
        Question(
            "left",
            "With rerouting, how many ordered pairs have no path left when rail{{ hot }} is dead?",
            lambda s: unreachable(s, dead_rails(s["hot"])),
            "Can the GPUs of this rank still reach their HB domain, and from there another rail?",
            "None: every GPU has its HB domain, whose other GPUs are on living rails.",
            within=0,
            mistakes=(
                Mistake(lambda s: cut_pairs(s, dead_rails(s["hot"])), "These have lost their primary path only"),
            ),
        ),
        Question(
            "two_links",
            "How many rail switches must be dead until GPUs of different domains can't reach each other at all?",
            lambda s: next(n for n in range(1, s["rails"] + 1) if unreachable(s, dead_rails(*range(n)))),
            "As long as one rail lives, HB domains lead to it",
            "All of them: any living rail joins all domains.",
            within=0,
            mistakes=(Mistake(lambda s: 1, "HB domains lead to another rail"),),
        ),
        Question(
            "slowdown",
            "By which factor should the load slow this down on rail {{ hot }}, in theory?",
            lambda s: 1 / (1 - s["load"]),
            "What is left of the rail for the transfer?",
            "1 / (1 - load), if the background keeps its rate.",
            mistakes=(
                Mistake(lambda s: 1 + s["load"], "The background keeps its rate; the transfer gets what is left"),
            ),
        ),
        Question(
            "hot_s",
            "In your run: how many seconds did the GPUs of rail {{ hot }} take?",
            lambda s: measured_s(s, "transfers"),
            "The line `transfers` with the metric completion_time",
            "About as many as the factor, since it is 1 s on an empty rail.",
            unit="s",
            mistakes=(Mistake(lambda s: measured_s(s, "transfers 2"), "This is the other rail"),),
        ),
        Question(
            "cold_s",
            "And those of rail {{ cold }}?",
            lambda s: measured_s(s, "transfers 2"),
            "The line `transfers 2` with the metric completion_time",
            "About 1 s: the load of another rail doesn't reach them.",
            unit="s",
            mistakes=(Mistake(lambda s: measured_s(s, "transfers"), "This is the hot rail"),),
        ),
        Question(
            "measured_slowdown",
            "By which factor did the load slow rail {{ hot }} down, compared with rail {{ cold }}?",
            lambda s: measured_s(s, "transfers") / measured_s(s, "transfers 2"),
            "Divide the two times",
            "Near 1 / (1 - load).",
            within=0.03,
            mistakes=(
                Mistake(lambda s: measured_s(s, "transfers 2") / measured_s(s, "transfers"), "This is the inverse"),
            ),
        ),
    )
    discuss = (
        (
            "What must a scheduler know about rails?",
            "Which rank a GPU has: flows between equal ranks stay on their rail. A job that is placed so "
            "that its groups "
            "change rails couples rails that otherwise are islands.",
        ),
        (
            "In rail-optimized, what couples the rails?",
            "The spines: flows of all rails share their uplinks, so a hot or dead spine concerns all rails.",
        ),
    )

"""Lab 7: an allreduce over two unlike rails at once: costs on each, the threshold, and shares that end together."""

import random
from typing import Any

from railyard.experiments.labs.definition import LABS, Lab, LabRun, Mistake, Question, Setting
from railyard.workloads.allreduce.balancing.costs import Cost, Rail, allreduce_cost, ideal_shares, threshold

SIZE = 2**20
SMALL = 4 * 2**10
WORKLOADS = (
    'workloads=[{kind: allreduce, policies: [nezha, "single:eth", "single:ib"], sizes: [4KiB, 1MiB], '
    "point: 500ms, learning: 20}]"
)


def costs(s: Setting) -> tuple[Cost, Cost]:
    """Return the costs of an allreduce on the rails eth (a ring) and ib (a tree through the switch)."""
    eth = Rail("eth", "tcp", s["eth_mbit"] * 1e6 / 8, s["eth_ms"] / 1e3)
    ib = Rail("ib", "sharp", s["ib_mbit"] * 1e6 / 8, s["ib_ms"] / 1e3)
    return allreduce_cost(eth, s["nodes"]), allreduce_cost(ib, s["nodes"])


def measured(s: Setting, policy: str, metric: str = "completion_time") -> float:
    """Return what a policy achieved with 1 MiB in the student's run."""
    return s.measurement("measured", policy=policy, workload="allreduce 1MiB", metric=metric).value


def fastest_single(s: Setting) -> float:
    """Return the time of the faster rail alone with 1 MiB in the student's run, s."""
    return min(measured(s, "single:eth"), measured(s, "single:ib"))


@LABS.register("rails")
class Rails(Lab):
    """Compute shares after Nezha."""

    number = 7
    title = "Several rails at once"
    minutes = 35
    plan_45 = (
        "Compute (25 minutes): the times on each rail as two lines in one diagram, with the split below "
        "both. Then predict."
    )
    plan_90 = (
        "Everything; then a rail fails: run `multirail-quick` with its fault, and look at what happens to "
        "the operation under way. Discuss what all nodes must agree on, and when."
    )

    def values(self, choose: random.Random) -> dict[str, Any]:
        """Choose rates and set-up times of the two rails."""
        rates = {
            "eth_mbit": choose.choice([60, 80]),
            "ib_mbit": choose.choice([20, 25, 30]),
            "eth_ms": choose.choice([2, 3, 4]),
            "ib_ms": choose.choice([1, 2]),
        }
        rails = (
            f"{{name: eth, kind: tcp, rate: {rates['eth_mbit']}Mbit, setup: {rates['eth_ms']}ms, cpu: 0}}",
            f"{{name: ib, kind: sharp, rate: {rates['ib_mbit']}Mbit, setup: {rates['ib_ms']}ms, cpu: 0}}",
        )
        fabrics = f"fabrics=[{{kind: multi-rail, nodes: 4, scale: 1, rails: [{', '.join(rails)}]}}]"
        return rates | {"nodes": 4, "fabrics": fabrics, "workloads": WORKLOADS}

    text = """
Four nodes have a NIC on each of two networks. `eth` is TCP and sums in a ring; on `ib` the switch sums (SHARP), as a
tree. With N nodes, a rate of R bytes per second, and a set-up time t for each message that waits for the one before, an
allreduce of S bytes takes (Nezha, Eq. 1)

    ring: 2(N-1) t + 2(N-1)/N S/R          tree: 2 t + S/R

`eth` has {{ eth_mbit }} Mbit/s and a set-up time of {{ eth_ms }} ms, `ib` has {{ ib_mbit }} Mbit/s and {{ ib_ms }} ms.

## Compute

{{ ask.eth_ms }}

{{ ask.ib_ms }}

{{ ask.small }}

{{ ask.share }}

{{ ask.together }}

{{ ask.threshold }}

`predict` computes the same for each policy; `nezha` splits where that is faster, and `single:NAME` uses one rail:

```sh
{{ unprivileged }} predict multirail-quick --out {{ folder }} -o '{{ fabrics }}' \\
    -o '{{ workloads }}' -o 'faults=[]'
```

```text
allreduce 4KiB  …  ms
allreduce 1MiB  …  ms  …  ms  …  ms
```

## Measure

```sh
{{ run.measured }}
```

```sh
grep -E '1MiB,,(completion_time|share_eth|share_ib),' {{ folder }}/measured/results.csv | cut -d, -f3-8
```

```text
nezha,allreduce 1MiB,,completion_time,
nezha,allreduce 1MiB,,share_ib,
single:ib,allreduce 1MiB,,completion_time,
```

The balancer learns the costs of the rails from operations that it has timed, and sets the shares accordingly.
`scale: 1` in the command says that rates and sizes are meant as they are; Railyard otherwise makes sizes smaller by as
much as the rails are slower than the paper's.

{{ ask.measured_ms }}

{{ ask.measured_share }}

{{ ask.gain }}
"""
    runs = (
        LabRun(
            "measured",
            "multirail-quick",
            (
                "{{ fabrics }}",
                "{{ workloads }}",
                "faults=[]",
            ),
        ),
    )
    questions = (
        Question(
            "eth_ms",
            "How many ms does an allreduce of 1 MiB (1,048,576 bytes) take on `eth` alone?",
            lambda s: 1000 * costs(s)[0].seconds(SIZE),
            "Six messages in a row among four nodes, and one and a half times the buffer",
            "2(N-1) t + 2(N-1)/N S/R with N = 4.",
            unit="ms",
            mistakes=(
                Mistake(lambda s: 1000 * SIZE * 8 / (s["eth_mbit"] * 1e6), "A ring moves more than the buffer"),
                Mistake(lambda s: 1000 * costs(s)[1].seconds(SIZE), "This is the other rail"),
            ),
        ),
        Question(
            "ib_ms",
            "And on `ib` alone?",
            lambda s: 1000 * costs(s)[1].seconds(SIZE),
            "A tree has one message up and one down, and moves the buffer once",
            "2 t + S/R: the switch adds up, so nothing is sent twice.",
            unit="ms",
            mistakes=(Mistake(lambda s: 1000 * costs(s)[0].seconds(SIZE), "This is the other rail"),),
        ),
        Question(
            "small",
            "Which rail is faster for 4 KiB: `eth` or `ib`?",
            lambda s: min(("eth", "ib"), key=lambda name: costs(s)[name == "ib"].seconds(SMALL)),
            "For small buffers the set-up decides: count the messages in a row",
            "Two messages in a row instead of six.",
        ),
        Question(
            "share",
            "Which share of the 1 MiB, in percent, belongs on `ib` if both rails are to end together?",
            lambda s: 100 * ideal_shares(costs(s), SIZE)[1],
            "Set the two times equal, with the share x of the bytes on one rail and 1 - x on the other, "
            "and solve for x",
            "Equal times (Eq. 5): the rail that needs less time per byte gets more, after its set-up.",
            within=0.03,
            unit="%",
            mistakes=(
                Mistake(lambda s: 100 * ideal_shares(costs(s), SIZE)[0], "This is the share of the other rail"),
                Mistake(
                    lambda s: 100 * s["ib_mbit"] / (s["ib_mbit"] + s["eth_mbit"]),
                    "Shares by rate (MRIB) leave out that a ring moves one and a half times its part",
                ),
            ),
        ),
        Question(
            "together",
            "How many ms does the allreduce take with these shares?",
            lambda s: 1000 * costs(s)[1].seconds(SIZE * ideal_shares(costs(s), SIZE)[1]),
            "Insert the share into the time of either rail",
            "Both rails end at this time.",
            within=0.03,
            unit="ms",
            mistakes=(
                Mistake(lambda s: 1000 * min(cost.seconds(SIZE) for cost in costs(s)), "This is the faster rail alone"),
            ),
        ),
        Question(
            "threshold",
            "Up to how many KiB does a split gain nothing?",
            lambda s: (threshold(costs(s)) or 0.0) / 1024,
            "The split pays as soon as the faster rail alone takes longer than the set-up of the other one",
            "Where the time on `ib` alone equals the set-up of `eth` (Eq. 6).",
            within=0.03,
            unit="KiB",
        ),
        Question(
            "measured_ms",
            "In your run: how many ms did an allreduce of 1 MiB take under `nezha`?",
            lambda s: 1000 * measured(s, "nezha"),
            "The line `nezha` with the metric completion_time; it is in seconds",
            "Above the computed time by the latency of links and by what the processors need to sum.",
            unit="ms",
            mistakes=(
                Mistake(lambda s: 1000 * measured(s, "single:eth"), "This is one rail alone"),
                Mistake(lambda s: measured(s, "nezha"), "This is in seconds"),
            ),
        ),
        Question(
            "measured_share",
            "Which share, in percent, did the balancer send over `ib`?",
            lambda s: 100 * measured(s, "nezha", "share_ib"),
            "The line `nezha` with the metric share_ib",
            "Near the computed share: more if `eth` was slower than its formula, less if `ib` was.",
            unit="%",
            mistakes=(Mistake(lambda s: 100 * measured(s, "nezha", "share_eth"), "This is the other rail"),),
        ),
        Question(
            "gain",
            "How many times as long did the faster rail take alone?",
            lambda s: fastest_single(s) / measured(s, "nezha"),
            "Divide the smaller of the two times of `single:eth` and `single:ib` by the time of `nezha`",
            "Above 1, or a split would be useless.",
            mistakes=(Mistake(lambda s: measured(s, "nezha") / fastest_single(s), "This is the inverse"),),
        ),
    )
    discuss = (
        (
            "What must all nodes agree on before each operation, and what if a rail fails in the middle of it?",
            "On the shares: a piece that one node sends over a rail must be awaited there by the next. After a failure "
            "the unfinished pieces are repeated on the living rails, and no element may be added twice.",
        ),
    )

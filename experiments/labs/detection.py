"""Lab 5: recovery by design: what detects which fault, heartbeat period and timeout, and what they cost."""

import random
from typing import Any

from railyard.experiments.labs.definition import LABS, Lab, LabRun, Mistake, Question, Setting
from railyard.experiments.labs.faults import ms
from railyard.topologies.addresses import Gpu


def sent_per_s(s: Setting, period_ms: float) -> float:
    """Return the heartbeats per second of all GPUs: one over the rail and one over the HB domain in each period."""
    return float(2 * s["domains"] * s["rails"] * 1000 / period_ms)


@LABS.register("detection")
class Detection(Lab):
    """Choose heartbeats for a target."""

    number = 5
    title = "Design the recovery"
    minutes = 35
    plan_45 = (
        "Everything but the last question in pairs (30 minutes), then the discussion, which is the core of this lab."
    )
    plan_90 = (
        "Everything; then each group writes an experiment with its period and multiplier and the fault "
        "`link-silent`, runs it, and compares `detect_ms` with its earliest and latest time."
    )

    def values(self, choose: random.Random) -> dict[str, Any]:
        """Choose a grid, a heartbeat period and multiplier, and the links that fail."""
        domains, rails = choose.choice([(3, 2), (3, 3), (4, 2)])
        first, second = choose.sample(range(domains), 2)
        return {
            "domains": domains,
            "rails": rails,
            "period": choose.choice([40, 50, 80]),
            "multiplier": choose.choice([3, 4, 5]),
            "silent": Gpu(first, choose.randrange(rails)).name,
            "down": Gpu(second, choose.randrange(rails)).name,
        }

    text = """
A lost carrier is reported by the switch at once (PORT_STATUS), a crashed switch by its lost connection to the
controller. Some faults change neither: a link that loses every packet, a switch or GPU that hangs. Heartbeats detect
those. Each GPU sends one over its rail and one over its HB domain in each period; after `multiplier` periods without
any it counts as silent. A round is evaluated half a period after it was sent, so a failure is detected after
multiplier - 0.5 to multiplier + 0.5 periods (docs/controller.md).

## Design

Your fabric has {{ domains }} domains of {{ rails }} GPUs, and heartbeats of a period of {{ period }} ms with the
multiplier {{ multiplier }}.

{{ ask.needs }}

{{ ask.soonest }}

{{ ask.latest }}

{{ ask.rate }}

{{ ask.period }}

`dry-run` shows what will be injected, and when:

```sh
{{ unprivileged }} dry-run recovery -o domains={{ domains }} -o rails={{ rails }} \\
    -o 'faults=[{kind: link-silent, target: {{ silent }}, at: 600ms, repair: 1s}]' -o fault_repeats=1
```

```text
link-silent  {{ silent }}
```

## Measure

With your heartbeats, the rail link of `{{ silent }}` falls silent, and later the cable of `{{ down }}` is cut:

```sh
{{ run.measured }}
```

```sh
cut -d, -f1,2,4-6,9 {{ folder }}/measured/recovery.csv
```

```text
fault,target,detect_ms,reroute_ms,first_packet_ms,recovered
link-silent,{{ silent }},
link-down,{{ down }},
```

{{ ask.silent_ms }}

{{ ask.down_ms }}

{{ ask.after }}
"""
    runs = (
        LabRun(
            "measured",
            "recovery",
            (
                "domains={{ domains }}",
                "rails={{ rails }}",
                "heartbeats={period: {{ period }}ms, multiplier: {{ multiplier }}}",
                "faults=[{kind: link-silent, target: {{ silent }}, at: 600ms, repair: 1s}, "
                "{kind: link-down, target: {{ down }}, at: 600ms, repair: 1s}]",
                "fault_repeats=1",
            ),
        ),
    )
    questions = (
        Question(
            "needs",
            "Which of these faults need heartbeats to be detected: link-down, link-silent, rail-switch-crash, "
            "rail-switch-hang, gpu-hang? Separate them by commas.",
            lambda s: frozenset(["link-silent", "rail-switch-hang", "gpu-hang"]),
            "In which of them do ports lose their carrier, or a switch its connection? docs/failure.md "
            "lists injections",
            "A hanging switch or GPU and a silent link keep carrier and connection. A crashed switch is found by its "
            "lost connection, a cable that is cut by its carrier.",
            mistakes=(
                Mistake(
                    lambda s: frozenset(["link-silent", "rail-switch-hang", "gpu-hang", "rail-switch-crash"]),
                    "A switch that crashes loses its connection to the controller",
                ),
            ),
        ),
        Question(
            "soonest",
            "After how many ms, at the earliest, is a silent link detected?",
            lambda s: (s["multiplier"] - 0.5) * s["period"],
            "Insert your period and multiplier into the sentence before this section",
            "(multiplier - 0.5) periods: it fell silent just before a round.",
            unit="ms",
            mistakes=(Mistake(lambda s: s["multiplier"] * s["period"], "This is the mean"),),
        ),
        Question(
            "latest",
            "And at the latest?",
            lambda s: (s["multiplier"] + 0.5) * s["period"],
            "Insert your period and multiplier into the sentence before this section",
            "(multiplier + 0.5) periods: it fell silent just after a round.",
            unit="ms",
            mistakes=(Mistake(lambda s: (s["multiplier"] - 0.5) * s["period"], "This is the earliest"),),
        ),
        Question(
            "rate",
            "How many heartbeats per second do all GPUs of your fabric send?",
            lambda s: sent_per_s(s, s["period"]),
            "Two for each GPU in each period",
            "2 x {{ domains }} x {{ rails }} GPUs x 1000 / {{ period }}.",
            unit="1/s",
            mistakes=(
                Mistake(lambda s: sent_per_s(s, s["period"]) / 2, "One goes over the rail, and one over the HB domain"),
            ),
        ),
        Question(
            "period",
            "Your manager wants every silent link detected within 100 ms, with the same multiplier. What "
            "is the longest "
            "period, in ms?",
            lambda s: 100 / (s["multiplier"] + 0.5),
            "Take the latest case, and solve it for the period",
            "100 ms / (multiplier + 0.5).",
            unit="ms",
            mistakes=(
                Mistake(lambda s: 100 / s["multiplier"], "This meets the target on average only"),
                Mistake(lambda s: 100 / (s["multiplier"] - 0.5), "This meets the target in the best case only"),
            ),
        ),
        Question(
            "silent_ms",
            "In your run: how many ms after it fell silent was the link of {{ silent }} detected (`detect_ms`)?",
            lambda s: ms(s.recovery("measured", fault="link-silent").detect_ms),
            "The line `link-silent`",
            "Between the earliest and the latest time of questions 2 and 3, on a machine that isn't busy.",
            unit="ms",
            mistakes=(
                Mistake(lambda s: ms(s.recovery("measured", fault="link-down").detect_ms), "This is the cut cable"),
            ),
        ),
        Question(
            "down_ms",
            "And the cut cable of {{ down }}?",
            lambda s: ms(s.recovery("measured", fault="link-down").detect_ms),
            "The line `link-down`",
            "Some milliseconds: the switch reports its port, and no heartbeat is needed.",
            unit="ms",
            within=0.05,
            mistakes=(
                Mistake(lambda s: ms(s.recovery("measured", fault="link-silent").detect_ms), "This is the silent link"),
            ),
        ),
        Question(
            "after",
            "How many ms passed from the detection of the silent link until all routes were changed?",
            lambda s: ((row := s.recovery("measured", fault="link-silent")).reroute_ms or 0.0) - (row.detect_ms or 0.0),
            "Both `detect_ms` and `reroute_ms` count from the fault",
            "Deciding and installing take milliseconds; nearly all of the outage is the wait for heartbeats.",
            unit="ms",
            within=0.05,
            mistakes=(
                Mistake(
                    lambda s: ms(s.recovery("measured", fault="link-silent").reroute_ms), "This counts from the fault"
                ),
            ),
        ),
    )
    discuss = (
        (
            "Why not a period of 1 ms?",
            "Heartbeats of all GPUs grow with 1/period and need processor time at GPUs and switches; and a "
            "process that "
            "waits 3 ms for a core would be reported as dead. A false alarm reroutes working traffic.",
        ),
        (
            "A large multiplier or a short period: which would you rather have for the same timeout?",
            "More rounds within the timeout tolerate more lost heartbeats, but cost more. With rare losses "
            "and expensive "
            "packets, fewer rounds do.",
        ),
    )

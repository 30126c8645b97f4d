"""Lab 6: health routing: scores, best fit and its crowding, and the load at which a detour pays."""

import random
from functools import cache
from typing import Any

from railyard.controller.health.policy import path_score
from railyard.experiments.labs.definition import LABS, Lab, LabRun, Mistake, Question, Setting
from railyard.experiments.predict.steered import predictions
from railyard.experiments.predict.steered_times import InitialState, initial_states
from railyard.experiments.spec import loading
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import path_of

TRANSFER_S = 0.6
"""How long a transfer of hot-rail takes on an idle rail."""


@cache
def predicted_s(policy: str, *overrides: str) -> float:
    """Return the predicted time of hot-rail's transfers under a policy, with seed 1, s."""
    found = loading.load_any("hot-rail", [*overrides, f"routing.policies=[{policy}]", "repeats=1"])
    return predictions(found)[0].predicted or 0.0


@cache
def initial(*overrides: str) -> InitialState:
    """Return hot-rail before anything is sent: scores and paths."""
    return next(initial_states(loading.load_any("hot-rail", overrides), 1))[2]


def policy_s(s: Setting, policy: str, *more: str) -> float:
    """Return the time of a policy in the variant, s."""
    return predicted_s(policy, *overrides(s), *more)


def overrides(s: Setting) -> tuple[str, ...]:
    """Return the variant's overrides of hot-rail."""
    ranks = list(range(s["senders"]))
    return (f"background=[{{rails: {ranks}, load: {s['load']}}}]", f"workloads.0.ranks={ranks}", f"rails={s['rails']}")


def score(s: Setting, kind: str) -> float:
    """Return the score of a path from d0g0 to d1g1, 0 to 100: dr by rail 1, or drd by the first idle rail."""
    rail = 1 if kind == "dr" else s["senders"]
    scores = initial(*overrides(s)).scores
    return path_score(path_of("dr" if kind == "dr" else "drd", rail), Gpu(0, 0), Gpu(1, 1), scores) / 1e4


def first_rail(s: Setting, policy: str) -> float:
    """Return the rail that a policy chooses first for the transfer from d0g0."""
    return next(
        shares[0].path.rail for (src, _), shares in initial(*overrides(s)).chosen(policy).items() if src == Gpu(0, 0)
    )


def measured_s(s: Setting, policy: str) -> float:
    """Return the time of the transfers under a policy in the student's run, s."""
    return s.measurement("measured", policy=policy).value


@LABS.register("health")
class Health(Lab):
    """Predict what policies by health scores do, and measure three of them."""

    number = 6
    title = "Routing by health scores"
    minutes = 40
    plan_45 = (
        "Scores and Crowding (30 minutes): the students compute question 1 and 2 by hand before they run anything. "
        "Then discuss why every pair takes the same rail. The break-even load and the run are homework."
    )
    plan_90 = (
        "Everything. In the last 20 minutes, groups propose a rule that is better than best fit, and predict it "
        "as in lab 10."
    )

    def values(self, choose: random.Random) -> dict[str, Any]:
        """Choose how many rails are hot, and how hot."""
        senders, rails = choose.choice([(3, 6), (3, 7), (4, 8)])
        return {"senders": senders, "rails": rails, "load": choose.choice([0.8, 0.85, 0.9])}

    text = """
Rails 0 to {{ senders - 1 }} of {{ rails }} are loaded to {{ load }} of their rate. {{ senders }} GPUs send to another
rank in the next HB domain; a transfer takes 0.6 s on an empty rail. The path kinds: `dr` crosses the HB domain first
and then the destination's rail; `rd` the own rail and then the far domain; `drd` a third rail, between two HB domains.

## Scores

A link's score is what is left of it in percent, from 0 (blocked) to 100 (idle), and a path's score is the product of
those that it crosses, again in percent. HB domains are idle.

```sh
{{ unprivileged }} dry-run hot-rail -o 'background=[{rails: {{ range(senders)|list }}, load: {{ load }}}]' \\
    -o 'workloads.0.ranks={{ range(senders)|list }}' -o rails={{ rails }}
```

```text
scores as it begins:
health-drd  drd
```

{{ ask.dr_score }}

{{ ask.drd_score }}

{{ ask.best_fit }}

## Crowding

```sh
{{ unprivileged }} predict hot-rail --out {{ folder }} -o rails={{ rails }} -o repeats=1 \\
    -o 'background=[{rails: {{ range(senders)|list }}, load: {{ load }}}]' \\
    -o 'workloads.0.ranks={{ range(senders)|list }}'
```

```text
policy  median
dr  … s
```

{{ ask.dr_s }}

{{ ask.drd_s }}

{{ ask.spread_s }}

Best fit takes the rail with the lowest score that is still better than dr and rd, as memory allocators do to keep large
blocks free. All pairs see the same scores, so all choose the same rail. `health-best` takes the highest score, and each
pair begins its search at another rail.

{{ ask.break_even }}

{{ ask.above }}

Verify it with `-o background.0.load=...`, a little below and above.

## Measure

```sh
{{ run.measured }}
```

```text
transfers on rail-only, by policy
dr
health-drd
health-best
```

Scores now come from the counters of ports, and a pair's own traffic lowers them.

{{ ask.measured_drd }}

{{ ask.measured_gain }}

{{ ask.fastest }}
"""
    runs = (
        LabRun(
            "measured",
            "hot-rail",
            (
                "rails={{ rails }}",
                "background=[{rails: {{ range(senders)|list }}, load: {{ load }}}]",
                "workloads.0.ranks={{ range(senders)|list }}",
                "routing.policies=[dr, health-drd, health-best]",
                "repeats=1",
            ),
        ),
    )
    questions = (
        Question(
            "dr_score",
            "What is the score of dr from d0g0 to d1g1 (0 to 100)?",
            lambda s: score(s, "dr"),
            "It crosses one idle HB domain and one hot rail: multiply what is left of each",
            "100% of the HB domain times what is left of rail 1.",
            unit="%",
            mistakes=(Mistake(lambda s: 100 * s["load"], "This is the load, and not what is left"),),
        ),
        Question(
            "drd_score",
            "And of drd by rail {{ senders }}?",
            lambda s: score(s, "drd"),
            "Two idle HB domains and one idle rail",
            "All three links are idle, so their product is that of an idle path, though it has one hop more.",
            unit="%",
            mistakes=(Mistake(lambda s: score(s, "dr"), "This is the score of dr"),),
        ),
        Question(
            "best_fit",
            "Which rail does best fit (`health-drd`) choose for the transfer from d0g0? Give its number.",
            lambda s: first_rail(s, "health-drd"),
            "See the row `health-drd` of the first paths; of equal scores it takes the lowest number",
            "All idle rails have the same score, so the order of numbers decides, for every pair alike.",
            within=0,
            mistakes=(Mistake(lambda s: first_rail(s, "dr"), "This is the rail of dr"),),
        ),
        Question(
            "dr_s",
            "How many seconds do the transfers take under dr?",
            lambda s: policy_s(s, "dr"),
            "A transfer takes 0.6 s on an empty rail, and here only a part of the rail is left",
            "0.6 s / (1 - load).",
            unit="s",
            mistakes=(Mistake(lambda s: TRANSFER_S / s["load"], "Divide by what is left, and not by the load"),),
        ),
        Question(
            "drd_s",
            "And under best fit, `health-drd`?",
            lambda s: policy_s(s, "health-drd"),
            "How many transfers share the rail that it chooses?",
            "All {{ senders }} transfers share one idle rail: {{ senders }} times 0.6 s.",
            unit="s",
            mistakes=(Mistake(lambda s: TRANSFER_S, "This would be so if each had a rail of its own"),),
        ),
        Question(
            "spread_s",
            "And under `health-best`?",
            lambda s: policy_s(s, "health-best"),
            "Count the idle rails and the transfers",
            "There are as many idle rails as transfers or more, and each pair begins at another one.",
            unit="s",
            mistakes=(Mistake(lambda s: policy_s(s, "health-drd"), "This is best fit"),),
        ),
        Question(
            "break_even",
            "At which load of the hot rails (0 to 1) is best fit as slow as dr?",
            lambda s: 1 - 1 / s["senders"],
            "Set the two times equal: one depends on the load, the other on the number of transfers",
            "0.6 s / (1 - load) = {{ senders }} x 0.6 s, so load = 1 - 1/{{ senders }}.",
            mistakes=(Mistake(lambda s: 1 / s["senders"], "This is what is left of the rail"),),
        ),
        Question(
            "above",
            "Above that load, which is faster, `dr` or `health-drd`?",
            lambda s: "health-drd",
            "Which of the two times grows with the load?",
            "Best fit's time depends on the number of transfers alone.",
            mistakes=(Mistake(lambda s: "dr", "Its time grows with the load"),),
        ),
        Question(
            "measured_drd",
            "In your run: how many seconds did the transfers take under `health-drd`?",
            lambda s: measured_s(s, "health-drd"),
            "The row `health-drd` of the table by policy",
            "Near the prediction, or below it if pairs left the crowded rail while they were sending.",
            unit="s",
            mistakes=(Mistake(lambda s: measured_s(s, "dr"), "This is dr"),),
        ),
        Question(
            "measured_gain",
            "How many times as long did they take under `dr` as under `health-best`?",
            lambda s: measured_s(s, "dr") / measured_s(s, "health-best"),
            "Divide the two medians, or see the column `dr / this`",
            "By prediction 1 / (1 - load).",
            within=0.03,
            mistakes=(
                Mistake(lambda s: measured_s(s, "dr") / measured_s(s, "health-drd"), "This is best fit"),
                Mistake(lambda s: measured_s(s, "health-best") / measured_s(s, "dr"), "This is the inverse"),
            ),
        ),
        Question(
            "fastest",
            "Which of the three policies was the fastest on packets?",
            lambda s: min(("dr", "health-drd", "health-best"), key=lambda policy: measured_s(s, policy)),
            "The lowest median",
            "The one that spreads the pairs, as predicted.",
        ),
    )
    discuss = (
        (
            "Which component decides, and what does it know about the other pairs?",
            "The agent at the source. It knows scores, which show what was sent a while ago, and nothing about pairs "
            "that decide at the same moment. Crowding follows from that, and not from the rule alone.",
        ),
        (
            "A pair's own traffic lowers the score of its path. What would happen without a margin?",
            "It would leave its path for one that is better only because the pair isn't there, and come "
            "back: flapping. "
            "`flapping-undamped` shows it, and docs/health-routing.md derives the margin.",
        ),
    )

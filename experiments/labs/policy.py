"""Lab 10: a routing policy of one's own, on rails that are loaded unlike, against the best there is."""

import random
from typing import Any, Final

from railyard.experiments.labs import health
from railyard.experiments.labs.definition import LABS, Lab, LabRun, Mistake, NotDone, Question, Setting
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.steering import ORACLE_POLICY, PolicyRow

OWN: Final = "mine"
SENDERS: Final = 3
ENOUGH: Final = 1.4
"""How many times the oracle's predicted time the student's policy may take. All pairs on the empty rail take 1.8 times
as long or longer; a pair that changes its path on the way loses up to a fifth."""


def row_of(analysis: Analysis, policy: str) -> PolicyRow:
    """Return what a policy achieved in a run. NotDone if it didn't run."""
    for rows in analysis.policy_rows.values():
        for row in rows:
            if row.policy == policy:
                return row
    raise NotDone(f"the run has no times of the policy {policy}")


def own(s: Setting) -> PolicyRow:
    """Return what the student's policy achieved in the run `measured`."""
    return row_of(s.records("measured"), OWN)


def over_dr(s: Setting) -> float:
    """Return how many times as long the transfers took under dr. NotDone if one of the two times is invalid."""
    ratio = own(s).over_dr
    if ratio is None:
        raise NotDone("the times of dr and mine must both be valid")
    return ratio


def predicted_s(s: Setting, policy: str) -> float:
    """Return the predicted time of the variant's transfers under a shipped policy, s."""
    return health.predicted_s(policy, *(text for text in s.overrides(Policy.runs[0]) if "policies" not in text))


def changes(s: Setting) -> int:
    """Return how often the pair that changed most changed its path under the student's policy."""
    most = own(s).most_changed
    return most.changes if most else 0


def goal(analysis: Analysis) -> str:
    """Compare the measured time of the student's policy with the oracle's predicted one."""
    best = row_of(analysis, ORACLE_POLICY).predicted
    mine = row_of(analysis, OWN).median
    if not best or mine <= ENOUGH * best:
        return ""
    return (
        f"{OWN} took {mine:.3g} s, and allowed are {ENOUGH} times the {best:.3g} s that are predicted for the oracle: "
        "look at the first paths in dry-run for rails that are hot, or that several pairs share"
    )


HEAD: Final = '''
"""A health-routing policy of my own."""

from railyard.controller.health.policy import Context, Scores, direct_path, health_policy, over_rail, path_score, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares


@health_policy("mine", is_rate_aware=True)  # a pair that gets its fair share of a rail keeps its path
def mine(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """{what}"""
    if src.domain == dst.domain:
        return single(direct_path(src, dst))
    paths = [over_rail(rail, src, dst) for rail in range(len(scores.rails))]
    score = {{path: path_score(path, src, dst, scores) for path in paths}}
'''


@LABS.register("policy")
class Policy(Lab):
    """Write a policy, predict it, and run it."""

    number = 10
    title = "Your own policy"
    minutes = 45
    plan_45 = (
        "Compute (10 minutes) and the first two predictions together; then pairs write their rules, and predict "
        "them. Collect the predicted times on the board. The fastest rule of the class runs on packets at the end."
    )
    plan_90 = (
        "Everything. Runs queue on a shared machine, so start them half an hour before the end. Then exchange "
        "files: which rule of the others fails on your variant, and why?"
    )

    def values(self, choose: random.Random) -> dict[str, Any]:
        """Choose which free rail has which load, and how hot the others are."""
        loads = choose.choice([(0.0, 0.2, 0.4), (0.0, 0.15, 0.35), (0.0, 0.2, 0.3), (0.0, 0.3, 0.4)])
        free = dict(zip(choose.sample(range(SENDERS, 2 * SENDERS), SENDERS), loads, strict=True))
        hot = choose.choice([0.85, 0.88])
        entries = [f"{{rails: [0, 1, 2], load: {hot}}}"]
        entries += [f"{{rails: [{rail}], load: {load}}}" for rail, load in sorted(free.items()) if load]
        return {
            "enough": ENOUGH,
            "hot": hot,
            "free": sorted(free.items()),
            "background": f"background=[{', '.join(entries)}]",
        }

    starter = (
        "mine.py",
        HEAD.format(what="The path of the best score.").lstrip()
        + "    return single(max(paths, key=score.__getitem__))\n",
    )
    solution = HEAD.format(what="Senders share out all paths that score at least half of the best.").lstrip() + (
        "    good = [path for path in paths if score[path] >= max(score.values()) / 2]\n"
        "    return single(good[src.rank % len(good)])\n"
    )
    text = """
Three GPUs of domain 0 send to other ranks of domain 1; each transfer takes 0.6 s on an empty rail. Of six rails, 0 to
2 are loaded to {{ hot }} of their rate{% for rail, load in free if load %}, {{ rail }} to {{ load }}{% endfor %}. You
write the rule that chooses the path of each pair.

## Compute

`oracle` knows all pairs and all loads before it decides. No policy can be faster, except by chance.

{{ ask.oracle_s }}

`health-best` takes the path of the best score, and treats paths as equal that score up to a tenth less.

{{ ask.best_s }}

{{ ask.fit_s }}

## Write

`lab 10` has put a policy into the file `mine.py` of your folder. It works, and isn't good:

```sh
cat {{ folder }}/mine.py
```

```text
return single(max(paths, key=score.__getitem__))
```

It is a function of a pair of GPUs and of the scores: a number from 0 (blocked) to 100 (idle) for each rail and each HB
domain. `over_rail` is the path by a rail, and `path_score` the product of the scores along a path, in millionths. Every
source asks the policy for each destination whenever scores change, so it must be quick, and the same question must have
the same answer. `docs/extending.md` has another example.

Which paths it takes before anything is sent, and how long that takes by prediction:

```sh
{{ unprivileged }} dry-run hot-rail --plugin {{ folder }}/mine.py -o rails=6 -o repeats=1 \\
    -o 'workloads.0.ranks=[0, 1, 2]' -o '{{ background }}' -o 'routing.policies=[dr, mine, oracle]'
{{ unprivileged }} predict hot-rail --plugin {{ folder }}/mine.py --out {{ folder }} -o rails=6 -o repeats=1 \\
    -o 'workloads.0.ranks=[0, 1, 2]' -o '{{ background }}' -o 'routing.policies=[dr, mine, oracle]'
```

```text
mine  drd
oracle  drd
mine  … s
```

{{ ask.share }}

Change the function until `mine` is predicted to take at most {{ enough }} times as long as `oracle`. What tells pairs
apart are `src.rank`, `src.domain`, `dst.rank` and `dst.domain`.

## Run it

```sh
{{ run.measured }}
```

```text
transfers on rail-only, by policy
✓ every byte delivered, for every pair
```

Scores now come from the counters of ports, so your own transfers lower them. A pair changes its path only if another
one is clearly better, and not again within the dwell time of 200 ms. If the run doesn't meet the goal, repeat it with
`--out {{ folder }}/measured-2`.

{{ ask.own_s }}

{{ ask.over_dr }}

{{ ask.changes }}
"""
    runs = (
        LabRun(
            "measured",
            "hot-rail",
            (
                "rails=6",
                "{{ background }}",
                "workloads.0.ranks=[0, 1, 2]",
                f"routing.policies=[dr, {OWN}, {ORACLE_POLICY}]",
                "repeats=1",
            ),
            plugin="mine.py",
            own=(OWN, "health-best"),
            goal=goal,
        ),
    )
    questions = (
        Question(
            "oracle_s",
            "How many seconds do the three transfers take together, at best?",
            lambda s: predicted_s(s, "oracle"),
            "Give each pair a rail of its own among 3 to 5: the slowest of the three decides. Then see whether two "
            "pairs on the emptiest rail would be done earlier",
            "The smaller of 0.6 s over what is left of the fullest of the three rails, and of 1.2 s on the empty one.",
            unit="s",
            mistakes=(
                Mistake(lambda s: health.TRANSFER_S, "Only one rail is empty, and there are three transfers"),
                Mistake(lambda s: SENDERS * health.TRANSFER_S, "This is all three on the empty rail"),
            ),
        ),
        Question(
            "best_s",
            "How many seconds do the transfers take under `health-best`?",
            lambda s: predicted_s(s, "health-best"),
            "Which rails score within a tenth of the best path, and how many pairs share them?",
            "Rails that score a tenth less than the empty one count as equal to it; the pairs share what is left.",
            unit="s",
            mistakes=(Mistake(lambda s: predicted_s(s, "oracle"), "This is the oracle's time"),),
        ),
        Question(
            "fit_s",
            "And under best fit, `health-drd`?",
            lambda s: predicted_s(s, "health-drd"),
            "Best fit takes the rail of the lowest score that is still better than dr and rd, for every pair alike",
            "All three share the fullest of the rails 3 to 5.",
            unit="s",
            mistakes=(
                Mistake(lambda s: predicted_s(s, "dr"), "This is a hot rail"),
                Mistake(lambda s: SENDERS * health.TRANSFER_S, "Best fit doesn't take the empty rail"),
            ),
        ),
        Question(
            "share",
            "With the policy as it is: how many pairs share one rail?",
            lambda s: SENDERS,
            "See the row `mine` of the first paths",
            "All see the same scores, and the rule knows nothing else.",
            within=0,
            mistakes=(Mistake(lambda s: 1, "Compare the rails in the row `mine`"),),
        ),
        Question(
            "own_s",
            "In your run: how many seconds did the transfers take under your policy?",
            lambda s: own(s).median,
            "The row `mine` of the table by policy",
            "Near the prediction, unless pairs changed their paths on the way.",
            unit="s",
            mistakes=(
                Mistake(lambda s: row_of(s.records("measured"), ORACLE_POLICY).median, "This is the oracle"),
                Mistake(lambda s: row_of(s.records("measured"), "dr").median, "This is dr"),
            ),
        ),
        Question(
            "over_dr",
            "How many times as long did they take under `dr`?",
            over_dr,
            "Divide the two medians, or see the column `dr / this`",
            "It crosses a hot rail.",
            within=0.03,
            mistakes=(Mistake(lambda s: 1 / over_dr(s), "This is the inverse"),),
        ),
        Question(
            "changes",
            "How often did the pair that changed most change its path under your policy?",
            changes,
            "The column `most of a pair` says how many changes there were, of how many that the dwell time allows",
            "Once, from dr to the chosen path, if the rule is stable; more if its own traffic changes its answer.",
            within=0,
        ),
    )
    discuss = (
        (
            "Your rule tells pairs apart. Construct traffic for which it is no better than `health-best`.",
            "If by `src.rank`: senders of one rank in many domains, to one domain, take the same rail. A rule without "
            "communication between sources always has such traffic.",
        ),
        (
            "What would the sources have to tell each other to be as good as the oracle, and how old may it be?",
            "What each is about to send, and where to, before it is sent: younger than a transfer is long. Scores show "
            "the load of the last interval, so they are too old for short transfers.",
        ),
    )

"""Lab 9: several ways at once: ECMP over uplinks and its collisions, and two planes that fail one at a time."""

import random
from statistics import fmean
from typing import Any

import numpy as np

from railyard.core.records import Recovered
from railyard.experiments.labs.definition import LABS, Lab, LabRun, Mistake, Question, Setting
from railyard.results.theory.ecmp import hashes


def expected_imbalance(flows: int, uplinks: int) -> float:
    """Return the mean over hashes of the busiest uplink's flows over the mean per uplink."""
    return fmean(
        float(np.bincount(chosen, minlength=uplinks).max()) * uplinks / flows for chosen in hashes(flows, uplinks)
    )


def imbalance_of_all(flows: int, uplinks: int) -> float:
    """Return the share of hashes, in percent, by which all flows are on one uplink."""
    return 100.0 * uplinks / float(uplinks**flows)


def lost(s: Setting, kind: str) -> int:
    """Return how many probes a cut link cost on a fabric in the student's run."""
    return s.recovery("measured", fabric=kind).probes_lost


@LABS.register("planes")
class Planes(Lab):
    """Compute collisions, and see which plane a flow takes."""

    number = 9
    title = "Planes and ECMP"
    minutes = 30
    plan_45 = (
        "Collide (15 minutes): throw coins for flows, one group per number of flows, and collect the "
        "busiest uplink. Then the planes, in pairs."
    )
    plan_90 = (
        "Everything; then `predict ecmp` on 2 domains of 5 and of 7 rails: how do the expected collisions "
        "change with the number of flows?"
    )

    def values(self, choose: random.Random) -> dict[str, Any]:
        """Choose numbers of flows, a grid, and the GPU whose plane fails."""
        return {
            "flows": choose.choice([3, 4, 5, 6]),
            "rails": choose.choice([3, 5]),
            "rank": choose.choice([0, 1]),
            "plane": choose.choice([0, 1]),
        }

    text = """
A switch with several uplinks hashes the addresses and ports of each flow, and sends all its packets over one of them
(ECMP), so that they stay in order. A few large flows then collide: some uplinks have several, others none. Formulas
that assume even shares are too optimistic.

## Collide

{{ flows }} equal flows leave a switch with two uplinks, and a hash puts each on either with the same probability.

{{ ask.outcomes }}

{{ ask.all_on_one }}

{{ ask.imbalance }}

{{ ask.slower }}

## Planes

In the fabric kind `dual-plane` each GPU has two rail links of half the rate, `rail0` and `rail1`, to two switches of
its rail. Flows are hashed over the planes at the GPU. One link fails:

```sh
{{ railyard }} shell quickstart -o fabrics.0.kind=dual-plane -o domains=2 -o rails=3 <<'END'
d0g{{ rank }} ip route show 198.18.{{ 2 * rank }}.0/23 metric 20
{{ 'rail%d' % rank if plane == 0 else 'rail%dp1' % rank }} ip link set "d0g{{ rank }}" down
d0g{{ rank }} ping -c 3 -i 0.3 d1g{{ rank }}
d0g{{ rank }} ip route show 198.18.{{ 2 * rank }}.0/23 metric 20
END
```

```text
nexthop dev rail0 weight 1
nexthop dev rail1 weight 1
3 packets transmitted, 3 received, 0% packet loss
```

{{ ask.device }}

{{ ask.rate_left }}

The same cut, measured on a fabric with one plane and on one with two. The controller changes no routes here
(`reroute: off`), so that you see what the GPUs do by themselves until the repair, 1 s later:

```sh
{{ run.measured }}
```

```sh
cut -d, -f1,2,6,9,10,15 {{ folder }}/measured/recovery.csv
```

```text
fault,target,first_packet_ms,recovered,fabric,probes_lost
link-down,d0g{{ rank }},
```

{{ ask.lost_one }}

{{ ask.lost_two }}

{{ ask.back }}
"""
    runs = (
        LabRun(
            "measured",
            "recovery",
            (
                "fabrics=[{kind: rail-only, domains: 2, rails: {{ rails }}, rail_rate: auto}, "
                "{kind: dual-plane, domains: 2, rails: {{ rails }}, rail_rate: auto}]",
                "faults=[{kind: link-down, target: d0g{{ rank }}, at: 600ms, repair: 1s}]",
                'reroute=["off"]',
                "fault_repeats=1",
            ),
        ),
    )
    questions = (
        Question(
            "outcomes",
            "In how many ways can the hash distribute the {{ flows }} flows (flows are different)?",
            lambda s: 2 ** s["flows"],
            "Each flow has two possibilities, independently",
            "2 to the power of the number of flows.",
            within=0,
            mistakes=(Mistake(lambda s: s["flows"] + 1, "This is how many flows can be on the first uplink"),),
        ),
        Question(
            "all_on_one",
            "With which probability, in percent, are all on the same uplink?",
            lambda s: imbalance_of_all(s["flows"], 2),
            "How many of these ways have all flows on one uplink? There are two uplinks",
            "Two of the ways.",
            unit="%",
            mistakes=(Mistake(lambda s: imbalance_of_all(s["flows"], 2) / 2, "It may be either uplink"),),
        ),
        Question(
            "imbalance",
            "What is the mean of the busiest uplink's flows, divided by the mean per uplink?",
            lambda s: expected_imbalance(s["flows"], 2),
            "For each number of flows on the first uplink: its probability times the larger of the two numbers; then "
            "divide by half of the flows",
            "The mean over all ways of max(k, n-k), over n/2: well above 1 for few flows, and it falls "
            "slowly with more.",
            mistakes=(
                Mistake(lambda s: 1.0, "This would be an even distribution"),
                Mistake(lambda s: 2.0, "This is the worst case"),
            ),
        ),
        Question(
            "slower",
            "The uplinks are the bottleneck. By how many percent do the flows take longer than evenly "
            "spread, on average?",
            lambda s: 100 * (expected_imbalance(s["flows"], 2) - 1),
            "The time is that of the busiest uplink",
            "The imbalance less 1.",
            within=0.05,
            unit="%",
        ),
        Question(
            "device",
            "After the failure: over which interface does d0g{{ rank }} send to its rail (`rail0` or `rail1`)?",
            lambda s: f"rail{1 - s['plane']}",
            "A next hop by a link without carrier is marked `dead linkdown`",
            "The kernel leaves out the dead next hop by itself, before the controller knows.",
            mistakes=(Mistake(lambda s: f"rail{s['plane']}", "The switch of this link had its port set down"),),
        ),
        Question(
            "rate_left",
            "How many percent of its rate to the rail has d0g{{ rank }} left?",
            lambda s: 50,
            "Each plane has half of the rail's rate",
            "One of two planes. In rail-only with one plane it would be none, and a detour over the HB domain.",
            unit="%",
            within=0,
            mistakes=(Mistake(lambda s: 100, "The other plane is no faster than before"),),
        ),
        Question(
            "lost_one",
            "In your run: how many probes were lost on the fabric with one plane (`probes_lost`)?",
            lambda s: lost(s, "rail-only"),
            "The line with the fabric `rail-only`",
            "All probes of the pairs that use the link, until the repair.",
            within=0,
            mistakes=(Mistake(lambda s: lost(s, "dual-plane"), "This is the fabric with two planes"),),
        ),
        Question(
            "lost_two",
            "And on the one with two?",
            lambda s: lost(s, "dual-plane"),
            "The line with the fabric `dual-plane`",
            "d0g{{ rank }} itself loses only what it sends before its kernel sees the dead link. GPUs at the far end "
            "can't see it: those whose flows are hashed to the dead plane go on losing packets. With luck no probe is "
            "hashed there.",
            within=0,
            mistakes=(Mistake(lambda s: lost(s, "rail-only"), "This is the fabric with one plane"),),
        ),
        Question(
            "back",
            "On the fabric with two planes, was all traffic back before the repair (yes or no)?",
            lambda s: "no" if s.recovery("measured", fabric="dual-plane").recovered is Recovered.NO else "yes",
            "The column `recovered` of this line; `unaffected` means that no probe was lost",
            "Only if no flow from the far end is hashed to the plane whose link is cut: without a controller nothing "
            "tells the far end. Streams are flows of their own, so they may be cut where no probe is lost.",
        ),
    )
    discuss = (
        (
            "Why not spray packets over all uplinks?",
            "They would arrive out of order, which TCP takes for loss and RDMA of most NICs doesn't accept. Newer NICs "
            "put packets in order themselves, and then spraying is what one does.",
        ),
    )

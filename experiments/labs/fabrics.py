"""Lab 1: the parts of a rail-only fabric, the paths of packets through it, and what spines add."""

import random
from typing import Any

from railyard.experiments.labs.definition import LABS, Lab, Mistake, Question, Setting
from railyard.topologies.addresses import Gpu
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.topologies.forwarding import hops
from railyard.topologies.routing import source_routes


def forwarder(s: Setting, src: str, dst: str) -> str:
    """Return the GPU that forwards packets between two GPUs of the variant, by the fabric's policy."""
    path = s.fabric().paths(s.gpu(src), s.gpu(dst))[0].path
    return hops(path, s.gpu(src), s.gpu(dst))[0].b.name


def spine_cables(s: Setting) -> int:
    """Return the number of cables of rail-optimized that have an end at a spine."""
    plan = s.plan(kind="rail-optimized")
    return sum("spine" in link.a.node or "spine" in link.b.node for link in plan.links)


@LABS.register("fabrics")
class Fabrics(Lab):
    """Follow packets by routes, TTLs and counters."""

    number = 1
    title = "Two fabrics"
    minutes = 30
    plan_45 = (
        "Build and Routes (25 minutes, in pairs at one machine), questions 1 to 5; then draw the two fabrics "
        "on the board and discuss who forwards what. Count and Compare as homework."
    )
    plan_90 = (
        "All sections (60 minutes). Then each pair predicts the path of a pair of GPUs that you name and "
        "checks it with `trace`; discuss the open questions in the last 20 minutes."
    )

    def values(self, choose: random.Random) -> dict[str, Any]:
        """Choose a grid, and two GPUs in different domains and on different rails."""
        domains, rails = choose.choice([(3, 4), (4, 3)])
        first, second = choose.sample(range(domains), 2)
        a, b = choose.choice([(x, y) for x in range(rails) for y in range(rails) if x != y != second])
        return {
            "domains": domains,
            "rails": rails,
            "src": Gpu(first, a).name,
            "dst": Gpu(second, b).name,
            "neighbour": Gpu(first, b).name,
            "same_rail": Gpu(second, a).name,
            "rail": f"rail{b}",
            "spines": FABRIC_KINDS["rail-optimized"].default_spines,
        }

    text = """
You build a rail-only fabric, follow packets through it, and compare it with rail-optimized. GPU `d1g2` is the one of
rank 2 in HB domain 1; all GPUs of rank 2 are joined by the switch `rail2`. `docs/fabrics.svg` shows both fabrics.

## Build

The block opens Mininet's command line on a fabric of {{ domains }} domains of {{ rails }} GPUs, and types four commands
into it. To try your own, leave out `<<'END'` and what follows.

```sh
{{ railyard }} shell quickstart -o domains={{ domains }} -o rails={{ rails }} <<'END'
{{ src }} ip -br link
{{ src }} ping -c 2 {{ neighbour }}
{{ src }} ping -c 2 {{ dst }}
{{ src }} ping -c 1 -W 1 -t 1 {{ dst }}
END
```

The last two differ in the TTL. A GPU that forwards a packet lowers it by one, a switch doesn't:

```text
64 bytes from … icmp_seq=1 ttl=63 time=0.884 ms
2 packets transmitted, 2 received, 0% packet loss, time 1001ms
From … icmp_seq=1 Time to live exceeded
```

{{ ask.forwards }}

{{ ask.forwards_replies }}

{{ ask.pairs }}

## Routes

```sh
{{ railyard }} shell quickstart -o domains={{ domains }} -o rails={{ rails }} <<'END'
{{ src }} ip route show
{{ src }} ip rule
{{ src }} ip route show table 101
END
```

```text
198.18.…/23 dev rail0 scope link src … metric 20
100: from all iif hb0 lookup 101
```

A packet that starts at a GPU uses the table `main`. Table 101 is for packets that came in from the HB domain, table
102 for those from the rail. The route of metric 1000 is a backup, which the kernel uses while `rail0` has no carrier.
Routes of `proto openr`, which a later lab shows, are the controller's: its agent marks them with the protocol number
99, and `ip` prints the name that this number has in its own list, of a program that isn't used here.

{{ ask.address }}

{{ ask.routes }}

## Count

A switch is asked by `exec`, which runs a command in a fabric that is up. The first line starts one in the background,
whose name is yours; the last line closes its standard input, which ends it:

```sh
exec 3> >({{ railyard }} shell quickstart --name {{ own_name }} \\
    -o domains={{ domains }} -o rails={{ rails }} > {{ folder }}/shell.txt 2>&1)
{{ railyard }} exec --wait 60 {{ own_name }} {{ rail }} flows
{{ railyard }} exec {{ own_name }} {{ src }} ping -q -c 100 -i 0.01 {{ dst }}
{{ railyard }} exec {{ own_name }} {{ rail }} ports
exec 3>&-
```

`flows` and `ports` stand for `ovs-ofctl dump-flows` and `dump-ports` of this switch; `groups` is a third.

```text
priority=200,dl_dst=02:52:… actions=output:1
100 packets transmitted, 100 received, 0% packet loss, time 1000ms
port  …: rx pkts=100, bytes=9800
```

{{ ask.flows }}

{{ ask.counters }}

## Compare

```sh
{{ railyard }} shell quickstart -o domains={{ domains }} -o rails={{ rails }} -o fabrics.0.kind=rail-optimized <<'END'
{{ src }} ping -c 1 -W 1 -t 1 {{ dst }}
END
```

{{ ask.spine_forwards }}

{{ ask.links }}
"""
    questions = (
        Question(
            "forwards",
            "Which GPU forwards the packets from {{ src }} to {{ dst }}?",
            lambda s: forwarder(s, "src", "dst"),
            "The answer to the ping with a TTL of 1 comes from the GPU that had to forward it",
            "The default policy `dr` crosses the HB domain first: the GPU of the source's domain that has "
            "the destination's rank owns the rail that leads there.",
            mistakes=(
                Mistake(lambda s: s["same_rail"], "This GPU forwards by the policy rd, which takes the own rail first"),
                Mistake(lambda s: s["rail"], "A rail switch forwards frames and leaves the TTL as it is"),
            ),
        ),
        Question(
            "forwards_replies",
            "And which GPU forwards the replies, from {{ dst }} to {{ src }}?",
            lambda s: forwarder(s, "dst", "src"),
            "Apply the same rule from the other end: the HB domain of the sender comes first",
            "The rule is applied at the sender of each packet, so the replies cross the other HB domain "
            "and the other rail: paths are not symmetric.",
            mistakes=(Mistake(lambda s: s["neighbour"], "Replies take another way than requests"),),
        ),
        Question(
            "pairs",
            "From {{ src }}, how many GPUs can be reached without another GPU that forwards?",
            lambda s: s["rails"] - 1 + s["domains"] - 1,
            "Count the GPUs of its own HB domain and those of its own rail",
            "{{ rails }} - 1 in its domain, and {{ domains }} - 1 on its rail.",
            within=0,
            mistakes=(
                Mistake(lambda s: s["rails"] + s["domains"] - 1, "A GPU doesn't count itself"),
                Mistake(lambda s: s["rails"] * s["domains"] - 1, "This is the number of all other GPUs"),
            ),
        ),
        Question(
            "address",
            "What is the address of {{ dst }}? Addresses are 198.18.(2 x rank).(domain).",
            lambda s: s.gpu("dst").ip,
            "In `d1g2`, 1 is the domain and 2 the rank; in an address, the rank comes first",
            "One /23 for each rank makes one route for a rank possible, whatever the number of domains.",
            mistakes=(
                Mistake(lambda s: Gpu(s.gpu("dst").rank, s.gpu("dst").domain).ip, "Domain and rank are exchanged"),
            ),
        ),
        Question(
            "routes",
            "How many routes of metric 20 does {{ src }} have in its table `main`?",
            lambda s: len(source_routes(s.plan(), s.gpu("src"))),
            "Count the lines of `ip route show` with `metric 20`: one for each neighbour in the domain, "
            "one for the own rail, and one for each other rank",
            "{{ rails }} - 1 GPUs of its domain, its own rail, and one for each of the {{ rails }} - 1 "
            "other ranks: destinations of one rank share the next hop.",
            within=0,
            mistakes=(
                Mistake(lambda s: len(source_routes(s.plan(), s.gpu("src"))) + 1, "The backup has metric 1000"),
                Mistake(
                    lambda s: s["domains"] * s["rails"] - 1,
                    "Routes are for ranks, not for single GPUs of other domains",
                ),
            ),
        ),
        Question(
            "flows",
            "How many of the flows of {{ rail }} send a frame to a GPU?",
            lambda s: s["domains"],
            "Look for `dl_dst` and `output` in the flows: which GPUs are cabled to this switch?",
            "One flow for each GPU of its rank, that is for each domain; the switch knows no other GPU, "
            "and drops the rest.",
            within=0,
            mistakes=(
                Mistake(lambda s: s["domains"] * s["rails"], "Only GPUs of one rank are cabled to a rail switch"),
            ),
        ),
        Question(
            "counters",
            "The 100 requests cross {{ rail }}. Which rail switch do the 100 replies cross?",
            lambda s: f"rail{s.gpu('src').rank}",
            "Which GPU forwards the replies, and which rail is that GPU's?",
            "The replies' dr path crosses the rail of their destination, {{ src }}.",
            mistakes=(
                Mistake(lambda s: s["rail"], "Compare the counters of the ports: this switch carried the requests"),
            ),
        ),
        Question(
            "spine_forwards",
            "On rail-optimized, does a GPU forward the packets from {{ src }} to {{ dst }} (yes or no)?",
            lambda s: (
                "no"
                if s.fabric(kind="rail-optimized").paths(s.gpu("src"), s.gpu("dst"))[0].path.kind == "spine"
                else "yes"
            ),
            "Does the ping with a TTL of 1 arrive?",
            "The spines join the rails: frames travel from rail switch to spine to rail switch, and no GPU "
            "lowers the TTL.",
            mistakes=(Mistake(lambda s: "yes", "Only a GPU lowers the TTL"),),
        ),
        Question(
            "links",
            "How many cables end at a spine in all, with as many spines as rail-optimized has by default "
            "({{ spines }}), and one cable from each rail switch to each of them?",
            spine_cables,
            "A spine has one cable to each rail switch, and there is more than one spine",
            "One for each rail and spine. All of them disappear with the spines: that is the saving of rail-only.",
            within=0,
            mistakes=(
                Mistake(lambda s: s["rails"], "These are the cables of one spine"),
                Mistake(
                    lambda s: s["domains"] * s["spines"],
                    "Spines are cabled to rail switches, and there is one of those for each rank",
                ),
            ),
        ),
    )
    discuss = (
        (
            "Why is one route for each rank enough, and not one for each GPU?",
            "The next hop depends on the destination's rank alone: the GPU of that rank in the own domain. So "
            "the table doesn't grow with the number of domains.",
        ),
        (
            "A real domain has 8 GPUs, and a cluster has 128 domains. Which ports does each fabric need?",
            "Both need 1,024 ports at rail switches for the GPUs. With full bisection bandwidth, "
            "rail-optimized needs 1,024 uplinks at the rail switches and as many ports at spines: three times "
            "the ports.",
        ),
    )

"""Lab 4: a cut cable by hand, with the time of each route, and the same fault measured with and without rerouting."""

import random
from typing import Any

from railyard.controller.failover.detours import DETOUR_METRIC, Broken, choose
from railyard.core.records import Recovery
from railyard.experiments.labs.definition import LABS, Answer, Lab, LabRun, Mistake, Question, Setting
from railyard.topologies.addresses import Gpu
from railyard.topologies.routing import BACKUP_METRIC, backup_routes


def detour_rail(s: Setting, src: Gpu, dst: Gpu) -> str:
    """Return the rail of the controller's detour between two GPUs while the variant's link is cut."""
    return f"rail{choose(s.fabric(), src, dst, Broken(links=frozenset([s.gpu('gpu')])))[0].path.rail}"


def recovery(s: Setting, kind: str, reroute: str) -> Recovery:
    """Return the record of a fault in the student's run."""
    return s.recovery("measured", fault=kind, reroute=reroute)


def ms(value: float | None) -> Answer:
    """Return a time in ms as an answer; what didn't happen before the repair is `never`."""
    return "never" if value is None else value


@LABS.register("faults")
class Faults(Lab):
    """Cut a cable, then measure."""

    number = 4
    title = "Break a rail"
    minutes = 35
    plan_45 = (
        "By hand (20 minutes, one machine per pair), then start the measured run and collect answers 1 to 4 "
        "while it runs; compare the students' detect times on the board. Questions 7 to 9 as homework."
    )
    plan_90 = (
        "All sections (60 minutes); then let each pair predict what happens when a second cable of the same "
        "domain is cut, and try it in the shell. Discuss the open questions."
    )

    def values(self, choose: random.Random) -> dict[str, Any]:
        """Choose a grid, the GPU whose cable is cut, and a peer on its rail."""
        domains, rails = choose.choice([(3, 4), (4, 3)])
        first, second = choose.sample(range(domains), 2)
        rank = choose.randrange(rails)
        return {
            "domains": domains,
            "rails": rails,
            "gpu": Gpu(first, rank).name,
            "peer": Gpu(second, rank).name,
            "rail": f"rail{rank}",
        }

    text = """
You cut the cable of `{{ gpu }}` and follow what the kernel and the controller do, with the time of each step. Then you
measure the same fault, and the crash of a switch, with and without rerouting.

## By hand

A switch's end of a cable has the name of the GPU. The block cuts the cable between `{{ gpu }}` and `{{ rail }}` at the
switch, and `ip -ts monitor` notes the time of each change at the switch's port and in the route table of `{{ gpu }}`.
Files in /tmp are the fabric's own and disappear with it. The name of the port is in quotes, because Mininet's command
line replaces a GPU's name by its address.

```sh
{{ railyard }} shell quickstart -o domains={{ domains }} -o rails={{ rails }} <<'END'
{{ gpu }} ip route get {{ peer }}
{{ rail }} ip -ts monitor link > /tmp/links.txt &
{{ gpu }} ip -ts monitor route > /tmp/routes.txt &
{{ rail }} ip link set "{{ gpu }}" down
{{ gpu }} ping -c 3 -i 0.3 {{ peer }}
{{ gpu }} ip route show
{{ peer }} ip route show proto 99
sh head -n 2 /tmp/links.txt
sh head -n 6 /tmp/routes.txt
{{ rail }} ip link set "{{ gpu }}" up
{{ gpu }} ping -c 1 {{ peer }}
END
```

```text
3 packets transmitted, …
198.18.… dev rail0 scope link src … metric 20 dead linkdown
198.18.0.0/15 via … dev hb0 src … metric 1000 onlink
… via … dev hb0 proto openr src … metric 10 onlink
[2026-11-24T03:15:12.042473] … {{ gpu }}@… mtu 9000 … state DOWN …
[2026-11-24T03:15:12.049539] … via … dev hb0 proto openr src … metric 10 onlink
```

The last two lines are from the files: when the switch's port went down, and when `{{ gpu }}` got its first new route,
here 7.1 ms later.

Of two routes that fit, the kernel takes the one with the longer prefix, and of equal ones that of the lower metric. A
route by an interface without a carrier is marked `linkdown` and not used. The controller's agent marks its routes with
the protocol number 99; `ip` prints that as `openr`, the name of this number in its list, of a program that isn't used
here.

{{ ask.backup }}

{{ ask.backup_metric }}

{{ ask.detour_metric }}

{{ ask.outward }}

{{ ask.back }}

## Measured

```sh
{{ run.measured }}
```

```sh
cut -d, -f1,4-6,9,12,15 {{ folder }}/measured/recovery.csv
```

```text
fault,detect_ms,reroute_ms,first_packet_ms,recovered,reroute,probes_lost
```

Columns are explained in `docs/failure.md`; a time that is empty means that it never happened before the repair. If your
run was disturbed, repeat it with `--out {{ folder }}/measured-2`.

{{ ask.detected }}

{{ ask.later }}

{{ ask.without }}

{{ ask.lost }}
"""
    runs = (
        LabRun(
            "measured",
            "recovery",
            (
                "domains={{ domains }}",
                "rails={{ rails }}",
                "faults=[{kind: link-down, target: {{ gpu }}, at: 600ms, repair: 1s}, {kind: "
                "rail-switch-crash, target: {{ rail }}, at: 600ms, repair: 1s}]",
                'reroute=["on", "off"]',
                "fault_repeats=1",
            ),
        ),
    )
    questions = (
        Question(
            "backup",
            "Which GPU does the backup route of {{ gpu }} lead to?",
            lambda s: hop.name if (hop := backup_routes(s.plan(), s.gpu("gpu"))[0].hops[0].via) else "",
            "Look for the route with the highest metric at {{ gpu }}: its address is 198.18.(2 x rank).(domain)",
            "The neighbour of the next rank in the same domain. The route exists before any fault, so the "
            "kernel can use it at once, without the controller.",
            mistakes=(Mistake(lambda s: s["peer"], "This is the destination"),),
        ),
        Question(
            "backup_metric",
            "Which metric has the route that {{ gpu }} uses first, before the controller has reacted?",
            lambda s: BACKUP_METRIC,
            "Which routes of {{ gpu }} existed before the cable was cut, and don't use rail0?",
            "All routes by rail0 are dead at once, as it has no carrier; the backup by hb0 is what is left.",
            within=0,
            mistakes=(Mistake(lambda s: DETOUR_METRIC, "The controller installs these, and that takes milliseconds"),),
        ),
        Question(
            "detour_metric",
            "Which metric have the routes that the controller installs?",
            lambda s: DETOUR_METRIC,
            "Look at the routes with the protocol number 99",
            "A low metric wins over the policy's own routes (20) and over the backup (1000).",
            within=0,
            mistakes=(Mistake(lambda s: BACKUP_METRIC, "That route was there before the fault"),),
        ),
        Question(
            "outward",
            "When the controller has reacted: over which rail do packets from {{ gpu }} to {{ peer }} "
            "travel (`rail0`, ...)?",
            lambda s: detour_rail(s, s.gpu("gpu"), s.gpu("peer")),
            "Find the route with metric 10 to {{ peer }} at {{ gpu }}: the rank of the GPU that it leads "
            "to is the rail",
            "A path drd: over the HB domain to a GPU with a living rail, over that rail, and over the "
            "other HB domain. The controller draws the rail for each pair, so that the pairs spread over "
            "the rails.",
            mistakes=(Mistake(lambda s: s["rail"], "The cable to that rail is cut"),),
        ),
        Question(
            "back",
            "And from {{ peer }} to {{ gpu }}?",
            lambda s: detour_rail(s, s.gpu("peer"), s.gpu("gpu")),
            "Look at the routes of {{ peer }} with the protocol number 99: the GPU that one leads to is of this rail",
            "{{ peer }} sees no dead carrier: its own cable lives. Only the controller can tell it that "
            "the far end is cut.",
            mistakes=(Mistake(lambda s: s["rail"], "That is the primary path, which ends at the cut cable"),),
        ),
        Question(
            "detected",
            "With rerouting, how many ms after the cut of the cable did the controller know of it (`detect_ms`)?",
            lambda s: ms(recovery(s, "link-down", "on").detect_ms),
            "Take the line `link-down` with `on` in the column `reroute`",
            "The switch sees its port go down and sends PORT_STATUS: some milliseconds on an idle machine.",
            unit="ms",
            within=0.05,
            mistakes=(
                Mistake(
                    lambda s: ms(recovery(s, "rail-switch-crash", "on").detect_ms), "This is the switch, not the cable"
                ),
            ),
        ),
        Question(
            "later",
            "With rerouting, after which fault did the first packet arrive later: `link-down` or `rail-switch-crash`?",
            lambda s: max(
                ("link-down", "rail-switch-crash"),
                key=lambda kind: (
                    found if (found := recovery(s, kind, "on").first_packet_ms) is not None else float("inf")
                ),
            ),
            "Compare `first_packet_ms` of the lines with `on` in the column `reroute`",
            "The cables of a crashed switch keep their carrier, so neither kernel nor PORT_STATUS says "
            "anything: the controller has to miss its connection first.",
        ),
        Question(
            "without",
            "Without rerouting, was the traffic of the cut cable back before the repair (yes or no)?",
            lambda s: "yes" if recovery(s, "link-down", "off").recovered else "no",
            "Take the line `link-down` with `off` in the column `reroute`, and its column `recovered`",
            "Without backup routes and detours, packets wait for the repair, as in the paper, where a GPU "
            "behind a dead link is unavailable.",
            mistakes=(
                Mistake(
                    lambda s: "yes" if recovery(s, "link-down", "on").recovered else "no", "This is with rerouting"
                ),
            ),
        ),
        Question(
            "lost",
            "Without rerouting, how many probes were lost by the cut of the cable (`probes_lost`)?",
            lambda s: recovery(s, "link-down", "off").probes_lost,
            "The last column of that line; four pairs send a probe each millisecond",
            "Nearly all probes of four pairs in the second until the repair: about 4,000 less those that "
            "are sent before the cut takes effect.",
            within=0,
            mistakes=(Mistake(lambda s: recovery(s, "link-down", "on").probes_lost, "This is with rerouting"),),
        ),
    )
    discuss = (
        (
            "By the times of `ip -ts monitor`, how many ms passed from the port's change to the first new route of "
            "`{{ gpu }}`, and to the third? What happened in between, and what carried the packets meanwhile?",
            "Some milliseconds; the output below has both times. The switch reports its port (PORT_STATUS), the "
            "controller chooses detours, and an agent installs them by netlink, one after the other. Meanwhile the "
            "kernel uses the backup route, which needs no controller. The reply takes a detour once the controller has "
            "changed the routes of `{{ peer }}`: so the ping loses its first reply at most.",
        ),
        (
            "Why is the cable cut at the switch's end, and not with `{{ gpu }} ip link set rail0 down`?",
            "Linux removes all routes of an interface that is set down at the host itself, also those that "
            "should come back; a lost carrier keeps them and marks them `linkdown`.",
        ),
        (
            "No connection is lost without rerouting either. What would a training job see?",
            "TCP retransmits until the repair, so collectives hang for a second and go on; a library with a "
            "timeout of its own would abort the job.",
        ),
    )

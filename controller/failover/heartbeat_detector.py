"""From who heard whom to what is silent: links that lose everything, switches and GPUs that hang, all with their
carrier up.

A circle is the GPUs of a rail switch, or of an HB domain. In each round, one a period, each member sends a heartbeat to
one other: with n living members to the 1 + (round mod n - 1)th after it, so that everybody hears each of the others in
turn, and a link carries two heartbeats a period. After a round that went otherwise than expected everybody sends to
everybody, until what is silent is known. Silent members are sent one, and send one, in every round.

The rule. A beat from a to b arrives iff a's way up, the switch and b's way down live. So in a round of everybody to
everybody, if b heard a beat and not a's, a's way up is dead; and if a's beat was heard and not by b, b's way down is.
A link is silent once nothing was heard from its GPU, or by it, for `multiplier` rounds, with such a proof among them.
So with two links alive at least, exactly the dead ones are found, whichever they are and in whichever direction. With
fewer, nobody has anybody left to talk to, and the circle as a whole is silent: its switch, as far as can be told. Two
members alone (M = 2) are always that case: their links and their switch can't be told apart, and none is of use
without the others. A link is heard again after `multiplier` rounds in each of which it carried something both ways.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from railyard.topologies.addresses import Gpu, gpu_of_name, link_name, link_of_name, plane_of_device
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Device

Heartbeat = tuple[Gpu, Gpu]
"""From, to."""


@dataclass(slots=True)
class Round:
    """`is_full_mesh`: everybody sent to everybody."""

    number: int
    sent: frozenset[Heartbeat]
    is_full_mesh: bool
    received: set[Heartbeat] = field(default_factory=set)


class ProbeGroup:
    """The members of one switch or HB domain, at least two. ValueError for fewer, or a multiplier below 2."""

    def __init__(self, members: Sequence[Gpu], multiplier: int) -> None:
        if len(members) < 2 or multiplier < 2:
            raise ValueError(f"{len(members)} members, multiplier {multiplier}: both must be 2 at least")
        self.silent: frozenset[Gpu] = frozenset()
        self._members, self._member_set = tuple(members), frozenset(members)
        self._all_pairs = frozenset(permutations(members, 2))
        self._multiplier = multiplier
        self._recent: deque[Round] = deque(maxlen=multiplier)

    @property
    def is_silent(self) -> bool:
        """All of it: fewer than two links live."""
        return self.silent == self._member_set

    def begin_round(self, number: int) -> frozenset[Heartbeat]:
        """The beats to send in a new round. Its number must be above the last one's."""
        sent = self._all_pairs if self._last_round_unexpected() else self._rotation(number)
        self._recent.append(Round(number, sent, sent == self._all_pairs))
        return sent

    def receive(self, number: int, src: Gpu, dst: Gpu) -> None:
        """A beat of some round arrived. Late ones count for the round that they were sent in."""
        for probe_round in self._recent:
            if probe_round.number == number:
                probe_round.received.add((src, dst))

    def evaluate(self) -> None:
        """Decide anew what is silent, once what arrived of the last round has been heard."""
        if len(self._recent) < self._multiplier:
            return
        alive = self._member_set - self.silent
        dead = {gpu for gpu in alive if self._tx_failed(gpu) or self._rx_failed(gpu)}
        silent = (self.silent | dead) - {gpu for gpu in self.silent if self._has_recovered(gpu)}
        alive = self._member_set - silent
        if len(alive) < 2 or self._received_nothing() or (len(alive) == 2 and self._is_partitioned(alive)):
            silent = self._member_set
        self.silent = silent

    def _rotation(self, number: int) -> frozenset[Heartbeat]:
        """One beat from each, and one to each."""
        alive = [gpu for gpu in self._members if gpu not in self.silent] or list(self._members)
        n = len(alive)
        step = 1 + number % (n - 1)
        heartbeats = {(gpu, alive[(place + step) % n]) for place, gpu in enumerate(alive)}
        for place, gpu in enumerate(sorted(self.silent - set(alive))):
            heartbeats |= {(gpu, alive[(number + place) % n]), (alive[(number + place + 1) % n], gpu)}
        return frozenset(heartbeats)

    def _last_round_unexpected(self) -> bool:
        """Whether the last round went otherwise than what is known to be silent lets expect."""
        if not self._recent:
            return False
        last = self._recent[-1]
        if self.is_silent:
            return bool(last.received)
        return any(self.silent.isdisjoint(heartbeat) for heartbeat in last.sent - last.received)

    def _tx_failed(self, gpu: Gpu) -> bool:
        """Nothing was heard from it, and somebody else who should have heard it does hear."""
        if any(a == gpu for probe_round in self._recent for a, _ in probe_round.received):
            return False
        return any(
            b != gpu for probe_round in self._recent if probe_round.is_full_mesh for _, b in probe_round.received
        )

    def _rx_failed(self, gpu: Gpu) -> bool:
        """It heard nothing, and somebody else whom it should have heard is heard."""
        if any(b == gpu for probe_round in self._recent for _, b in probe_round.received):
            return False
        return any(
            a != gpu for probe_round in self._recent if probe_round.is_full_mesh for a, _ in probe_round.received
        )

    def _has_recovered(self, gpu: Gpu) -> bool:
        return all(
            any(a == gpu for a, _ in probe_round.received) and any(b == gpu for _, b in probe_round.received)
            for probe_round in self._recent
        )

    def _received_nothing(self) -> bool:
        return not any(probe_round.received for probe_round in self._recent)

    def _is_partitioned(self, pair: frozenset[Gpu]) -> bool:
        """Whether one of two doesn't hear the other: whose fault that is, nobody can tell."""
        return any(
            all(heartbeat in probe_round.sent and heartbeat not in probe_round.received for probe_round in self._recent)
            for heartbeat in permutations(sorted(pair), 2)
        )


@dataclass(frozen=True, slots=True)
class SilentComponents:
    """All that is silent now. Links of a silent rail or HB domain aren't told one by one.

    `links`: rail links of plane 0, by GPU; `planes`: those of others, with the plane. `gpus`: those of which nothing
    arrives by any link; their links are there too. `rails` are switches by index (the single switch is 0).
    """

    links: frozenset[Gpu] = frozenset()
    rails: frozenset[int] = frozenset()
    gpus: frozenset[Gpu] = frozenset()
    hb_links: frozenset[Gpu] = frozenset()
    hb_domains: frozenset[int] = frozenset()
    planes: frozenset[tuple[Gpu, int]] = frozenset()

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for another process; `from_dict` makes the same of it again."""
        names = {key: sorted(gpu.name for gpu in getattr(self, key)) for key in ("links", "gpus", "hb_links")}
        names["planes"] = sorted(link_name(*link) for link in self.planes)
        return names | {"rails": sorted(self.rails), "hb_domains": sorted(self.hb_domains)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SilentComponents":
        links, gpus, hb_links = (frozenset(map(gpu_of_name, data[key])) for key in ("links", "gpus", "hb_links"))
        planes = frozenset(map(link_of_name, data["planes"]))
        return cls(links, frozenset(data["rails"]), gpus, hb_links, frozenset(data["hb_domains"]), planes)


class HeartbeatDetector:
    """All probe groups of a fabric: the GPUs that one interface, hb0 or a plane's, joins. Rounds are common to all."""

    def __init__(self, plan: Plan, multiplier: int) -> None:
        kind = plan.spec.definition
        self._groups: dict[Device, dict[tuple[int, int], ProbeGroup]] = {}
        self._group_of: dict[tuple[Device, Gpu], ProbeGroup] = {}
        self._number = 0
        for device in plan.devices:
            members: defaultdict[tuple[int, int], list[Gpu]] = defaultdict(list)
            for gpu in plan.gpus:
                if device == "hb0":
                    members[gpu.domain, 0].append(gpu)
                else:  # where a switch has several rails that it doesn't join, GPUs know those of their own alone
                    index = kind.rail_switch(gpu.rank, plane_of_device(device)).index
                    members[index, 0 if kind.joins_rails else gpu.rank].append(gpu)
            groups = {key: ProbeGroup(gpus, multiplier) for key, gpus in members.items() if len(gpus) > 1}
            self._groups[device] = groups
            self._group_of |= {(device, gpu): groups[key] for key in groups for gpu in members[key]}

    def begin_round(self) -> tuple[int, dict[Device, list[Heartbeat]]]:
        """Begin a round: return its number, and the heartbeats to send by each interface."""
        self._number += 1
        return self._number, {
            device: [heartbeat for group in groups.values() for heartbeat in sorted(group.begin_round(self._number))]
            for device, groups in self._groups.items()
        }

    def receive(self, device: Device, number: int, src: Gpu, dst: Gpu) -> None:
        """Take in a heartbeat that arrived by an interface."""
        if group := self._group_of.get((device, dst)):
            group.receive(number, src, dst)

    def evaluate(self) -> SilentComponents:
        """Return what is silent, with all that has arrived so far."""
        by_switch: defaultdict[int, list[ProbeGroup]] = defaultdict(list)
        for device, groups in self._groups.items():
            for (index, _), group in groups.items():
                group.evaluate()
                if device != "hb0":
                    by_switch[index].append(group)
        rails = frozenset(i for i, groups in by_switch.items() if all(group.is_silent for group in groups))
        domains = frozenset(domain for (domain, _), group in self._groups["hb0"].items() if group.is_silent)
        links = {device: self._silent_members(device, domains if device == "hb0" else rails) for device in self._groups}
        everywhere = [self._silent_members(device, frozenset()) for device in self._groups]
        return SilentComponents(
            links=links["rail0"],
            rails=rails,
            gpus=everywhere[0].intersection(*everywhere[1:]),
            hb_links=links["hb0"],
            hb_domains=domains,
            planes=frozenset(
                (gpu, plane_of_device(device))
                for device, gpus in links.items()
                if device not in ("hb0", "rail0")
                for gpu in gpus
            ),
        )

    def _silent_members(self, device: Device, without: frozenset[int]) -> frozenset[Gpu]:
        """Return the silent GPUs of an interface's groups, but for those of some switches or domains."""
        groups = self._groups[device].items()
        return frozenset(gpu for (index, _), group in groups if index not in without for gpu in group.silent)

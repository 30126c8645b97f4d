"""Find silent components by heartbeats: links that lose everything, switches and GPUs that hang, all with a carrier.

A probe group is the GPUs of a rail switch, or of an HB domain. Each round, each member sends a heartbeat to one other,
so that each receives from all others in turn; after a round with an unexpected result all send to all. If b then
received a heartbeat and none from a, a's link doesn't transmit (tx failed); if one from a arrived, and none at b, b's
link doesn't receive (rx failed). A link is silent after `multiplier` rounds in which it carried nothing in one
direction, with such a proof among them, and has recovered after as many with heartbeats both ways (docs/controller.md).
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import NamedTuple

from railyard.topologies.addresses import Gpu, link_name, plane_of_device, rail_name
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Device

Heartbeat = tuple[Gpu, Gpu]  # from, to


class _Round(NamedTuple):
    """Heartbeats of one round. `is_full_mesh`: all members sent to all others."""

    number: int
    sent: frozenset[Heartbeat]
    is_full_mesh: bool
    received: set[Heartbeat]

    @property
    def is_complete(self) -> bool:
        """True if all that was sent has arrived."""
        return len(self.received) == len(self.sent)


class _Received(NamedTuple):
    """Members from which heartbeats of one round arrived, and those at which they did."""

    is_full_mesh: bool
    sources: frozenset[Gpu]
    sinks: frozenset[Gpu]

    @classmethod
    def from_round(cls, probe_round: _Round) -> "_Received":
        sources = frozenset(src for src, _ in probe_round.received)
        sinks = frozenset(dst for _, dst in probe_round.received)
        return cls(probe_round.is_full_mesh, sources, sinks)


class ProbeGroup:
    """The members of one switch or HB domain, at least two. ValueError for fewer, or a multiplier below 2."""

    def __init__(self, members: Sequence[Gpu], multiplier: int) -> None:
        if len(members) < 2 or multiplier < 2:
            raise ValueError(f"{len(members)} members, multiplier {multiplier}: both must be 2 at least")
        self.silent: frozenset[Gpu] = frozenset()
        self._members = tuple(members)
        self._member_set = frozenset(members)
        self._all_pairs = frozenset(permutations(members, 2))
        self._recent: deque[_Round] = deque(maxlen=multiplier)

    @property
    def is_silent(self) -> bool:
        """True if all members are silent: fewer than two links work."""
        return self.silent == self._member_set

    def begin_round(self, number: int) -> frozenset[Heartbeat]:
        """Return the heartbeats to send in a new round. Its number must be above the last one's."""
        # a full mesh after a round that the known silent members don't explain
        is_unexpected = False
        if self._recent:
            last = self._recent[-1]
            lost = last.sent - last.received
            is_lost_unexpectedly = any(map(self.silent.isdisjoint, lost))
            is_unexpected = bool(last.received) if self.is_silent else is_lost_unexpectedly
        sent = self._all_pairs if is_unexpected else self._rotation(number)
        self._recent.append(_Round(number, sent, sent == self._all_pairs, set()))
        return sent

    def receive(self, number: int, src: Gpu, dst: Gpu) -> None:
        """Take in a heartbeat. A late one counts for the round in which it was sent."""
        for probe_round in self._recent:
            if probe_round.number == number:
                probe_round.received.add((src, dst))

    def evaluate(self) -> None:
        """Decide which members are silent, with all that has arrived of the last round."""
        recent = self._recent
        if len(recent) < (recent.maxlen or 0):
            return
        # nearly always the case: the sets below are built only after a loss
        if not self.silent and all(probe_round.is_complete for probe_round in recent):
            return
        received = [_Received.from_round(probe_round) for probe_round in recent]
        sources: set[Gpu] = set()
        recovered = self._member_set
        for each in received:
            sources |= each.sources
            recovered &= each.sources & each.sinks
        still_silent = self.silent - recovered
        newly_silent = self._failed_members(received) - self.silent
        silent = still_silent | newly_silent
        alive = self._member_set - silent
        if len(alive) < 2 or not sources or self._is_partitioned(alive):
            silent = self._member_set
        self.silent = silent

    def _failed_members(self, received: Sequence[_Received]) -> set[Gpu]:
        """Return the members whose link doesn't transmit or doesn't receive, in none of these rounds.

        A full mesh in which another member was received proves that the fault is on this member's side.
        """
        no_tx = set(self._member_set)
        no_rx = set(self._member_set)
        for each in received:
            no_tx -= each.sources
            no_rx -= each.sinks
        failed: set[Gpu] = set()
        for mesh in received:
            # in a rotation a member sends to one other, whose link may be the one that fails
            if not mesh.is_full_mesh:
                continue
            for gpu in no_tx:
                if mesh.sinks - {gpu}:
                    failed.add(gpu)
            for gpu in no_rx:
                if mesh.sources - {gpu}:
                    failed.add(gpu)
        return failed

    def _is_partitioned(self, alive: frozenset[Gpu]) -> bool:
        """Return whether one of the last two members received nothing of the other: either link may be dead then."""
        if len(alive) != 2:
            return False
        return any(self._is_always_lost(heartbeat) for heartbeat in permutations(alive, 2))

    def _is_always_lost(self, heartbeat: Heartbeat) -> bool:
        """Return whether it was sent in each of the recent rounds and never received."""
        return all(heartbeat in each.sent and heartbeat not in each.received for each in self._recent)

    def _rotation(self, number: int) -> frozenset[Heartbeat]:
        """Return one heartbeat from each member, and one to each."""
        alive = [gpu for gpu in self._members if gpu not in self.silent] or list(self._members)
        n = len(alive)
        step = 1 + number % (n - 1)
        heartbeats = {(gpu, alive[(place + step) % n]) for place, gpu in enumerate(alive)}
        # silent members exchange heartbeats with living ones alone: only those can show that a link works again
        for place, gpu in enumerate(sorted(self.silent - set(alive))):
            heartbeats.add((gpu, alive[(number + place) % n]))
            heartbeats.add((alive[(number + place + 1) % n], gpu))
        return frozenset(heartbeats)


@dataclass(frozen=True, slots=True)
class SilentComponents:
    """All that is silent now. Links of a silent rail or HB domain are not listed.

    `links`: rail links of plane 0, by GPU.
    `planes`: those of others, with the plane.
    `gpus`: those of which nothing arrives by any link; their links are there too. `rails` are switches by index (the
    single switch is 0).
    """

    links: frozenset[Gpu] = frozenset()
    rails: frozenset[int] = frozenset()
    gpus: frozenset[Gpu] = frozenset()
    hb_links: frozenset[Gpu] = frozenset()
    hb_domains: frozenset[int] = frozenset()
    planes: frozenset[tuple[Gpu, int]] = frozenset()

    @property
    def rail_links(self) -> frozenset[tuple[Gpu, int]]:
        """The rail links of all planes, each as (GPU, plane)."""
        return self.planes.union((gpu, 0) for gpu in self.links)

    @property
    def names(self) -> set[tuple[str, str]]:
        """(kind, name) of each: ("link", "d0g1:rail1"), ("hb-link", "d0g1"), ("gpu", ...), ("rail", ...), ..."""
        names: set[tuple[str, str]] = set()
        for gpu, plane in self.rail_links:
            names.add(("link", link_name(gpu, plane)))
        for gpu in self.gpus:
            names.add(("gpu", gpu.name))
        for gpu in self.hb_links:
            names.add(("hb-link", gpu.name))
        for index in self.rails:
            names.add(("rail", rail_name(index)))
        for domain in self.hb_domains:
            names.add(("hb-domain", f"hb{domain}"))
        return names


def _group_key(plan: Plan, device: Device, gpu: Gpu) -> tuple[int, int]:
    """Return the key of the probe group that a GPU's interface is in: the domain or the switch, and the rank or 0."""
    kind = plan.spec.definition
    if device == "hb0":
        return gpu.domain, 0
    # in a graph all GPUs have routes to each other
    index = 0
    if not kind.is_graph:
        index = plan.rail_switch(gpu, plane_of_device(device)).index
    # where a switch carries several rails and doesn't join them, GPUs have routes to those of their own rail alone; and
    # GPUs that share a NIC don't reach each other by it
    if kind.joins_rails and not plan.nics:
        return index, 0
    return index, gpu.rank


class HeartbeatDetector:
    """All probe groups of a fabric: the GPUs that one interface, hb0 or a plane's, joins. Rounds are common to all."""

    def __init__(self, plan: Plan, multiplier: int) -> None:
        kind = plan.spec.definition
        self._groups: dict[Device, dict[tuple[int, int], ProbeGroup]] = {}
        self._group_of: dict[tuple[Device, Gpu], ProbeGroup] = {}
        self._number = 0
        self._is_graph = kind.is_graph
        for device in plan.devices:
            members: defaultdict[tuple[int, int], list[Gpu]] = defaultdict(list)
            for gpu in plan.gpus:
                members[_group_key(plan, device, gpu)].append(gpu)
            self._groups[device] = {}
            for key, gpus in members.items():
                # a single GPU has no other member to send heartbeats to
                if len(gpus) > 1:
                    group = ProbeGroup(gpus, multiplier)
                    self._groups[device][key] = group
                    for gpu in gpus:
                        self._group_of[device, gpu] = group

    def begin_round(self) -> tuple[int, dict[Device, list[Heartbeat]]]:
        """Begin a round: return its number, and the heartbeats to send by each interface."""
        self._number += 1
        heartbeats: dict[Device, list[Heartbeat]] = {}
        for device, groups in self._groups.items():
            heartbeats[device] = []
            for group in groups.values():
                heartbeats[device] += sorted(group.begin_round(self._number))
        return self._number, heartbeats

    def receive(self, device: Device, number: int, src: Gpu, dst: Gpu) -> None:
        """Take in a heartbeat that arrived by an interface."""
        group = self._group_of.get((device, dst))
        if group:
            group.receive(number, src, dst)

    def evaluate(self) -> SilentComponents:
        """Return what is silent, with all that has arrived so far."""
        by_switch: defaultdict[int, list[ProbeGroup]] = defaultdict(list)
        for device, groups in self._groups.items():
            for (index, _), group in groups.items():
                group.evaluate()
                if device != "hb0":
                    by_switch[index].append(group)
        silent_rails: set[int] = set()
        # a group of a graph has members at many switches
        if not self._is_graph:
            for index, groups_at_switch in by_switch.items():
                if all(group.is_silent for group in groups_at_switch):
                    silent_rails.add(index)
        rails = frozenset(silent_rails)
        domains = frozenset(domain for (domain, _), group in self._groups["hb0"].items() if group.is_silent)
        planes: set[tuple[Gpu, int]] = set()
        for device in self._groups:
            if device not in ("hb0", "rail0"):
                planes.update(product(self._silent_members(device, rails), [plane_of_device(device)]))
        silent_at_all = [self._silent_members(device, frozenset()) for device in self._groups]
        return SilentComponents(
            links=self._silent_members("rail0", rails),
            rails=rails,
            gpus=frozenset.intersection(*silent_at_all),
            hb_links=self._silent_members("hb0", domains),
            hb_domains=domains,
            planes=frozenset(planes),
        )

    def _silent_members(self, device: Device, excluded: frozenset[int]) -> frozenset[Gpu]:
        """Return the silent GPUs of an interface's groups, except those of some switches or domains."""
        silent: set[Gpu] = set()
        for (index, _), group in self._groups[device].items():
            if index not in excluded:
                silent |= group.silent
        return frozenset(silent)

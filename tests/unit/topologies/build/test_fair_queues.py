"""Classes of pairs on a shaped link: one each with equal parts, and one for what no filter knows."""

import re

from railyard.topologies.addresses import Gpu
from railyard.topologies.build.fair_queues import fair_queue_commands, removal_commands

PAIRS = [(Gpu(0, 0), Gpu(1, 1)), (Gpu(0, 1), Gpu(2, 1))]


def test_each_pair_has_a_class_that_may_borrow_the_whole_link() -> None:
    lines = fair_queue_commands("rail0", 100_000_000, 9000, PAIRS).splitlines()
    classes = {}
    for line in lines:
        if match := re.match(r"class add dev rail0 parent 1:1 classid (\S+) .* ceil (\d+)bit .* quantum (\d+)", line):
            classes[match[1]] = match.groups()[1:]
    assert len(set(classes.values())) == 1
    flows = [line for line in lines if line.startswith("filter")]
    assert [re.findall(r"flowid (\S+)", line) for line in flows] == [["1:100"], ["1:101"], ["1:ff"]]
    assert set(classes) == {"1:100", "1:101", "1:ff"}
    for line, (src, dst) in zip(flows, PAIRS, strict=False):
        assert f"src {src.ip}/32 match ip dst {dst.ip}/32" in line


def test_removal_takes_away_every_class_and_filter() -> None:
    added = fair_queue_commands("rail0", 100_000_000, 9000, PAIRS)
    removed = removal_commands("rail0", len(PAIRS))
    assert sorted(re.findall(r"classid (\S+)", added)) == sorted(re.findall(r"classid (\S+)", removed))
    assert set(re.findall(r"protocol \w+ prio \d", added)) == set(re.findall(r"protocol \w+ prio \d", removed))

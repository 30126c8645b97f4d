"""Mininet topologies as fabric kinds (`--topo`): the graph, rates and names, and each mistake in one line."""

from itertools import combinations, permutations
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mininet.topolib import TreeTopo
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.controller.openflow.flows import graph_tables
from railyard.core import plugins
from railyard.core.errors import BadInput
from railyard.experiments.measures.faults.measure import FaultsMeasure
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.loading import load_any
from railyard.topologies import from_mininet
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.topologies.from_mininet import TopoLink, convert
from railyard.topologies.graph import Cable, FabricGraph
from railyard.topologies.plan import make_plan
from railyard.topologies.routing import backup_routes, gpu_commands
from railyard.topologies.spec import parse_fabric
from railyard.topologies.topology_kind import gpu_names, hosts_line, network_of
from tests.unit.messages import messages

THREE_SWITCHES = """
from mininet.topo import Topo


class Pair(Topo):
    def build(self, hosts=2, bw=None):
        options = {"bw": bw} if bw else {}
        for side in "AB":
            switch = self.addSwitch(f"edge_{side}")
            self.addLink(switch, self.addSwitch("s1"))
            for number in range(hosts):
                self.addLink(self.addHost(f"{side}{number}"), switch, **options)


class Broken(Topo):
    def build(self):
        self.addHost("h1")
        raise KeyError("h2")


def other():
    return 3


topos = {"small": lambda: Pair(1), "wrong": other}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with topologies."""
    path = tmp_path / "pair.py"
    path.write_text(THREE_SWITCHES)
    return path


def test_topology_of_the_command_line_becomes_a_fabric(file: Path) -> None:
    spec = load_any("topology", ["faults.0.target=B0"], topo=f"{file}:Pair,hosts=3,bw=20")
    (fabric,) = spec.gpu_fabrics
    plan = nominal_plan(fabric)
    assert (fabric.kind, fabric.domains, fabric.rails, plan.rail_bps) == ("Pair", 6, 1, 20_000_000)
    assert [switch.name for switch in plan.switches] == ["edge_A", "edge_B", "s1"]
    assert [plan.rail_link(gpu).b.node for gpu in plan.gpus] == ["edge_A"] * 3 + ["edge_B"] * 3
    assert {link.name: link.rate_bps for link in plan.uplinks} == {"edge_A-s1": 20_000_000, "edge_B-s1": 20_000_000}
    assert [fault.target for fault in FaultsMeasure().faults(spec)] == ["d3g0"]  # B0


def test_entry_of_topos_is_a_topology_as_for_mn(file: Path) -> None:
    assert from_mininet.load(f"{file}:small") == {"kind": "small", "domains": 2, "rails": 1}


def test_child_processes_register_the_same_kind_from_its_source(file: Path) -> None:
    fabric = from_mininet.load(f"{file}:Pair")
    network = parse_fabric(fabric).graph
    file.unlink()
    FABRIC_KINDS.remove("Pair")
    plugins._loaded.clear()
    plugins._has_inherited = False
    copy = parse_fabric(fabric).graph
    assert (copy.switches, copy.switch_of, copy.uplinks) == (network.switches, network.switch_of, network.uplinks)
    assert set(plugins.copies()) == {"plugins/Pair.py"}


CHOICES = {
    "unknown class": "Pairs",
    "a function": "other",
    "entry that makes a number": "wrong",
    "class that raises": "Broken",
    "too many arguments": "Pair,1,2,3",
    "no hosts": "Pair,0",
    "240 hosts": "Pair,120",
    "word as rate": "Pair,bw=fast",
}
CONTENTS = {
    "no topology": "x = 1\n",
    "missing module": "import nowhere_at_all\n",
    "syntax error": "class Tree(\n",
    "exit": "import sys\nsys.exit(3)\n",
}


def test_wrong_choice_or_file_is_one_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, data_regression: DataRegressionFixture
) -> None:
    monkeypatch.chdir(file.parent)
    raised = messages(lambda choice: from_mininet.load(f"pair.py:{choice}"), CHOICES)

    def load(content: str) -> None:
        file.write_text(content)
        from_mininet.load("pair.py:Tree")

    data_regression.check(raised | messages(load, CONTENTS))


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        from_mininet.load(f"{tmp_path}/none.py:Tree")
    with pytest.raises(BadInput, match="must be a Python file"):
        from_mininet.load("tree.py")


def star(hosts: int, **parameters: object) -> list[TopoLink]:
    """Links of hosts h1, h2, ... to switch s1."""
    return [TopoLink(f"h{number}", "s1", parameters) for number in range(1, hosts + 1)]


NAMES = (["h1", "h2"], ["s1", "s2"])
GRAPHS: dict[str, tuple[list[str], list[str], list[TopoLink]]] = {
    "link between hosts": (*NAMES, [TopoLink("h1", "h2", {})]),
    "host without a link": (*NAMES, star(1)),
    "host with two links": (*NAMES, [*star(2), TopoLink("s2", "h1", {})]),
    "cable to itself": (*NAMES, [*star(2), TopoLink("s2", "s2", {})]),
    "switch without a cable": (*NAMES, star(2)),
    "two parts": (*NAMES, [*star(1), TopoLink("h2", "s2", {})]),
    "delay": (*NAMES, star(2, delay="5ms")),
    "loss": (*NAMES, star(2, loss=3)),
    "negative rate": (*NAMES, star(2, bw=-1)),
    "two rates of hosts": (*NAMES, [*star(1, bw=10), TopoLink("h2", "s1", {"bw": 5})]),
    "cable listed twice": (*NAMES, [*star(2), TopoLink("s1", "s2", {}), TopoLink("s2", "s1", {})]),
    "host with the name of a GPU": (["d0g0", "h2"], ["s1"], [TopoLink("d0g0", "s1", {}), TopoLink("h2", "s1", {})]),
    "switch with dashes": (["h1", "h2"], ["core-switch-1"], [TopoLink(name, "core-switch-1", {}) for name in NAMES[0]]),
}


def test_graph_that_no_fabric_has_is_one_line(data_regression: DataRegressionFixture) -> None:
    data_regression.check(messages(lambda graph: convert(*graph), GRAPHS, ValueError))


def test_links_without_a_rate_have_the_highest_of_the_others() -> None:
    links = [*star(2, bw=10), TopoLink("s1", "s2", {"bw": 40}), TopoLink("s2", "s3", {})]
    topology = convert(["h1", "h2"], ["s1", "s2", "s3"], links)
    assert topology.rail_mbps == 10
    assert topology.cables[2:] == (Cable("s1", "s2", 4.0), Cable("s2", "s3", 4.0))
    only_between = convert(["h1", "h2"], ["s1", "s2"], [*star(2), TopoLink("s1", "s2", {"bw": 40})])
    assert (only_between.rail_mbps, only_between.cables[2]) == (40, Cable("s1", "s2", 1.0))
    assert convert(["h1", "h2"], ["s1"], star(2)).rail_mbps is None


def test_other_graph_under_a_loaded_name_is_refused(file: Path) -> None:
    from_mininet.load(f"{file}:Pair")
    from_mininet.load(f"{file}:Pair")
    with pytest.raises(BadInput, match="another Pair is loaded"):
        from_mininet.load(f"{file}:Pair,3")


def test_file_may_import_files_of_its_folder(file: Path) -> None:
    (file.parent / "beside_pair.py").write_text("HOSTS = 3\n")
    file.write_text(THREE_SWITCHES + "\nfrom beside_pair import HOSTS\ntopos = {'six': lambda: Pair(HOSTS)}\n")
    assert from_mininet.load(f"{file}:six")["domains"] == 6


def test_domains_of_another_size_are_refused(file: Path) -> None:
    with pytest.raises(BadInput, match="the topology has 4 hosts: domains must be 4, and rails 1"):
        load_any("topology", ["domains=8"], topo=f"{file}:Pair")


def test_other_kinds_need_two_rails() -> None:
    with pytest.raises(BadInput, match=r"rails: 1 must be 2 or more"):
        parse_fabric({"kind": "rail-only", "rails": 1})


def test_gpu_alone_in_its_domain_has_no_backup_by_itself(file: Path) -> None:
    plan = make_plan(parse_fabric(from_mininet.load(f"{file}:Pair")), 10_000_000)
    for gpu in plan.gpus:
        assert backup_routes(plan, gpu) == []
        assert f"via {gpu.ip} " not in gpu_commands(plan, gpu, backups=True)


def test_line_of_hosts_leaves_out_the_middle() -> None:
    assert hosts_line(gpu_names(["h1", "h2"])) == "h1 is d0g0, h2 is d1g0"
    expected = "h1 is d0g0, h2 is d1g0, h3 is d2g0, ..., h9 is d8g0"
    assert hosts_line(gpu_names([f"h{number}" for number in range(1, 10)])) == expected


@st.composite
def topologies(draw: st.DrawFn) -> tuple[list[str], list[str], list[TopoLink]]:
    """Hosts at any switches of a connected graph: a random tree, and some links more."""
    count = draw(st.integers(1, 7))
    switches = [f"s{number}" for number in range(1, count + 1)]
    pairs = {(draw(st.integers(0, number - 1)), number) for number in range(1, count)}
    if count > 1:
        pairs |= set(draw(st.lists(st.sampled_from(list(combinations(range(count), 2))), max_size=5)))
    places = draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=9))
    hosts = [f"h{number}" for number in range(1, len(places) + 1)]
    links = [TopoLink(host, switches[place], {}) for host, place in zip(hosts, places, strict=True)]
    links += [TopoLink(switches[a], switches[b], {}) for a, b in sorted(pairs)]
    return hosts, switches, links


@given(topologies())
def test_fabric_joins_the_hosts_that_the_topology_joins(drawn: tuple[list[str], list[str], list[TopoLink]]) -> None:
    """Each frame arrives, over as many switches as the shortest path of the Topo has."""
    hosts, switches, links = drawn
    expected = nx.Graph([(link.a, link.b) for link in links])
    expected.add_nodes_from(switches)
    if any(expected.degree[switch] == 0 for switch in switches):
        return  # a single switch beside no host
    topology = convert(hosts, switches, links)
    graph = FabricGraph(network_of(*topology[:3]))
    gpus = {host: gpu for gpu, host in zip(sorted(graph.switch_of), hosts, strict=True)}
    names = {(a, port): b for a, ports in graph.ports.items() for b, port in ports.items()}
    tables = {switch: graph_tables(graph, switch, frozenset(), frozenset()) for switch in switches}
    for src, dst in permutations(hosts, 2):
        here, passed = graph.switch_of[gpus[src]], 1
        while here != graph.switch_of[gpus[dst]]:
            (flow,) = (flow for flow in tables[here].flows if flow.eth_dst == gpus[dst].mac("rail"))
            port = flow.port if flow.group is None else tables[here].groups[flow.group][-1]
            here, passed = names[here, port or 0], passed + 1
        assert passed + 1 == nx.shortest_path_length(expected, src, dst)


def test_example_of_the_page_is_the_file() -> None:
    root = Path(__file__).parents[3]
    example = (root / "docs/examples/mininet/two_racks.py").read_text()
    assert f"```python\n{example}```\n" in (root / "docs/mininet-users.md").read_text()


def test_tree_of_mininet_itself_is_a_fabric() -> None:
    topo = TreeTopo(depth=2, fanout=3)
    links = [TopoLink(a, b, parameters) for a, b, parameters in topo.links(withInfo=True)]
    topology = convert(topo.hosts(), topo.switches(), links)
    assert (len(topology.hosts), len(topology.switches), len(topology.cables)) == (9, 4, 12)

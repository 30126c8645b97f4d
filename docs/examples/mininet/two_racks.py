"""Two racks of hosts at a root switch, for Mininet and for Railyard's `--topo`.

            s1              links of hosts carry 20 Mbit/s each, those of the racks what all their hosts send
          /    \\
        s2      s3
       /  \\    /  \\
      h1  h2  h3  h4

    script/run dry-run --topo docs/examples/mininet/two_racks.py:TwoRacks
    sudo script/run run --topo docs/examples/mininet/two_racks.py:TwoRacks,hosts=3
"""

from mininet.topo import Topo


class TwoRacks(Topo):
    """Racks of `hosts` hosts each, with links of `bw` Mbit/s."""

    def build(self, hosts: int = 2, bw: float = 20) -> None:
        """Add switches, hosts and links."""
        root = self.addSwitch("s1")
        for rack in (0, 1):
            switch = self.addSwitch(f"s{rack + 2}")
            self.addLink(switch, root, bw=bw * hosts)
            for number in range(1, hosts + 1):
                host = self.addHost(f"h{rack * hosts + number}")
                self.addLink(host, switch, bw=bw)

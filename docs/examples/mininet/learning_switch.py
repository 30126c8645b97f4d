"""A learning switch for OpenFlow 1.3, for `--controller`; with `ryu` in place of `os_ken` it runs alike.

A frame to an address that a switch has not seen yet is flooded; the others get a flow. The topology must have no loops.

    sudo script/run run --topo docs/examples/mininet/two_racks.py:TwoRacks \\
        --controller docs/examples/mininet/learning_switch.py
"""

from typing import Any

from os_ken.base import app_manager
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.lib.packet import ethernet, packet
from os_ken.ofproto import ofproto_v1_3


class LearningSwitch(app_manager.OSKenApp):
    """Learns at which port of each switch an address is."""

    OFP_VERSIONS = (ofproto_v1_3.OFP_VERSION,)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ports: dict[tuple[int, str], int] = {}

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def on_switch(self, event: Any) -> None:
        """Let a new switch send frames without a flow to the controller."""
        datapath = event.msg.datapath
        ofp, parser = datapath.ofproto, datapath.ofproto_parser
        to_controller = parser.OFPActionOutput(ofp.OFPP_CONTROLLER, ofp.OFPCML_NO_BUFFER)
        self.add_flow(datapath, 0, parser.OFPMatch(), to_controller)

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def on_frame(self, event: Any) -> None:
        """Learn the source's port, add a flow if the destination's is known, and send the frame on."""
        message, datapath = event.msg, event.msg.datapath
        ofp, parser = datapath.ofproto, datapath.ofproto_parser
        in_port = message.match["in_port"]
        frame = packet.Packet(message.data).get_protocol(ethernet.ethernet)
        self.ports[datapath.id, frame.src] = in_port
        out_port = self.ports.get((datapath.id, frame.dst), ofp.OFPP_FLOOD)
        action = parser.OFPActionOutput(out_port)
        if out_port != ofp.OFPP_FLOOD:
            self.add_flow(datapath, 1, parser.OFPMatch(eth_dst=frame.dst), action)
        out = parser.OFPPacketOut(
            datapath=datapath, buffer_id=ofp.OFP_NO_BUFFER, in_port=in_port, actions=[action], data=message.data
        )
        datapath.send_msg(out)

    def add_flow(self, datapath: Any, priority: int, match: Any, action: Any) -> None:
        """Add a flow with one action."""
        ofp, parser = datapath.ofproto, datapath.ofproto_parser
        instructions = [parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, [action])]
        datapath.send_msg(parser.OFPFlowMod(datapath, priority=priority, match=match, instructions=instructions))

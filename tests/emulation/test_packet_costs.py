"""CPU time of packets over shaped links, from which `auto` rates follow."""

import pytest

from railyard.controller.processes.clients import ControllerProcess
from railyard.core.host import datapath_choice, detect
from railyard.topologies.measure.capacity import measure_costs

pytestmark = [pytest.mark.sandbox, pytest.mark.alone]


def test_frames_cost_more_than_packets_in_hb_domains() -> None:
    """A frame wakes a switch, and its acknowledgement again; an HB domain is the kernel's own bridge."""
    datapath, _ = datapath_choice(detect())
    capacity = measure_costs(datapath, ControllerProcess())
    assert 0 < capacity.hb_s < capacity.frame_s < 0.01
    assert 0 < capacity.switch_s < 0.01

"""The Ryu API, from whichever of its two implementations is running us: Ryu itself, or os-ken, its maintained fork.

Under `ryu-manager` Ryu is already loaded; else os-ken is taken, with its native threads (the hub's type is read at its
first import, so it is set here, before any).
"""

import os
import sys

if "ryu" in sys.modules:
    from ryu.base.app_manager import RyuApp
    from ryu.controller import ofp_event
    from ryu.controller.controller import Datapath
    from ryu.controller.handler import (
        CONFIG_DISPATCHER,
        DEAD_DISPATCHER,
        MAIN_DISPATCHER,
        set_ev_cls,
    )
    from ryu.ofproto import ofproto_v1_3, ofproto_v1_3_parser
else:
    os.environ.setdefault("OSKEN_HUB_TYPE", "native")
    from os_ken.base.app_manager import OSKenApp as RyuApp
    from os_ken.controller import ofp_event
    from os_ken.controller.controller import Datapath
    from os_ken.controller.handler import (
        CONFIG_DISPATCHER,
        DEAD_DISPATCHER,
        MAIN_DISPATCHER,
        set_ev_cls,
    )
    from os_ken.ofproto import ofproto_v1_3, ofproto_v1_3_parser

__all__ = [
    "CONFIG_DISPATCHER",
    "DEAD_DISPATCHER",
    "MAIN_DISPATCHER",
    "Datapath",
    "RyuApp",
    "ofp_event",
    "ofproto_v1_3",
    "ofproto_v1_3_parser",
    "set_ev_cls",
]

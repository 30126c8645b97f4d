"""NCCL's settings that decide whether traffic crosses rails. Source: NCCL's user guide, Environment Variables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from railyard.workloads.cluster.records import Cluster


@dataclass(frozen=True)
class Setting:
    """A variable. `meanings`: what each value does on a fabric with rails; `otherwise`: what any other value does."""

    name: str
    default: str
    meanings: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = ""


SETTINGS: Final = (
    Setting(
        "NCCL_CROSS_NIC",
        "2",
        {
            "0": "a ring or tree enters and leaves every host by the same NIC, so it stays on its rail",
            "1": "a ring or tree may take different NICs on different hosts: for hosts with all NICs at one switch",
            "2": "the same NIC is preferred, but a ring or tree may cross rails where NCCL expects to be faster",
        },
    ),
    Setting(
        "NCCL_PXN_DISABLE",
        "0",
        {
            "0": "data for another rail goes over NVLink to the GPU at that rail's NIC (PXN), and stays on it",
            "1": "without PXN, a send to a GPU on another rail crosses rails",
        },
    ),
    Setting(
        "NCCL_P2P_PXN_LEVEL",
        "2",
        {
            "0": "sends and receives, so all-to-alls, don't use PXN: between GPUs on different rails they cross",
            "1": "sends and receives use PXN only where the far side's NIC isn't behind the same PCI switch",
            "2": "all sends and receives between hosts use PXN",
        },
    ),
    Setting(
        "NCCL_IB_HCA",
        "all",
        otherwise="only these NICs are used: a list that differs between hosts gives a rail's NIC another number",
    ),
    Setting(
        "NCCL_IB_MERGE_NICS",
        "1",
        {
            "0": "each port is a NIC of its own",
            "1": "the two ports of a NIC are used as one: both must be on the same rail",
        },
    ),
    Setting(
        "NCCL_NET_MERGE_LEVEL",
        "PORT",
        {"PORT": "ports of one NIC are merged, and no NICs"},
        otherwise="NICs this near to one another are merged to one, which may join two rails",
    ),
    Setting(
        "NCCL_NET_MERGE_POLICY",
        "ALL",
        {
            "ALL": "NICs are merged without regard to their rails",
            "RAIL": "only NICs of the same rail are merged",
        },
    ),
    Setting("NCCL_NET_FORCE_MERGE", "none", otherwise="these NICs are used as one: they must be on the same rail"),
)


@dataclass(frozen=True)
class SettingInUse:
    """A setting with its value. `processes`: how many logged it; 0: none did, so the value is NCCL's default."""

    setting: Setting
    value: str
    processes: int

    @property
    def meaning(self) -> str:
        """The effect of the value."""
        return self.setting.meanings.get(self.value, self.setting.otherwise)


def settings_in_use(cluster: Cluster) -> tuple[SettingInUse, ...]:
    """Return the settings that processes logged, and the two that matter most with their default if none did."""
    in_use: list[SettingInUse] = []
    for setting in SETTINGS:
        values = cluster.settings.get(setting.name)
        if values:
            for value, processes in values.most_common():
                in_use.append(SettingInUse(setting, value, processes))
        elif setting.name in ("NCCL_CROSS_NIC", "NCCL_PXN_DISABLE"):
            in_use.append(SettingInUse(setting, setting.default, 0))
    return tuple(in_use)

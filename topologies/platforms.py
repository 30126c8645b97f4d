"""Real GPU platforms, to scale down from and project back to: a YAML file each in `topologies/systems`.

The ratio C_F/C_S is all that decides the shape of a result; it is 12 for the A100 and 9 for the H100. Yours is a file
with the same keys, given by its path wherever a platform's name is asked for; those that may be left out are for times.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field, PrivateAttr, ValidationInfo, field_validator

from railyard.core.config import ConfigModel, is_path, parse_model, read_yaml
from railyard.core.errors import unknown_name_hint
from railyard.core.input_paths import NameOrPath
from railyard.core.installation import data_file

SYSTEMS: Final = data_file("topologies/systems")
# products and quotients in the formulas stay finite up to this and far below 1
_MOST: Final = 1e24
_Positive = Annotated[float, Field(ge=1, le=_MOST)]
_Share = Annotated[float, Field(ge=1e-6, le=1)]
_NotNegative = Annotated[float, Field(ge=0, le=_MOST)]


class Platform(ConfigModel):
    """C_F (`hb_bps`) and C_S (`rail_bps`) in bit/s per GPU and direction; peak dense 16-bit FLOP/s; a GPU's memory;

    `domain_gpus`: GPUs of an HB domain (K).

    What only the model of iteration time asks for may be None: then it is the A100's
    (`results/theory/iteration/iteration_time.py` says what each is). `memory_bytes_per_s`: HBM, by the data sheet;
    `hb_latency_s`, `rail_latency_s`: latency of one hop, s.
    """

    hb_bps: Annotated[int, Field(ge=1)]
    rail_bps: Annotated[int, Field(ge=1)]
    flops: _Positive
    memory_bytes: Annotated[int, Field(ge=1)]
    domain_gpus: Annotated[int, Field(ge=1)]
    memory_bytes_per_s: _Positive | None = None
    matmul_efficiency: _Share | None = None
    memory_efficiency: _Share | None = None
    overhead_flops: _NotNegative | None = None
    hb_latency_s: _NotNegative | None = None
    rail_latency_s: _NotNegative | None = None
    _name: str = PrivateAttr("")

    @field_validator("rail_bps")
    @classmethod
    def _hb_is_the_faster(cls, rail_bps: int, info: ValidationInfo) -> int:
        if rail_bps > info.data.get("hb_bps", rail_bps):
            raise ValueError(f"must not be above hb_bps, {info.data['hb_bps']}")
        return rail_bps

    @property
    def name(self) -> str:
        """Name of its file."""
        return self._name

    @property
    def ratio(self) -> float:
        """C_F / C_S."""
        return self.hb_bps / self.rail_bps


def _read_platform(path: Path) -> Platform:
    """Return a file's platform. BadInput names the file, and the key in it that can't be used."""
    platform = parse_model(Platform, read_yaml(path, "platform"), f"platform {path.name}")
    platform._name = path.stem
    return platform


@cache
def _built_in() -> dict[str, Platform]:
    return {path.stem: _read_platform(path) for path in sorted(SYSTEMS.glob("*.yaml"))}


class _Platforms(Mapping[str, Platform]):
    """The built-in platforms, by name; and any other, which is not counted, by the path of its file."""

    def __getitem__(self, name: str) -> Platform:
        return _read_platform(Path(name)) if is_path(name) else _built_in()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_built_in())

    def __len__(self) -> int:
        return len(_built_in())


PLATFORMS: Final = _Platforms()  # KeyError for a name that isn't known; BadInput for a file that can't be used


def _known_platform(name: str) -> str:
    if name not in PLATFORMS:
        raise ValueError(f"{unknown_name_hint(name, PLATFORMS)}, or the path of a .yaml file")
    return name


PlatformName = Annotated[NameOrPath, AfterValidator(_known_platform)]

"""Real GPU platforms, to scale down from and project back to: a YAML file each in `topologies/systems`.

The ratio C_F/C_S is all that decides the shape of a result; it is 12 for the A100 and 9 for the H100. Yours is a file
with the same keys, given by its path wherever a platform's name is asked for; those that may be left out are for times.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, PrivateAttr, ValidationInfo, field_validator

from railyard.core.config import ConfigModel, is_path, parse_model, read_yaml
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.input_paths import NameOrPath
from railyard.core.installation import data_file

SYSTEMS: Final = data_file("topologies/systems")
# products and quotients in the formulas stay finite up to this and far below 1
_MOST: Final = 1e24
_Positive = Annotated[float, Field(ge=1, le=_MOST)]
_Share = Annotated[float, Field(ge=1e-6, le=1)]
_NotNegative = Annotated[float, Field(ge=0, le=_MOST)]


Precision = Literal["bf16", "fp8", "mxfp8", "nvfp4"]
"""What matmuls compute in: 16 bits; 8 bits, with a scale per tensor (fp8) or per block of 32 values (mxfp8); 4 bits,
with a scale per block of 16 values (nvfp4)."""
LOW_PRECISIONS: Final[tuple[Precision, ...]] = ("fp8", "mxfp8", "nvfp4")
PRECISIONS: Final[tuple[Precision, ...]] = ("bf16", *LOW_PRECISIONS)


class LowPrecisionPeaks(ConfigModel):
    """Peak dense FLOP/s of a GPU below 16 bits, by the data sheet; None for what it can't compute in."""

    fp8: _Positive | None = None
    mxfp8: _Positive | None = None
    nvfp4: _Positive | None = None


class Platform(ConfigModel):
    """C_F (`hb_bps`) and C_S (`rail_bps`) in bit/s per GPU and direction; peak dense FLOP/s; a GPU's memory;

    `flops`: in 16 bits; `low_precision_flops`: in fewer.
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
    low_precision_flops: LowPrecisionPeaks = LowPrecisionPeaks()
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

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Precisions that its GPUs compute in."""
        low = (precision for precision in LOW_PRECISIONS if getattr(self.low_precision_flops, precision))
        return ("bf16", *low)

    def peak_flops(self, precision: Precision, field: str = "precision") -> float:
        """Return the peak dense FLOP/s of a GPU in a precision. BadInput for one that the platform doesn't have."""
        peak: float | None = self.flops
        if precision != "bf16":
            peak = getattr(self.low_precision_flops, precision)
        if peak is None:
            raise BadInput(field, precision, f"is not for {self.name}: it has {', '.join(self.precisions)}")
        return peak


def _read_platform(path: Path) -> Platform:
    """Return a file's platform. BadInput names the file, and the key in it that can't be used."""
    platform = parse_model(Platform, read_yaml(path, "platform"), f"platform {path.name}")
    platform._name = path.stem
    return platform


@cache
def _built_in() -> dict[str, Platform]:
    return {path.stem: _read_platform(path) for path in sorted(SYSTEMS.glob("*.yaml"))}


_SHORT_NAMES: Final = {"gb200": "gb200-nvl72", "gb300": "gb300-nvl72"}


def full_name(name: str) -> str:
    """Return the name of a platform whose short name this may be; any other name, or a file's path, as it is."""
    return _SHORT_NAMES.get(name, name)


class _Platforms(Mapping[str, Platform]):
    """The built-in platforms, by name; and, not counted, some by a shorter name and any by the path of its file."""

    def __getitem__(self, name: str) -> Platform:
        if is_path(name):
            return _read_platform(Path(name))
        return _built_in()[full_name(name)]

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

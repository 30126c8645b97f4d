"""Failure rates and repair times, as components.yaml has them or a file of yours with the same keys."""

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from railyard.core.config import ConfigModel, find_problems, read_yaml
from railyard.core.errors import BadInput

DEFAULT_COMPONENTS: Final = Path(__file__).parent / "components.yaml"
HOURS_A_YEAR: Final = 8766.0
DAYS_A_YEAR: Final = 365.25

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)]


class Observation(ConfigModel):
    """Failures counted in a fleet."""

    failures: Annotated[int, Field(ge=0)]
    components: Annotated[int, Field(ge=1)]
    days: _Positive


class Component(ConfigModel):
    """One kind: how often one of them fails, by either key, and for how long on average."""

    seen: Observation | None = None
    per_year: Annotated[_NotNegative | None, Field(validate_default=True)] = None
    repair_h: _Positive
    source: str

    @field_validator("per_year")
    @classmethod
    def _one_of_both(cls, per_year: float | None, info: ValidationInfo) -> float | None:
        if "seen" in info.data and (per_year is None) == (info.data["seen"] is None):
            raise ValueError("must be given or else seen, one of the two")
        return per_year

    @property
    def failures_per_year(self) -> float:
        """Failures of one component a year."""
        if self.seen is None:
            return self.per_year or 0.0
        return self.seen.failures / self.seen.components / (self.seen.days / DAYS_A_YEAR)

    @property
    def repair_years(self) -> float:
        """Mean repair time in years."""
        return self.repair_h / HOURS_A_YEAR

    @property
    def unavailable(self) -> float:
        """Share of its time that one of them is out, to first order: rate x repair time."""
        return self.failures_per_year * self.repair_years


class Components(ConfigModel):
    """Components of a cluster. A GPU's link has `nic`, one a GPU, and `transceiver`; `hbm` is counted a GPU."""

    gpu: Component
    hbm: Component
    nic: Component
    switch: Component
    transceiver: Component
    rail_time_share: Annotated[float, Field(ge=0, le=1, strict=False)]


def read_components(path: Path = DEFAULT_COMPONENTS) -> Components:
    """Return the components of a file. BadInput names the file, and the key in it that can't be used."""
    try:
        return Components.model_validate(read_yaml(path, "components"))
    except ValidationError as error:
        raise BadInput(*find_problems(error, f"components {path.name}")[0]) from error

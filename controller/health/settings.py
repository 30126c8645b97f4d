"""What a user may say about health scores and where they are kept."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from railyard.controller.health.estimator import ESTIMATORS, Links
from railyard.core.config import ConfigModel, find_problems
from railyard.core.errors import BadInput
from railyard.core.units import Time

RegistryKind = Literal["embedded", "etcd"]
AtMostAMinute = Annotated[Time, Field(le=60)]


class HealthSpec(ConfigModel):
    """How scores are made, and kept.

    `estimator`: a name in ESTIMATORS. `links`: see estimator.health. `period` between two looks, `smoothing` the time
    constant of the mean over them. A queue that takes `full_queue` to drain at its link's rate counts as full.
    `registry`: see registry/; `stale`: after how long without a message a cache is stale.
    """

    estimator: Annotated[str, AfterValidator(ESTIMATORS.checked)] = "utilisation"
    links: Links = "mean"
    period: AtMostAMinute = 0.05
    smoothing: AtMostAMinute | Literal["none"] = 0.1
    full_queue: AtMostAMinute = 0.05
    registry: RegistryKind = "embedded"
    stale: AtMostAMinute = 1.0

    @property
    def smoothing_s(self) -> float:
        return 0.0 if self.smoothing == "none" else self.smoothing


def parse_health(data: object) -> HealthSpec:
    """Read the settings from plain data (as YAML gives it). BadInput names the first field that is wrong."""
    try:
        return HealthSpec.model_validate(data)
    except ValidationError as error:
        raise BadInput(*find_problems(error, "health")[0]) from error

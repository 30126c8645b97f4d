"""Settings of health scores, read as a spec reads them."""

from pydantic import ValidationError

from railyard.controller.health.estimator import HealthSpec
from railyard.core.config import find_problems
from railyard.core.errors import BadInput


def parse_health(data: object) -> HealthSpec:
    """Read the settings from plain data (as YAML gives it). BadInput names the first field that is wrong."""
    try:
        return HealthSpec.model_validate(data)
    except ValidationError as error:
        raise BadInput(*find_problems(error, "health")[0]) from error

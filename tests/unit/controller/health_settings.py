"""Settings of health scores, read as a spec reads them."""

from railyard.controller.health.estimator import HealthSpec
from railyard.core.config import parse_model


def parse_health(data: object) -> HealthSpec:
    """Read the settings from plain data (as YAML gives it). BadInput names the first field that is wrong."""
    return parse_model(HealthSpec, data, "health")

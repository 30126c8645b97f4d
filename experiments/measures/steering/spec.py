"""Sections `routing`, `background` and `grid` of an experiment's file: policies that steer, and other traffic."""

from dataclasses import replace
from typing import Annotated, Literal, cast

from pydantic import AfterValidator, Field, field_validator

from railyard.controller.agent.steering import Assigned, Damping, Steering, margin_on, steering_on
from railyard.controller.health.estimator import HealthSpec
from railyard.controller.health.policy import DELTA, HEALTH_POLICIES, default_policies
from railyard.core.config import ConfigModel
from railyard.core.units import Time
from railyard.experiments.spec.experiment import ExperimentSpec, Items
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.spec import BackgroundSpec, GridSpec

PolicyName = Annotated[str, AfterValidator(HEALTH_POLICIES.checked)]


class RoutingSpec(ConfigModel):
    """Every workload runs once for each policy and seed, in the order of `policies`, on one built fabric.

    A policy steers from before the background begins; the workload starts `settle` after that, and nothing is sent for
    as long before. `margin` (percent; auto: see `margin_on`), `noise`, `dwell`: see controller.agent.steering.Damping.
    `delta`: see health.policy.Context. `health`: how scores are made and kept.
    """

    policies: Annotated[tuple[PolicyName, ...], Field(min_length=1, strict=False)] = Field(
        default_factory=default_policies
    )
    margin: Annotated[int, Field(ge=0, le=1000)] | Literal["auto"] = "auto"
    dwell: Time | Literal["none"] = Damping().dwell_ns / 1e9
    noise: Annotated[int, Field(ge=0, le=100)] = Damping().noise
    delta: Annotated[int, Field(ge=0, le=100)] = DELTA
    settle: Annotated[Time, Field(le=60)] = 0.7
    health: HealthSpec = HealthSpec()

    @field_validator("policies")
    @classmethod
    def _policies_differ(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("must name each policy once")
        return names

    def damping(self, fabric: FabricSpec) -> Damping:
        """Return margin, dwell and noise, with `auto` replaced by its value."""
        margin = margin_on(fabric.domains) if self.margin == "auto" else self.margin
        dwell_ns = 0 if self.dwell == "none" else round(self.dwell * 1e9)
        return Damping(margin, dwell_ns, self.noise)

    def steering(self, policy: str, fabric: FabricSpec, seed: int, assigned: Assigned) -> Steering:
        """Return what agents need to apply a policy. `assigned`: the paths of a policy that knows the load."""
        steering = steering_on(fabric, policy, self.damping(fabric), seed, self.delta)
        return replace(steering, context=replace(steering.context, assigned=assigned))


Background = Annotated[tuple[BackgroundSpec, ...], Items]


def routing_of(spec: ExperimentSpec) -> RoutingSpec | None:
    """Return the section `routing` of an experiment; None without one."""
    return cast(RoutingSpec | None, getattr(spec, "routing", None))


def background_of(spec: ExperimentSpec) -> tuple[BackgroundSpec, ...]:
    """Return the section `background` of an experiment: what is sent beside its workloads."""
    return cast(tuple[BackgroundSpec, ...], getattr(spec, "background", ()))


def grid_of(spec: ExperimentSpec) -> GridSpec | None:
    """Return the section `grid` of an experiment: scenes with a background each; None without one."""
    return cast(GridSpec | None, getattr(spec, "grid", None))

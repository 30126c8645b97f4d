"""What a user may say about routes that policies steer while workloads run: an experiment's section `routing`."""

from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from railyard.controller.agent.steering import Assigned, Steering
from railyard.controller.health.hysteresis import Damping
from railyard.controller.health.policies import DELTA, POLICIES, Context
from railyard.controller.health.settings import HealthSpec
from railyard.core.errors import unknown_name_hint
from railyard.core.units import Time
from railyard.topologies.spec import ConfigModel, FabricSpec

MAX_SETTLE_S: Final = 60
ORACLE: Final = "oracle"
MAX_AUTO_MARGIN: Final = 300


class RoutingSpec(ConfigModel):
    """Every workload runs once for each policy and seed, in the order of `policies`, on one built fabric.

    A policy steers from before the background begins; the workload starts `settle` after that, and nothing is sent for
    as long before. `margin` (percent; auto: see `own_margin`), `noise`, `dwell`: see health.dwell.Damping. `delta`: see
    health.policies.Context. `health`: how scores are made and kept.
    """

    policies: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = tuple(POLICIES)
    margin: Annotated[int, Field(ge=0, le=1000)] | Literal["auto"] = "auto"
    dwell: Time | Literal["none"] = Damping().dwell_ns / 1e9
    noise: Annotated[int, Field(ge=0, le=100)] = Damping().noise
    delta: Annotated[int, Field(ge=0, le=100)] = DELTA
    settle: Annotated[Time, Field(le=MAX_SETTLE_S)] = 0.7
    health: HealthSpec = HealthSpec()

    @field_validator("policies")
    @classmethod
    def _policies_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in POLICIES:
                raise ValueError(unknown_name_hint(name, POLICIES))
        if len(set(names)) < len(names):
            raise ValueError("must name each policy once")
        return names

    def damping(self, fabric: FabricSpec) -> Damping:
        """Both settings, with auto decided."""
        margin = own_margin(fabric.domains) if self.margin == "auto" else self.margin
        return Damping(margin, 0 if self.dwell == "none" else round(self.dwell * 1e9), self.noise)

    def context(self, fabric: FabricSpec, seed: int, assigned: Assigned) -> Context:
        """What policies may know besides scores."""
        return Context(fabric.kind, seed, self.delta, assigned)

    def steering(self, policy: str, fabric: FabricSpec, context: Context) -> Steering:
        """What agents are told. The oracle goes by no scores, and is to be the best: nothing damps it."""
        return Steering(policy, context, Damping(None, 0, 0) if policy == ORACLE else self.damping(fabric))


def own_margin(domains: int) -> int:
    """The margin (percent) below which a better path may only be one that lacks the pair's own traffic.

    A transfer fills two of a rail's links, its source's and its destination's, so it takes 2/M of the rail's score. A
    pair that went by a tenth less would run from itself, from rail to rail. A tenth on top is for noise. At M = 2 a
    transfer can take all of a score; then the path has to be four times as good.
    """
    left = 1 - 2 / domains
    return min(MAX_AUTO_MARGIN, round(110 / left - 100)) if left > 0 else MAX_AUTO_MARGIN

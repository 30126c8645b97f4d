"""Answers of lab 6: scores and paths before anything is sent, predicted times of policies, and the student's run."""

from functools import cache
from typing import Literal

from railyard.controller.health.policy import path_score
from railyard.experiments.labs.definition import Setting
from railyard.experiments.measures.steering.expected_times import InitialState, initial_states
from railyard.experiments.measures.steering.predict import predictions
from railyard.experiments.spec import loading
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import path_of

TRANSFER_S = 0.6
"""How long a transfer of hot-rail takes on an idle rail."""


@cache
def predicted_s(policy: str, *overrides: str) -> float:
    """Return the predicted time of hot-rail's transfers under a policy, with seed 1, s."""
    spec = loading.load_any("hot-rail", [*overrides, f"routing.policies=[{policy}]", "repeats=1"])
    return predictions(spec)[0].predicted or 0.0


@cache
def initial(*overrides: str) -> InitialState:
    """Return hot-rail before anything is sent: scores and paths."""
    return next(initial_states(loading.load_any("hot-rail", overrides), 1))[2]


def policy_s(setting: Setting, policy: str) -> float:
    """Return the predicted time of the transfers under a policy in the variant, s."""
    return predicted_s(policy, *overrides(setting))


def overrides(setting: Setting) -> tuple[str, ...]:
    """Return the variant's overrides of hot-rail."""
    ranks = list(range(setting["senders"]))
    return (
        f"background=[{{rails: {ranks}, load: {setting['load']}}}]",
        f"workloads.0.ranks={ranks}",
        f"rails={setting['rails']}",
    )


def score(setting: Setting, kind: Literal["dr", "drd"]) -> float:
    """Return the score of a path from d0g0 to d1g1, 0 to 100: dr by rail 1, or drd by the first idle rail."""
    # rails 0 to senders - 1 are hot
    rail_of_kind = {"dr": 1, "drd": setting["senders"]}
    path = path_of(kind, rail_of_kind[kind])
    scores = initial(*overrides(setting)).scores
    return path_score(path, Gpu(0, 0), Gpu(1, 1), scores) / 1e4


def first_rail(setting: Setting, policy: str) -> float:
    """Return the rail that a policy chooses first for the transfer from d0g0."""
    chosen = initial(*overrides(setting)).chosen(policy)
    for (source, _), shares in chosen.items():
        if source == Gpu(0, 0):
            return shares[0].path.rail
    raise LookupError("d0g0 sends nothing")


def measured_s(setting: Setting, policy: str) -> float:
    """Return the time of the transfers under a policy in the student's run, s."""
    return setting.measurement("measured", policy=policy).value


def fastest_policy(setting: Setting) -> str:
    """Return the policy under which the transfers of the student's run took the shortest time."""
    return min(("dr", "health-drd", "health-best"), key=lambda policy: measured_s(setting, policy))

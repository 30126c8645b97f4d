"""The plan of the fabric that stands, kept in the sandbox's own /run: for whoever enters a live run from outside."""

import json
from pathlib import Path
from typing import Final

from railyard.topologies.plan import Plan

PLAN_FILE: Final = Path("/run/railyard/plan.json")


def write(plan: Plan) -> None:
    """Traffic can flow on it from now on. In one step, so that nobody reads half a plan."""
    PLAN_FILE.parent.mkdir(parents=True, exist_ok=True)
    temporary = PLAN_FILE.with_suffix(".half")
    temporary.write_text(json.dumps(plan.as_dict()))
    temporary.rename(PLAN_FILE)


def read() -> Plan | None:
    """None while no fabric stands."""
    try:
        return Plan.from_dict(json.loads(PLAN_FILE.read_text()))
    except FileNotFoundError:
        return None


def remove() -> None:
    """It is being taken down."""
    PLAN_FILE.unlink(missing_ok=True)

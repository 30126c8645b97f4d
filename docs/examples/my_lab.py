"""A lab with one question: how many switches a fabric of the student's size has.

script/run lab 90 --student ada --plugin docs/examples/my_lab.py
"""

import random
from typing import Any

from railyard.experiments.labs.definition import LABS, Lab, Mistake, Question


@LABS.register("switches")
class Switches(Lab):
    """Count switches."""

    number, title, minutes = 90, "Count switches", 20
    plan_45 = "Everything, with both kinds of fabric drawn on the board."
    plan_90 = "The same, and lab 1."
    text = """
## Count

`{{ unprivileged }} list --kinds` shows the kinds of fabrics. Draw one of {{ domains }} domains x {{ rails }} rails.

{{ ask.switches }}
"""
    questions = (
        Question(
            "switches",
            "How many rail switches does a rail-only fabric of {{ domains }} domains x {{ rails }} rails have?",
            lambda setting: len(setting.plan().switches),
            "Each rail switch joins the GPUs of one rank",
            "One for each rank.",
            within=0,
            mistakes=(Mistake(lambda setting: setting["domains"], "A domain's bridge is no rail switch"),),
        ),
    )

    def values(self, choose: random.Random) -> dict[str, Any]:
        """Choose a grid."""
        domains, rails = choose.choice([(3, 4), (4, 3), (4, 6), (6, 4)])
        return {"domains": domains, "rails": rails}

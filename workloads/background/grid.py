"""Background in scenes, one after the other: every combination of some loads on an HB domain, a rail and the spines.

{domains: [0], rails: [0], spine: true, loads: [0, 0.5, 0.9]}    27 scenes
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Final

from pydantic import Field, field_validator, model_validator

from railyard.core.config import ConfigModel, field_error
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.kind import Numbers
from railyard.workloads.background.spec import MAX_LOAD, BackgroundSpec

MIN_LOAD: Final = 1e-6  # what is left of a load when another is taken off it, and is none but for rounding


class GridSpec(ConfigModel):
    """Each of `loads` on each of what is named: these HB domains together, these rails together, the spine layer.

    A load is a share of the rate of every link of it, in both directions, as in BackgroundSpec; 0 is none.
    """

    domains: Numbers = ()
    rails: Numbers = ()
    spine: bool = False
    loads: Annotated[
        tuple[Annotated[float, Field(ge=0, le=MAX_LOAD)], ...], Field(min_length=1, max_length=10, strict=False)
    ]

    @field_validator("domains", "rails", "loads")
    @classmethod
    def _check_unique(cls, numbers: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(numbers)) < len(numbers):
            raise ValueError("must name each only once")
        return numbers

    @model_validator(mode="after")
    def _check_targets(self) -> "GridSpec":
        if not (self.rails or self.domains or self.spine):
            raise field_error("rails", list(self.rails), "must name a rail, if neither domains nor spine is given")
        return self

    @property
    def patterns(self) -> dict[str, object]:
        """What is named, by its kind of background."""
        named = {"domains": self.domains, "rails": self.rails, "spine": self.spine}
        return {kind: value for kind, value in named.items() if value}

    @property
    def scenes(self) -> tuple["Scene", ...]:
        """All combinations, the spines' load changing last."""
        spines, domains, rails = (self.loads if named else (0.0,) for named in (self.spine, self.domains, self.rails))
        return tuple(Scene(self, *loads) for loads in product(spines, domains, rails))


@dataclass(frozen=True, slots=True)
class Scene:
    """One combination: the load of each, 0 for what the grid doesn't name."""

    grid: GridSpec
    spine: float
    domain: float
    rail: float

    @property
    def name(self) -> str:
        """`d0 90% g0 50% S 0%`: domains, rails and spines, as far as the grid names them."""
        return " ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        for letter, numbers, load in (("d", self.grid.domains, self.domain), ("g", self.grid.rails, self.rail)):
            if numbers:
                yield f"{letter}{','.join(map(str, numbers))} {100 * load:.3g}%"
        if self.grid.spine:
            yield f"S {100 * self.spine:.3g}%"

    def label(self, workload: str) -> str:
        """What a workload is called in it."""
        return f"{workload}, {self.name}"

    def background(self, fabric: FabricSpec) -> tuple[BackgroundSpec, ...]:
        """What makes it. What goes to spines comes over rails too, so a rail gets only what is then left of its load.

        At an oversubscription of o the spines bring every rail a load of spine / o, which may be more than is asked.
        """
        found = []
        if self.domain:
            found.append(BackgroundSpec(domains=self.grid.domains, load=self.domain))
        if self.spine:
            found.append(BackgroundSpec(spine=True, load=self.spine))
        remaining_load = self.rail - self.spine / (fabric.oversubscription or 1.0)
        if remaining_load > MIN_LOAD:
            found.append(BackgroundSpec(rails=self.grid.rails, load=remaining_load))
        return tuple(found)

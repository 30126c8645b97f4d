"""Claims of the papers: a YAML file for each paper in this folder, and an entry for each claim.

An entry says what the paper claims and where, and how Railyard obtains it: computed, by a figure of `predict`, whose
`Claim` objects have the numbers and tolerances; measured on packets, by an experiment; or not at all, for a reason.
"""

import shlex
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from railyard.core.config import ConfigModel, parse_model, parse_yaml
from railyard.core.errors import BadInput, first_names, near_miss
from railyard.core.installation import data_file
from railyard.results.format import digits

FOLDER: Final = data_file("results/published/claims")
Bound = Literal["", "at least", "at most"]
_JUDGEMENT: Final = {"unit", "expected", "within", "bound", "why"}
"""Fields of what is measured that say how to show and to judge it: a stored measurement holds when they change."""
_QUANTITY_DIGITS: Final = 8
Table = Literal["results.csv", "recovery.csv", "replacement.csv"]
_MAX_IDS: Final = 80
"""Characters of the list of claims in an error line, which names all papers too."""


class Computed(ConfigModel):
    """The claims of a figure that this one consists of; without `quantities`: all of them.

    A quantity is called as `quantity` of computed.py calls it: `65,536 GPUs, Spine-free (million USD)`.
    """

    figure: str
    quantities: Annotated[tuple[str, ...], Field(strict=False)] = ()


class Measured(ConfigModel):
    """A quantity of a run: the median of a column over the rows of a table, what a target of the run is about, or a
    number of its headline.

    `options`: overrides of the experiment, as `-o` takes them.
    `table`: file of the run's folder. `rows`: the values that rows have which count.
    `per`: a column by which the value of each row is divided.
    `over`: values that other rows have instead; the quantity is then the value of the other row of the same repeat,
    divided by that of the row.
    `each`: a column, as `fabric`: rows of different values of it are different things, and the quantity is of the one
    that agrees least. One median over all of them would hide it.
    `target`: the quantity of a target of the run, in place of rows.
    `headline`: a number of the headline in summary.json, or a list of one for each repeat, in place of rows:
    `spine_condition.condition_agrees_pct`.
    `percent`: the value is a ratio, shown and compared as the percentage by which it is above 1.
    `expected`, `within`, `bound`: the value that agrees with the paper, and the tolerance, with its reason in `why`.
    """

    experiment: str
    options: Annotated[tuple[str, ...], Field(strict=False)] = ()
    table: Table = "results.csv"
    rows: dict[str, str] = Field(default_factory=dict)
    per: str = ""
    over: dict[str, str] = Field(default_factory=dict)
    each: str = ""
    column: str = "value"
    target: str = ""
    headline: str = ""
    percent: bool = False
    unit: str = ""
    expected: float
    within: float = 0.0
    bound: Bound = ""
    why: str

    @model_validator(mode="after")
    def _has_a_quantity(self) -> Self:
        sources = [source for source in (self.rows, self.target, self.headline) if source]
        if len(sources) != 1:
            raise ValueError("needs either rows, a target or a number of the headline")
        return self

    @property
    def run_name(self) -> str:
        """The experiment with its overrides, which names the run: claims of one run have the same."""
        # as a shell takes it: an option may have spaces and brackets
        return " ".join([self.experiment, *(f"-o {shlex.quote(option)}" for option in self.options)])

    @property
    def command(self) -> str:
        """The command that measures it, without the program's name."""
        return f"run {self.run_name}"

    @property
    def quantity(self) -> str:
        """Digits that stand for what is measured, and change with it: the run, and what is read of its results.

        A stored measurement of another quantity says nothing of the claim as it is now.
        """
        settings = self.model_dump_json(exclude=_JUDGEMENT, exclude_defaults=True)
        return sha256(settings.encode()).hexdigest()[:_QUANTITY_DIGITS]

    @property
    def limits(self) -> str:
        """The values that agree, in words: `at least 1.840 times`, `6.800 to 9.800%`."""
        if self.bound == "at least":
            text = f"at least {digits(self.expected - self.within, 4)}"
        elif self.bound == "at most":
            text = f"at most {digits(self.expected + self.within, 4)}"
        elif self.within:
            text = f"{digits(self.expected - self.within, 4)} to {digits(self.expected + self.within, 4)}"
        else:
            text = digits(self.expected, 4)
        space = "" if self.unit.startswith("%") else " "
        return f"{text}{space}{self.unit}".strip()

    @property
    def is_exact(self) -> bool:
        """True for a claim without a tolerance, such as that no byte is lost: one repeat is enough to contradict it."""
        return not self.bound and not self.within

    def difference(self, value: float) -> float:
        """Return how far a value is from the expected one; below 0 if it is on the right side of a bound."""
        if self.bound == "at least":
            return self.expected - value
        if self.bound == "at most":
            return value - self.expected
        return abs(value - self.expected)


class PublishedClaim(ConfigModel):
    """A claim in one sentence. `where`: section, figure or equation. `published`: the paper's number, as text.

    `command`: what shows it, if neither a figure nor an experiment does.
    `same_as`: the id of a claim, mostly of another paper, that is obtained in the same way.
    `not_reproducible`: the reason, in one sentence; also why agreement says nothing, as of a number that a model was
    fitted to.
    `note`: what the paper itself says elsewhere that contradicts the claim, or limits it.
    """

    id: Annotated[str, Field(pattern="^[a-z0-9-]+$")]
    claim: str
    where: str
    published: str
    computed: Computed | None = None
    measured: Measured | None = None
    not_reproducible: str = ""
    command: str = ""
    same_as: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _is_obtained(self) -> Self:
        if self.same_as:
            return self
        if not (self.computed or self.measured or self.not_reproducible):
            raise ValueError("needs computed, measured, same_as or not_reproducible")
        if not self.commands:
            raise ValueError("needs a command")
        return self

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that show it, without the program's name."""
        commands: list[str] = []
        if self.computed:
            commands.append(f"predict {self.computed.figure}")
        if self.measured:
            commands.append(self.measured.command)
        if self.command:
            commands.append(self.command)
        return tuple(commands)


class Paper(ConfigModel):
    """A paper and its claims."""

    title: str
    claims: Annotated[tuple[PublishedClaim, ...], Field(min_length=1, strict=False)]


@cache
def papers() -> dict[str, Paper]:
    """Return every paper by the name of its file. BadInput for a file that has an error."""
    as_written = {path.stem: _read(path) for path in sorted(FOLDER.glob("*.yaml"))}
    claims: dict[str, PublishedClaim] = {}
    for paper in as_written.values():
        claims |= {claim.id: claim for claim in paper.claims}
    resolved: dict[str, Paper] = {}
    for name, paper in as_written.items():
        claims_of_paper = tuple(_resolved(claim, claims) for claim in paper.claims)
        resolved[name] = paper.model_copy(update={"claims": claims_of_paper})
    return resolved


def _resolved(claim: PublishedClaim, claims: Mapping[str, PublishedClaim]) -> PublishedClaim:
    """Return a claim with what it has from the one that it is the same as. `claims`: all claims, by id."""
    if not claim.same_as:
        return claim
    if claim.same_as not in claims:
        raise BadInput(f"claims {claim.id}.same_as", claim.same_as, "is no claim of a paper")
    same = claims[claim.same_as]
    return claim.model_copy(update={"computed": same.computed, "measured": same.measured, "command": same.command})


def _read(path: Path) -> Paper:
    return parse_model(Paper, parse_yaml(path.read_text("utf-8"), "claims", str(path)), f"claims {path.name}")


def names_of_claims() -> list[str]:
    """Return the names of papers, then the ids of claims, in their order."""
    return [*papers(), *claims_by_id()]


def claims_by_id() -> dict[str, PublishedClaim]:
    """Return the claims of all papers by their ids."""
    claims: dict[str, PublishedClaim] = {}
    for paper in papers().values():
        claims |= {claim.id: claim for claim in paper.claims}
    return claims


def chosen(names: Sequence[str]) -> dict[str, Paper]:
    """Return the papers with the claims that are named: each name is a paper, or the id of a claim. Without names all.

    BadInput for a name that is neither.
    """
    if not names:
        return papers()
    ids: set[str] = set()
    for name in names:
        _check_name(name)
        # no claim is called as a paper
        if name in papers():
            ids |= {claim.id for claim in papers()[name].claims}
        else:
            ids.add(name)
    return with_claims(papers(), ids)


def with_claims(papers_by_name: Mapping[str, Paper], ids: Collection[str]) -> dict[str, Paper]:
    """Return the papers that have claims of these ids, with these alone."""
    selected: dict[str, Paper] = {}
    for name, paper in papers_by_name.items():
        claims = tuple(claim for claim in paper.claims if claim.id in ids)
        if claims:
            selected[name] = paper.model_copy(update={"claims": claims})
    return selected


def _check_name(name: str) -> None:
    """BadInput for a name that is neither a paper nor a claim."""
    names = names_of_claims()
    if name in names:
        return
    ids = sorted(claims_by_id())
    hint = near_miss(name, names)
    allowed = f"papers are {', '.join(papers())}; claims are {first_names(ids, _MAX_IDS)}"
    raise BadInput("claims", name, f"is not known: {hint}{allowed}")

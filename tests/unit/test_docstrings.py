"""Docstrings: every public definition has one, and it begins with a verb in the imperative or a noun phrase.

docstrings_allowed/PACKAGE.txt holds how many definitions of a package still lack a docstring (missing) or begin it with
a question word, a pronoun or a preposition (unusual). The numbers may only shrink. `python -m
tests.unit.test_docstrings` rewrites the files; with a package's name it lists what that package has to correct.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.import_graph import ROOT, syntax_tree

TOP = ("core", "topologies", "controller", "workloads", "failure", "results", "experiments", "railyard")
ALLOWED = Path(__file__).with_name("docstrings_allowed")
UNUSUAL = re.compile(
    "what|which|who|whom|whose|how|whether|when|where|why|of|as|if|that|so|it|they|is|are|was|were|does|did|can|has|have|"
    "had|this|these|those|but|and|or|not|then|since|because|while|until|unless|than|there|here|by|in|on|to|for|with|from"
)
"""First words that begin neither an imperative nor a noun phrase. A heuristic: it accepts every other word."""
MIN_SHARE = 0.9
"""Of all docstrings that begin with a verb in the imperative or a noun phrase."""


class Definition(NamedTuple):
    """A public module, class, function, method or property of the product."""

    where: str
    docstring: str | None

    @property
    def begins_well(self) -> bool:
        """Verdict of the heuristic on the docstring's first word."""
        first = re.split(r"[\s,.:;]", (self.docstring or "-").strip("`*( "), maxsplit=1)[0].lower()
        return not UNUSUAL.fullmatch(first) and not (self.docstring or "").lower().startswith("the one ")


def definitions(path: Path) -> Iterator[Definition]:
    """Yield the public definitions of a module; what a function contains is private."""
    where = str(path.relative_to(ROOT))

    def walk(node: ast.Module | ast.ClassDef) -> Iterator[Definition]:
        for child in node.body:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child.name[0] != "_":
                yield Definition(f"{where}:{child.lineno} {child.name}", ast.get_docstring(child))
            if isinstance(child, ast.ClassDef) and child.name[0] != "_":
                yield from walk(child)

    tree = syntax_tree(path)
    yield Definition(where, ast.get_docstring(tree))
    yield from walk(tree)


@cache
def modules() -> dict[str, list[Path]]:
    """Return the modules of each package, a folder of the first or second level."""
    found: dict[str, list[Path]] = {}
    for top in TOP:
        for path in sorted((ROOT / top).rglob("*.py")):
            found.setdefault("_".join(path.relative_to(ROOT).parts[:-1][:2]), []).append(path)
    return found


@cache
def public(package: str) -> list[Definition]:
    """Return the public definitions of a package."""
    return [definition for path in modules().get(package, []) for definition in definitions(path)]


def problems(package: str) -> dict[str, list[str]]:
    """Return what a package has to correct: `missing` and `unusual`, each with file:line and name."""
    here = public(package)
    return {
        "missing": [d.where for d in here if not d.docstring],
        "unusual": [f"{d.where}: {d.docstring.splitlines()[0]}" for d in here if d.docstring and not d.begins_well],
    }


def allowed(package: str) -> dict[str, int]:
    """Return how many of each problem a package may still have; none without a file."""
    path = ALLOWED / f"{package}.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {sort: int(count) for sort, count in map(str.split, lines)}


@pytest.mark.parametrize("package", sorted(modules()))
@pytest.mark.parametrize("sort", ["missing", "unusual"])
def test_package_has_no_new_problem(package: str, sort: str) -> None:
    found = problems(package)[sort]
    assert len(found) <= allowed(package).get(sort, 0), "\n".join(["more than allowed; all of them:", *found])


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [d.begins_well for package in modules() for d in public(package) if d.docstring]
    assert sum(found) / len(found) >= MIN_SHARE


@pytest.mark.parametrize(
    ("first", "good"),
    [
        ("Return x.", True),
        ("Whether x.", False),
        ("The one that x.", False),
        ("Heartbeat sender.", True),
        ("`a` is", True),
    ],
)
def test_heuristic_judges_the_first_word(first: str, good: bool) -> None:
    assert Definition("here", first).begins_well == good


def _rewrite() -> None:
    """Write the allow-lists anew: one file for each package that still has a problem."""
    ALLOWED.mkdir(exist_ok=True)
    for package in modules():
        counts = {sort: len(found) for sort, found in problems(package).items() if found}
        path = ALLOWED / f"{package}.txt"
        path.write_text("".join(f"{sort} {count}\n" for sort, count in counts.items()), encoding="utf-8")
        if not counts:
            path.unlink()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(*(line for found in problems(sys.argv[1]).values() for line in found), sep="\n")
    else:
        _rewrite()

"""Tables of the documentation that list what the code has: keys of files, and headings of the program's tables."""

import re
from pathlib import Path

import pytest

from railyard.core.config import ConfigModel
from railyard.topologies.platforms import Platform
from railyard.workloads.models.catalogue import KINDS, Layer, load_model
from railyard.workloads.placement.layout import Parallelism

ROOT = Path(__file__).parents[2]
WORKLOADS = (ROOT / "docs" / "workloads.md").read_text(encoding="utf-8")
MODEL_KEYS = "### Keys of a model file"
PLATFORM_KEYS = "### Keys of a platform file"


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading."""
    return page.partition(f"{heading}\n")[2].partition("\n#")[0]


def names_in_rows(text: str) -> set[str]:
    """Return what stands in backquotes in tables."""
    rows = (line for line in text.splitlines() if line.startswith("|"))
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize("model", [*KINDS.values(), Layer, Parallelism])
def test_page_has_every_key_of_a_model_file(model: type[ConfigModel]) -> None:
    assert model.model_fields.keys() <= names_in_rows(section(WORKLOADS, MODEL_KEYS))


def test_page_has_every_key_of_a_platform_file() -> None:
    assert Platform.model_fields.keys() == names_in_rows(section(WORKLOADS, PLATFORM_KEYS))


def test_model_file_of_the_page_is_a_model() -> None:
    path = ROOT / "docs" / "examples" / "models" / "mine.yaml"
    assert f"```yaml\n{path.read_text(encoding='utf-8')}```" in WORKLOADS
    assert isinstance(load_model(str(path)), KINDS["gpt"])

"""Include the API's examples in docs/api.md: `python -m tests.unit.api_examples` rewrites the page."""

import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "api.md"
FOLDER: Final = ROOT / "docs" / "examples" / "api"
BLOCK: Final = re.compile(r"(`docs/examples/api/(\w+\.py)`:\n\n```python\n).*?(```\n)", re.DOTALL)
IS_INSTALLED: Final = any(entry.name == "railyard" for entry in entry_points(group="pytest11"))
PLUGIN: Final = () if IS_INSTALLED else ("-p", "railyard.experiments.api.pytest_plugin")
"""Options of pytest that load the plugin, which an installed package has loaded."""


def with_examples(text: str) -> str:
    """Return the page with the files of today."""
    return BLOCK.sub(lambda found: found[1] + (FOLDER / found[2]).read_text(encoding="utf-8") + found[3], text)


if __name__ == "__main__":
    PAGE.write_text(with_examples(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""Include the example plugins in docs/extending.md: `python -m tests.unit.docs_examples` rewrites the page.

A section names a registry in a comment; it gets every file of docs/examples that uses this registry.
"""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "extending.md"
EXAMPLES: Final = ROOT / "docs" / "examples"
SECTION: Final = re.compile(r"(<!-- examples: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
USE: Final = re.compile(r"^@?(?:([A-Z_]+)\.(?:register|add)|(fault|section|health_policy))\(", re.MULTILINE)
REGISTRIES: Final = {"fault": "FAULTS", "section": "SECTIONS", "health_policy": "HEALTH_POLICIES"}
"""By the decorator that registers a definition."""


def examples() -> dict[Path, str]:
    """Return every example file with the registry that it uses first."""
    found = {}
    for path in sorted(EXAMPLES.glob("*.md")):
        found[path] = "LABS"
    for path in sorted(EXAMPLES.glob("*.py")):
        use = USE.search(path.read_text(encoding="utf-8"))
        assert use, f"{path} registers nothing at its top level"
        found[path] = use.group(1) or REGISTRIES[use.group(2)]
    return found


def with_examples(text: str) -> str:
    """Return the page with the files of today in every section."""
    files = examples()

    def section(match: re.Match[str]) -> str:
        blocks = []
        for path, registry in files.items():
            if registry == match.group(2):
                language = "python" if path.suffix == ".py" else "markdown"
                blocks.append(f"`docs/examples/{path.name}`:\n\n```{language}\n{path.read_text(encoding='utf-8')}```\n")
        return match.group(1) + "".join(f"\n{block}\n" for block in blocks) + match.group(3)

    return SECTION.sub(section, text)


if __name__ == "__main__":
    PAGE.write_text(with_examples(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

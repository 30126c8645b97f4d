"""Registers the shipped labs: each Markdown file of `labs/`."""

from railyard.core.installation import data_file
from railyard.experiments.labs.reading import register_file

for path in sorted(data_file("labs").glob("*.md")):
    register_file(path, "built-in")

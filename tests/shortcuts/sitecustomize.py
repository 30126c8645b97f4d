"""What programs of tests on packets leave out. Python imports a module of this name, from PYTHONPATH, at its start.

- Figures of reports are their words alone: to lay them out and to write them takes half of a report's time. The figures
  of a whole run are drawn in test_wheel.py, and all figures in unit tests and by `--thorough`.
- Where several tests run at a time, an interval is measured once: each of three attempts would be disturbed.
"""

import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from railyard.results.plots.style import Plot

AT_ONCE: Final = "RAILYARD_TESTS_AT_ONCE"  # a variable: how many


def finish(figure: "Figure", name: str, alt: str, caption: str = "") -> "Plot":
    """Return what `finish` of results/plots/style.py does, but with the words alone."""
    from html import escape  # which most programs don't need

    from matplotlib.text import Text

    from railyard.results.plots.style import Plot

    words = " ".join(escape(text.get_text()) for text in figure.findobj(Text))
    return Plot(f'<svg role="img" aria-label="{escape(alt)}">{words}</svg>', alt, caption)


def measure_once(run: object, measure: "Callable[[], object]") -> None:
    """Do what `measure_undisturbed` of experiments/run/progress.py does with one attempt."""
    measure()


class Finder:
    """Replaces what is in `values`, by module and name, when the module is imported."""

    def __init__(self, values: dict[str, dict[str, Any]]) -> None:
        self._values = values

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the module's own specification, with more to execute."""
        if name not in self._values:
            return None
        from importlib.util import find_spec

        replaced = self._values.pop(name)
        found = find_spec(name)
        assert found
        assert found.loader
        execute = found.loader.exec_module

        def execute_and_replace(module: ModuleType) -> None:
            execute(module)
            vars(module).update(replaced)

        found.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return found


if __name__ == "sitecustomize":
    values: dict[str, dict[str, Any]] = {"railyard.results.plots.style": {"finish": finish}}
    if os.environ.get(AT_ONCE, "1") != "1":
        values["railyard.experiments.run.progress"] = {"measure_undisturbed": measure_once}
    sys.meta_path.insert(0, Finder(values))

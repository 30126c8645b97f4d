"""Plugins: a user's own definitions, from files (`--plugin FILE`, `plugins:` in a spec) and installed packages.

A plugin is a Python file that imports a registry and registers definitions in it. It is loaded once in a process, with
the user's rights. Child processes load the same files, by the environment variable RAILYARD_PLUGINS, when they first
read a registry.
"""

import hashlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Final, Literal, NamedTuple

from railyard.core.errors import BadInput
from railyard.core.safe_files import read_input, real_path

ENVIRONMENT: Final = "RAILYARD_PLUGINS"
GROUP: Final = "railyard.plugins"
"""The entry point group of installed packages: each entry point names a module that registers definitions."""
SOURCES: Final = "RAILYARD_PLUGIN_SOURCES"
"""The sources of plugins that have no file, as JSON by their names."""
# Linux takes 128 KiB for a variable of the environment
MAX_VARIABLE_BYTES: Final = 100_000
MAX_BYTES: Final = 2**20
Origin = Literal["built-in", "plugin", "package"]
origin: Final[ContextVar[Origin]] = ContextVar("origin", default="built-in")  # of what is being imported at the moment


class Source(NamedTuple):
    """Origin, file and line of a registration."""

    origin: Origin
    file: str
    line: int


class BadDefinition(BadInput):
    """A definition that a registry refuses. `problem` says what is missing or wrong; the field is its file and line."""

    def __init__(self, source: Source, value: object, problem: str) -> None:
        super().__init__(f"{source.file}:{source.line}", value, problem)


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin file that was loaded: its absolute path, and its source."""

    path: Path
    source: bytes


_loaded: Final[dict[Path, Plugin]] = {}
_has_inherited = False


def loaded() -> tuple[Plugin, ...]:
    """Return the plugin files that this process has loaded, in order."""
    return tuple(_loaded.values())


def copies() -> dict[str, bytes]:
    """Return the source of each loaded plugin by the path of its copy in a run's folder: plugins/NAME.py."""
    copies_by_name: dict[str, bytes] = {}
    for plugin in loaded():
        name = f"plugins/{plugin.path.name}"
        number = 2
        while name in copies_by_name:
            name = f"plugins/{plugin.path.stem}-{number}.py"
            number += 1
        copies_by_name[name] = plugin.source
    return copies_by_name


def load(file: str | Path, field: str = "--plugin", folder: Path | None = None) -> Plugin:
    """Load a plugin file; relative paths start at `folder`. BadInput names the field, the file, and the line at fault.

    A file that is loaded already is not loaded again.
    """
    # or the first registration in this file would load it a second time, if the parent has it too
    load_inherited()
    path = real_path(Path(folder or Path.cwd(), file))
    if path in _loaded:
        return _loaded[path]
    source = read_input(path, field, MAX_BYTES, str(file))
    if path.suffix != ".py":
        raise BadInput(field, str(file), "must be a Python file: its name ends in .py")
    token = origin.set("plugin")
    try:
        execute(path, source, field, str(file))
    finally:
        origin.reset(token)
    _loaded[path] = Plugin(path, source)
    os.environ[ENVIRONMENT] = os.pathsep.join(str(path) for path in _loaded if path.is_absolute())
    return _loaded[path]


def execute(path: Path, source: bytes, field: str, shown: str) -> ModuleType:
    """Import a user's Python file, and return its module. BadInput names the field, the file, and the line at fault.

    `shown`: the file as the user has written it. SystemExit and the like count as errors of the file.
    """
    name = f"railyard_plugin_{hashlib.sha256(bytes(path)).hexdigest()[:16]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    # which a class in it may ask for
    sys.modules[name] = module
    try:
        with warnings.catch_warnings():
            # two lines of text, and the plugin is checked anyway
            warnings.simplefilter("ignore", SyntaxWarning)
            exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        # also what ends a program, such as sys.exit and pytest.importorskip
        del sys.modules[name]
        if isinstance(error, BadDefinition | KeyboardInterrupt):
            raise
        raise BadInput(field, shown, f"can't be loaded: {error_line(error, path)}") from error
    return module


def search_in(folder: Path) -> None:
    """Let imports find modules in a folder, after all others, as those of a script find the files beside it."""
    if str(folder) not in sys.path:
        sys.path[:] = [*sys.path, str(folder)]


def error_line(error: BaseException, path: Path) -> str:
    """Return in one line what an exception says, and the last line of a file that it passed through."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
        text = f"SyntaxError: {error.msg}"
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{text}"


def add(name: str, source: str) -> Plugin:
    """Load a plugin that has no file, which the program has made of a user's input: child processes get its source.

    `name`: of its copy in a run's folder, such as Tree.py. ValueError for a source that is too long for that.
    """
    path = Path(name)
    encoded = source.encode()
    if path in _loaded and _loaded[path].source != encoded:
        raise ValueError(f"another {path.stem} is loaded, with other parts")
    if path not in _loaded:
        sources = {str(plugin.path): plugin.source.decode() for plugin in loaded() if not plugin.path.is_absolute()}
        variable = json.dumps(sources | {name: source})
        if len(variable) > MAX_VARIABLE_BYTES:
            raise ValueError(
                f"takes {len(variable):,} bytes, of {MAX_VARIABLE_BYTES:,} that child processes can be given"
            )
        token = origin.set("plugin")
        try:
            execute(path, encoded, "plugin", name)
        finally:
            origin.reset(token)
        _loaded[path] = Plugin(path, encoded)
        os.environ[SOURCES] = variable
    return _loaded[path]


def for_other_processes() -> dict[str, str]:
    """Return what a process that isn't a child of this one needs to load the same plugins: `load_from` takes it."""
    return {name: os.environ[name] for name in (ENVIRONMENT, SOURCES) if name in os.environ}


def load_from(variables: Mapping[str, str]) -> None:
    """Load the plugins of another process: files by their paths, and what has no file by its source."""
    for file in filter(None, variables.get(ENVIRONMENT, "").split(os.pathsep)):
        load(file, ENVIRONMENT)
    for name, source in json.loads(variables.get(SOURCES, "{}")).items():
        add(name, source)


def load_inherited() -> None:
    """Load the plugins of installed packages, and the files that the parent process had loaded, once."""
    global _has_inherited
    # a module of Railyard that is being imported may be one that a plugin needs: the next call loads the plugins
    if _has_inherited or _is_importing():
        return
    _has_inherited = True
    token = origin.set("package")
    try:
        for entry in metadata.entry_points(group=GROUP):
            try:
                entry.load()
            except (BadDefinition, KeyboardInterrupt):
                raise
            except BaseException as error:
                problem = f"can't be loaded: {type(error).__name__}: {error}"
                raise BadInput(GROUP, f"{entry.name} ({entry.value})", problem) from error
    finally:
        origin.reset(token)
    load_from(os.environ)


def _is_importing() -> bool:
    """Whether this thread is importing a module of Railyard."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "<module>" and str(frame.f_globals.get("__name__", "")).startswith("railyard."):
            return True
    return False

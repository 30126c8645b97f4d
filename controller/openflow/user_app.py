"""A user's OpenFlow app, for os-ken or Ryu, in the controller process: `--controller FILE`.

It decides how switches forward, beside Railyard's app, which then observes alone. Imports from `ryu` get os-ken's
modules, its maintained fork, whose server the switches are connected to. Warnings and exceptions of the app become
events.
"""

import logging
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from railyard.core import plugins
from railyard.core.errors import BadInput, RailyardError
from railyard.core.safe_files import read_input, real_path

FIELD: Final = "--controller"
OPENFLOW_13: Final = 4  # of the switches of all fabrics, on the wire
APP_FAILED: Final = "app-failed"
"""Event: the app has logged a warning or raised an exception, which has happened so many `times`."""
MAX_TEXTS: Final = 100  # different ones that become events
MAX_TEXT: Final = 200  # characters


class _RyuImports:
    """Import hook that gives os-ken's modules for those of Ryu, by their names."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a spec for ryu and its modules; None for all others."""
        if name.partition(".")[0] != "ryu":
            return None
        return ModuleSpec(name, _RyuImports(), is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return os-ken's module of the same name."""
        module = import_module(spec.name.replace("ryu", "os_ken", 1))
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back: it has been executed."""
        module.__spec__ = self._spec


def app_class(file: str) -> Any:
    """Import a file, and return the class of its app. BadInput, with the line at fault, if there is none to run."""
    path = real_path(Path(file))
    if path.suffix != ".py":
        raise BadInput(FIELD, file, "must be a Python file with an app of os-ken or Ryu")
    source = read_input(path, FIELD, plugins.MAX_BYTES)
    app_manager: Any = import_module("os_ken.base.app_manager")
    app_manager.RyuApp = app_manager.OSKenApp
    if not any(isinstance(finder, _RyuImports) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RyuImports())
    plugins.search_in(path.parent)
    module = plugins.execute(path, source, FIELD, file)
    apps = _apps_in(module, app_manager.OSKenApp)
    if not apps:
        raise BadInput(FIELD, file, "has no app: a subclass of OSKenApp, or RyuApp, of app_manager")
    if len(apps) > 1:
        names = ", ".join(app.__name__ for app in apps)
        raise BadInput(FIELD, file, f"has several apps, {names}: leave one of them")
    versions = apps[0].OFP_VERSIONS
    if versions is not None and OPENFLOW_13 not in versions:
        allowed = "must have ofproto_v1_3.OFP_VERSION in its OFP_VERSIONS: the switches use OpenFlow 1.3"
        raise BadInput(FIELD, file, f"{apps[0].__name__} {allowed}")
    return apps[0]


def _apps_in(module: ModuleType, base: type) -> list[Any]:
    """Return the apps that a module defines, without those that others are derived from."""
    apps: list[Any] = []
    base_classes: set[type] = set()
    for value in vars(module).values():
        # what a module imports is defined elsewhere
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__:
            apps.append(value)
            base_classes.update(value.__mro__[1:])
    return [app for app in apps if app not in base_classes]


def start(manager: Any, file: str, emit: Callable[[str, dict[str, Any]], None]) -> None:
    """Start the app of a file, with the apps that it requires. RailyardError in one line if it raises meanwhile."""
    path = real_path(Path(file))
    logging.getLogger().addHandler(AppLog(path, emit))
    # os-ken ends an app's thread at its TaskExit, which with native threads is any Exception: an app would be silent
    # from its first error on
    hub: Any = import_module("os_ken.lib.hub")
    hub.TaskExit = _TaskExit
    app = app_class(file)
    running = {type(instance) for instance in manager.applications.values()}
    before = set(manager.applications)
    try:
        manager.load_apps([app.__module__])
        manager.applications_cls[app.__module__] = app
        contexts = manager.create_contexts()
        # contexts are instances that apps share, which the manager has made already
        running.update(map(type, contexts.values()))
        for name, required in manager.applications_cls.items():
            if required not in running:
                manager._instantiate(name, required, **contexts)
        manager._update_bricks()
        for name in manager.applications.keys() - before:
            manager.applications[name].start()
    except Exception as error:
        raise RailyardError(f"{path.name} can't be started: {plugins.error_line(error, path)}") from error


class _TaskExit(BaseException):
    """Never raised: native threads end by themselves."""


class AppLog(logging.Handler):
    """Makes events of what the app logs as a warning or worse, and of exceptions in its handlers.

    The same text is an event when it comes first, and when it has come 10, 100, ... times.
    """

    def __init__(self, path: Path, emit: Callable[[str, dict[str, Any]], None]) -> None:
        super().__init__(logging.WARNING)
        self._path = path
        self._emit = emit
        self._times: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Count a text, and emit its event. Railyard's own app has other ways to report.

        A thread of os-ken's hub that ends with an exception is the app's if its traceback names the file: the threads
        of connections end so when a switch closes them.
        """
        if record.name == "RailyardApp":
            return
        if record.name == "os_ken.lib.hub" and str(self._path) not in record.getMessage():
            return
        text = self._text(record)[:MAX_TEXT]
        # an app can log a new text with every packet: the memory that it takes is limited
        if text not in self._times and len(self._times) >= MAX_TEXTS:
            return
        self._times[text] += 1
        times = self._times[text]
        # 1, 10, 100, ...: an app that logs with every packet would fill the run's events
        if str(times).strip("0") == "1":
            self._emit(APP_FAILED, {"file": self._path.name, "text": text, "times": times})

    def _text(self, record: logging.LogRecord) -> str:
        if record.exc_info and record.exc_info[1]:
            return plugins.error_line(record.exc_info[1], self._path)
        if record.name == "os_ken.lib.hub":
            # a traceback in its text
            return record.getMessage().strip().rpartition("\n")[2]
        return " ".join(record.getMessage().split())

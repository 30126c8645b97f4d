"""Imports of Mininet without setuptools, whose distutils Mininet names for one comparison of versions."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, Final

_DISTUTILS: Final = ("distutils", "distutils.version")


@contextmanager
def without_setuptools() -> Iterator[None]:
    """Import distutils only when Mininet compares versions of Open vSwitch: with setuptools it takes 0.2 s to load."""
    if any(name in sys.modules for name in _DISTUTILS):
        yield
        return
    package, version = (ModuleType(name) for name in _DISTUTILS)
    version.StrictVersion = _strict_version  # type: ignore[attr-defined]
    sys.modules.update(zip(_DISTUTILS, (package, version), strict=True))
    try:
        yield
    finally:
        for name in _DISTUTILS:
            del sys.modules[name]


def _strict_version(text: str) -> Any:
    return import_module("distutils.version").StrictVersion(text)

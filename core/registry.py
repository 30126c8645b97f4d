"""Registries: definitions of one sort (faults, policies, workloads, ...) by name.

Definitions come from modules of the registry's folder, plugin files and installed packages (core/plugins.py), which are
all loaded when the registry is first read.

    FAULTS: Final = Registry("fault kind", "railyard.failure.faults", FaultKind, required=["inject(net, target, p)"])

    @FAULTS.register("rail-brownout")
    class RailBrownout(FaultKind): ...
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final, Generic, TypeVar

from pydantic_core import PydanticCustomError

from railyard.core.errors import unknown_name_hint
from railyard.core.installation import file_in_project
from railyard.core.plugins import BadDefinition, Source, load_inherited, origin

T = TypeVar("T")
D = TypeVar("D")
REGISTRIES: Final[dict[str, "Registry[object]"]] = {}  # every registry by what it holds, such as "fault kind"


class Registry(Generic[T]):
    """Definitions of one sort by name, in the order in which they were registered: built-in ones first."""

    def __init__(
        self,
        sort: str,
        package: str | None = None,
        base: type | None = None,
        required: Iterable[str] = (),
        check: Callable[[str, T], Iterable[str]] = lambda *_: (),
        holds_classes: bool = False,
        part: str = "",
        order: Callable[[T], int] | None = None,
    ) -> None:
        """`sort`: what it holds, for messages. `package`: the folder of built-in definitions.

        Definitions must be instances of `base` (subclasses if it `holds_classes`) that have the `required` parts:
        attributes and methods (as `path(src, dst)`) in place of those of `base`. `check` yields what else is wrong.
        `part`: the module that registers a definition, where each is a folder of `package`. `order`: returns the place
        of a definition, lowest first; without it, they are in the order of registration.
        """
        self.sort = sort
        self._package = package
        self._base = base
        self._check = check
        self._required = tuple(required)
        self._holds_classes = holds_classes
        self._part = part
        self._order = order
        self._entries: dict[str, tuple[T, Source]] = {}
        self._is_loaded = package is None
        self._lock = threading.RLock()
        REGISTRIES[sort] = self  # type: ignore[assignment]

    def register(self, name: str) -> Callable[[D], D]:
        """Return a decorator that registers a class, function or object under a name.

        Of a subclass of `base` an instance is registered, unless the registry holds classes.
        """

        def decorate(definition: D) -> D:
            entry: Any = definition
            is_class = self._base is not None and isinstance(entry, type) and issubclass(entry, self._base)
            if is_class and not self._holds_classes:
                entry = entry()
            self.add(name, entry)
            return definition

        return decorate

    def add(self, name: str, definition: T, source: Source | None = None, stacklevel: int = 1) -> T:
        """Register a definition. BadDefinition if the name is taken or something is missing.

        `source`: where it is, if that is not where `add` is called.
        `stacklevel`: 2 if it is where a decorator that calls `add` is used.
        """
        source = source or _source(stacklevel)
        if source.origin != "built-in":
            # so that a plugin can't take the name of a built-in definition
            self._load()
        if name in self._entries:
            first = self._entries[name][1]
            raise BadDefinition(source, name, f"is already registered as {self.sort}, at {first.file}:{first.line}")
        problems = list(self._problems(name, definition))
        if problems:
            raise BadDefinition(source, name, f"is not a whole {self.sort}: {'; '.join(problems)}")
        self._entries[name] = definition, source
        return definition

    def _problems(self, name: str, definition: T) -> Iterable[str]:
        """Return what is missing or wrong in a definition, a phrase each."""
        cls: Any = definition if self._holds_classes else type(definition)
        if self._base is not None and not (isinstance(cls, type) and issubclass(cls, self._base)):
            sort = "a subclass" if self._holds_classes else "an instance"
            return [f"must be {sort} of {self._base.__name__}"]
        problems: list[str] = []
        for part in self._required:
            attribute = part.partition("(")[0]
            # what the base has itself is a default that does nothing
            if getattr(cls, attribute, None) is getattr(self._base, attribute, None):
                problems.append(f"{part} is missing")
        problems += self._check(name, definition)
        return problems

    def _load(self) -> None:
        """Import every module of the package, then the plugins that the parent process had loaded, once."""
        if self._package is None:
            return
        with self._lock:
            if not self._is_loaded:
                self._is_loaded = True
                token = origin.set("built-in")
                try:
                    package = import_module(self._package)
                    # a plain module registers by itself
                    for module in iter_modules(getattr(package, "__path__", ())):
                        part = f".{self._part}" if module.ispkg and self._part else ""
                        import_module(f"{self._package}.{module.name}{part}")
                finally:
                    origin.reset(token)
            load_inherited()

    def __getitem__(self, name: str) -> T:
        """Return a definition. KeyError, with what is registered, for any other name."""
        if name not in self._entries:
            # else nothing that is yet to be loaded matters
            self._load()
        if name not in self._entries:
            raise KeyError(f"{name!r} is no {self.sort}: {', '.join(self._entries)}")
        return self._entries[name][0]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def names(self) -> tuple[str, ...]:
        """Return all names in their order."""
        self._load()
        order = self._order
        if order is None:
            return tuple(self._entries)
        places = {name: order(definition) for name, (definition, _) in self._entries.items()}
        return tuple(sorted(places, key=places.__getitem__))

    def items(self) -> Iterator[tuple[str, T]]:
        """Yield each name with its definition."""
        return ((name, self._entries[name][0]) for name in self.names())

    def values(self) -> Iterator[T]:
        """Yield each definition."""
        return (definition for _, definition in self.items())

    def name_of(self, definition: T) -> str:
        """Return the name under which an object is registered. LookupError for any other."""
        for name, (registered, _) in self._entries.items():
            if registered is definition:
                return name
        raise LookupError(f"{definition!r} is no {self.sort}")

    def registered(self) -> dict[str, T]:
        """Return what is registered so far, by name, without loading anything."""
        return {name: definition for name, (definition, _) in self._entries.items()}

    def source(self, name: str) -> Source:
        """Return where a definition was registered."""
        self._load()
        return self._entries[name][1]

    def checked(self, name: str) -> str:
        """Return the name if it is registered; a pydantic error with a near miss if not.

        For a field of a spec: `kind: Annotated[str, AfterValidator(FAULTS.checked)]`.
        """
        if name not in self:
            raise PydanticCustomError("not_registered", "{why}", {"why": unknown_name_hint(name, self.names())})
        return name

    def remove(self, name: str) -> None:
        """Forget a definition, for tests that register their own."""
        del self._entries[name]


def _source(stacklevel: int) -> Source:
    """The line of the first caller outside this module, or of one further up: where the definition is registered."""
    # inspect.stack() reads the source of every frame: 15 ms a registration
    frame = sys._getframe(2)
    while frame.f_back and (frame.f_code.co_filename == __file__ or stacklevel > 1):
        stacklevel -= frame.f_code.co_filename != __file__
        frame = frame.f_back
    # a plugin may be the first to import a built-in definition
    is_built_in = str(frame.f_globals.get("__name__", "")).startswith("railyard.")
    file = file_in_project(frame.f_code.co_filename)
    return Source("built-in" if is_built_in else origin.get(), file, frame.f_lineno)

"""The signature of a command without the rest of its file, so that help and mistakes need no numerical libraries.

A command's module imports what the command works with, which takes up to two seconds. To parse a command line its
function's parameters are enough. This module keeps from the file's source the function `command` without its body, and
the definitions that its parameters use; the module itself is imported when the command is called.
"""

import ast
import functools
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

FUNCTION: Final = "command"
SETTINGS: Final = "CONTEXT_SETTINGS"  # of Click, for commands that need them


def load(path: Path, module_name: str) -> tuple[Callable[..., Any], dict[str, Any] | None]:
    """Return a function with the signature of the file's `command`, which calls that, and its Click settings."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    reduced = ast.Module(_needed_statements(tree), type_ignores=[])
    namespace: dict[str, Any] = {"__name__": module_name}
    exec(compile(reduced, str(path), "exec"), namespace)
    signature = namespace[FUNCTION]

    @functools.wraps(signature)
    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(import_module(module_name), FUNCTION)(*arguments, **options)

    return call, namespace.get(SETTINGS)


def _needed_statements(tree: ast.Module) -> list[ast.stmt]:
    """Return the function without its body, after the statements that define what its parameters use, in order."""
    function = next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == FUNCTION)
    docstring = [each for each in function.body[:1] if ast.get_docstring(function) is not None]
    function.body = [*docstring, ast.Pass()]
    ast.fix_missing_locations(function)
    function.decorator_list = []
    needed = _names_in(function) | {SETTINGS}
    kept: list[ast.stmt] = [function]
    for statement in reversed(tree.body[: tree.body.index(function)]):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            statement.names = [alias for alias in statement.names if _bound_by(alias) in needed]
            is_needed = bool(statement.names)
        else:
            is_needed = bool(needed.intersection(_names_defined_by(statement)))
        if is_needed:
            kept.insert(0, statement)
            needed |= _names_in(statement)
    return kept


def _bound_by(alias: ast.alias) -> str:
    """Return the name that an import binds."""
    return alias.asname or alias.name.partition(".")[0]


def _names_in(statement: ast.stmt) -> set[str]:
    """Return the names that a statement uses."""
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def _names_defined_by(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement other than an import defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id

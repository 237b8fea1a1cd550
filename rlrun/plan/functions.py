"""Whether `package.module:name` is a function that can be called, found without importing anything: a loss imports
torch, which the plan does without and a laptop may not have. The module is looked up as Python would, and read."""

from __future__ import annotations

import ast
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

MOST_IMPORTS = 8
"""How often a name may be handed on by `from x import name` before we stop looking."""


def find_function(import_path: str) -> ast.FunctionDef:
    """The definition. Raises ValueError with what is wrong: no such module, no such name, not a plain function."""
    module, _, name = import_path.partition(":")
    for _ in range(MOST_IMPORTS):
        source = _source(module)
        found = _bound(source, name)
        if isinstance(found, ast.FunctionDef):
            return found
        if isinstance(found, ast.ImportFrom):
            alias = next(a for a in found.names if (a.asname or a.name) == name)
            module, name = _absolute(module, found), alias.name
            continue
        if found is None:
            raise ValueError(f"module {module} has no function {name}")
        kind = {ast.AsyncFunctionDef: "a coroutine function", ast.ClassDef: "a class"}.get(type(found), "a variable")
        raise ValueError(f"{name} in module {module} is {kind}, not a plain function")
    raise ValueError(f"{name} is imported from module to module without an end")


def refuses(function: ast.FunctionDef, arguments: int) -> str | None:
    """Why it cannot be called with so many positional arguments; None when it can."""
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    required = len(positional) - len(a.defaults)
    if required > arguments or (len(positional) < arguments and a.vararg is None):
        return f"it takes {len(positional)} arguments ({', '.join(x.arg for x in positional)})"
    missing = [x.arg for x, default in zip(a.kwonlyargs, a.kw_defaults, strict=True) if default is None]
    return f"it needs {', '.join(missing)} by keyword" if missing else None


def _source(module: str) -> ast.Module:
    spec = _find(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ValueError(f"there is no module {module} that Python could import from {os.getcwd()}")
    try:
        with open(spec.origin, "rb") as file:
            return ast.parse(file.read(), spec.origin)
    except (OSError, SyntaxError, ValueError) as e:
        raise ValueError(f"module {module} cannot be read: {e}") from e


def _find(module: str) -> ModuleSpec | None:
    """As importlib finds it, without running the packages around it."""
    path: list[str] = [os.getcwd(), *sys.path]  # `python -m rlrun` has the working directory, the console script not
    spec = None
    parts = module.split(".")
    for i in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: i + 1]), path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return spec


def _bound(source: ast.Module, name: str) -> ast.stmt | None:
    """The last statement of the module's own body that gives `name` a value."""
    found: ast.stmt | None = None
    for statement in source.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [statement.name]
        elif isinstance(statement, ast.ImportFrom | ast.Import):
            names = [a.asname or a.name for a in statement.names]
        elif isinstance(statement, ast.Assign):
            names = [t.id for t in statement.targets if isinstance(t, ast.Name)]
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names = [statement.target.id]
        else:
            continue
        if name in names:
            found = statement
    return found


def _absolute(module: str, statement: ast.ImportFrom) -> str:
    if not statement.level:
        return statement.module or ""
    spec = _find(module)
    package = module.split(".") if spec and spec.submodule_search_locations else module.split(".")[:-1]
    kept = package[: len(package) - statement.level + 1]
    return ".".join([*kept, *([statement.module] if statement.module else [])])

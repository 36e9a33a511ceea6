"""Public names have words, types and a page, and are among them all that errors speak of."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning_dpgen

from .files import PACKAGE, ROOT, find_line, list_code, parse, read, walk_statements, write

NAMESPACES = sorted(name for name in lightning_dpgen.__all__ if inspect.ismodule(getattr(lightning_dpgen, name)))
# All packages whose names are imported when they are first used.
LAZY = ["lightning_dpgen", *(f"lightning_dpgen.{name}" for name in NAMESPACES if name != "clipping")]
REFERENCE = ROOT / "docs/reference/api.md"
# A method of the engine, which bears the name of a function elsewhere.
METHODS = {"make_private"}


def list_public(package: str) -> dict[str, Any]:
    """Return the public names of a package, and the objects."""
    module = importlib.import_module(package)
    return {name: getattr(module, name) for name in module.__all__ if not inspect.ismodule(getattr(module, name))}


def list_offered() -> dict[str, Any]:
    """Return all public names, and the objects."""
    return {name: value for place in ["lightning_dpgen.clipping", *LAZY] for name, value in list_public(place).items()}


def check_signatures(offered: dict[str, Any] | None = None) -> Iterator[str]:
    """Yield public names without a docstring, and their functions without types."""
    for name, value in sorted((offered or list_offered()).items()):
        if not value.__doc__:
            yield f"{_place(value)}: {name} has no docstring"
        functions = [value] if inspect.isfunction(value) else []
        members = vars(value).items() if inspect.isclass(value) else ()
        for member in [member for key, member in members if key == "__init__" or not key.startswith("_")]:
            member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if inspect.isfunction(member) and member.__module__.startswith("lightning_dpgen"):
                functions.append(member)
        for function in functions:
            for parameter in inspect.signature(function).parameters.values():
                typed = parameter.annotation is not parameter.empty or parameter.name in ("self", "cls")
                if not typed and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                    yield f"{_place(function)}: {function.__qualname__} has no type for {parameter.name}"
            if "return" not in function.__annotations__:
                yield f"{_place(function)}: {function.__qualname__} has no type for its result"


def check_modules() -> Iterator[str]:
    """Yield namespaces without a docstring, and names that are also those of a module, which would take their place."""
    for package in LAZY:
        module = importlib.import_module(package)
        if not module.__doc__:
            yield f"{_place(module)}:1: {package} has no docstring"
        inside = {entry.name for entry in pkgutil.iter_modules(module.__path__)}
        for name in sorted(inside & set(module.__all__) - (set(NAMESPACES) if module is lightning_dpgen else set())):
            yield f"{_place(module)}: {name} is also a module"


def check_errors(files: list[Path] | None = None) -> Iterator[str]:
    """Yield names that the files define, and an error speaks of, and that cannot be imported."""
    kinds, offered, files = ast.ClassDef | ast.FunctionDef, list_offered(), files or list_code(PACKAGE)
    defined = {node.name for path in files for node in parse(path).body if isinstance(node, kinds)}
    for path in files:
        for node in walk_statements(parse(path)):
            if not isinstance(node, ast.Raise):
                continue
            words = " ".join(x.value for x in ast.walk(node) if isinstance(x, ast.Constant) and isinstance(x.value, str))
            # A method that is named after a dot belongs to an object that the reader has.
            for name, called in re.findall(r"(?<![\w.])([A-Za-z]\w+)(\(?)", words):
                is_name = name in defined and (name != name.lower() or called or "_" in name)
                if is_name and name not in {*offered, *METHODS} and not name.startswith("_"):
                    yield write(path, node.lineno, f"an error speaks of {name}, which is no public name")


def check_reference(page: Path = REFERENCE) -> Iterator[str]:
    """Yield names that the reference of Python lists and that are not there, and names of the top that it does not list."""
    names = set(lightning_dpgen.__all__) - {"__version__"}
    top = {name for name in names if not inspect.ismodule(getattr(lightning_dpgen, name))}
    listed = re.findall(r"^   (lightning_dpgen\.[\w.]+)$", read(page), re.MULTILINE)
    packages = [getattr(lightning_dpgen, name.split(".")[1]) for name in listed if name.count(".") == 1]
    paged = {name for package in packages for name in package.__all__} | {name.rpartition(".")[2] for name in listed}
    yield from (write(page, None, f"{name} has no page") for name in sorted(names - paged))
    rows = re.findall(r"^\| `(lightning_dpgen[\w.]*)`[^|]*\|(.*)\|$", read(page), re.MULTILINE)
    stated = {(place, name) for place, cell in rows for name in re.findall(r"`(\w+)`", cell)}
    for place, name in sorted(stated):
        if not hasattr(importlib.import_module(place), name):
            yield write(page, find_line(page, f"`{name}`"), f"{place} has no {name}")
    for name in sorted({name for place, name in stated if place == "lightning_dpgen"} ^ top):
        yield write(page, None, f"{name} is listed among the names of the top, or is one, but not both")


def _place(value: Any) -> str:
    """Return file and line of an object."""
    value = inspect.unwrap(value) if callable(value) else value
    path = Path(inspect.getsourcefile(value)).relative_to(ROOT)
    return str(path) if inspect.ismodule(value) else f"{path}:{inspect.getsourcelines(value)[1]}"

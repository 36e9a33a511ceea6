"""Public names of a package that are imported when they are first used, so that importing the package stays quick."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]], modules: Sequence[str] = ()
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its ``__name__``.
        names: the public names by the module of the package that defines them.
        modules: public modules of the package.
    """
    home = {name: module for module, listed in names.items() for name in listed}
    public = sorted([*home, *modules])

    def find(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{home[name]}"), name)

    return public, find, lambda: public

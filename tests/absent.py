"""Packages that are installed, and absent to a program that a test starts: as if `pip` had never installed them."""

import sys
from collections.abc import Collection
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

# The head of a program; `HIDDEN` stands for the modules.
HEAD = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from absent import hide; hide(HIDDEN)\n"


def hide(modules: Collection[str]) -> None:
    """Let neither an import nor a question for a version find these top-level modules; before any other import."""
    names = {dist.lower() for module, dists in packages_distributions().items() if module in modules for dist in dists}
    sys.meta_path[:] = [_Without(finder, set(modules), names) for finder in sys.meta_path]


class _Without:
    def __init__(self, finder: Any, modules: set[str], names: set[str]) -> None:
        self._finder, self._modules, self._names = finder, modules, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    def find_spec(self, name: str, *others: Any) -> Any:
        return None if name.partition(".")[0] in self._modules else self._finder.find_spec(name, *others)

    def find_distributions(self, *asked: Any) -> Any:
        find = getattr(self._finder, "find_distributions", lambda *_: ())
        return (found for found in find(*asked) if found.name.lower() not in self._names)

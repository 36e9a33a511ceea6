"""The files that are checked, each read and parsed once."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lightning_dpgen"
PLACES = ("lightning_dpgen", "tests", "benchmarks", "experiments", "lock.py")
# Files whose comments begin with a number sign.
SETTINGS = [ROOT / "pyproject.toml", ROOT / ".ci/run", *sorted((ROOT / "conf").rglob("*.yaml"))]
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *(page for place in (*PLACES, "docs", "examples") for page in (ROOT / place).rglob("*.md")),
    }
)
PAGES = [page for page in PAGES if "_build" not in page.parts]


@functools.cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(read(path))


def list_code(place: Path) -> list[Path]:
    """Return the Python files of a folder, or the one that is given."""
    if place.is_file():
        return [place] * (place.suffix == ".py")
    return sorted(path for path in place.rglob("*.py") if "__pycache__" not in path.parts)


def write(path: Path, line: int | None, problem: str) -> str:
    """Return a finding, with the place where an editor opens it."""
    path = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{path}:{line}: {problem}" if line else f"{path}: {problem}"


def find_line(path: Path, text: str) -> int:
    """Return the number of the first line that has the text."""
    return read(path).partition(text)[0].count("\n") + 1


def walk_statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements: only they hold statements, so expressions, which are most of a tree, are not visited."""
    nodes = [tree]
    for node in nodes:
        yield node
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            nodes += getattr(node, part, ())

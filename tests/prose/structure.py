"""Imports go one way, and the map of docs/DESIGN.md, its decisions and the files that pages name are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from .files import PACKAGE, PAGES, ROOT, find_line, list_code, parse, read, write

# Each folder imports only from itself and from those before it (docs/DESIGN.md).
ORDER = [
    "privacy", "sampling", "data", "passes", "clustering", "projection", "gradients", "optim", "models", "measure",
    "metrics", "release",
    "plugins", "audit", "specs", "verification", "runs", "cli",
]  # fmt: skip
DESIGN = ROOT / "docs/DESIGN.md"


def check_imports(package: Path = PACKAGE) -> Iterator[str]:
    """Yield imports from a folder below, and folders that have no place."""
    for folder in sorted(path.name for path in package.iterdir() if (path / "__init__.py").is_file()):
        if folder not in ORDER:
            yield write(package / folder, None, "the folder has no place in ORDER of tests/prose/structure.py")
            continue
        allowed = set(ORDER[: ORDER.index(folder) + 1])
        for path in list_code(package / folder):
            for line, place in _imports(path):
                if place not in allowed:
                    yield write(path, line, f"{folder} stands before {place}, and imports from it")


def check_files_of_pages(pages: list[Path] = PAGES) -> Iterator[str]:
    """Yield files that a page of docs/ names and that are not there: a claim whose test cannot be found looks tested."""
    places = ROOT, PACKAGE, ROOT / "tests", ROOT / "experiments", ROOT / "benchmarks"
    for page in pages:
        if page.is_relative_to(ROOT) and not page.is_relative_to(ROOT / "docs"):
            continue
        for number, line in enumerate(read(page).splitlines(), 1):
            for name in re.findall(r"`([\w/]+\.py|\w+/[\w/]+\.(?:json|md|yaml))`", line):
                if not any((place / name).is_file() for place in places):
                    yield write(page, number, f"no such file: {name}")


def check_map(page: Path = DESIGN) -> Iterator[str]:
    """Yield what is wrong in the map: it lists every folder in order, each with files to open first."""
    section = read(page).partition("## Where things live")[2].split("```")[1].split("\nconf/")[0]
    folders: dict[str, list[str]] = {}
    for line in section.splitlines():
        if entry := re.match(r"  (\w+)/ ", line):
            folders[entry[1]] = []
        elif folders and line.startswith(" " * 8):
            folders[list(folders)[-1]] += re.findall(r"\w+(?:/\w+)*\.py", line)
    where = find_line(page, "## Where things live")
    if list(folders) != ORDER:
        yield write(page, where, f"the map lists {list(folders)} and not {ORDER}")
    for folder, names in folders.items():
        if not names:
            yield write(page, where, f"the map names no file of {folder}/ to open first")
        yield from (
            write(page, where, f"no such file: {folder}/{name}")
            for name in names
            if not (PACKAGE / folder / name).is_file()
        )


def check_decisions(page: Path = DESIGN) -> Iterator[str]:
    """Yield decisions out of order, and numbers without a decision."""
    numbers = [int(number) for number in re.findall(r"^D(\d+)\.", read(page), re.MULTILINE)]
    for number, expected in zip(numbers, range(1, len(numbers) + 1), strict=True):
        if number != expected:
            yield write(page, find_line(page, f"\nD{number}.") + 1, f"D{number} stands in the place of D{expected}")
    for number in sorted({int(number) for number in re.findall(r"\bD(\d+)\b", read(page))} - set(numbers)):
        yield write(page, find_line(page, f"D{number}"), f"there is no decision D{number}")


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(parse(path)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from ((node.lineno, name.split(".")[1]) for name in names if name.startswith("lightning_dpgen."))

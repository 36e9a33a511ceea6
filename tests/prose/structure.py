"""Imports go one way, and the map of docs/DESIGN.md, its decisions and the files that pages name are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from .files import PACKAGE, PAGES, ROOT, find_line, list_code, parse, read, write

# Each folder imports only from itself and from those before it (docs/DESIGN.md).
ORDER = [
    "common", "privacy", "sampling", "data", "passes", "clustering", "projection", "gradients", "optim", "models",
    "measure", "metrics", "release",
    "plugins", "audit", "specs", "kinds", "verification", "runs", "studio", "cli",
]  # fmt: skip
DESIGN, DECISIONS = ROOT / "docs/DESIGN.md", ROOT / "docs/decisions"


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


def check_rooms(package: Path = PACKAGE) -> Iterator[str]:
    """Yield rooms whose `__init__` names no file to read first, or one that is not there."""
    for page in sorted(package.glob("*/**/__init__.py")):
        names = re.findall(r"[\w/]+\.py", read(page).partition("Read first: ")[2].partition('"""')[0])
        if not names:
            yield write(page, 1, "the room names no file to read first")
        for name in names:
            if not any((folder / name).is_file() for folder in (page.parent, package)):
                yield write(page, find_line(page, name), f"no such file: {name}")


def check_decisions(folder: Path = DECISIONS, page: Path = DESIGN) -> Iterator[str]:
    """Yield decisions whose numbers do not rise in a page or stand twice, and numbers without a decision."""
    known: set[int] = set()
    pages = sorted(folder.glob("*.md"))
    for record in pages:
        before = 0
        for place, line in enumerate(read(record).splitlines(), 1):
            if heading := re.match(r"## D(\d+)\.", line):
                number = int(heading[1])
                if number in known or number < before:
                    yield write(record, place, f"D{number} stands twice, or behind a later one")
                known.add(number)
                before = number
    for text in (page, *pages):
        for number in sorted({int(number) for number in re.findall(r"\bD(\d+)\b", read(text))} - known):
            yield write(text, find_line(text, f"D{number}"), f"there is no decision D{number}")


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(parse(path)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from ((node.lineno, name.split(".")[1]) for name in names if name.startswith("lightning_dpgen."))

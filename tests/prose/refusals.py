"""The page of refusals shows messages as the package has them, word by word, each with a reason and a cure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from .files import PACKAGE, ROOT, list_code, read, write

PAGE = ROOT / "docs/guarantees/sharp_edges.md"
HEADER = ["message", "reason", "cure"]
# Stands where a program puts a value into a message, and in no message.
VALUE = "\0"
# Fewer letters are in some string or other.
FEWEST = 16
# A table that is no longer recognized has no rows.
ROWS = 100


def check_refusals(page: Path = PAGE, files: list[Path] | None = None, fewest: int = ROWS) -> Iterator[str]:
    """Yield rows of the page that lack a cell, are shown twice, or whose message is not in the package."""
    strings = sorted({text for path in files or list_code(PACKAGE) for text in _strings(read(path))})
    rows, messages = list(_rows(page)), set()
    if len(rows) < fewest:
        yield write(page, None, f"{len(rows)} rows were found, and not {fewest}")
    for number, row in rows:
        if len(row) != len(HEADER) or not all(row):
            yield write(page, number, "a refusal has a message, a reason and a cure")
        if row[0] in messages:
            yield write(page, number, f"{row[0]} is shown twice")
        messages.add(row[0])
        if not re.fullmatch("`[^`]+`", row[0]):
            yield write(page, number, f"a message is code: {row[0]}")
        words = row[0].strip("`")
        pattern = _pattern(words)
        if len(words.replace("...", "").strip()) < FEWEST or not any(pattern.search(text) for text in strings):
            yield write(page, number, f"no message of the package: {words}")


def _rows(page: Path) -> Iterator[tuple[int, list[str]]]:
    inside = False
    for number, line in enumerate(read(page).splitlines(), 1):
        if line.startswith("| "):
            row = [cell.strip() for cell in line.strip("|").split(" | ")]
            if row == HEADER:
                inside = True
            elif inside and not set("".join(row)) <= set("- "):
                yield number, row


def _text(node: ast.AST) -> str | None:
    """Return the text of a string, with `VALUE` for each value in it; None for all that is no string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or VALUE for part in node.values)
    return None


def _strings(source: str) -> list[str]:
    """Return all strings but docstrings, which say nothing to a user."""
    nodes = list(ast.walk(ast.parse(source)))
    documentation = {node.value for node in nodes if isinstance(node, ast.Expr)}
    return [text for node in nodes if node not in documentation and (text := _text(node))]


def _pattern(message: str) -> re.Pattern:
    """Return what finds a message; an ellipsis stands for any text."""
    return re.compile(".*?".join(re.escape(part) for part in message.split("...")), re.DOTALL)

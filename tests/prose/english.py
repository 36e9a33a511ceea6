"""Comments and docstrings open with their subject, and functions with a verb; pages can be read as they are."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from .files import PAGES, PLACES, ROOT, SETTINGS, list_code, parse, read, walk_statements, write

# As of ruff, in pyproject.toml.
WIDTH = 124
# More than that in a cell of a table is a text, or a table of its own.
CELL = 800
OPENINGS = re.compile(r"(of|what|that|who|whose|whether|how|which)\b", re.IGNORECASE)
MAY_OPEN = re.compile(rf"[#\"'][#:\s]*{OPENINGS.pattern}", re.IGNORECASE)
WORDS = re.compile(r"\b(somebody|whoever|nobody|com(e|es|ing) of|came of|amiss|as far as)\b", re.IGNORECASE)
# Openings that are no verb, however a sentence goes on.
NO_VERBS = {
    "a", "all", "an", "and", "any", "as", "at", "both", "but", "by", "each", "either", "every", "for", "from", "here",
    "if", "in", "it", "its", "like", "more", "most", "no", "none", "not", "nothing", "on", "one", "only", "or",
    "other", "same", "several", "some", "something", "such", "the", "their", "there", "these", "this", "those", "to",
    "two", "with", "within", "without", "you",
}  # fmt: skip
CODE = [path for place in PLACES for path in list_code(ROOT / place)]
# Tests may speak of wrong words.
WORDED = [path for path in CODE if not path.is_relative_to(ROOT / "tests")] + SETTINGS + PAGES


def check_openings(files: list[Path] = CODE, settings: list[Path] = SETTINGS) -> Iterator[str]:
    """Yield comments and docstrings that do not open with their subject."""
    for path in files:
        # Few files have such words behind a number sign or a quote at all: the others are not parsed.
        if MAY_OPEN.search(read(path)):
            texts = [*_comments(path), *((node.lineno, text) for node, text in _docstrings(path))]
            yield from (write(path, line, f"opens with no subject: {text}") for line, text in texts if OPENINGS.match(text))
    for path in settings:
        for line, text in _comments_of_settings(path):
            if OPENINGS.match(text):
                yield write(path, line, f"opens with no subject: {text}")


def check_verbs(files: list[Path] = CODE) -> Iterator[str]:
    """Yield docstrings of functions that open with no verb: an article or a preposition opens no imperative."""
    for path in files:
        for node, text in _docstrings(path):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("test_"):
                continue
            decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
            if any("property" in name or name.endswith(".setter") for name in decorators):
                continue
            first = text.split()[0].strip(",.:").lower()
            # Neither does a shape or a name in code.
            if first in NO_VERBS or not first.isalpha():
                yield write(path, node.lineno, f"opens with no verb: {text.splitlines()[0]}")


def check_words(files: list[Path] = WORDED) -> Iterator[str]:
    """Yield words that no engineer uses."""
    for path in files:
        for number, line in enumerate(read(path).splitlines(), 1):
            if found := WORDS.search(line):
                yield write(path, number, f"{found[0]!r} is a word that no engineer uses")


def check_lines_of_pages(pages: list[Path] = PAGES) -> Iterator[str]:
    """Yield lines that are longer than those of code; rows of tables are one line each, with cells that can be read."""
    for page in pages:
        code = False
        for number, line in enumerate(read(page).splitlines(), 1):
            code ^= line.lstrip().startswith("```")
            if line.startswith("%"):
                yield write(page, number, "MyST takes a line that begins with % for a comment")
            if line.startswith("|"):
                longest = max(map(len, line.split(" | ")))
                if longest > CELL:
                    yield write(page, number, f"a cell of {longest} characters: {line[:40]}...")
            elif len(line) > WIDTH and not code and not line.startswith("    "):
                yield write(page, number, f"{len(line)} characters: {line[:40]}...")


def _docstrings(path: Path) -> Iterator[tuple[ast.AST, str]]:
    for node in walk_statements(parse(path)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and (text := ast.get_docstring(node)):
            if isinstance(node, ast.Module):
                node.lineno = 1
            yield node, text


def _comments(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the first line of each comment that has lines of its own, and all that stand behind code."""
    before = -1
    for token in tokenize.generate_tokens(io.StringIO(read(path)).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line.strip().startswith("#")
            if not (alone and before == token.start[0] - 1):
                yield token.start[0], token.string.lstrip("#: ")
            before = token.start[0] if alone else -1


def _comments_of_settings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the first line of each comment, but for directives (of Hydra, and of the system)."""
    before = False
    for number, line in enumerate(read(path).splitlines(), 1):
        comment = re.search(r"(?:^|\s)#\s*(.*)", line)
        if comment and not comment[1].startswith(("@package", "!")):
            if not before:
                yield number, comment[1]
            before = line.lstrip().startswith("#")
        else:
            before = False

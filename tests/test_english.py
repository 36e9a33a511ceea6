"""Comments and docstrings open with their subject, and functions with a verb."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLACES = ("lightning_dpgen", "tests", "benchmarks", "experiments", "lock.py")
# Files whose comments begin with a number sign.
SETTINGS = [ROOT / "pyproject.toml", ROOT / ".ci/run", *sorted((ROOT / "conf").rglob("*.yaml"))]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("*/*.md")), *sorted((ROOT / "docs").glob("*/*.md"))]
# As of ruff, in pyproject.toml.
WIDTH = 124
# More than that in a cell of a table is a text, or a table of its own.
CELL = 800
OPENINGS = re.compile(r"(of|what|that|who|whose|whether|how|which)\b", re.IGNORECASE)
MAY_OPEN = re.compile(rf"[#\"'][#:\s]*{OPENINGS.pattern}", re.IGNORECASE)
WORDS = re.compile(r"\b(somebody|whoever|nobody|com(e|es|ing) of|came of|amiss|as far as)\b", re.IGNORECASE)
# The parts of a statement that hold others.
BODIES = ("body", "orelse", "handlers", "finalbody", "cases")
# Openings that are no verb, however a sentence goes on.
NO_VERBS = {
    "a", "all", "an", "and", "any", "as", "at", "both", "but", "by", "each", "either", "every", "for", "from", "here",
    "if", "in", "it", "its", "like", "more", "most", "no", "none", "not", "nothing", "on", "one", "only", "or",
    "other", "same", "several", "some", "something", "such", "the", "their", "there", "these", "this", "those", "to",
    "two", "with", "within", "without", "you",
}  # fmt: skip


def _files(place: str) -> list[Path]:
    found = sorted((ROOT / place).rglob("*.py")) or [ROOT / place]
    return [path for path in found if "__pycache__" not in path.parts]


def _docstrings(path: Path):
    nodes = [ast.parse(path.read_text(encoding="utf-8"))]
    for node in nodes:
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and (text := ast.get_docstring(node)):
            yield node, text
        # Only statements hold statements: expressions, which are most of a tree, are not visited.
        nodes += [own for name in BODIES for own in getattr(node, name, ())]


def _comments(path: Path):
    """Yield the first line of each comment that has lines of its own, and all that stand behind code."""
    before = -1
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line.strip().startswith("#")
            if not (alone and before == token.start[0] - 1):
                yield token.start[0], token.string.lstrip("#: ")
            before = token.start[0] if alone else -1


def _comments_of_settings(path: Path):
    """Yield the first line of each comment, but for directives (of Hydra, and of the system)."""
    before = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = re.search(r"(?:^|\s)#\s*(.*)", line)
        if found and not found[1].startswith(("@package", "!")):
            if not before:
                yield number, found[1]
            before = line.lstrip().startswith("#")
        else:
            before = False


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_comments_of_settings_open_with_their_subject(path):
    found = [f"{path}:{line}: {text}" for line, text in _comments_of_settings(path) if OPENINGS.match(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("place", PLACES)
def test_comments_and_docstrings_open_with_their_subject(place):
    # Few files have such words behind a number sign or a quote at all: the others are not parsed.
    files = [path for path in _files(place) if MAY_OPEN.search(path.read_text(encoding="utf-8"))]
    found = [f"{path}:{line}: {text}" for path in files for line, text in _comments(path) if OPENINGS.match(text)]
    found += [f"{path}: {text}" for path in files for _, text in _docstrings(path) if OPENINGS.match(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["x = 1  #: Of two.\n", '"""\n    What it is."""\n', "'How.'\n"])
def test_such_openings_are_found(tmp_path, text):
    path = tmp_path / "written.py"
    path.write_text(text)
    assert MAY_OPEN.search(text)
    assert [own for _, own in [*_comments(path), *_docstrings(path)] if OPENINGS.match(own)]


def test_docstrings_are_found_wherever_a_statement_may_stand(tmp_path):
    kinds = (
        "if x:", "else:", "for x in y:", "else:", "while x:", "else:", "try:", "except E:", "else:", "finally:", "with x:",
        "match x:\n case 1:", "class C:", "def f():", "async def f():",
    )  # fmt: skip
    path, text = tmp_path / "written.py", ""
    for kind in kinds:
        depth = 2 if "case" in kind else 1
        text += f"{kind}\n{' ' * depth}def own():\n{' ' * (depth + 1)}'Of one.'\n"
    path.write_text(text)
    assert [own for _, own in _docstrings(path)] == ["Of one."] * len(kinds)


@pytest.mark.parametrize("place", PLACES)
def test_docstrings_of_functions_open_with_a_verb(place):
    """An article or a preposition opens no imperative; neither does a shape or a name in code."""
    found = []
    for path in _files(place):
        for node, text in _docstrings(path):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("test_"):
                continue
            decorators = [ast.unparse(own) for own in node.decorator_list]
            if any("property" in own or own.endswith(".setter") for own in decorators):
                continue
            first = text.split()[0].strip(",.:").lower()
            if first in NO_VERBS or not first.isalpha():
                found.append(f"{path}:{node.lineno}: {text.splitlines()[0]}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("place", [place for place in PLACES if place != "tests"] + ["settings", "pages"])
def test_words_that_no_engineer_uses_stay_away(place):
    """In comments and docstrings, in what the package says to its users, and in the pages."""
    found = []
    for path in {"settings": SETTINGS, "pages": PAGES}.get(place) or _files(place):
        text = path.read_text(encoding="utf-8")
        found += [
            f"{path}:{number}: {line.strip()}" for number, line in enumerate(text.splitlines(), 1) if WORDS.search(line)
        ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_of_a_page_begins_with_a_sign_of_percent(page):
    """MyST takes such a line for a comment, and the reader would lose it."""
    assert not [line for line in page.read_text(encoding="utf-8").split("\n") if line.startswith("%")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_pages_are_as_short_as_those_of_code(page):
    """Rows of tables are one line each, with cells that can be read; code is written as it is run."""
    found, code = [], False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        if line.startswith("|"):
            longest = max(map(len, line.split(" | ")))
            if longest > CELL:
                found.append(f"{page}:{number}: a cell of {longest} characters: {line[:40]}...")
        elif len(line) > WIDTH and not code and not line.startswith("    "):
            found.append(f"{page}:{number}: {len(line)} characters: {line[:40]}...")
    assert not found, "\n".join(found)

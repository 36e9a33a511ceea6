"""The page of refusals shows messages as the package has them, word by word."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/guarantees/sharp_edges.md"
HEADER = ["message", "reason", "cure"]
# Stands where a program puts a value into a message, and in no message.
VALUE = "\0"
# Fewer letters are in some string or other.
FEWEST = 16


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


def _rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    tables, rows = 0, []
    for row in cells:
        if row == HEADER:
            tables += 1
        elif tables and not set("".join(row)) <= set("- "):
            rows.append(row)
    return rows


ROWS = _rows()
MESSAGES = [row[0] for row in ROWS]


@pytest.fixture(scope="module")
def strings():
    files = sorted((ROOT / "lightning_dpgen").rglob("*.py"))
    return sorted({text for path in files for text in _strings(path.read_text(encoding="utf-8"))})


def test_each_refusal_has_a_reason_and_a_cure():
    assert len(ROWS) > 100
    assert not [row for row in ROWS if len(row) != len(HEADER) or not all(row)]


def test_each_message_is_code_and_shown_once():
    assert not [message for message in MESSAGES if not re.fullmatch("`[^`]+`", message)]
    assert len(set(MESSAGES)) == len(MESSAGES)


def test_messages_of_the_page_are_in_the_package(strings):
    lost = []
    for message in MESSAGES:
        words = message.strip("`")
        pattern = _pattern(words)
        if len(words.replace("...", "").strip()) < FEWEST or not any(pattern.search(text) for text in strings):
            lost.append(words)
    assert not lost, "\n".join(lost)


@pytest.mark.parametrize(
    ("message", "source", "found"),
    [
        ("a b", "x = 'a ' 'b'", True),
        ("a ... b", "x = f'a {x} ' 'b'", True),
        ("a x b", "x = f'a {x} b'", False),
        ("a b", "x = f'a {x} b'", False),
        ("a ... b", "x = ['a', 'b']", False),
        ("a b", "'a b'", False),
    ],
)
def test_a_message_is_one_string(message, source, found):
    assert any(_pattern(message).search(text) for text in _strings(source)) == found

"""Names and files in backticks of docstrings and comments are there."""

from __future__ import annotations

import ast
import functools
import io
import itertools
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from .files import PACKAGE, ROOT, list_code, parse, read, write

# Names of other libraries and of the system.
_OTHERS = {
    "/proc/self/cgroup", "private/", "nn.Linear", "nn.Conv2d", "trainer.callback_metrics", "every_n_train_steps",
    "val_check_interval", "GradSampleModule",
}  # fmt: skip
# The fields of nodes that hold names.
_NAMES = ("id", "attr", "arg", "name", "asname", "module")
_FILES = re.compile(r"(?<![\w/.-])[\w/]+\.py\b")
_QUOTED = re.compile(r"(?<!`)`([\w/][\w./-]*)(?:\(\))?`(?!`)")


def check_references(files: list[Path] | None = None) -> Iterator[str]:
    """Yield names and files that the code of the package speaks of and that are not there."""
    for path in files or list_code(PACKAGE):
        for line, text in _written(path):
            for name in dict.fromkeys(_FILES.findall(text) + _QUOTED.findall(text)):
                if name not in _OTHERS and not _is_there(name):
                    yield write(path, line + text[: text.index(name)].count("\n"), f"`{name}` is nowhere")


def _written(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments of a file, each with its line."""
    for token in tokenize.generate_tokens(io.StringIO(read(path)).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(parse(path)):
        if docstring := _docstring(node):
            yield docstring.lineno, docstring.value


def _docstring(node: ast.AST) -> ast.Constant | None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
        return node.body[0].value
    return None


def _is_there(name: str) -> bool:
    known, modules, places = _package()
    if "/" in name or name.endswith(".py"):
        return any(place.endswith(f"/{name.strip('/')}") for place in places)
    *before, last = name.split(".")
    # A module of ours is named by its rooms, in small letters.
    module = "/".join(itertools.takewhile(str.islower, before))
    if f"/lightning_dpgen/{before and before[0]}" in modules and not any(place.endswith(f"/{module}") for place in modules):
        return False
    return last in known or any(place.endswith(f"/{last}") for place in modules)


@functools.cache
def _package() -> tuple[set[str], set[str], set[str]]:
    """Return all names in the code of the package and words of its texts; its modules and rooms; all files and folders."""
    known: set[str] = set()
    for path in list_code(PACKAGE):
        nodes = list(ast.walk(parse(path)))
        documents = {id(docstring) for node in nodes if (docstring := _docstring(node))}
        for node in nodes:
            known |= {text for field in _NAMES if isinstance(text := getattr(node, field, None), str)}
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
                known |= set(re.findall(r"\w+", node.value))
    folders = ("lightning_dpgen", "docs", "tests", "conf", "experiments", "benchmarks", "examples")
    places = {f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*")}
    modules = {place.removesuffix(".py") for place in places if place.startswith("/lightning_dpgen")}
    return known, modules, places

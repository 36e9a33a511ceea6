"""Messages of the library name arguments; only the program and the pages know names of settings, and these exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from lightning_dpgen.specs.groups import ProjectSpec
from lightning_dpgen.specs.run import AuditSpec, RunSpec
from lightning_dpgen.specs.spec import Spec, names_of, variants

from .files import PACKAGE, PAGES, SETTINGS, list_code, read, write

# `fit` hands its arguments on as settings, and takes others as overrides.
PROGRAM = ("specs", "kinds", "runs", "studio", "cli", "api.py")


def _settings(*kinds: type[Spec]) -> Iterator[str]:
    for kind in kinds:
        for group in kind.model_fields:
            for spec in variants(kind, group).values():
                if isinstance(spec, type) and issubclass(spec, Spec):
                    yield from (f"{group}.{name}" for name in names_of(spec))


NAMES = sorted(set(_settings(RunSpec, ProjectSpec)))
GROUPS = sorted({name.partition(".")[0] for name in NAMES})
SETTING = re.compile(
    rf"(?<![\w./])({'|'.join(map(re.escape, NAMES))})(?!\w|\.\w)|(?<![\w./])({'|'.join(GROUPS)})\.\{{\}}|\brun_dir\b"
)
NAMED = re.compile(rf"(?<![\w./])((?:{'|'.join(GROUPS)}|audit)\.(?!json\b|safetensors\b|py\b)[a-z]\w*)(?![\w(])")


def check_messages(files: list[Path] | None = None) -> Iterator[str]:
    """Yield strings of the library that name a setting; `specs.spec.as_settings` names them where there are some."""
    places = [place for place in PACKAGE.iterdir() if place.name not in PROGRAM]
    for path in files or [path for place in sorted(places) for path in list_code(place)]:
        for line, text in _texts(read(path)):
            yield from (write(path, line, f"the library names a setting: {name[0]}") for name in SETTING.finditer(text))


def check_pages(pages: list[Path] | None = None) -> Iterator[str]:
    """Yield settings that a page or a file of settings names and that do not exist."""
    known = {*NAMES, *_settings(AuditSpec)}
    for page in pages or PAGES + [path for path in SETTINGS if path.suffix == ".yaml"]:
        # Names of the past stand in one table.
        for number, line in enumerate(read(page).partition("| earlier | today |")[0].splitlines(), 1):
            lost = [name for name in NAMED.findall(line) if name not in known]
            yield from (write(page, number, f"no such setting: {name}") for name in lost)


def _texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string; `{}` stands for what is put in."""
    nodes = list(ast.walk(ast.parse(source)))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value

"""Words of the library's messages: they name arguments; only the program knows names of settings."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_dpgen.specs.projection import ProjectSpec
from lightning_dpgen.specs.run import AuditSpec, RunSpec
from lightning_dpgen.specs.spec import Spec, names_of, variants

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lightning_dpgen"
# `fit` hands its arguments on as settings, and takes others as overrides.
PROGRAM = ("specs", "runs", "cli", "api.py")


def _settings(*kinds: type[Spec]) -> Iterator[str]:
    for kind in kinds:
        for group in kind.model_fields:
            for spec in variants(kind, group).values():
                if isinstance(spec, type) and issubclass(spec, Spec):
                    yield from (f"{group}.{name}" for name in names_of(spec))


def _texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string; `{}` stands for what is put in."""
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value


NAMES = sorted(set(_settings(RunSpec, ProjectSpec)))
GROUPS = sorted({name.partition(".")[0] for name in NAMES})
SETTING = re.compile(
    rf"(?<![\w./])({'|'.join(map(re.escape, NAMES))})(?!\w|\.\w)|(?<![\w./])({'|'.join(GROUPS)})\.\{{\}}|\brun_dir\b"
)


@pytest.mark.parametrize("folder", sorted(path.name for path in PACKAGE.iterdir() if path.name not in PROGRAM))
def test_no_string_of_the_library_names_a_setting(folder):
    """A class that is used on its own has no settings; `specs.argument_names` names them where there are some."""
    place = PACKAGE / folder
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place] * (place.suffix == ".py")
    found = [
        f"{path.relative_to(PACKAGE)}, line {line}: {named[0]}"
        for path in files
        for line, text in _texts(path.read_text())
        for named in SETTING.finditer(text)
    ]
    assert not found


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *(ROOT / "docs").glob("*/*.md"), *(ROOT / "conf").rglob("*.yaml")]
NAMED = re.compile(rf"(?<![\w./])((?:{'|'.join(GROUPS)}|audit)\.(?!json\b|safetensors\b|py\b)[a-z]\w*)(?![\w(])")


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_that_a_page_names_exist(page):
    """Names of the past stand in one table."""
    text = page.read_text(encoding="utf-8").partition("| earlier | today |")[0]
    assert not {*NAMED.findall(text)} - {*NAMES, *_settings(AuditSpec)}


@pytest.mark.parametrize(
    "text",
    ["'set data.n=5'", "f'split.{name}={value}: expected'", "f'{path} (privacy.epsilon).'", "'raise privacy.epsilon.'"],
)
def test_the_search_finds_a_setting(text):
    assert len(NAMES) > 100
    assert [line for line, said in _texts(text) if SETTING.search(said)] == [1]

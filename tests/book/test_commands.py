"""The commands of the pages can be planned: their settings exist, and fit their budgets."""

import re
from pathlib import Path

import pytest

from lightning_dpgen.specs.settings import load_complete_settings

pytestmark = pytest.mark.book

ROOT = Path(__file__).parents[2]


def _commands() -> list[str]:
    """Return the commands of the pages that name all they need: others hold a file of the reader's, or an ellipsis."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line.partition(" #")[0].strip() for kind, block in blocks if kind in ("", "sh") for line in block.splitlines()]
    words = [line.split() for line in lines if re.match(r"dpgen (train|budget) [^-]", line)]
    own = re.compile(r"\.\.\.|\.path=|run_dir=|\\\\$|^project$")
    return sorted({" ".join(found[2:]) for found in words if not any(own.search(word) for word in found)})


@pytest.mark.parametrize("words", _commands())
def test_commands_of_the_pages_can_be_planned(words):
    settings = load_complete_settings(words.split())
    assert settings.spec.privacy.noise == "off" or settings.plan().epsilon <= settings.spec.privacy.epsilon


def test_commands_of_the_pages_are_found():
    assert {"data=digits model=wgan model.conditional=true", "model.noise=5"} <= set(_commands())

"""The commands of the pages can be planned: their settings exist, and fit their budgets."""

import re
from pathlib import Path

import pytest

from lightning_dpgen.specs.settings import load_complete_settings

pytestmark = pytest.mark.book

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "experiments").rglob("*.md"))]


def _commands() -> list[str]:
    """Return the commands of the pages that name all they need: others hold a file of the reader's, or an ellipsis."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line.partition(" #")[0].strip() for kind, block in blocks if kind in ("", "sh") for line in block.splitlines()]
    words = [line.split() for line in lines if re.match(r"dpgen (train|budget) [^-]", line)]
    own = re.compile(r"\.\.\.|\.path=|run_dir=|\\\\$|^project$")
    return sorted({" ".join(found[2:]) for found in words if not any(own.search(word) for word in found)})


# Programs that lines of shell blocks begin with.
PROGRAMS = {"dpgen", "python", "python3", "pip", ".venv/bin/pip", ".", "ls", "hf"}
# Those that start another program.
STARTERS = {"srun", "torchrun"}


def test_lines_of_shell_blocks_begin_with_a_program():
    """A block that was wrapped like prose has commands in the middle of its lines."""
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                begun = line.partition("#")[0].split()
                where = f"{page.relative_to(ROOT)}: {line}"
                assert not begun or begun[0] in STARTERS or (begun[0] in PROGRAMS and "dpgen" not in begun[1:]), where


@pytest.mark.parametrize("words", _commands())
def test_commands_of_the_pages_can_be_planned(words):
    settings = load_complete_settings(words.split())
    assert settings.spec.privacy.noise == "off" or settings.plan().epsilon <= settings.spec.privacy.epsilon


def test_commands_of_experiments_are_whole():
    """A command that begins with an ellipsis cannot be pasted."""
    for page in (ROOT / "experiments").rglob("*.md"):
        assert not re.search(r"`\.\.\. [^`]*`", page.read_text(encoding="utf-8")), page


def test_commands_of_the_pages_are_found():
    assert {"data=digits model=wgan model.conditional=true", "model.noise=5"} <= set(_commands())

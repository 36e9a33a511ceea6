"""The book (docs/ and README.md): its examples run, and its commands and pictures are as it shows."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from prose.links import BLOCK

pytestmark = pytest.mark.book

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "_build" not in page.parts]


def _blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language, in the order of the page."""
    return [block for _, name, block in BLOCK.findall(page.read_text(encoding="utf-8")) if name.strip() == language]


def _pages_with(language: str, slow: Callable[[Path], bool] = lambda page: False) -> list:
    """Return the pages that have blocks of a language; those that take minutes are marked slow."""
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.slow] * slow(page))
        for page in PAGES
        if _blocks(page, language)
    ]


def _take_files(page: Path, folder: Path) -> None:
    """Copy the files beside a page that its examples read: made-up data, schemas, scripts."""
    for file in page.parent.iterdir():
        if page.parent != ROOT and file.suffix in (".csv", ".yaml", ".py"):
            shutil.copy(file, folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", _pages_with("python"))
def test_python_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    """Blocks of a page run in its order and share their names, as a reader types them."""
    _take_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for number, code in enumerate(_blocks(page, "python"), 1):
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)


ONE_PART = _blocks(ROOT / "docs/how_to/one_part_at_a_time.md", "python")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(1, len(ONE_PART)))
def test_a_program_of_one_part_is_short_and_runs_by_itself(number, tmp_path, monkeypatch):
    """The page promises both; the module and the records that several of them use are its first block."""
    assert len([line for line in ONE_PART[number].splitlines() if line.strip()]) <= 15, ONE_PART[number]
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for code in (ONE_PART[0], ONE_PART[number]):
        exec(compile(code, f"one_part_at_a_time.md, block {number + 1}", "exec"), names)


def test_the_page_has_a_program_for_each_part():
    assert len(ONE_PART) >= 15


def _steps(block: str) -> list[tuple[str, str]]:
    """Return the commands of a block, each with the output that the page shows under it."""
    steps = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    found = []
    for step in steps:
        command, _, output = re.sub(r"\\\n\s*", "", step).partition("\n")
        found.append((command.strip(), output.strip()))
    return found


def _matches(shown: str, printed: str) -> bool:
    """Compare line by line, without spaces at the ends; `...` stands for anything, also for whole lines."""
    tidy = ["\n".join(line.strip() for line in text.splitlines()) for text in (shown, printed)]
    pattern = ".*?".join(re.escape(part) for part in tidy[0].split("..."))
    return not shown or re.search(rf"(^|\n){pattern}(\n|$)", tidy[1], re.DOTALL) is not None


@pytest.mark.parametrize(
    ("shown", "printed", "agrees"),
    [
        ("a\nb", "a\nb\n", True),
        ("a ... c", "x\na 1 c", True),
        ("a", "b", False),
        ("a\n...\nc", "a\nb\nb\nc", True),
        ("a", "ab", False),
    ],
)
def test_output_is_compared(shown, printed, agrees):
    assert _matches(shown, printed) == agrees


# Plans of the papers are computed in seconds; other pages train.
@pytest.mark.parametrize("page", _pages_with("console", slow=lambda page: page.parent.name != "papers"))
def test_commands_of_a_page_do_what_it_shows(page, tmp_path):
    _take_files(page, tmp_path)
    scripts = tmp_path / ".bin"
    scripts.mkdir()
    (scripts / "dpgen").write_text(f'#!/bin/sh\nexec {sys.executable} -m lightning_dpgen "$@"\n')
    (scripts / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for script in scripts.iterdir():
        script.chmod(0o755)
    surroundings = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    for block in _blocks(page, "console"):
        for command, output in _steps(block):
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=surroundings,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            assert (done.returncode == 0) == ("error:" not in output), f"{command}\n{done.stdout}"
            assert _matches(output, done.stdout), f"{command}\nprinted\n{done.stdout}\nand not\n{output}"


def test_diagrams_are_those_of_the_script():
    """Else: python docs/draw_pictures.py"""
    found = runpy.run_path(str(ROOT / "docs/draw_pictures.py"))
    for name, draw in found["PICTURES"].items():
        assert (ROOT / f"docs/_static/{name}.svg").read_text(encoding="utf-8") == draw().svg(), name


def test_gallery_is_that_of_the_script():
    """Else: python docs/draw_gallery.py FOLDER"""
    found = runpy.run_path(str(ROOT / "docs/draw_gallery.py"))
    page, size = (ROOT / "docs/results/gallery.md").read_text(encoding="utf-8"), 0
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    assert len(sections) == len(found["EXHIBITS"])
    for section, (name, exhibit) in zip(sections, found["EXHIBITS"].items(), strict=True):
        picture = ROOT / f"docs/_static/gallery/{name}.png"
        size += picture.stat().st_size
        assert picture.stat().st_size < 60_000 and f"gallery/{name}.png)" in section
        assert section.startswith(exhibit.title) and found["shown_commands"](exhibit) in section
        # Words are as in the script, and numbers between them those of the releases.
        words = re.sub(r"\\\{.*?\\\}", r"[0-9.]+", re.escape(" ".join(exhibit.words.split())))
        assert re.search(words, " ".join(section.split())), name
        for run, arguments in exhibit.commands.items():
            stated = float(re.search(rf"^\| `runs/{run}` \| (\S+) \|", section, re.MULTILINE)[1])
            asked = float(re.search(r"privacy.epsilon=(\S+)", arguments)[1])
            assert 0.99 * asked < stated <= asked, run
    assert size < 400_000

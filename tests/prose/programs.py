"""Programs that check code: ruff, and mypy in the files that `tool.mypy` names, a user's program and each public name."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .files import ROOT
from .public_names import LAZY, list_public


class Mypy(NamedTuple):
    process: subprocess.Popen
    lines: list[str]
    folder: tempfile.TemporaryDirectory


def start_mypy() -> Mypy:
    """Start mypy, which runs beside all other checks."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        files = tomllib.load(file)["tool"]["mypy"]["files"]
    folder = tempfile.TemporaryDirectory()
    revealed = Path(folder.name, "revealed.py")
    places = ["lightning_dpgen.clipping", *LAZY]
    lines = [f"import {place}" for place in places]
    lines += [f"reveal_type({place}.{name})" for place in places for name in list_public(place)]
    revealed.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = [sys.executable, "-m", "mypy", "--strict-equality", "--no-error-summary", *files, "tests/typed_example.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return Mypy(subprocess.Popen([*words, str(revealed)], cwd=ROOT, text=True, **pipes), lines, folder)


def read_mypy(started: Mypy) -> Iterator[str]:
    """Yield mistakes that mypy found, and public names that are Any to it."""
    printed, _ = started.process.communicate()
    names = 0
    for line in printed.splitlines():
        revealed = re.search(r'(\d+): note: Revealed type is "(.*)"', line)
        names += revealed is not None
        if not revealed:
            yield line
        elif revealed[2] == "Any" or "_wrapper" in revealed[2]:
            yield f"mypy: {started.lines[int(revealed[1]) - 1]}: {revealed[2]}"
    expected = sum(line.startswith("reveal_type") for line in started.lines)
    if names != expected or started.process.returncode != 0:
        yield f"mypy: exit status {started.process.returncode}, and types of {names} public names in place of {expected}"
    started.folder.cleanup()


def check_by_ruff() -> Iterator[str]:
    """Yield what `ruff check` and `ruff format` would change."""
    for words in (["check", "-q", "--output-format=concise"], ["format", "--diff", "-q"]):
        ran = subprocess.run([sys.executable, "-m", "ruff", *words], cwd=ROOT, capture_output=True, text=True)
        if ran.returncode:
            yield from (ran.stdout + ran.stderr).splitlines() or [f"ruff {words[0]}: exit status {ran.returncode}"]

"""Environments of Python for peers, each made from PyPI by the requirements in `peers/`, when it is first needed."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

_PEERS = Path(__file__).parent / "peers"


def program(name: str) -> Path:
    """Return the program that runs in an environment; it imports nothing of this project."""
    return _PEERS / f"{name}.py"


def installed(name: str, folder: Path) -> Path:
    """Return the Python of an environment in `folder`, with what `peers/<name>.txt` requires.

    Raises:
        RuntimeError: if pip does not install it; with its last lines.
    """
    place, requirements = folder / name, _PEERS / f"{name}.txt"
    # Windows has another name for the folder of programs.
    python = place / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    done = place / "installed.txt"
    # An environment that was begun, or made by other requirements, is made anew.
    if not done.is_file() or done.read_text(encoding="utf-8") != requirements.read_text(encoding="utf-8"):
        venv.create(place, clear=True, with_pip=True)
        asked = [python, "-m", "pip", "install", "--quiet", "--requirement", requirements]
        pip = subprocess.run(asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if pip.returncode:
            raise RuntimeError(f"pip cannot install {requirements.name}: {pip.stdout[-2000:]}")
        done.write_text(requirements.read_text(encoding="utf-8"), encoding="utf-8")
    return python

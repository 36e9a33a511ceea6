"""Install the lowest or the newest versions that `pyproject.toml` allows, and run the smoke suite on them.

    python -m tests.versions lowest FOLDER        (needs `uv`; makes a virtual environment of some 6 GB in FOLDER)
    python -m tests.versions newest FOLDER

*Lowest* is the lowest version of each package that is asked for by name, those of the extra `test` among them; what these
ask for is the newest that they allow. The suite imports every module, builds every configuration file, trains and verifies
releases of tables, baskets, series and pictures, and uses the extras.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SMOKE = [
    "tests/specs/test_configurations.py", "tests/gradients/test_activation_checkpoints.py",
    "tests/gradients/test_unknown_functions.py", "tests/data/test_kinds_of_files.py",
    *(f"tests/cli/test_{name}.py" for name in (
        "anybodys_data", "compute", "databases", "families", "push", "sample_formats", "verify",
    )),
]  # fmt: skip
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
IMPORT_ALL = """
import importlib, pkgutil, warnings
import lightning_dpgen
warnings.simplefilter("ignore")
modules = [found.name for found in pkgutil.walk_packages(lightning_dpgen.__path__, "lightning_dpgen.")]
for name in modules:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(f"{len(modules)} modules imported")
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__.split("\n\n")[0])
    parser.add_argument("versions", choices=RESOLUTIONS)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    pins, python = arguments.folder / "requirements.txt", arguments.folder / "venv/bin/python"
    arguments.folder.mkdir(parents=True, exist_ok=True)
    resolution = ["--resolution", RESOLUTIONS[arguments.versions], "--extra", "test", "--python-version", "3.11"]
    for words in (
        ["uv", "pip", "compile", "-q", *resolution, "-o", str(pins), "pyproject.toml"],
        ["uv", "venv", "-q", "--python", "3.11", str(arguments.folder / "venv")],
        ["uv", "pip", "install", "-q", "--python", str(python), "-r", str(pins)],
        ["uv", "pip", "install", "-q", "--python", str(python), "--no-deps", "-e", "."],
    ):
        subprocess.run(words, cwd=ROOT, check=True)
    run_smoke(str(python))


def run_smoke(python: str) -> None:
    """Run the smoke suite by a Python that has the packages."""
    subprocess.run([python, "-c", IMPORT_ALL], cwd=ROOT, check=True)
    # Other versions warn of other things.
    subprocess.run([python, "-m", "pytest", "-n", "0", "-o", "filterwarnings=ignore", *SMOKE], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())

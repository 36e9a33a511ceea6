"""All packages of an installation are pinned, and every pin has the hashes of its files."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from versions import SMOKE

ROOT = Path(__file__).parent.parent
EXTRAS = ("dpgen", "test", "joblib", "slurm", "excel", "database", "flows", "hub", "studio", "docs")
LINES = (ROOT / "constraints.txt").read_text().splitlines()
PINS = dict(line.split("==") for line in LINES if not line.startswith("#"))
HASHED = (ROOT / "constraints-hashed.txt").read_text()


def test_every_package_that_is_asked_for_is_pinned():
    """Dependencies are followed from this package on, through all that is installed here."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    waiting = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    seen = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if (name, *requirement.extras) in seen:
            continue
        seen.add((name, *requirement.extras))
        if name == "lightning-dpgen":
            # Its extras are in the list, and each is followed by itself.
            assert requirement.extras <= {*EXTRAS, "ray"}, requirement
            continue
        assert name in PINS and PINS[name] in requirement.specifier, requirement
        try:
            asked = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # an extra that is not installed
        waiting += [line for line in asked if _applies(Requirement(line), requirement.extras)]


def _applies(line, extras):
    return line.marker is None or any(line.marker.evaluate({"extra": extra}) for extra in (*extras, ""))


def test_the_smoke_suite_is_there():
    assert all((ROOT / path).is_file() for path in SMOKE)


def test_both_files_hold_the_same_pins_and_every_pin_has_hashes():
    found = re.findall(r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", HASHED, re.MULTILINE)
    assert {name: version for name, version, _ in found} == PINS and len(found) == len(PINS)
    # These packages have wheels of their own for each platform that is named.
    assert all(hashes.count("sha256") > 10 for name, _, hashes in found if name in ("torch", "numpy", "pyarrow"))
    assert all(len(set(hashes.split())) == len(hashes.split()) - hashes.count("\\") + 1 for _, _, hashes in found)


def test_the_command_names_what_the_package_depends_on():
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    direct = [Requirement(line).name for line in project["dependencies"] + project["optional-dependencies"]["dpgen"]]
    (command,) = re.findall(r"pip install --require-hashes -c constraints-hashed.txt (.*)", HASHED)
    assert sorted(command.split()) == sorted([*direct, "hatchling"])
    assert "pip install --require-hashes -c constraints-hashed.txt" in (ROOT / "README.md").read_text()

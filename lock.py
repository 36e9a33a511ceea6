"""Write constraints.txt and constraints-hashed.txt: what an installation with all extras takes from PyPI, pinned.

    python lock.py          (with pip 26.1 or later; keeps the pins of constraints.txt, and adds what is missing)

pip resolves the extras on this machine; what its packages ask for besides on other platforms and versions of Python is
added. Hashes are those that PyPI states for every file which pip could take there, and those of wheels that the tests ran
with and that PyPI does not have (`_OTHERS`).
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

ROOT = Path(__file__).parent
EXTRAS = ("dpgen", "test", "joblib", "slurm", "excel", "database", "ray", "flows", "hub", "studio", "docs")
_OWN = "lightning-dpgen"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# By marker values, and by the names of wheels.
PLATFORMS = {
    "Linux x86_64": ("linux", "Linux", "x86_64", r"manylinux.*x86_64"),
    "Linux aarch64": ("linux", "Linux", "aarch64", r"manylinux.*aarch64"),
    "macOS arm64": ("darwin", "Darwin", "arm64", r"macosx_.*(arm64|universal2)"),
    "Windows AMD64": ("win32", "Windows", "AMD64", r"win_amd64"),
}
# The CPU build of torch that the tests ran with, for Python 3.11 on Linux x86_64; PyPI has the build for CUDA alone.
_OTHERS = {"torch": ["6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"]}
_ACCEPT = {"Accept": "application/vnd.pypi.simple.v1+json"}


def resolve(*wanted: str, pins: dict[str, str]) -> list[dict]:
    """Return the metadata of all packages that pip would take from PyPI."""
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "pins.txt")
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
        words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", "-c", str(constraints), *wanted]
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        plain |= {"PIP_CONFIG_FILE": os.devnull}
        found = subprocess.run([sys.executable, "-m", "pip", *words], env=plain, check=True, capture_output=True)
    return [item["metadata"] for item in json.loads(found.stdout)["install"]]


def find_missing(packages: list[dict], pins: dict[str, str]) -> set[str]:
    """Return what packages ask for on other platforms and versions of Python, and is not pinned."""
    missing = set()
    for package in packages:
        extras = EXTRAS if package["name"] == "lightning_dpgen" else ("",)
        for requirement in map(Requirement, package.get("requires_dist", [])):
            for version in PYTHONS:
                for sys_platform, system, machine, _ in PLATFORMS.values():
                    there = {"python_version": version, "python_full_version": f"{version}.0", "sys_platform": sys_platform,
                             "platform_system": system, "platform_machine": machine,
                             "os_name": "nt" if system == "Windows" else "posix"}  # fmt: skip
                    asked = requirement.marker is None or any(
                        requirement.marker.evaluate(there | {"extra": extra}) for extra in extras
                    )
                    if asked and canonicalize_name(requirement.name) not in {*pins, _OWN}:
                        missing.add(str(requirement).partition(";")[0])
    return missing


def fetch_hashes(name: str, version: str) -> list[str]:
    """Return the SHA-256 of each file that pip could take: wheels for these platforms, and the source."""
    asked = urllib.request.Request(f"https://pypi.org/simple/{name}/", headers=_ACCEPT)
    with urllib.request.urlopen(asked) as answer:
        files = json.load(answer)["files"]
    found = _OTHERS.get(name, [])
    for file in files:
        filename, digest = file["filename"], file["hashes"]["sha256"]
        try:
            if filename.endswith(".whl"):
                _, own, _, tags = parse_wheel_filename(filename)
                taken = str(own) == version and any(map(_fits, tags))
            else:
                taken = filename.endswith(".tar.gz") and str(parse_sdist_filename(filename)[1]) == version
            found = [*found, digest] if taken else found
        except ValueError:
            continue  # names of another age
    return sorted(found)


def _fits(tag: Tag) -> bool:
    numbers = [version.replace(".", "") for version in PYTHONS]
    any_python = tag.interpreter == "py3"
    exact = tag.interpreter in {f"cp{n}" for n in numbers} and tag.abi in {f"cp{n}" for n in numbers} | {"none"}
    since = re.fullmatch(r"cp3(\d+)", tag.interpreter)
    stable = tag.abi == "abi3" and since is not None and int(since[1]) <= int(numbers[-1][1:])
    there = tag.platform == "any" or any(re.fullmatch(pattern, tag.platform) for *_, pattern in PLATFORMS.values())
    return bool(there and (any_python or exact or stable))


def main() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines if "==" in line}
    packages = resolve(f"{ROOT}[{','.join(EXTRAS)}]", pins=pins)
    pins = {canonicalize_name(p["name"]): p["version"] for p in packages if p["name"] != "lightning_dpgen"}
    while missing := find_missing(packages, pins):
        more = resolve(*missing, pins=pins)
        pins |= {canonicalize_name(package["name"]): package["version"] for package in more}
        packages += more
    where = f"{', '.join(PLATFORMS)}; Python {PYTHONS[0]} to {PYTHONS[-1]}"
    (ROOT / "constraints.txt").write_text(
        "# The versions that the tests ran with, for all extras. Install with `-c constraints.txt`; made by lock.py.\n"
        f"# {where}.\n" + "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))
    )
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["dpgen"]
    direct = [Requirement(line).name for line in asked]
    text = (
        "# The same pins with the SHA-256 of every file that pip may take; made by lock.py, from what PyPI states.\n"
        f"# {where}.\n"
        "# A file of its own: with hashes among its constraints, pip refuses to install a folder (`pip install .`), which\n"
        "# has none. So packages come first, checked, and then this one without any; by pip 26.1 or later, since earlier\n"
        "# ones look for hashes beside the names alone:\n"
        f"#   pip install --require-hashes -c constraints-hashed.txt {' '.join(sorted(direct))} hatchling\n"
        "#   pip install --no-deps --no-build-isolation .\n"
    )
    for name, version in sorted(pins.items()):
        found = [f"--hash=sha256:{own}" for own in fetch_hashes(name, version)]
        text += " \\\n    ".join([f"{name}=={version}", *found]) + "\n"
    (ROOT / "constraints-hashed.txt").write_text(text)


if __name__ == "__main__":
    main()

"""Imports go one way, the map and the files that docs name exist, configurations build, and the README's examples run."""

import ast
import re
from pathlib import Path

import pytest

import lightning_dpgen
from lightning_dpgen.specs.compose import conf_dir
from lightning_dpgen.specs.settings import read_settings

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lightning_dpgen"
# Each folder imports only from itself and from those before it (docs/DESIGN.md).
ORDER = [
    "privacy", "sampling", "data", "passes", "clustering", "projection", "gradients", "optim", "models", "measure",
    "metrics", "release",
    "plugins", "audit", "specs", "verification", "runs", "cli",
]  # fmt: skip


def _imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("lightning_dpgen.")}
    return found


def test_every_folder_has_its_place():
    assert sorted(p.name for p in PACKAGE.iterdir() if (p / "__init__.py").is_file()) == sorted(ORDER)


@pytest.mark.parametrize("folder", ORDER)
def test_imports_go_one_way(folder):
    allowed = set(ORDER[: ORDER.index(folder) + 1])
    for path in (PACKAGE / folder).rglob("*.py"):
        assert _imported(path) <= allowed, f"{path} imports from below its place"


def test_every_export_exists_and_is_documented():
    for name in lightning_dpgen.__all__:
        assert getattr(lightning_dpgen, name).__doc__, f"{name} has no docstring"
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = lightning_dpgen.no_such_name


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page):
    """A claim whose test cannot be found looks tested."""
    named = set(re.findall(r"`([\w/]+\.py|\w+/[\w/]+\.(?:json|md|yaml))`", page.read_text(encoding="utf-8")))
    places = ROOT, PACKAGE, ROOT / "tests", ROOT / "experiments", ROOT / "benchmarks"
    assert not [name for name in sorted(named) if not any((place / name).is_file() for place in places)]


def _map() -> dict[str, list[str]]:
    """Return the folders of the map in docs/DESIGN.md, in its order, each with the files that it says to open first."""
    section = (ROOT / "docs/DESIGN.md").read_text(encoding="utf-8").split("## Where things live")[1]
    package = section.split("```")[1].split("\nconf/")[0]
    folders: dict[str, list[str]] = {}
    for line in package.splitlines():
        if found := re.match(r"  (\w+)/ ", line):
            folders[found[1]] = []
        elif found := re.match(r" +first: (.*)", line):
            folders[list(folders)[-1]] += found[1].split()
    return folders


def test_the_map_lists_every_folder_in_order():
    assert list(_map()) == ORDER


@pytest.mark.parametrize("folder", ORDER)
def test_the_map_names_files_that_are_there(folder):
    named = _map()[folder]
    assert named and not [name for name in named if not (PACKAGE / folder / name).is_file()]


def test_decisions_are_numbered_in_order():
    page = (ROOT / "docs/DESIGN.md").read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r"^D(\d+)\.", page, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert {int(number) for number in re.findall(r"\bD(\d+)\b", page)} == set(numbers), "a number without a decision"


POINTS = ["data.path=x.csv", "data.n=400", f"data.schema={ROOT / 'experiments/pinwheel.schema.yaml'}"]


def _overrides() -> list[list[str]]:
    cases = []
    for path in sorted(conf_dir().glob("*/*.yaml")):
        case = [f"{path.parent.name}={path.stem}"]
        if path.stem in ("blobs", "array", "pure"):
            continue
        if path.stem == "own":
            case += {
                "data": ["data.target=example_package.people", "data.n=5000"],
                "model": ["model.target=example_package.Independents"],
            }[path.parent.name]
        case += {
            "images": ["data.path=x.npz", "data.n=5000", "data.height=4", "data.width=4"],
            "table": ["data.path=x.csv", "data.n=5000", f"data.schema={PACKAGE / 'data/bundled/adult.schema.yaml'}"],
            "baskets": ["data.path=x.dat", "data.n=5000", "data.items=1..20", "data.max_items=5"],
            "series": ["data.path=x.csv", "data.n=5000", "data.length=4", "data.low=0", "data.high=1"],
            "privae_pinwheel": POINTS,
            "privae_pinwheel_best": POINTS,
            "auto": ["model=auto"],
        }.get(path.stem, [])
        cases.append(case)
    return cases


@pytest.mark.parametrize("overrides", _overrides(), ids=lambda case: case[0])
def test_every_configuration_file_builds(overrides):
    settings = read_settings(overrides)
    assert settings.declared()["n"] == settings.spec.data.n


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
    settings = read_settings(words.split())
    assert settings.spec.privacy.noise == "off" or settings.plan().epsilon <= settings.spec.privacy.epsilon


def test_commands_of_the_pages_are_found():
    assert {"data=digits model=wgan model.conditional=true", "model.noise=5"} <= set(_commands())

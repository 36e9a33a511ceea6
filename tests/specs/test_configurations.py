"""Every configuration file builds."""

from pathlib import Path

import pytest

from lightning_dpgen.specs.config_files import conf_dir
from lightning_dpgen.specs.settings import load_complete_settings

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lightning_dpgen"
HISTORIES = [f"data.path={ROOT / 'tests/data/visits.yaml'}", "data.n=5000"]


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
            "histories": HISTORIES,
            "autoregressive": ["data=histories", *HISTORIES],
            "baskets": ["data.path=x.dat", "data.n=5000", "data.items=1..20", "data.max_items=5"],
            "series": ["data.path=x.csv", "data.n=5000", "data.length=4", "data.low=0", "data.high=1"],
            "auto": ["model=auto"],
        }.get(path.stem, [])
        cases.append(case)
    return [*cases, ["experiment=dpgm_mnist", "model=rbm"]]


@pytest.mark.parametrize(
    "overrides", _overrides(), ids=lambda case: " ".join(case[:2]) if case[-1] == "model=rbm" else case[0]
)
def test_every_configuration_file_builds(overrides):
    settings = load_complete_settings(overrides)
    assert settings.dump_public()["n"] == settings.spec.data.n

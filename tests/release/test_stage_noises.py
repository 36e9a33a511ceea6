"""The noises that a certificate may state are those that the software draws: a forger can neither drop nor rename one."""

import copy
import json
import zipfile

import pytest
from keep_releases import KEPT, KINDS

from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.measure.labels import LABELS
from lightning_dpgen.metrics.fidelity import FIDELITY, fidelity_stage
from lightning_dpgen.privacy.drawn_noise import scale_in_units
from lightning_dpgen.privacy.exact_unit import read_unit
from lightning_dpgen.privacy.pld import ADD_OR_REMOVE_ONE
from lightning_dpgen.release.certificate import FORMAT_VERSION, digest
from lightning_dpgen.release.files import CERTIFICATE, MODEL
from lightning_dpgen.verification.noise_check import check_noises
from lightning_dpgen.release.stage_noises import FIRST_PASS, MODELS, STAGES, TRAINING, check_stages, stages_of
from lightning_dpgen.release.stated_noises import RELATIVE_GRID
from lightning_dpgen.verification.verify import verify
from lightning_dpgen.specs.settings import FIRST_PASS as FIRST
from lightning_dpgen.specs.settings import read_settings


@pytest.fixture(params=KINDS)
def release(request, tmp_path):
    """Return the folder of a kept release of today's format."""
    with zipfile.ZipFile(KEPT / f"format_{FORMAT_VERSION}" / f"{request.param}.zip") as archive:
        archive.extractall(tmp_path)
    return tmp_path


def _other(entry, mechanism):
    """Return an entry of noise in real numbers, or of one that was never drawn, in the place of another one."""
    kept = {name: entry[name] for name in ("stage", "access", "names", "law", "multiplier")} | {"mechanism": mechanism}
    return kept | ({"grid": RELATIVE_GRID} if mechanism == "gaussian" else {})


def _forgeries(noise):
    """Yield noises whose numbers still agree with each other and with the event."""
    for mechanism in ("none", "gaussian"):
        for i, entry in enumerate(noise["sums"]):
            if mechanism == "none" or entry["law"] == "gaussian":
                rest = noise["sums"][:i] + noise["sums"][i + 1 :]
                yield noise | {"sums": rest, "others": [*noise["others"], _other(entry, mechanism)]}
    for i, entry in enumerate(noise["sums"]):
        if entry["records"] > 1:
            fewer = copy.deepcopy(noise)
            sides = (entry["bound_in_units"], 1, ADD_OR_REMOVE_ONE)
            scale = scale_in_units(entry["mechanism"], entry["multiplier"], *sides)
            fewer["sums"][i] |= {"records": 1, "scale_in_units": scale, "scale": scale * float(read_unit(entry["unit"]))}
            yield fewer
    every = [_other(entry, "none") for entry in noise["sums"] + noise["others"]]
    yield noise | {"sums": [], "others": every}
    for name in ("sums", "others"):
        for i in range(len(noise[name])):
            renamed = copy.deepcopy(noise)
            renamed[name][i]["names"] = ["another"]
            yield renamed


def test_noises_are_those_of_what_is_released(release):
    certificate = json.loads((release / CERTIFICATE).read_text())
    assert verify(release).problems == []
    by_settings, refused = "model" in certificate["declared"] or "projection" in certificate["declared"], 0
    for noise in _forgeries(certificate["noise"]):
        forged = certificate | {"noise": noise}
        # Numbers alone do not tell.
        assert check_noises(forged)[0] == []
        (release / CERTIFICATE).write_text(json.dumps(forged | {"digest": digest(forged)}))
        problems = verify(release).problems
        assert all("\n" not in problem and "noise" in problem for problem in problems)
        refused += bool(problems)
        assert problems or not by_settings
    # Weights of a program of one's own are made by stages of any name; that nothing was drawn is refused there, too.
    assert refused >= (len(certificate["noise"]["sums"] + certificate["noise"]["others"]) if by_settings else 1)


def test_stages_are_those_of_the_model(release):
    certificate, model = (json.loads((release / name).read_text()) for name in (CERTIFICATE, MODEL))
    if "model" not in certificate["declared"]:
        return
    for kind in MODELS:
        other = {"model": kind.partition(" ")[0], "schema": {"kind": "baskets" if "baskets" in kind else "table"}}
        assert (check_stages(certificate, other)[0] == []) == (kind == model["model"])
    for stage in certificate["stages"]:
        fewer = certificate | {"stages": [other for other in certificate["stages"] if other is not stage]}
        assert any("is missing, but a model" in problem for problem in check_stages(fewer, model)[0])
    for name, more in ((FIRST_PASS, {"n_share": 0.1}), (FIDELITY, {"fidelity_share": 0.1})):
        another = certificate | {"stages": [*certificate["stages"], certificate["stages"][0] | {"name": name}]}
        assert [problem for problem in check_stages(another, model)[0] if "is made without it" in problem]
        settings = another | {"declared": certificate["declared"] | more}
        assert not [problem for problem in check_stages(settings, model)[0] if "is made without it" in problem]


def test_a_selection_and_a_model_that_is_missing_hide_nothing(release):
    certificate, model = (json.loads((release / name).read_text()) for name in (CERTIFICATE, MODEL))
    if "model" not in certificate["declared"]:
        return
    best = {"type": "RepeatAndSelectDpEvent", "mean": 1.01, "shape": 0.0}
    needed = stages_of(model["model"], certificate["declared"])
    selection = {"law": "logarithmic", "mean": 1.01, "score": "fidelity", "space": {}, "chosen": {}}
    for count in range(1, len(needed) + 1):
        parts = [{"type": "GaussianDpEvent", "noise_multiplier": 30.0}] * count
        event = best | {"event": {"type": "ComposedDpEvent", "events": parts} if count > 1 else parts[0]}
        forged = certificate | {
            "selection": selection,
            "event": event,
            "noise": certificate["noise"] | {"sums": [], "others": []},
        }
        assert bool(check_stages(forged, model)[0]) == (count < len(needed))
    assert "is no part of the release" in check_stages(certificate, {})[0][0]
    assert "is no part of the release" in check_stages(certificate | {"declared": {}}, {})[0][0]
    if "split" in certificate["declared"]:
        declared = copy.deepcopy(certificate["declared"])
        declared["split"]["k"] = 1
        fewer = [stage for stage in certificate["stages"] if stage["name"] in ("final pass", TRAINING)]
        found = check_stages(certificate | {"declared": declared, "stages": fewer}, model)[0]
        assert any("stage 'clustering' is missing, but a model of 2 components" in problem for problem in found)
        declared = copy.deepcopy(certificate["declared"])
        declared["model"]["rate"] *= 0.1
        assert any(
            "its event has lots of rate" in problem
            for problem in check_stages(certificate | {"declared": declared}, model)[0]
        )
    if "max_rows" in certificate["declared"]:
        alone = copy.deepcopy(certificate)
        alone["declared"]["max_rows"] = 3.0
        assert check_stages(alone, model)[0] == []
        for entry in alone["noise"]["sums"]:
            entry["records"] = 1
        assert "is stated for records=1, and a unit of privacy has 3" in check_stages(alone, model)[0][0]


def test_settings_beside_the_weights_of_a_network_are_words(tmp_path):
    with zipfile.ZipFile(KEPT / f"format_{FORMAT_VERSION}" / "weights.zip") as archive:
        archive.extractall(tmp_path)
    certificate, model = (json.loads((tmp_path / name).read_text()) for name in (CERTIFICATE, MODEL))
    declared = certificate["declared"] | {
        "model": {"label_share": 0.2},
        "schema": {},
        "split": {"k": 4},
        "fidelity_share": 0.1,
    }
    problems, notes = check_stages(certificate | {"declared": declared}, model)
    assert problems == [] and "no settings are declared" in notes[0]


TABLE = ["data=table", "data.path=t.csv", "data.schema=t.schema.yaml", "data.n=5000"]
COLUMNS = "  a: {type: category, values: [x, y, z]}\n  b: {type: category, values: [x, y]}\n  c: {type: boolean}\n"
SETTINGS = {
    "table": [*TABLE, "model=measured", "model.label_share=0.2", "privacy.fidelity_share=0.1"],
    "network": ["data=digits", "model=vae", "privacy.fidelity_share=0.1"],
    "features": ["data=digits", "model=vae", "split.start=mean", "split.dimensions=null"],
    "labels of a network": [*TABLE, "model=vae", "model.label_share=0.2"],
    "pictures": ["data=digits", "model=measured"],
    "labels of pictures": ["data=digits", "model=measured", "model.label_share=0.2"],
    "cells": ["data=digits", "model=measured", "model.cells=4", "model.poses=measured"],
    "bins that are bought": [*TABLE, "model=measured", "model.label_share=0"],
    "one cluster": [*TABLE, "model=wgan", "split.k=1"],
    "no means": [*TABLE, "model=vae", "model.bias=zero"],
    "all features": ["data=digits", "model=rbm", "split.kernel=laplacian", "split.start=random", "split.dimensions=null"],
    "more dimensions": ["data=digits", "model=rbm", "split.features=20", "split.dimensions=20", "split.start=random"],
    "a classifier": ["data=digits", "model=classifier"],
    "series": ["data=series", "data.path=s.csv", "data.n=4000", "data.length=24", "data.low=0", "data.high=1",
               "data.classes=[a,b]", "model=classifier"],
    "baskets": ["data=baskets", "data.path=b.dat", "data.items=b.txt", "data.max_items=2", "data.n=4000", "model=measured"],
}  # fmt: skip


@pytest.mark.parametrize("words", SETTINGS.values(), ids=SETTINGS)
def test_the_stages_of_settings_are_those_that_are_known(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.schema.yaml").write_text(f"label: c\ncolumns:\n{COLUMNS}")
    (tmp_path / "t.csv").write_text("a,b,c\nx,y,true\n")
    (tmp_path / "s.csv").write_text("1\n")
    (tmp_path / "b.txt").write_text("x\ny\nz\n")
    (tmp_path / "b.dat").write_text("x y\n")
    settings = read_settings(words)
    kinds = {"baskets": "product_mixture of baskets", "digits": "gaussian_mixture", "series": "series_mixture"}
    kind = "network" if settings.trained else kinds.get(settings.spec.data.source, "product_mixture")
    assert stages_of(kind, settings.declared()) == {stage.name for stage in settings.plan().stages}
    _check(settings.specs())


def _check(specs):
    for spec in specs:
        if spec.stage != TRAINING:
            drawn, names = STAGES[spec.stage], set(spec.noise_shares)
            assert drawn.always <= names <= drawn.always | drawn.at_times, spec.stage
            assert {"gaussian"} >= {spec.kinds.get(name, "gaussian") for name in names}


def test_each_stage_is_drawn_somewhere():
    from lightning_dpgen.measure import basket_mixture, classifier, gaussians, posed, products, series
    from lightning_dpgen.projection import project

    stages = {getattr(module, name) for module, names in (
        (basket_mixture, ["ITEMS", "PAIRS"]), (classifier, ["SPREADS"]), (products, ["TABLES"]),
        (gaussians, ["POSES", "MEANS", "SQUARES", "CELL_MEANS", "CELL_SQUARES"]),
        (series, ["VALUES", "SCALES", "MOMENTS", "SHAPES"]), (project, ["ROWS", "CLIPPED"]),
    ) for name in names}  # fmt: skip
    split = {spec.stage for spec in SplitSettings(k=4, iterations=2).fitted(Layout(units=9)).specs(900)}
    assert STAGES.keys() == stages | split | {LABELS, FIDELITY} and FIRST == FIRST_PASS
    assert STAGES["poses"].always == posed.TRIAL.keys() and STAGES["moments"].always == series._PARTS.keys()
    for layout in (Layout(units=3), Layout(units=3, groups=(2,), label=0)):
        _check([fidelity_stage(layout, 900, 0.1)])

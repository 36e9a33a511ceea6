"""`model=measured`: no network, two accesses, and release, certificate and resumption as for any other model."""

import dataclasses
import functools
import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lightning_dpgen import load_release
from lightning_dpgen.cli.main import main
from lightning_dpgen.common import pace
from lightning_dpgen.measure import labels, tables
from lightning_dpgen.models.poses import SETS, Symmetries
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_epsilon
from lightning_dpgen.release.pages.report import _BOUGHT
from lightning_dpgen.runs import measure as measured_run
from lightning_dpgen.specs.settings import load_complete_settings

pytestmark = pytest.mark.filterwarnings("ignore")

LABELLED = ["model=measured", "rows=60"]
CELLS = ["model=measured", "rows=60", "model.cells=3", "data.classes=0"]


def _certificate(run):
    return json.loads((run / "release" / "privacy.json").read_text())


@pytest.mark.parametrize("settings", [LABELLED, CELLS], ids=["labels", "cells"])
def test_measures_releases_and_verifies(dpgen, tmp_path, settings):
    run = tmp_path / "run"
    assert dpgen("train", *settings, f"run_dir={run}")[0] == 0
    assert dpgen("verify", run)[0] == 0
    release, certificate = load_release(run / "release"), _certificate(run)
    pictures = release.sample(50, seed=1)
    assert pictures.shape == (50, 8, 8) and 0 <= pictures.min() <= pictures.max() <= 16
    assert certificate["declared"]["model"]["name"] == "noisy statistics, measured once"
    assert "clipping" not in certificate["declared"]
    stages = [stage["name"] for stage in certificate["stages"]]
    # Ten labels of few pictures do not tell whether poses pay off.
    several = ["poses", "means", "squares", "cell means", "cell squares"]
    assert stages == (["means", "squares"] if settings is LABELLED else several)
    assert release.components == (10 if settings is LABELLED else 3)


def test_the_certificate_is_recomputed_by_hand(dpgen, tmp_path):
    """Four Gaussians, three of them from one access: the root of the sum of inverse squares is mu, and mu gives epsilon."""
    run = tmp_path / "run"
    assert dpgen("train", *LABELLED, "privacy.epsilon=2", f"run_dir={run}")[0] == 0
    certificate, lines = _certificate(run), (run / "private" / "ledger.jsonl").read_text().splitlines()
    accesses = [access for access in map(json.loads, lines) if "id" in access]
    assert [access["stage"] for access in accesses] == ["means", "squares"]
    multipliers = [m for access in accesses for m in access["multipliers"].values()]
    epsilon = gaussian_epsilon(sum(m**-2 for m in multipliers) ** 0.5, certificate["delta"])
    assert len(multipliers) == 4 and certificate["epsilon"] == pytest.approx(epsilon, rel=1e-5)
    assert epsilon <= certificate["epsilon"] <= 2.0


def test_a_classifier_of_synthetic_digits_tells_real_ones_apart(dpgen, tmp_path):
    """Each class sums two hundred real pictures: the nearest synthetic mean is right at least three times in four."""
    from sklearn.datasets import load_digits

    run = tmp_path / "run"
    assert dpgen("train", *LABELLED, "privacy.epsilon=4", f"run_dir={run}")[0] == 0
    encoded = load_release(run / "release").sample_encoded(2000, 0)
    means = np.stack([encoded.units[encoded.codes[:, 0] == c].mean(axis=0) for c in range(10)])
    images, labels = load_digits(return_X_y=True)
    nearest = np.square(images[:, None] - means).sum(axis=2).argmin(axis=1)
    assert (nearest == labels).mean() > 0.75


@pytest.fixture
def people(tmp_path):
    """Return settings for a table of 2,000 rows."""
    random = np.random.default_rng(0)
    sex = random.choice(["F", "M"], 2000, p=[0.3, 0.7])
    age = np.where(sex == "F", random.integers(20, 40, 2000), random.integers(50, 80, 2000))
    pd.DataFrame({"sex": sex, "age": age}).to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "people.yaml").write_text(
        "label: sex\ncolumns:\n  sex: {type: category, values: [F, M]}\n  age: {type: integer, low: 0, high: 99}\n"
    )
    table = [f"data.path={tmp_path / 'people.csv'}", f"data.schema={tmp_path / 'people.yaml'}"]
    return ["data=table", *table, "data.n=2000", "model=measured", "rows=100"]


@pytest.mark.parametrize("share", [None, pytest.param(0, marks=pytest.mark.slow)])
def test_a_table_is_measured_in_a_few_accesses(fair_fits, dpgen, tmp_path, people, share):
    """It may have any schema: numbers, categories and missing values come back as columns, and can be conditioned on."""
    run, given = tmp_path / "run", [] if share is None else [f"model.label_share={share}"]
    assert dpgen("train", *people, *given, f"run_dir={run}")[0] == 0 and dpgen("verify", run)[0] == 0
    stages = ["first pass", "tables"] if share == 0 else ["first pass", "tables", "labels"]
    assert [stage["name"] for stage in _certificate(run)["stages"]] == stages
    made = load_release(run / "release").sample(4000, seed=0)
    assert (made.sex == "F").mean() == pytest.approx(0.3, abs=0.05)
    assert made.age[made.sex == "F"].mean() == pytest.approx(29.5, abs=3)
    assert made.age[made.sex == "M"].mean() == pytest.approx(64.5, abs=3)


@pytest.mark.slow
def test_a_table_goes_on_between_accesses_of_its_label(dpgen, tmp_path, people, short_fits, interrupted_when_kept):
    run = tmp_path / "run"
    with interrupted_when_kept(3) as saves:
        assert dpgen("train", *people, f"run_dir={run}")[0] == 130
    assert dpgen("train", *people, f"run_dir={run}")[0] == 0 and dpgen("verify", run)[0] == 0
    again = durable.load(run / "private" / "measured.pt", "made")["made"]
    assert len(again["labels"]) == 4 and _certificate(run)["epsilon"] <= 4.0
    for before, after in zip(saves[-1]["made"]["labels"], again["labels"], strict=False):
        assert (before["gradient"][0] == after["gradient"][0]).all()


@pytest.mark.parametrize("n, epsilon", [(60, 1.0), (40, 3.0)])
def test_little_data_is_planned_without_the_label(dpgen, people, n, epsilon):
    status, out, _ = dpgen("budget", *people, f"data.n={n}", f"privacy.epsilon={epsilon}")
    assert status == 0 and "tables" in out and "labels" not in out


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model.radius=1e6"], "the mean of a component is off by"),
        (["data=retail", "privacy.epsilon=0.1"], "4.9 baskets an item, and what is measured of an item has noise"),
    ],
)
def test_noise_that_hides_what_is_measured_is_said(dpgen, settings, said):
    assert said in dpgen("budget", "model=measured", *settings)[2]
    assert said not in dpgen("budget", "model=measured")[2]


def test_cells_of_more_noise_than_records_are_said(dpgen):
    """By hand: 22 columns make 231 tables of two by the label, each a Gaussian of the plan's multiplier times sqrt 231."""
    status, out, err = dpgen("budget", "data=mushroom", "model=measured", "privacy.epsilon=0.5", "model.label_share=0")
    multiplier = float(re.search(r"pairs ([\d.]+)", out)[1])
    said = float(re.search(r"deviation ([\d.,]+): ", err)[1].replace(",", ""))
    assert status == 0 and said == pytest.approx(multiplier * 231**0.5, rel=0.01) and "type: drop" in err
    assert "gill-color (12)" in err
    assert not dpgen("budget", "data=mushroom", "model=measured", "privacy.epsilon=4")[2]


@pytest.mark.slow
def test_without_privacy_too(dpgen, tmp_path):
    assert dpgen("train", *LABELLED, "privacy=off", f"run_dir={tmp_path / 'run'}")[0] == 0
    assert dpgen("verify", tmp_path / "run" / "release")[0] == 2


def test_the_number_of_records_and_a_figure_can_be_bought(dpgen, tmp_path):
    run = tmp_path / "run"
    bought = ["data.n=null", "data.n_share=0.05", "privacy.fidelity_share=0.05"]
    assert dpgen("train", *LABELLED, *bought, f"run_dir={run}")[0] == 0
    certificate = _certificate(run)
    assert [stage["name"] for stage in certificate["stages"]] == ["first pass", "means", "squares", "fidelity"]
    assert certificate["epsilon"] <= 4.0 and 1200 < certificate["declared"]["n"] < 1800
    assert dpgen("verify", run)[0] == 0


@pytest.mark.parametrize("label", [pytest.param([], marks=pytest.mark.slow), ["data.label=true", "data.classes=[a,b]"]])
def test_baskets_are_measured_in_two(dpgen, tmp_path, label):
    random, lines = np.random.default_rng(0), []
    for i in range(3000):
        # Items come in two kinds.
        kind = i % 2
        held = 1 + 5 * kind + random.permutation(5)[: random.integers(1, 5)]
        lines.append(" ".join([*(["ab"[kind]] if label else []), *map(str, held)]))
    (tmp_path / "baskets.dat").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run = tmp_path / "run"
    settings = [f"data.path={tmp_path / 'baskets.dat'}", "data.items=1..10", "data.max_items=6", "data.n=3000", *label]
    status, out, err = dpgen("train", "data=baskets", *settings, "model=measured", "model.components=10", f"run_dir={run}")
    assert status == 0, err
    assert "items" in out and "pairs" in out and dpgen("verify", run)[0] == 0
    drawn = load_release(run / "release").sample(2000, seed=0)
    kinds = [{(int(item) - 1) // 5 for item in basket} for basket in drawn["items"]]
    assert np.mean([len(own) <= 1 for own in kinds]) > 0.97
    if label:
        agree = [own <= {"ab".index(name)} for own, name in zip(kinds, drawn["label"], strict=True)]
        assert np.mean(agree) > 0.95


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    run = tmp_path_factory.mktemp("interrupted") / "run"

    def save(path, value):
        durable.save(path, value)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured_run, "durable", SimpleNamespace(save=save, load=durable.load, reserve=durable.reserve))
        assert main(["train", *LABELLED, f"run_dir={run}"]) == 130
    return run


@pytest.fixture
def after_the_means(interrupted, tmp_path):
    """Return a copy of a run that was interrupted when the means were measured and kept."""
    return shutil.copytree(interrupted, tmp_path / "run")


def test_a_run_goes_on_after_the_means(dpgen, after_the_means):
    run = after_the_means
    kept = durable.load(run / "private" / "measured.pt", "made")["made"]
    assert set(kept) == {"means"} and not (run / "release").exists()
    status, out, _ = dpgen("train", *LABELLED, f"run_dir={run}")
    assert status == 0 and "going on" in out
    again = durable.load(run / "private" / "measured.pt", "made")["made"]
    (before,), (after,) = kept["means"], again["means"]
    assert all((after[name][0] == before[name][0]).all() for name in ("counts", "means")) and "squares" in again
    assert _certificate(run)["epsilon"] <= 4.0 and dpgen("verify", run)[0] == 0
    assert dpgen("train", *LABELLED, f"run_dir={run}")[0] == 2


def test_means_that_were_lost_are_not_measured_again(dpgen, after_the_means):
    (after_the_means / "private" / "measured.pt").unlink()
    status, _, err = dpgen("train", *LABELLED, f"run_dir={after_the_means}")
    assert status == 3 and "start a new run" in err and not (after_the_means / "release").exists()


def test_second_moments_that_were_lost_are_said_so(dpgen, tmp_path, monkeypatch):
    """The run is killed between the second access and its save: the ledger has the access, and its answer is gone."""
    saves = []

    def killed(path, value):
        saves.append(path)
        if len(saves) == 2:
            raise KeyboardInterrupt
        durable.save(path, value)

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(measured_run, "durable", SimpleNamespace(save=killed, load=durable.load, reserve=durable.reserve))
        assert dpgen("train", *LABELLED, f"run_dir={run}")[0] == 130
    status, _, err = dpgen("train", *LABELLED, f"run_dir={run}")
    assert status == 3 and "squares had been measured" in err and "Traceback" not in err


def test_tables_that_were_lost_are_said_so(dpgen, tmp_path, monkeypatch):
    """The run is killed between the first access and its save, when others are still to come."""
    run = tmp_path / "run"

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(measured_run, "durable", SimpleNamespace(save=killed, load=durable.load, reserve=durable.reserve))
        assert dpgen("train", *LABELLED, f"run_dir={run}")[0] == 130
    status, _, err = dpgen("train", *LABELLED, f"run_dir={run}")
    assert status == 3 and "means had been measured and were lost" in err


@pytest.fixture(scope="module")
def cut_short(tmp_path_factory):
    """Return a folder of runs that were killed between an access of a table and its save, and the words of their command.

    Each is named by the number of its access and the stage.
    """
    folder, random = tmp_path_factory.mktemp("cut"), np.random.default_rng(0)
    columns = {name: random.integers(2, size=4000) for name in "abc"}
    columns["y"] = columns["a"] ^ columns["b"]
    pd.DataFrame(columns).to_csv(folder / "t.csv", index=False)
    (folder / "s.yaml").write_text(
        "label: y\ncolumns:\n" + "".join(f"  {n}: {{type: integer, low: 0, high: 1}}\n" for n in columns)
    )
    words = ["data=table", f"data.path={folder / 't.csv'}", f"data.schema={folder / 's.yaml'}", "data.n=4000"]
    words += ["model=measured", "model.components=1", "privacy.epsilon=8", "data.bins_share=0", "rows=50"]
    saves = []

    def save(path, value):
        *_, stage = value["made"]
        shutil.copytree(folder / "run", folder / f"{len(saves)} {stage}")
        saves.append(stage)
        durable.save(path, value)

    shown, stage = [], pace.stage
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "stage", lambda name, *of, **more: shown.append(name) or stage(name, *of, **more))
        patch.setattr(tables, "fit_forest", functools.partial(tables.fit_forest, steps=30))
        patch.setattr(labels, "_MADE", 1000)
        patch.setattr(measured_run, "durable", SimpleNamespace(save=save, load=durable.load, reserve=durable.reserve))
        assert main(["train", *words, f"run_dir={folder / 'run'}"]) == 0
    # Work that follows from a fit is no preparation.
    assert [name for name in shown if name.startswith("preparing")] == ["preparing to measure tables"]
    assert saves == ["tables", *["crossings"] * 3, "evidence", *["labels"] * 4]
    return folder, words


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        ("0 tables", None),
        ("3 crossings", (3, 3)),
        pytest.param("4 evidence", (0, 4), marks=pytest.mark.slow),
        pytest.param("5 labels", (3, 3), marks=pytest.mark.slow),
    ],
)
def test_a_table_whose_access_was_lost_goes_on_with_what_is_there(dpgen, cut_short, lost, left):
    """All but the tables themselves can be spared, and the ledger has each access that was made."""
    folder, words = cut_short
    run = folder / lost
    status, _, err = dpgen("train", *words, f"run_dir={run}")
    if left is None:
        assert status == 3 and "tables had been measured and were lost" in err
        return
    assert status == 0, err
    assert ("no two or three of them together" in err) is ("evidence" in lost)
    state = durable.load(run / "private/measured.pt", "made")["made"]
    assert (len(state.get("evidence", ())) * len(state["crossings"]), len(state["labels"])) == left
    crossed = load_release(run / "release").mixture.network.crossed.crossings
    assert bool(crossed) is ("evidence" not in lost)
    assert dpgen("verify", run)[0] == 0


def test_a_ledger_that_is_gone_is_missed(dpgen, after_the_means):
    for path in (after_the_means / "private").glob("ledger*"):
        path.unlink()
    status, _, err = dpgen("train", *LABELLED, f"run_dir={after_the_means}")
    assert status == 2 and "holds measured.pt of a run whose ledger is missing" in err


CHANGES = {
    "no counts": lambda first: first.pop("counts"),
    "another shape": lambda first: first.update(means=(first["means"][0][:3], *first["means"][1:])),
    "no numbers": lambda first: first.update(means=("many", 1.0, "run")),
    "another run": lambda first: first.update(counts=(*first["counts"][:2], "0" * 32)),
    "not finite": lambda first: first["means"][0].fill_(float("nan")),
    "no deviation": lambda first: first.update(means=(first["means"][0], None, "run")),
    "a stranger": lambda first: first.update(more=first["means"]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_state_is_one_line(dpgen, after_the_means, change):
    path = after_the_means / "private" / "measured.pt"
    kept = durable.load(path)
    change(kept["made"]["means"][0])
    durable.save(path, kept)
    status, _, err = dpgen("train", *LABELLED, f"run_dir={after_the_means}")
    assert status == 2 and "measured.pt: is not what a run has saved" in err and "Traceback" not in err


def test_declared_symmetries_stand_in_certificate_and_report(dpgen, tmp_path):
    run, plain = tmp_path / "run", tmp_path / "plain"
    assert dpgen("train", *LABELLED, "model.symmetries=handwriting", f"run_dir={run}")[0] == 0
    assert dpgen("train", *LABELLED, f"run_dir={plain}")[0] == 0 and dpgen("verify", run)[0] == 0
    declared, without = _certificate(run)["declared"]["model"], _certificate(plain)["declared"]["model"]
    assert declared["symmetries"] == dataclasses.asdict(SETS["handwriting"]) and "symmetries" not in without
    assert "symmetries: upright: true, turn: " in (run / "release" / "report.html").read_text()
    # They cost nothing.
    assert _certificate(run)["stages"] == _certificate(plain)["stages"]


def test_symmetries_may_be_numbers(dpgen, tmp_path):
    numbers = "model.symmetries={turn: 5, elastic: 0.02}"
    assert dpgen("train", *LABELLED, numbers, f"run_dir={tmp_path / 'run'}")[0] == 0
    declared = _certificate(tmp_path / "run")["declared"]["model"]["symmetries"]
    assert declared == dataclasses.asdict(Symmetries(turn=5, elastic=0.02))


@pytest.mark.parametrize("settings", [[], ["data=mushroom"], ["data=retail"]], ids=" ".join)
def test_a_report_says_what_each_access_has_bought(settings):
    asked = load_complete_settings(["model=measured", *settings])
    assert all(_BOUGHT.get(stage.name) for stage in asked.plan().stages)


BAD = {
    "sharper than nothing": (
        ["data=mushroom", "model.label_share=0", "model.label_sharpness=2"],
        "model.label_share has paid for, and it is 0",
    ),
    "clusters of baskets": (
        ["data=retail", "split.k=3"],
        "does not split records; model.components says",
    ),
    "symmetries of series": (
        ["data=powercons", "model.symmetries=small"],
        "apply only to pictures, and these records are of kind series",
    ),
    "a radius of series": (["data=powercons", "model.radius=3"], "no such setting for records of kind series"),
    "clusters of series": (["data=powercons", "split.k=3"], "split.k=3: model=measured does not split records"),
    "symmetries and poses": (
        ["model.symmetries=small", "model.poses=always"],
        "model.poses=always: expected never, or no model.symmetries",
    ),
    "poses of series": (["data=powercons", "model.poses=always"], "model.poses=always: model=measured has no such setting"),
    "symmetries of no set": (["model.symmetries=faces"], "faces: expected handwriting, small, null for none"),
    "a symmetry of no set": (["model.symmetries={spin: 1}"], "expected handwriting, small, null for none"),
    "symmetries of a list": (["model.symmetries=[1]"], "model.symmetries=[1]: expected text or names and values"),
    "a turn too far": (["model.symmetries={turn: 400}"], "model.symmetries: turn=400: expected a number from 0 to 180"),
    "waves of a table": (["data=mushroom", "model.waves=5"], "no such setting for records of kind table"),
    "components of pictures": (["model.components=5"], "no such setting for records of kind image"),
    "more cells than anyone could fill": (["data=adult", "data.bins=4000"], "type: drop"),
    "clusters of a table": (
        ["data=mushroom", "split.k=3"],
        "does not split records; model.components says",
    ),
    "no component": (["data=mushroom", "model.components=0"], "model.components=0"),
    "all for the label": (["data=mushroom", "model.label_share=1"], "model.label_share=1: expected"),
    "sharper pictures": (["model.label_share=0.3", "model.label_sharpness=2"], "no such setting for records of kind image"),
    "a label of no pictures": (["model.label_share=0.3", "data.classes=0"], "expected 0 where there is no label"),
    "no tables of two": (["data=mushroom", "model.pairs_share=0"], "model.pairs_share=0"),
    "a setting of networks": (["model.steps=5"], "no setting 'model.steps'"),
    "no wave": (["model.waves=0"], "model.waves=0"),
    "more waves than numbers": (["model.waves=65"], "model.waves=65: expected a whole number from 1 to 64"),
    "no radius": (["model.radius=0"], "model.radius=0"),
    "a spread of nothing": (["model.spread=-1"], "model.spread=-1"),
    "nothing left for second moments": (["model.means_share=1"], "model.means_share=1"),
    "more cells than fit anywhere": (
        ["data=mnist", "model.cells=100", "model.waves=700"],
        "model.cells=100, model.waves=700: the second moments",
    ),
    "clusters of pictures": (["split.k=3"], "split.k=3: model=measured does not split records; model.cells says"),
    "no cell": (["model.cells=0"], "model.cells=0"),
    "all for cells": (["model.cells_share=1"], "model.cells_share=1"),
    "a share of no cells": (["model.cells=1", "model.cells_share=0.5"], "model.cells_share=0.5: "),
    "cells of a table": (["data=mushroom", "model.cells=5"], "no such setting for records of kind table"),
    "symmetries of nothing": (["model.symmetries={}"], "model.symmetries={}: expected handwriting"),
    "more moments than fit anywhere": (
        ["data=images", "data.path=x", "data.n=5000", "data.height=99", "data.width=99", "model.waves=9000"],
        "model.waves=9000: the second moments",
    ),
    "a clipping rule": (["clipping=fixed"], "clipping=fixed: model=measured clips no gradient"),
    "a bound": (["clipping.c_max=3"], "leave settings of clipping out"),
    "shares that leave nothing": (
        ["data.n=null", "data.n_share=0.6", "privacy.fidelity_share=0.5"],
        "of the budget",
    ),
    "a share of no split": (["split.moments_share=0.2"], "split.moments_share=0.2: model=measured does not split records"),
    "classes that are numbers": (
        ["data=images", "data.path=x", "data.n=500", "data.height=9", "data.width=9", "data.classes=[1,0]"],
        "data.classes=[1, 0]: expected names as text, as in data.classes=[cats,dogs], or data.classes=2",
    ),
    "a class twice": (
        ["data=images", "data.path=x", "data.n=500", "data.height=9", "data.width=9", "data.classes=[a,a]"],
        "data.classes: 'a' appears twice",
    ),
    "classes that are true or false": (
        ["data=images", "data.path=x", "data.n=500", "data.height=9", "data.width=9", "data.classes=[true,false]"],
        "data.classes=",
    ),
    "beyond any budget": (["privacy.epsilon=1e300"], "expected a number from 1e-06 to 1000"),
    "too little": (["privacy.epsilon=0.01"], "epsilon=0.01"),
}


@pytest.mark.parametrize("settings, message", BAD.values(), ids=BAD.keys())
def test_a_bad_setting_is_one_line(dpgen, settings, message):
    status, _, err = dpgen("budget", "model=measured", *settings)
    assert status in (2, 3) and message in err and len(err.splitlines()) == 1, err

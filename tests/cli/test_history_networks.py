"""A network of histories from files to a release: it trains, goes on, starts from another, and keeps what is declared."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from marks import only

from lightning_dpgen import load_release
from lightning_dpgen.cli.main import main
from lightning_dpgen.models import history_network
from lightning_dpgen.models.history_network import HistoryNetwork
from lightning_dpgen.plugins.checkpoints import Checkpoints
from lightning_dpgen.runs import train as trained_run

pytestmark = pytest.mark.filterwarnings("ignore")

TABLES = """
persons:
  file: patients.csv
  key: patient
  label: died
  columns: {sex: {type: category, values: [F, M]}, died: {type: boolean}}
visits:
  file: visits.csv
  person: patient
  order: day
  max_rows: 4
  start: {low: 2020-01-01, high: 2020-12-31}
  gap: {high: 90}
  columns: {ward: {type: category, values: [a, b, c]}, cost: {type: integer, low: 0, high: 99, bins: 5, missing: true}}
orders:
  file: orders.csv
  person: buyer
  max_rows: 3
  columns: {paid: {type: boolean}}
"""
QUICK = ["model=autoregressive", "model.steps=4", "model.hidden=4", "rows=20"]


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(history_network, "_DRAWN", 512)


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    """Return the settings of made-up patients, their visits and their orders."""
    folder, random = tmp_path_factory.mktemp("histories"), np.random.default_rng(0)
    who = random.integers(0, 200, 600)
    sexes, died = random.choice(["F", "M"], 200), random.random(200) < 0.2
    days = pd.Timestamp("2020-03-01") + pd.to_timedelta(random.integers(0, 80, 600), "D")
    wards, costs = random.choice(list("abc"), 600), random.integers(0, 99, 600)
    pd.DataFrame({"patient": range(200), "sex": sexes, "died": died}).to_csv(folder / "patients.csv", index=False)
    visits = pd.DataFrame({"patient": who, "day": days, "ward": wards, "cost": costs})
    visits.to_csv(folder / "visits.csv", index=False)
    pd.DataFrame({"buyer": who[:300], "paid": random.random(300) < 0.5}).to_csv(folder / "orders.csv", index=False)
    (folder / "visits.yaml").write_text(TABLES)
    return ["data=histories", f"data.path={folder / 'visits.yaml'}", "data.n=200", "privacy.epsilon=8"]


def test_a_run_goes_on_and_becomes_a_release(dpgen, declared, tmp_path):
    """It is interrupted after the first block of lots; the release is verified, and its tables belong together."""
    run, patch = tmp_path / "run", pytest.MonkeyPatch()
    words = ["train", *declared, *QUICK, f"run_dir={run}"]
    patch.setattr(trained_run, "Checkpoints", lambda path, every, asked_to_stop: Checkpoints(path, every, lambda: True))
    with patch.context():
        assert dpgen(*words)[0] == 130
    patch.undo()
    status, out, err = dpgen(*words)
    assert status == 0 and "after 1 step" in out, err
    assert dpgen("verify", run / "release")[0] == 0
    certificate = json.loads((run / "release/privacy.json").read_text())
    assert certificate["epsilon"] <= 8.0 and certificate["unit"].startswith("one person")
    about = certificate["declared"]["model"]
    assert about["name"] == "autoregressive network of histories" and about["hidden"] == 4 and about["averaging"] == 0.95
    assert certificate["declared"]["clipping"]["rule"] == "Normalised" and certificate["declared"]["split"]["k"] == 1
    release = load_release(run / "release")
    assert isinstance(release.mixture.network, HistoryNetwork) and release.mixture.network.fixed_bias
    tables = {}
    for form in ("persons", "visits", "orders"):
        file = tmp_path / f"{form}.csv"
        assert dpgen("sample", run / "release", "-n", "60", "--seed", "3", "--form", form, "-o", file)[0] == 0
        tables[form] = pd.read_csv(file)
    persons, visits, orders = tables.values()
    assert persons.patient.tolist() == list(range(1, 61))
    assert set(visits.patient) | set(orders.buyer) <= set(persons.patient)
    assert visits.groupby("patient").size().max() <= 4 and orders.groupby("buyer").size().max() <= 3
    assert visits.groupby("patient").day.is_monotonic_increasing.all()
    where = ["--where", "sex=F", "--form", "persons", "-o", tmp_path / "some.csv"]
    assert dpgen("sample", run / "release", "-n", "9", *where)[0] == 0
    assert set(pd.read_csv(tmp_path / "some.csv").sex) == {"F"}


@pytest.mark.parametrize("bias", only(("means", "learned", "zero"), "zero"))
def test_it_starts_from_a_public_release(dpgen, declared, tmp_path, bias):
    public, run = tmp_path / "public", tmp_path / "run"
    assert main(["train", *declared[:3], *QUICK, f"model.bias={bias}", "privacy=off", f"run_dir={public}"]) == 0
    # Others made it: beside its ledger, the same records would be refused.
    shutil.rmtree(public / "private")
    start = [f"model.init={public}", "model.init_public=made-up", f"model.bias={bias}"]
    words = [*declared, "model=autoregressive", "model.steps=4", "rows=20"]
    status, out, err = dpgen("train", *words, *start, f"run_dir={run}")
    assert status == 0 and "starts from a network of data declared to be public: made-up" in out, err
    assert load_release(run / "release").mixture.network.hidden == 4
    assert dpgen("verify", run / "release")[0] == 0


REFUSED = {
    "components": (["split.k=3"], "split.k=3: model=autoregressive has one component; leave it out"),
    "the label": (["model.label_share=0.2"], "model.label_share=0.2: applies only to tables"),
    "layers": (["model.layers=2"], "there is no setting 'model.layers'"),
}


@pytest.mark.parametrize("words, message", REFUSED.values(), ids=REFUSED.keys())
def test_what_it_has_not_is_refused(dpgen, declared, words, message):
    status, _, err = dpgen("budget", *declared, *QUICK, *words)
    assert status == 2 and message in err and len(err.splitlines()) == 1, err


def test_other_records_are_refused(dpgen):
    status, _, err = dpgen("budget", "model=autoregressive")
    assert status == 2 and "model=autoregressive: is not trained on records of kind images; take model=measured" in err

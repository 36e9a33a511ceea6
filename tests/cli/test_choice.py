"""`model=auto`: the table that ships, the rule, and its words in certificate and report."""

import json

import pytest

from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.specs import defaults
from lightning_dpgen.specs.run import load_settings

pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_table_has_every_kind_with_a_label_and_without_and_twelve_tables():
    trials = json.loads(defaults.TABLE.read_text(encoding="utf-8"))
    assert {(trial["kind"], trial["label"]) for trial in trials} == {
        (kind, label) for kind in ("images", "table", "baskets", "series") for label in (True, False)
    }
    assert {trial["name"] for trial in trials if trial["kind"] == "table"} == {
        "hidden kinds", "hidden kinds without a label", "parity", "parity without a label", "towns", "symptoms", "assays",
        "sales", "customers", "patients", "donors", "answers", "trips", "sensors",
    }  # fmt: skip
    for trial in trials:
        assert set(trial["scores"]) == set(defaults.CANDIDATES) and trial["strength"] > 0 and trial["width"] > 0
        assert all(0.0 <= score <= 1.2 for score in trial["scores"].values())


def test_what_was_chosen_and_why_is_one_line():
    """However the trial is called, and whatever it says; a word more where no model does well."""
    for trial in json.loads(defaults.TABLE.read_text(encoding="utf-8")):
        schema = ImageSchema(8, 8, levels=16, classes=10 if trial["label"] else 0)
        for own in defaults.rank_models(schema, 123_456.0, [{**trial, "kind": "images"}]):
            assert own.why.startswith(f"model=auto took {own.name}: ")
            assert f"best over 1 trials; in the nearest ({trial['name']}, " in own.why
            assert len(own.why) <= 230 and "\n" not in own.why
            assert own.why.endswith("none did well there") == (max(trial["scores"].values()) < 0.5)


def test_trials_of_about_the_same_strength_decide_and_the_nearest_one_is_said():
    def trial(width, strength, best):
        scores = dict.fromkeys(defaults.CANDIDATES, 0.5) | {best: 0.9}
        return {
            "name": best, "kind": "baskets", "label": False, "width": width, "strength": strength, "scores": scores,
        }  # fmt: skip

    schema = BasketSchema(tuple(range(50)), max_items=10)
    table = [trial(40, 100, "vae"), trial(9000, 100, "rbm"), trial(40, 10_000, "wgan")]
    best = [defaults.rank_models(schema, s, table)[0].name for s in (10.0, 900.0, 1100.0, 1e9)]
    assert best == ["vae", "vae", "wgan", "wgan"]
    assert "weighted mean" not in defaults.rank_models(schema, 900.0, table)[0].why
    # The nearest says otherwise than the mean of all.
    near = {**trial(60, 300, "wgan"), "scores": dict.fromkeys(defaults.CANDIDATES, 0.5) | {"wgan": 0.504, "vae": 0.503}}
    assert " by a weighted mean (vae 0.598, wgan 0.508); " in defaults.rank_models(schema, 250.0, [*table, near])[0].why
    first, *others = defaults.rank_models(schema, 300.0, table)
    assert "(vae, 100 records over their noise; here 300)" in first.why and "vae 0.90" in first.why and len(others) == 3


@pytest.fixture
def table(monkeypatch, tmp_path):
    """Measurements first, then networks."""
    scores = {"measured": 0.8, "vae": 0.7, "wgan": 0.6, "rbm": 0.5}
    trials = [
        {"name": kind, "kind": kind, "label": label, "width": 100, "strength": 1000, "scores": scores}
        for kind in ("images", "table", "baskets", "series")
        for label in (True, False)
    ]
    monkeypatch.setattr(defaults, "TABLE", tmp_path / "choice.json")
    defaults.TABLE.write_text(json.dumps(trials), encoding="utf-8")


def test_what_was_chosen_and_why_stands_in_certificate_and_report(dpgen, tmp_path, table):
    run = tmp_path / "run"
    status, out, err = dpgen("train", "model=auto", "rows=20", f"run_dir={run}")
    assert status == 0, err
    assert "model=auto took measured" in out and dpgen("verify", run)[0] == 0
    declared = json.loads((run / "release" / "privacy.json").read_text(encoding="utf-8"))["declared"]["model"]
    assert declared["chosen"].startswith("model=auto took measured")
    assert "model=auto took measured" in (run / "release" / "report.html").read_text(encoding="utf-8")


def test_what_settings_do_not_allow_is_passed_over_and_said(dpgen, table):
    status, out, _ = dpgen("budget", "model=auto", "data=mushroom", "split.k=3")
    assert status == 0 and "took vae:" in out and "measured was passed over: split.k=3" in out


def test_measured_counts_choices_so_real_numbers_are_for_networks(dpgen, tmp_path):
    (tmp_path / "t.csv").write_text("age,town\n1,Ur\n")
    (tmp_path / "t.yaml").write_text(
        "columns:\n  age: {type: integer, low: 0, high: 99, encoding: scaled}\n  town: {type: category, values: [Ur]}\n"
    )
    words = ["data=table", f"data.path={tmp_path / 't.csv'}", f"data.schema={tmp_path / 't.yaml'}", "data.n=2000"]
    said = "model=measured: counts choices, and column 'age' is a real number (encoding: scaled)"
    status, out, err = dpgen("budget", *words, "model=auto")
    assert status == 0 and f"measured was passed over: {said}" in out, err
    status, _, err = dpgen("budget", *words, "model=measured")
    assert status == 2 and said in err and len(err.splitlines()) == 1, err


def test_a_network_that_is_chosen_is_clipped_as_when_it_is_asked_for(dpgen, tmp_path, monkeypatch):
    about = {"name": "clothes", "kind": "images", "label": True, "width": 74, "strength": 1000}
    trials = [{**about, "scores": {"wgan": 0.9, "vae": 0.5}}]
    monkeypatch.setattr(defaults, "TABLE", tmp_path / "choice.json")
    defaults.TABLE.write_text(json.dumps(trials), encoding="utf-8")
    asked, chosen = (dpgen("budget", model) for model in ("model=wgan", "model=auto"))
    assert asked[0] == chosen[0] == 0 and chosen[1].endswith(asked[1]) and "norms" not in chosen[1]


def test_a_mistake_that_is_not_the_models_is_said_once(dpgen, table):
    status, _, err = dpgen("budget", "model=auto", "rows=-1")
    assert status == 2 and err.count("rows=-1") == 1 and "passed over" not in err


def test_a_finished_choice_has_no_settings(dpgen):
    status, _, err = dpgen("budget", "model=auto", "model.hidden=5")
    assert status == 2 and "there is no setting 'model.hidden'" in err


def test_every_candidate_is_a_model_of_the_command_line(dpgen):
    for name in defaults.CANDIDATES:
        assert dpgen("budget", f"model={name}")[0] == 0


def test_pictures_of_any_size_are_known():
    assert defaults.rank_models(ImageSchema(8, 8, levels=16), 5.0)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "vae"), (["data=mnist"], "vae"), (["data=adult"], "auto"), (["data=retail"], "auto"),
        (["data=table", "data.path=x", "data.n=5000"], "auto"),
        (["data=baskets", "data.path=x", "data.n=5000", "data.max_items=9"], "auto"),
        (["data=uk_demand"], "vae"), (["data=adult", "model=rbm"], "rbm"), (["data=adult", "model.steps=5"], "vae"),
        (["experiment=dpgan_table"], "wgan"),
    ],
)  # fmt: skip
def test_tables_and_baskets_have_the_best_model_by_default(words, name):
    assert load_settings(words).model.name == name


def test_a_clipping_that_is_asked_for_is_that_of_the_chosen_model(dpgen, table):
    """Also the rule that other models have by default; a model that clips nothing is passed over."""
    status, out, err = dpgen("budget", "data=adult", "clipping=dpnorm")
    assert status == 0 and "took vae" in out and "measured was passed over: clipping=dpnorm" in out and "norms" in out, err
    assert "took measured" in dpgen("budget", "data=adult")[1]
    status, _, err = dpgen("budget", "model=vae", "clipping=auto")
    assert status == 2 and "clipping=auto: works only with model=auto; expected one of fixed, decay, dpnorm" in err

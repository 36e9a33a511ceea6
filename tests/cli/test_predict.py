"""`dpgen predict` and runs of `model=classifier`: planned, bought, released, resumed; or one line and no file."""

import json
import stat

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from lightning_dpgen import BadRecords, load_release
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.measure import classifier, series
from lightning_dpgen.privacy import durable
from lightning_dpgen.release.pages.report import _BOUGHT
from lightning_dpgen.specs.settings import load_complete_settings
from lightning_dpgen.specs.usage_error import UsageError

pytestmark = pytest.mark.filterwarnings("ignore")
STAGES = ["values", "scales", "moments", "shapes", "spreads", "labels"]
CLASSIFIER = ["model=classifier", "privacy.epsilon=6", "rows=50"]
# Two speeds need no more components, whose fit takes its time.
SERIES = [*CLASSIFIER, "model.components=2"]


@pytest.fixture(scope="module", autouse=True)
def few_made_up():
    from lightning_dpgen.kinds import curves

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "PANELS", 1)
        patch.setattr(classifier, "_MADE", 400)
        patch.setattr(series, "_STEPS", 20)
        yield


def some_waves(n, seed):
    """Draw series of two speeds, begun anywhere, as a table with a label."""
    random = np.random.default_rng(seed)
    fast = random.integers(0, 2, n)
    turns = 2 * np.pi * (1 + 2 * fast[:, None]) * np.arange(10) / 10 + random.uniform(0, 2 * np.pi, n)[:, None]
    readings = np.clip(5 + 3 * np.sin(turns) + 0.3 * random.normal(size=(n, 10)), 0, 10).round(3)
    return pd.DataFrame(readings, columns=[f"t_{t}" for t in range(10)]).assign(label=np.array(["slow", "fast"])[fast])


@pytest.fixture(scope="module")
def waves(tmp_path_factory):
    """Return a folder with files of series, and the release of a classifier that has learned from one of them."""
    from lightning_dpgen.cli.main import main

    folder = tmp_path_factory.mktemp("predict")
    some_waves(2000, 0).to_csv(folder / "waves.csv", index=False)
    some_waves(200, 1).to_csv(folder / "others.csv", index=False)
    # The noise has no seed, since releases with one are trusted by nobody. In 600 runs of 2,000 records no label was wrong
    # (of 500 records, one run in 400 had more than 5 % wrong).
    assert main(["train", *settings(folder), f"run_dir={folder / 'run'}"]) == 0
    assert main(["train", *settings(folder), "model=measured", f"run_dir={folder / 'plain'}"]) == 0
    return folder


def settings(folder):
    form = ["data.length=10", "data.low=0", "data.high=10", "data.n=2000", "data.classes=[slow,fast]"]
    return ["data=series", f"data.path={folder / 'waves.csv'}", *form, *SERIES]


def one_line(err):
    lines = [line for line in err.splitlines() if line.startswith("dpgen:")]
    assert len(lines) == 1 and "Traceback" not in err, err
    return lines[0]


def test_a_release_tells_the_label_of_records_it_has_not_seen(dpgen, waves, tmp_path):
    certificate = json.loads((waves / "run/release/privacy.json").read_text())
    assert [stage["name"] for stage in certificate["stages"]] == STAGES and all(map(_BOUGHT.get, STAGES))
    assert certificate["epsilon"] <= 6.0 and certificate["declared"]["model"]["label_share"] == 0.75
    assert dpgen("verify", waves / "run")[0] == 0 and dpgen("sample", waves / "run", "-n", 5)[0] == 0
    path = tmp_path / "told.csv"
    status, out, err = dpgen("predict", waves / "run", waves / "others.csv", "-o", path)
    assert status == 0 and "PRIVATE" in out and "200 labels" in out, err
    told, true = pd.read_csv(path), some_waves(200, 1)
    assert list(told) == ["label", "p_slow", "p_fast"] and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (told.label == true.label).mean() > 0.95
    np.testing.assert_allclose(told.p_slow + told.p_fast, 1.0)
    # The same without the label, and from Python.
    true.drop(columns="label").to_csv(tmp_path / "plain.csv", index=False)
    assert dpgen("predict", waves / "run", tmp_path / "plain.csv", "-o", tmp_path / "plain.parquet")[0] == 0
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "plain.parquet"), told)
    release = load_release(waves / "run")
    pd.testing.assert_frame_equal(release.predict(true.drop(columns="label")), told)
    for page in ("report.html", "README.md"):
        text = (waves / "run/release" / page).read_text()
        assert "dpgen predict . FILE" in text and "where the goal is to label records" in text
        assert "dpgen predict" not in (waves / "plain/release" / page).read_text()


def test_an_evaluation_scores_it_on_held_out_records_alone(dpgen, waves):
    words = ["data=series", f"data.path={waves / 'waves.csv'}", "--seconds", "0.1"]
    _, out, _ = dpgen("evaluate", waves / "run", *words, "--held-out", waves / "others.csv")
    assert "the released classifier: accuracy " in out and "the released classifier: calibration error" in out
    told = json.loads((waves / "run/private/evaluation.json").read_text())["scores"]["the released classifier"]
    assert told["accuracy"] > 0.95 and 0 < told["log loss"] < 0.4
    assert "accuracy of the released classifier" in (waves / "run/private/report.html").read_text()
    _, out, _ = dpgen("evaluate", waves / "run", *words)
    assert "the released classifier: left out, as it needs records that nothing was learned from" in out
    assert "classifier" not in dpgen("evaluate", waves / "plain", *words)[1]


@pytest.mark.slow
def test_a_run_goes_on_between_gradients(dpgen, waves, tmp_path, interrupted_when_kept):
    run = tmp_path / "run"
    with interrupted_when_kept(7) as saves:
        assert dpgen("train", *settings(waves), f"run_dir={run}")[0] == 130
    status, out, err = dpgen("train", *settings(waves), f"run_dir={run}")
    assert status == 0 and "going on" in out and dpgen("verify", run)[0] == 0, err
    again = durable.load(run / "private" / "measured.pt", "made")["made"]
    assert list(again) == STAGES and len(again["labels"]) == 5
    for before, after in zip(saves[-1]["made"]["labels"], again["labels"], strict=False):
        assert (before["gradient"][0] == after["gradient"][0]).all()
    told = load_release(run).predict(some_waves(200, 1).drop(columns="label"))
    # Noise is drawn anew each time. 28 such runs label all of them, one in some hundred 9 of 10, and chance half.
    assert (told.label == some_waves(200, 1).label).mean() > 0.8


@pytest.mark.slow
def test_a_gradient_that_was_lost_is_not_made_again(dpgen, waves, tmp_path, interrupted_when_kept):
    run = tmp_path / "run"
    with interrupted_when_kept(7):
        assert dpgen("train", *settings(waves), f"run_dir={run}")[0] == 130
    kept = durable.load(run / "private" / "measured.pt", "made")
    kept["made"]["labels"] = kept["made"]["labels"][:1]
    durable.save(run / "private" / "measured.pt", kept)
    assert dpgen("train", *settings(waves), f"run_dir={run}")[0] == 0 and dpgen("verify", run)[0] == 0
    assert len(durable.load(run / "private" / "measured.pt", "made")["made"]["labels"]) == 4


def test_pictures_in_folders_of_their_classes_are_told_and_so_are_bare_ones(dpgen, tmp_path):
    random = np.random.default_rng(0)
    for place in ("real/dark", "real/light", "real_bare"):
        (tmp_path / place).mkdir(parents=True)
    for i in range(120):
        light = i % 2
        picture = random.integers(0, 100, (6, 6), np.uint8) + np.uint8(120 * light)
        Image.fromarray(picture).save(tmp_path / "real" / ("light" if light else "dark") / f"{i:03}.png")
        if i < 20:
            Image.fromarray(picture).save(tmp_path / "real_bare" / f"{i:03}.png")
    form = ["data.height=6", "data.width=6", "data.classes=[dark,light]", "data.n=120"]
    run = tmp_path / "run"
    # Noise that is drawn anew hides the classes in one of some hundred runs.
    words = [f"data.path={tmp_path / 'real'}", *form, *CLASSIFIER, "debug.private_seed=1", f"run_dir={run}"]
    assert dpgen("train", "data=images", *words)[0] == 0
    for place, n in (("real", 120), ("real_bare", 20)):
        given = [tmp_path / place, "-o", tmp_path / f"{place}.csv"]
        status, out, err = dpgen("predict", run, *given)
        assert status == 0 and f"{n} labels" in out, err
    told = pd.read_csv(tmp_path / "real_bare.csv")
    assert (told.label == ["dark", "light"] * 10).mean() > 0.9


def test_a_table_tells_its_label_as_its_rows_are_drawn(dpgen, tmp_path):
    """The label of real rows, which no row need state, agrees with the one that synthetic rows have."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"age": random.integers(0, 100, 2000), "town": random.choice(["Rome", "Ur"], 2000)})
    frame["well"] = np.where((frame.age < 50) ^ (random.random(2000) < 0.05), "no", "yes")
    frame.to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "people.yaml").write_text(
        "label: well\nconstraints: [age >= 0 if well = yes]\ncolumns:\n  age: {type: integer, low: 0, high: 99}\n"
        "  town: {type: category, values: [Rome, Ur]}\n  well: {type: category, values: ['no', 'yes']}\n"
    )
    table = [f"data.path={tmp_path / 'people.csv'}", f"data.schema={tmp_path / 'people.yaml'}", "data.n=2000"]
    run = tmp_path / "run"
    assert dpgen("train", "data=table", *table, *CLASSIFIER, f"run_dir={run}")[0] == 0 and dpgen("verify", run)[0] == 0
    frame.drop(columns="well").to_csv(tmp_path / "asked.csv", index=False)
    for name in ("people", "asked"):
        assert dpgen("predict", run, tmp_path / f"{name}.csv", "-o", tmp_path / f"{name}.parquet")[0] == 0
    told = pd.read_parquet(tmp_path / "asked.parquet")
    assert told.equals(pd.read_parquet(tmp_path / "people.parquet")) and list(told) == ["well", "p_no", "p_yes"]
    assert (told.well == frame.well).mean() > 0.9
    drawn = load_release(run).sample(4000, seed=0)
    for old in (drawn.age < 50, drawn.age >= 50):
        own = told[(frame.age < 50).to_numpy() if old.equals(drawn.age < 50) else (frame.age >= 50).to_numpy()]
        assert own.p_yes.mean() == pytest.approx((drawn.well[old] == "yes").mean(), abs=0.06)
    with pytest.raises(BadRecords, match="town"):
        load_release(run).predict(frame.assign(town="Oslo"))


def test_a_schema_without_its_label_has_the_other_choices():
    for name in ("adult", "mushroom", "digits", "powercons"):
        schema = public_set(name).schema
        schema = schema.with_bins(8) if name in ("adult", "mushroom") else schema
        plain, layout = schema.unlabelled(), schema.layout
        assert plain.layout.label is None and plain.layout.units == layout.units
        assert list(plain.layout.groups) == [size for i, size in enumerate(layout.groups) if i != layout.label]


BAD = {
    "no such release": (["nowhere", "others.csv", "-o", "out.csv"], "nowhere is not a folder"),
    "no classifier": (["plain", "others.csv", "-o", "out.csv"], "holds no classifier: expected one of model=classifier"),
    "no file": (["run", "none.csv", "-o", "out.csv"], "no file"),
    "nothing": (["run", "-o", "out.csv"], "expected the file of the records, as in dpgen predict RELEASE FILE"),
    "two files": (["run", "others.csv", "waves.csv", "-o", "out.csv"], "expected one file of records"),
    "a file and a path": (["run", "others.csv", "data.path=waves.csv", "-o", "out.csv"], "expected one file of records"),
    "another kind": (["run", "data=digits", "-o", "out.csv"], "data=digits: the release is of kind series"),
    "another format": (["run", "others.csv", "-o", "out.txt"], "expected a name that ends in .csv or .parquet"),
    "into the release": (["run", "others.csv", "-o", "run/release/out.csv"], "predictions for records may not"),
    "over a file": (["run", "others.csv", "-o", "waves.csv"], "exists already"),
    "other records": (["run", "bad.csv", "-o", "out.csv"], "bad.csv"),
}


@pytest.mark.parametrize(("words", "said"), BAD.values(), ids=BAD)
def test_a_mistake_is_one_line(dpgen, waves, monkeypatch, words, said):
    monkeypatch.chdir(waves)
    (waves / "bad.csv").write_text("t_0,t_1\n1,2\n")
    status, _, err = dpgen("predict", *words)
    assert status == 2 and said in one_line(err), err
    assert not (waves / "out.csv").exists() and (waves / "run/release/privacy.json").exists()


REFUSED = {
    "no label": (["data=digits", "data.classes=0"], "learns the label of a record, and these records of kind images have"),
    "baskets": (["data=retail"], "learns the label of a record, and these records of kind baskets have none"),
    "no share": (["data=digits", "model.label_share=0"], "model.label_share=0: expected a number above 0"),
    "a network": (["data=digits", "model=vae", "model.label_share=0.3"], "model.label_share=0.3: applies only to tables"),
    "many channels": (
        ["data=series", "data.path=x", "data.n=500", "data.length=4", "data.low=0", "data.high=1", "data.classes=[a,b]",
         f"data.channels=[{','.join(f'c{i}' for i in range(500))}]"],
        "has 5,500 features: expected 4,096 or fewer",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED)
def test_a_classifier_of_nothing_is_refused(words, said):
    with pytest.raises(UsageError) as error:
        load_complete_settings(["model=classifier", *words])
    assert said in str(error.value)


def test_a_classifier_can_stand_beside_any_measured_model():
    """One way: `model=classifier` is the measured model with a share for the label that is not 0."""
    words = ["data=digits", "model.label_share=0.75", "privacy.epsilon=3"]
    one, other = (load_complete_settings([f"model={name}", *words]).plan() for name in ("classifier", "measured"))
    assert one == other and [stage.name for stage in one.stages] == ["means", "squares", "spreads", "labels"]
    assert len(load_complete_settings(["data=digits", "model=measured"]).plan().stages) == 2


def test_other_pictures_are_refused_in_python(waves):
    release = load_release(waves / "run")
    digits = load_public_set("digits", public_set("digits").schema).encoded
    with pytest.raises(BadRecords):
        release.predict(digits.units)
    with pytest.raises(ValueError, match="holds no classifier"):
        load_release(waves / "plain").predict(some_waves(5, 0))

"""The label of a table on top of a network: planned, bought after the last step, kept, released; or refused in one line."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from example_package import Independent
from marks import only

from lightning_dpgen import load_release, verify
from lightning_dpgen.data.public_sets import public_set
from lightning_dpgen.models.labelled import LabelledNetwork
from lightning_dpgen.privacy import durable
from lightning_dpgen.release.pages.report import _BOUGHT
from lightning_dpgen.runs import learn as learning
from lightning_dpgen.runs import measure as measured_run
from lightning_dpgen.runs import train as trained_run
from lightning_dpgen.specs.settings import load_complete_settings
from lightning_dpgen.specs.usage_error import UsageError

pytestmark = pytest.mark.filterwarnings("ignore")

SHORT = [
    "model.steps=6", "model.rate=0.1", "split.k=2", "split.iterations=2", "split.features=16", "rows=100", "data.n=2000",
    "privacy.epsilon=4", "trainer.accelerator=cpu",
]  # fmt: skip
LABEL = ["model.label_share=0.3"]
STAGES = ["feature moments", "clustering", "final pass", "training", "labels"]


@pytest.fixture
def people(tmp_path):
    """Return settings for a table of 2,000 rows, in which the old are well and the rest is not."""
    random = np.random.default_rng(0)
    age, town = random.integers(0, 100, 2000), random.choice(["Rome", "Ur"], 2000)
    well = np.where(age < 50, "no", "yes")
    pd.DataFrame({"age": age, "town": town, "well": well}).to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "people.yaml").write_text(
        "label: well\ncolumns:\n  age: {type: integer, low: 0, high: 99, encoding: scaled}\n"
        "  town: {type: category, values: [Rome, Ur]}\n  well: {type: category, values: ['no', 'yes']}\n"
    )
    table = [f"data.path={tmp_path / 'people.csv'}", f"data.schema={tmp_path / 'people.yaml'}"]
    return ["data=table", *table, *SHORT]


def _certificate(run):
    return json.loads((run / "release" / "privacy.json").read_text())


def _spent(run):
    """Return how many accesses of the label the ledger holds."""
    lines = (run / "private" / "ledger.jsonl").read_text().splitlines()
    return sum(line.startswith('{"id"') and '"stage": "labels"' in line for line in lines)


def _one_line(err):
    lines = [line for line in err.splitlines() if line.startswith("dpgen:") and "warning" not in line]
    assert len(lines) == 1 and "Traceback" not in err, err
    return lines[0]


FAMILIES = {
    "vae": ["model=vae", "model.hidden=8", "model.latent=2", "clipping=dpnorm"],
    "rbm": ["model=rbm", "model.hidden=8"],
    "wgan": ["model=wgan", "model.hidden=8", "model.label_sharpness=4"],
    "wgan, labels first": ["model=wgan", "model.hidden=8", "model.conditional=true", "model.averaging=0.5"],
    "own": ["model=own", "model.target=example_package.Independents"],
}


@pytest.mark.parametrize("settings", only(FAMILIES, "vae"))
def test_every_network_releases_a_label_that_real_records_have_told(dpgen, tmp_path, people, settings):
    run = tmp_path / "run"
    status, out, err = dpgen("train", *people, *LABEL, *settings, f"run_dir={run}")
    assert status == 0, err
    assert "labels" in out and dpgen("verify", run)[0] == 0
    certificate = _certificate(run)
    assert [stage["name"] for stage in certificate["stages"]] == STAGES
    assert certificate["stages"][-1]["event"]["count"] == 4 and certificate["epsilon"] <= 4.0
    assert certificate["declared"]["model"]["label_share"] == 0.3
    assert certificate["declared"]["model"]["label_sharpness"] == (4.0 if "model.label_sharpness=4" in settings else 1.0)
    release = load_release(run / "release", networks=[Independent])
    network = release._mixture.network
    assert isinstance(network, LabelledNetwork)
    # Weights tell the old from the young, whatever the network makes of them.
    weights = network.label_weights[:, 1] - network.label_weights[:, 0]
    assert weights[4] - weights[0] > 2.0
    assert set(release.sample(20, seed=1, where={"well": "yes"}).well) == {"yes"}


def test_shares_of_the_budget_are_as_asked_for(people):
    """The label has its share of what the split leaves; without one the plan is as it was."""
    plans = {share: load_complete_settings([*people, f"model.label_share={share}"]).plan() for share in (0.0, 0.3, 0.6)}
    none = load_complete_settings(people)
    assert none.plan() == plans[0.0] and "label_share" not in none.dump_public()["model"]
    split = [stage.share for stage in none.plan().stages[:-1]]
    for share in (0.3, 0.6):
        shares = [stage.share for stage in plans[share].stages]
        left = 1.0 - sum(split)
        assert shares == pytest.approx([*split, (1 - share) * left, share * left])
        assert plans[share].epsilon <= 4.0
    assert all(_BOUGHT.get(stage.name) for stage in plans[0.3].stages)


def test_shares_that_leave_nothing_are_refused(people):
    shares = ["split.means_share=0.5", "split.lloyd_share=0.25", "privacy.fidelity_share=0.49"]
    with pytest.raises(UsageError, match=r"leave -0\.2\d for network and label: set smaller ones"):
        load_complete_settings([*people, *LABEL, *shares]).plan()


@pytest.mark.parametrize("given", [["model.noise=3"], ["model.noise=3", "privacy.epsilon=null", "model.steps=6"]])
def test_noise_may_be_given_and_steps_or_epsilon_follow(people, given):
    words = [word for word in people if not word.startswith("model.steps")]
    plan = load_complete_settings([*words, *LABEL, *given]).plan()
    assert plan.stage("training").access.multiplier == pytest.approx(3.0) and plan.stage("labels").count == 4


@pytest.mark.slow
def test_without_privacy_too(dpgen, tmp_path, people):
    words = [word for word in people if not word.startswith("privacy.")]
    assert dpgen("train", *words, *LABEL, "privacy=off", f"run_dir={tmp_path / 'run'}")[0] == 0
    assert dpgen("verify", tmp_path / "run")[0] == 2


def test_a_number_and_a_figure_can_be_bought_beside_it(dpgen, tmp_path, people):
    bought = ["data.n=null", "data.n_share=0.05", "privacy.fidelity_share=0.05"]
    words = [word for word in people if not word.startswith("data.n=")]
    run = tmp_path / "run"
    assert dpgen("train", *words, *LABEL, *bought, f"run_dir={run}")[0] == 0 and dpgen("verify", run)[0] == 0
    assert [stage["name"] for stage in _certificate(run)["stages"]] == ["first pass", *STAGES, "fidelity"]


def _weights(run):
    return load_release(run / "release")._mixture.network.state_dict()


def test_a_run_goes_on_between_training_and_label(dpgen, tmp_path, people, monkeypatch):
    run, arguments = tmp_path / "run", [*people, *LABEL]
    with monkeypatch.context() as patch:
        patch.setattr(learning, "labelled_mixture", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert dpgen("train", *arguments, f"run_dir={run}")[0] == 130
    assert _spent(run) == 0
    trained = durable.load(run / "private" / "checkpoint.ckpt", "state_dict")["state_dict"]
    status, out, _ = dpgen("train", *arguments, f"run_dir={run}")
    assert status == 0 and "after 6 steps" in out and dpgen("verify", run)[0] == 0
    assert _spent(run) == 4 and _certificate(run)["stages"][-2]["event"]["count"] == 6
    # The network is the one that was trained, but for the bias that holds its means.
    released = _weights(run)
    assert all(torch.equal(tensor, released[name]) for name, tensor in trained.items() if name.startswith("network.decode"))


@pytest.mark.parametrize("saves", only({str(saves): saves for saves in (1, 3, 4)}, "3"))
def test_a_run_goes_on_between_accesses_of_the_label(dpgen, tmp_path, people, interrupted_when_kept, saves):
    """All that was paid for is kept: the label is as it would have been, and no access is made twice."""
    run, arguments = tmp_path / "run", [*people, *LABEL]
    with interrupted_when_kept(saves) as kept:
        assert dpgen("train", *arguments, f"run_dir={run}")[0] == 130
    assert _spent(run) == saves and not (run / "release").exists()
    assert dpgen("train", *arguments, f"run_dir={run}")[0] == 0 and dpgen("verify", run)[0] == 0
    again = durable.load(run / "private" / "measured.pt", "made")["made"]["labels"]
    assert _spent(run) == len(again) == 4 and _certificate(run)["epsilon"] <= 4.0
    for before, after in zip(kept[-1]["made"]["labels"], again, strict=False):
        assert torch.equal(before["gradient"][0], after["gradient"][0])


def _killed_before(save, monkeypatch):
    """Kill a run before its save of this number, from 1: its access is paid for, and the answer is gone."""
    calls = []

    def killed(path, value):
        calls.append(path)
        if len(calls) == save:
            raise KeyboardInterrupt
        durable.save(path, value)

    monkeypatch.setattr(measured_run, "durable", SimpleNamespace(save=killed, load=durable.load, reserve=durable.reserve))


def test_an_access_that_was_lost_costs_no_training(dpgen, tmp_path, people, monkeypatch):
    """It is not made again: the others do without, and the network that was paid for is released."""
    run, arguments = tmp_path / "run", [*people, *LABEL, "privacy.fidelity_share=0.05"]
    with monkeypatch.context() as patch:
        _killed_before(2, patch)
        assert dpgen("train", *arguments, f"run_dir={run}")[0] == 130
    status, _, err = dpgen("train", *arguments, f"run_dir={run}")
    assert status == 0, err
    assert dpgen("verify", run)[0] == 0 and _spent(run) == 4
    assert len(durable.load(run / "private" / "measured.pt", "made")["made"]["labels"]) == 3
    assert _certificate(run)["epsilon"] <= 4.0 and _certificate(run)["stages"][-3]["event"]["count"] == 6


def test_a_label_that_was_lost_whole_is_said_so(dpgen, tmp_path, people, monkeypatch):
    run, arguments = tmp_path / "run", [*people, *LABEL]
    for _ in range(4):
        with monkeypatch.context() as patch:
            _killed_before(1, patch)
            assert dpgen("train", *arguments, f"run_dir={run}")[0] == 130
    status, _, err = dpgen("train", *arguments, f"run_dir={run}")
    assert status == 3 and "labels had been measured and were lost" in _one_line(err) and _spent(run) == 4


def test_a_changed_state_is_one_line(dpgen, tmp_path, people, interrupted_when_kept):
    run, arguments = tmp_path / "run", [*people, *LABEL]
    with interrupted_when_kept(2):
        assert dpgen("train", *arguments, f"run_dir={run}")[0] == 130
    kept = durable.load(run / "private" / "measured.pt")
    kept["made"]["labels"][0]["gradient"][0].fill_(float("nan"))
    durable.save(run / "private" / "measured.pt", kept)
    status, _, err = dpgen("train", *arguments, f"run_dir={run}")
    assert status == 2 and "measured.pt: is not what a run has saved" in _one_line(err) and _spent(run) == 2


def test_a_training_that_has_diverged_pays_for_no_label(dpgen, tmp_path, people, monkeypatch):
    fit = trained_run.fit

    def diverged(run, module, *given):
        fit(run, module, *given)
        with torch.no_grad():
            next(module.network.parameters()).fill_(float("nan"))

    monkeypatch.setattr(trained_run, "fit", diverged)
    run = tmp_path / "run"
    status, _, err = dpgen("train", *people, *LABEL, f"run_dir={run}")
    assert status == 2 and "its training has diverged" in _one_line(err) and _spent(run) == 0


BAD = {
    "pictures": (
        ["data=digits", *LABEL],
        "model.label_share=0.3: applies only to tables, and these records are of kind images",
    ),
    "series": (
        ["data=powercons", "model=wgan", *LABEL],
        ("model.label_share=0.3: applies only to tables, and these records are of kind series"),
    ),
    "baskets": (
        ["data=retail", *LABEL],
        "model.label_share=0.3: applies only to tables, and these records are of kind baskets",
    ),
    "sharper than nothing": (
        ["data=mushroom", "model.label_sharpness=2"],
        "model.label_sharpness=2: applies only to labels that model.label_share has paid for, and it is 0 here",
    ),
    "sharper than a share of 0": (
        ["data=mushroom", "model=rbm", "model.label_share=0", "model.label_sharpness=2"],
        "model.label_sharpness=2: applies only to labels that model.label_share has paid for",
    ),
    "all for the label": (
        ["data=mushroom", "model.label_share=1"],
        "model.label_share=1: expected a number from 0, below 1",
    ),
    "no share": (["data=mushroom", "model.label_share=-0.1"], "model.label_share=-0.1: expected"),
    "not sharp": (["data=mushroom", *LABEL, "model.label_sharpness=0"], "model.label_sharpness=0: expected a number from"),
    "more features than tell": (["data=adult", "data.bins=4000", *LABEL], "features, most of them nothing but noise"),
    "an option": (
        ["data=mushroom", "model=own", "model.target=example_package.Independents", "model.options={label_share: 0.1}"],
        "model.options.label_share: has a setting of its own, model.label_share",
    ),
}


@pytest.fixture
def empty_sets(tmp_path, monkeypatch):
    """Put empty files where those of the public sets are expected: settings are refused before a file is read."""
    for name in ("adult", "mushroom", "powercons", "retail"):
        for file in public_set(name).files:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).touch()
    monkeypatch.setenv("DPGEN_DATA", str(tmp_path))


@pytest.mark.parametrize(("words", "said"), BAD.values(), ids=BAD)
@pytest.mark.usefixtures("empty_sets")
def test_settings_that_do_not_fit_are_one_line_and_nothing_is_spent(dpgen, tmp_path, words, said):
    run = tmp_path / "run"
    status, _, err = dpgen("train", *words, f"run_dir={run}")
    assert status == 2 and said in _one_line(err) and not run.exists()


SCHEMAS = {
    "no label": ("columns:\n  a: {type: boolean}\n  b: {type: boolean}\n", "expected 0 where there is no label"),
    "a label alone": ("label: a\ncolumns:\n  a: {type: boolean}\n  b: {type: drop}\n", "or nothing besides it"),
    "more labels than tell": (
        "label: a\n"
        "columns:\n  a: {type: integer, low: 0, high: 999}\n  b: {type: integer, low: 1, high: 1500, bins: 1500}\n",
        "model.label_share=0.3: 1,000 labels, each drawn given",
    ),
    "one class": (
        "label: a\ncolumns:\n  a: {type: category, values: [x]}\n  b: {type: boolean}\n",
        "expected a column of 2 to",
    ),
}


@pytest.mark.parametrize(("schema", "said"), SCHEMAS.values(), ids=SCHEMAS)
def test_a_schema_without_a_label_to_tell_is_one_line(dpgen, tmp_path, schema, said):
    (tmp_path / "t.csv").write_text("a,b\n1,0\n")
    (tmp_path / "t.yaml").write_text(schema)
    words = ["data=table", f"data.path={tmp_path / 't.csv'}", f"data.schema={tmp_path / 't.yaml'}", "data.n=2000"]
    status, _, err = dpgen("train", *words, *LABEL, f"run_dir={tmp_path / 'run'}")
    assert status == 2 and said in _one_line(err) and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_network_starts_from_one_below_a_label(dpgen, tmp_path, people):
    public = ["model.init_public='people of 1990'", f"model.init={tmp_path / 'first'}"]
    sizes = ["model=vae", "model.hidden=8", "model.latent=2"]
    assert (
        dpgen("train", *people, *sizes, *LABEL, "privacy=off", "privacy.epsilon=null", f"run_dir={tmp_path / 'first'}")[0]
        == 0
    )
    # Beside the ledger of its run, the same people would be refused.
    shutil.rmtree(tmp_path / "first/private")
    for name, label in (("plain", []), ("labelled", LABEL)):
        status, _, err = dpgen("train", *people, "model=vae", *public, *label, f"run_dir={tmp_path / name}")
        assert status == 0, err
        assert dpgen("verify", tmp_path / name)[0] == 0
        network = load_release(tmp_path / name / "release").mixture.network
        assert isinstance(network, LabelledNetwork) == bool(label) and network.settings["hidden"] == 8
    certificate = _certificate(tmp_path / "labelled")
    assert "people of 1990" in certificate["statement"]
    published = _certificate(tmp_path / "first")["files"]["model.safetensors"]
    assert certificate["declared"]["init"]["weights"] == published, "with the label, as it was published"


def test_a_label_that_was_bought_is_in_the_model(dpgen, tmp_path, people):
    assert dpgen("train", *people, "model.hidden=8", "model.latent=2", *LABEL, f"run_dir={tmp_path / 'run'}")[0] == 0
    release = tmp_path / "run/release"
    described = json.loads((release / "model.json").read_text())
    (release / "model.json").write_text(json.dumps(described | {"labelled": False}))
    problems = verify(release).problems
    assert any("stage 'labels' is there, but model.json lacks what it buys" in p for p in problems)

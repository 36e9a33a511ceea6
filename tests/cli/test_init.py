"""`model.init`: a training starts from a release whose data are declared public, by name, in its certificate."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from marks import only

from lightning_dpgen import fit, load_release
from lightning_dpgen.cli.main import main
from lightning_dpgen.plugins.checkpoints import Checkpoints
from lightning_dpgen.plugins.split import PrivateSplitDataModule
from lightning_dpgen.release.drawing.model_files import weights_digest
from lightning_dpgen.runs import initial as initial_weights
from lightning_dpgen.runs import select as selecting
from lightning_dpgen.runs import train as trained_run
from lightning_dpgen.specs.defaults import default_bins
from lightning_dpgen.specs.run import load_settings

pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = ["model.steps=6", "split.iterations=2", "split.features=16", "rows=20"]
SIZES = {
    "vae": {"hidden": 8, "latent": 3},
    "rbm": {"hidden": 8, "chains": 5},
    "wgan": {"hidden": 8, "latent": 3, "layers": 1, "conditional": "true"},
}
NAME = "handwritten digits, 1998, by the office"
PUBLIC = f"model.init_public='{NAME}'"


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    """Return the folder of finished runs without privacy, and make that of a VAE of one component."""
    root = tmp_path_factory.mktemp("starts")
    _begin(root, "vae")
    return root


def _begin(root, model, k=1):
    """Train without privacy, as on public data, and return the run."""
    sizes = [f"model.{name}={value}" for name, value in SIZES[model].items()]
    run = root / (model if k == 1 else f"{model}_{k}")
    if not run.exists():
        assert main(["train", "privacy=off", f"model={model}", *QUICK, *sizes, f"split.k={k}", f"run_dir={run}"]) == 0
        _publish(run)
    return run


def _publish(run):
    """Leave the release of a run alone, as if others had made it: beside its ledger, the same digits would be refused."""
    shutil.rmtree(run / "private")


def _certificate(run):
    return json.loads((run / "release/privacy.json").read_text())


@pytest.mark.parametrize("model", only(("vae", "wgan", "rbm"), "vae"))
def test_a_network_starts_from_a_release_and_says_so(dpgen, starts, tmp_path, model):
    """From one component each of three, and from three of them each of three, with the sizes of the release."""
    for k, run, split in ((1, tmp_path / "three", ["split.k=3"]), (3, tmp_path / "again", [])):
        before = _begin(starts, model, k)
        words = [f"model={model}", *QUICK, *split, f"model.init={before}", PUBLIC, f"run_dir={run}"]
        status, out, err = dpgen("train", *words)
        assert status == 0, err
        digest = weights_digest(load_release(before / "release").mixture.network)
        assert f"starts from a network of data declared to be public: {NAME} (weights {digest[:12]})" in out
        assert "nothing in it was protected" in out
        certificate = _certificate(run)
        assert certificate["declared"]["init"] == {"public": NAME, "weights": digest}
        assert digest == _certificate(before)["files"]["model.safetensors"]
        assert {name: certificate["declared"]["model"][name] for name in SIZES[model]} == {
            name: True if value == "true" else value for name, value in SIZES[model].items()
        }
        assert load_release(run / "release").components == 3
        assert NAME in certificate["statement"] and NAME in (run / "release/report.html").read_text()
        text = (run / "release/privacy.json").read_text() + (run / "release/report.html").read_text()
        assert str(starts) not in text, "a path of this machine is not published"
        assert NAME in (run / "private/ledger.jsonl").read_text()
        status, out, _ = dpgen("verify", run)
        assert status == 0 and f"it rests on the declaration that these data are public: {NAME}" in out
    status, out, _ = dpgen("budget", *words[:-1])
    assert status == 0 and f"declared to be public: {NAME}" in out


SELECTION = [
    "privacy.selection=logarithmic", "privacy.selection_mean=3", "privacy.selection_score=fidelity",
    "privacy.fidelity_share=0.1", "split.k=1", "model.lr=1e-3,1e-2",
]  # fmt: skip
# Whatever is wrong, with a start from the VAE: further settings, and the line.
REFUSED = {
    "no declaration": (["model.init={vae}"], r"model\.init=.*: training starts only from public data"),
    "no name": (["model.init={vae}", "model.init_public=' '"], r"model\.init_public= : expected a name, 1 to 200"),
    "a flag for a name": (["model.init={vae}", "model.init_public=true"], r"model\.init_public=true: expected text"),
    "protected data": (["model.init={protected}", PUBLIC], r"model\.init=.*: its model or its certificate says that"),
    "a link to the same records": (["model.init={link}", PUBLIC], r"model\.init=.*was learned from the same file"),
    "other weights": (["model.init={swapped}", PUBLIC], r"model\.init=.*: its model\.safetensors is not the one in"),
    "an empty certificate": (["model.init={emptied}", PUBLIC], r"model\.init=.*: its certificate was changed after it was"),
    "an edited model": (["model.init={marked}", PUBLIC], r"model\.init=.*: its model\.json is not the one in its"),
    "an edited certificate": (["model.init={edited}", PUBLIC], r"model\.init=.*: its certificate was changed after it was"),
    "the same records, selected": (["model.init={same}", PUBLIC, *SELECTION], r"model\.init=.*was learned from the same"),
    "another kind": (
        ["model=rbm", "model.init={vae}", PUBLIC],
        r"model\.init=.*: holds a network of model=vae; expected one of model=rbm",
    ),
    "other records": (
        ["data.threshold=7", "model.init={vae}", PUBLIC],
        r"model\.init=.*: is of other records \(threshold is None there and 7 here\)",
    ),
    "other sizes": (["model.init={vae}", PUBLIC, "model.latent=4"], r"model\.latent=4: expected 3, as model\.init="),
    "other layers": (["model.init={vae}", PUBLIC, "model.layers=2"], r"model\.layers=2: expected 1, as model\.init="),
    "other components": (
        ["model.init={three}", PUBLIC, "split.k=2"],
        r"split\.k=2: model\.init=.* has 3 components; expected 3, or a release of 1",
    ),
    "no network": (["model.init={measured}", PUBLIC], r"model\.init=.*: holds no network; expected one of model=vae"),
    "no numbers": (["model.init={broken}", PUBLIC], r"model\.init=.*holds NaN or infinity"),
    "no finite records": (["model.init={huge}", PUBLIC], r"model\.init=.*numbers that are not finite"),
    "no model": (["model.init={empty}", PUBLIC], r"model\.init=.*: .*holds no model\.json: expected a release"),
    "nothing to start": (["model=measured", "model.init={vae}", PUBLIC], r"no setting 'model\.init'"),
    "an empty folder": (["model.init=", PUBLIC], r"model\.init: is empty"),
    "unseen letters": (["model.init={vae}", 'model.init_public="census\u202e"'], r"init_public=census.*: expected a name"),
    "too long a name": (["model.init={vae}", f"model.init_public={'a' * 201}"], r"init_public=a+\.\.\.: expected a name"),
    "the same records": (["model.init={same}", PUBLIC], r"model\.init=.*was learned from the same file as this run would"),
    "several to choose from": (
        ["model.init={vae},{three}", PUBLIC, *SELECTION],
        r"model\.init: all trials of a selection start from one network",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def places(starts, tmp_path_factory):
    root = tmp_path_factory.mktemp("places")
    _begin(root, "vae", 3)
    (root / "vae_3").rename(root / "three")
    sizes = ["model.hidden=8", "model.latent=3"]
    assert main(["train", *QUICK, "split.k=1", *sizes, f"run_dir={root / 'protected'}"]) == 0
    assert main(["train", *QUICK, "split.k=1", *sizes, "privacy=off", f"run_dir={root / 'same'}"]) == 0
    assert main(["train", "model=measured", "rows=20", f"run_dir={root / 'measured'}"]) == 0
    (root / "link").symlink_to(root / "same/release")
    for name in ("swapped", "edited", "emptied", "marked"):
        shutil.copytree(starts / "vae/release", root / name)
    shutil.copy(root / "same/release/model.safetensors", root / "swapped/model.safetensors")
    (root / "emptied/privacy.json").write_text("{}")
    (root / "marked/model.json").write_text((root / "marked/model.json").read_text() + "\n")
    certificate = json.loads((root / "edited/privacy.json").read_text())
    (root / "edited/privacy.json").write_text(json.dumps(certificate | {"private": "no"}))
    for name in ("broken", "huge"):
        shutil.copytree(starts / "vae/release", root / name)
        (root / name / "privacy.json").unlink()
    tensors = safetensors.torch.load_file(root / "broken/model.safetensors")
    name = next(iter(tensors))
    safetensors.torch.save_file(
        tensors | {name: torch.full_like(tensors[name], torch.nan)}, root / "broken/model.safetensors"
    )
    safetensors.torch.save_file({name: t.fill_(1e38) for name, t in tensors.items()}, root / "huge/model.safetensors")
    (root / "empty").mkdir()
    named = {
        name: root / name
        for name in (
            "three",
            "same",
            "link",
            "swapped",
            "edited",
            "emptied",
            "marked",
            "protected",
            "measured",
            "broken",
            "huge",
            "empty",
        )
    }
    return named | {"vae": starts / "vae"}


@pytest.mark.parametrize(("words", "line"), REFUSED.values(), ids=REFUSED.keys())
def test_anything_else_is_one_line_and_nothing_is_spent(dpgen, places, tmp_path, words, line):
    given = [word.format(**places) if "{" in word else word for word in words]
    quick = [] if "model=measured" in words else QUICK
    status, _, err = dpgen("train", *quick, *given, f"run_dir={tmp_path / 'run'}")
    assert status == 2 and re.search(line, err) and len(err.splitlines()) == 1, err
    assert not (tmp_path / "run").exists()


SEX, AGE = {"type": "category", "values": ["F", "M"]}, {"type": "integer", "low": 0, "high": 99}
SCHEMA = {"label": "sex", "columns": {"sex": SEX, "age": AGE}}
FRAME = pd.DataFrame({"sex": ["F", "M", "M"] * 100, "age": list(range(100)) * 3})
OFF = ["privacy=off", "model.hidden=4"]
FIT = ["model.steps=2", "model.rate=0.1", "split.k=1", "rows=5"]


def _fitted(run, frame=FRAME, schema=SCHEMA, words=(), **given):
    overrides = [*FIT, "split.iterations=1", "split.features=8", *words]
    given = {"epsilon": 5.0, "n": 300} | given
    return fit(frame, schema, run_dir=run, overrides=overrides, progress=False, **given)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = _fitted(tmp_path_factory.mktemp("table") / "run", n=40_000, epsilon=None, words=OFF).folder
    _publish(folder)
    return folder


def test_fit_starts_from_a_release_and_takes_the_bins_of_its_columns(table, tmp_path):
    """By default their number follows from n and epsilon; notes on columns make no difference."""
    noted = {**SCHEMA, "columns": {"sex": {**SEX, "description": "a note"}, "age": AGE}}
    start = [f"model.init={table}", "model.init_public=census"]
    theirs = load_release(table / "release").schema.columns[1]
    assert len(theirs.edges) > 2 * default_bins(300, 20.0, 1e-5) and theirs.density
    for run, n in (("declared", {}), ("bought", {"n": None, "n_share": 0.1, "epsilon": 20.0})):
        fitted = _fitted(tmp_path / run, schema=noted, words=start, **n)
        assert fitted.certificate["declared"]["init"]["public"] == "census"
        assert fitted.release.schema.columns[1] == theirs


OTHER = {
    "a column more": ({"job": SEX}, r"the order of columns is \['sex', 'age'\] there and \['sex', 'age', 'job'\] here"),
    "other bounds": ({"age": {**AGE, "high": 98}}, r"high of column 'age' is 99 there and 98 here"),
    "other bins": ({"age": {**AGE, "bins": 3}}, r"bins of column 'age' is not described there and 3 here"),
    "bounds to be found": ({"age": {**AGE, "low": "private", "high": "private"}}, "age is to be found privately"),
}


@pytest.mark.parametrize(("columns", "line"), OTHER.values(), ids=OTHER.keys())
def test_fit_refuses_a_start_of_another_schema(table, tmp_path, columns, line):
    schema = {**SCHEMA, "columns": {**SCHEMA["columns"], **columns}}
    frame = FRAME.assign(**{name: FRAME["sex"] for name in columns if name not in FRAME})
    found = {"outside": "clamp", "discovery_share": 0.1} if "found" in line else {}
    with pytest.raises(ValueError, match=line) as told:
        _fitted(tmp_path / "run", frame, schema, [f"model.init={table}", "model.init_public=census"], **found)
    assert "model.init=" in str(told.value) and len(str(told.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


def _interrupted(dpgen, monkeypatch, words, when):
    """Stop a run when an access of its split is kept, or after its first block of lots."""
    with monkeypatch.context() as patch:
        if when == "split":
            real = PrivateSplitDataModule._save

            def save(self, state):
                real(self, state)
                raise KeyboardInterrupt

            patch.setattr(PrivateSplitDataModule, "_save", save)
        else:
            patch.setattr(
                trained_run, "Checkpoints", lambda path, every, asked_to_stop: Checkpoints(path, every, lambda: True)
            )
        assert dpgen("train", *words)[0] == 130


@pytest.mark.parametrize(
    ("when", "lost"),
    [
        ("split", "moved"),
        pytest.param("training", "changed", marks=pytest.mark.slow),
        pytest.param("split", "changed", marks=pytest.mark.slow),
        pytest.param("training", "moved", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_with_the_release_that_it_began_from(dpgen, starts, trained, tmp_path, monkeypatch, when, lost):
    """It has a copy of its own; where a network was saved, that one wins."""
    shutil.copytree(starts / "vae/release", tmp_path / "public")
    run = tmp_path / "run"
    words = [*QUICK, "model.steps=20", "split.k=2", f"model.init={tmp_path / 'public'}", PUBLIC, f"run_dir={run}"]
    digest = weights_digest(load_release(tmp_path / "public").mixture.network)
    _interrupted(dpgen, monkeypatch, words, when)
    shutil.rmtree(tmp_path / "public")
    if lost == "changed":
        shutil.copytree(trained / "release", tmp_path / "public")
    for other in (["model.init_public=another"], ["model.init_public=null", "model.init=null"]):
        status, _, err = dpgen("train", *words, *other)
        assert status == 2 and "init" in err and "other settings" in err, err
    status, out, err = dpgen("train", *words)
    assert status == 0 and f"{NAME} (weights {digest[:12]})" in out, err
    assert _certificate(run)["declared"]["init"] == {"public": NAME, "weights": digest}
    assert dpgen("verify", run)[0] == 0


def test_all_runs_that_a_release_may_be_of_are_compared_with_all_records(places, tmp_path, monkeypatch):
    """A link that lies in another run's folder: the ledger there must not use the records up."""
    (places["protected"] / "link").symlink_to(places["same"] / "release")
    spec = load_settings([f"model.init={places['protected'] / 'link'}", PUBLIC])
    seen = []
    monkeypatch.setattr(initial_weights, "is_about", lambda about, records: seen.append(len(list(records))))
    initial_weights.check_other_records(spec, iter([np.zeros(3), np.ones(2)]))
    assert seen == [2, 2]


def test_a_model_without_a_certificate_says_that_it_protects_no_one(dpgen, starts, tmp_path):
    for name in ("model.json", "model.safetensors"):
        (tmp_path / "bare").mkdir(exist_ok=True)
        shutil.copy(starts / "vae/release" / name, tmp_path / "bare" / name)
    status, out, _ = dpgen("budget", *QUICK, f"model.init={tmp_path / 'bare'}", PUBLIC)
    assert status == 0 and "nothing in it was protected" in out
    # One that does not say so is of protected data, whose certificate is lost.
    described = json.loads((tmp_path / "bare/model.json").read_text())
    del described["private"]
    (tmp_path / "bare/model.json").write_text(json.dumps(described))
    status, _, err = dpgen("budget", *QUICK, f"model.init={tmp_path / 'bare'}", PUBLIC)
    assert status == 2 and "its model or its certificate says that its data are private" in err


@pytest.mark.slow
def test_a_selection_goes_on_with_the_network_that_its_trials_began_from(dpgen, starts, tmp_path, monkeypatch):
    shutil.copytree(starts / "vae/release", tmp_path / "public")
    run = tmp_path / "run"
    words = [*QUICK, f"model.init={tmp_path / 'public'}", PUBLIC, *SELECTION, f"run_dir={run}"]
    digest = weights_digest(load_release(tmp_path / "public").mixture.network)
    with monkeypatch.context() as patch:
        patch.setattr(selecting._Trials, "best", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert dpgen("train", *words)[0] == 130
    shutil.rmtree(tmp_path / "public")
    status, out, err = dpgen("train", *words)
    assert status == 0 and f"{NAME} (weights {digest[:12]})" in out, err
    assert _certificate(run)["declared"]["init"] == {"public": NAME, "weights": digest}


def test_a_copy_that_was_changed_is_refused(dpgen, starts, tmp_path, monkeypatch):
    words = [*QUICK, f"model.init={starts / 'vae'}", PUBLIC, f"run_dir={tmp_path / 'run'}"]
    _interrupted(dpgen, monkeypatch, words, "split")
    path = tmp_path / "run/private/initial/model.safetensors"
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file({name: tensor + 1.0 for name, tensor in tensors.items()}, path)
    status, _, err = dpgen("train", *words)
    assert status == 2 and "init.weights was" in err and len(err.splitlines()) == 1, err
    path.write_bytes(b"{}")
    status, _, err = dpgen("train", *words)
    assert status == 2 and f"its copy of model.init={starts / 'vae'}, is damaged" in err and len(err.splitlines()) == 1, err
    shutil.rmtree(path.parent)
    assert dpgen("train", *words)[0] == 0, "it goes on from the network itself"

"""Data and models of the user's own: trained, verified, sampled from; a bad one is refused before anything is spent."""

import json
import sys

import example_package.records as people
import numpy as np
import pandas as pd
import pytest
import torch
from example_package import Independent, Independents, encoded
from torch import nn

from lightning_dpgen import load_release
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.tables.schema_file import schema_of
from lightning_dpgen.release.files import NotARelease
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.run import load_settings
from lightning_dpgen.specs.source import source_of

pytestmark = pytest.mark.filterwarnings("ignore")

SHORT = [
    "model.steps=4", "model.rate=0.1", "split.k=2", "split.iterations=2", "split.features=16", "rows=20", "data.n=300",
    "trainer.accelerator=cpu",
]  # fmt: skip
DATA = ["data=own", "data.target=example_package.people"]
MODEL = ["model=own", "model.target=example_package.Independents"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a finished run of both."""
    from lightning_dpgen.cli.main import main

    folder = tmp_path_factory.mktemp("own") / "run"
    words = [*SHORT, *DATA, *MODEL, "data.options={rows: 299}", "model.options={sharpness: 1.5}"]
    people.called.clear()
    assert main(["train", *words, f"run_dir={folder}"]) == 0
    assert people.called == [299]
    return folder


def test_it_verifies_and_samples_by_its_class(dpgen, run):
    assert dpgen("verify", run / "release")[0] == 0
    release = load_release(run / "release", networks=[Independent])
    assert release._mixture.network.settings == {"sharpness": 1.5}
    found = release.sample(30, seed=1, where={"sex": "M"})
    assert (found["sex"] == "M").all() and found["age"].between(0, 99).all()
    declared = json.loads((run / "release" / "privacy.json").read_text())["declared"]
    assert declared["target"] == "example_package.people" and declared["options"] == {"rows": 299}
    assert declared["model"]["target"] == "example_package.Independents" and declared["model"]["sharpness"] == 1.5


def test_a_subclass_of_a_model_of_the_package_is_released_as_that_one(dpgen, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_vae.py").write_text("from lightning_dpgen import VAE\n\n\nclass Mine(VAE):\n    pass\n")
    words = [*SHORT, *DATA, "model=own", "model.target=own_vae.Mine", f"run_dir={tmp_path / 'run'}"]
    assert dpgen("train", *words)[0] == 0 and dpgen("verify", tmp_path / "run")[0] == 0
    assert len(load_release(tmp_path / "run").sample(5, seed=1)) == 5


def test_nothing_is_imported_by_a_name_in_a_file(dpgen, run, tmp_path, monkeypatch):
    release = run / "release"
    with pytest.raises(NotARelease, match=r"from example_package.model import Independent.*networks=\[Independent\]"):
        load_release(release)
    status, _, err = dpgen("sample", release, "-o", tmp_path / "a.csv")
    assert status == 2 and "never imported" in err and len(err.splitlines()) == 1
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    copy = tmp_path / "release"
    copy.mkdir()
    fields = json.loads((release / "model.json").read_text())
    (copy / "model.safetensors").write_bytes((release / "model.safetensors").read_bytes())
    for kind in ("evil:Net", "evil; x:Net", "evil:Net()", ["evil"], None, "a\nb:C"):
        (copy / "model.json").write_text(json.dumps(fields | {"model": kind}))
        with pytest.raises(NotARelease) as error:
            load_release(copy, networks=[Independent])
        assert len(str(error.value).splitlines()) == 1 and "evil" not in sys.modules


def test_code_that_ends_the_program_is_a_mistake(dpgen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaving_script.py").write_text("raise SystemExit(0)")
    for target in ("sys.exit", "leaving_script.records"):
        status, _, err = dpgen("train", "data=own", f"data.target={target}", "data.n=500")
        assert status == 2 and "SystemExit" in err and err.count("\n") == 1, err


FORMS = {
    "encoded": ["data.target=example_package.encoded"],
    "persons": ["data.target=example_package.owned", "data.person=who", "data.max_rows=2"],
    "a frame of persons": ["data.target=example_package.frame", "data.person=who", "data.max_rows=2"],
}


@pytest.mark.parametrize("words", FORMS.values(), ids=FORMS.keys())
def test_records_in_every_form(dpgen, tmp_path, words):
    words = [*words, *MODEL, "privacy=off", f"run_dir={tmp_path / 'r'}"]
    status, out, err = dpgen("train", *SHORT, "data=own", *words)
    assert status == 0, err
    assert ("more than max_rows of a person: 100" in out) == ("data.max_rows=2" in words)
    assert set(load_release(tmp_path / "r" / "release", networks=[Independent]).sample(9)) == {"sex", "age"}


@pytest.mark.slow
def test_bins_and_bounds_of_a_frame_are_found(dpgen, tmp_path):
    words = ["data=own", "data.target=example_package.records.undeclared", "data.discovery_share=0.1", "data.outside=clamp"]
    words += ["data.bins_share=0.1", "privacy.epsilon=50", "model.hidden=8", f"run_dir={tmp_path / 'r'}"]
    status, out, err = dpgen("train", *SHORT, *words)
    assert status == 0 and "found, with noise: visits: how it is distributed, in" in out, err
    assert "found, with noise: age: from 16 to" in out
    columns = {column.name: column for column in load_release(tmp_path / "r" / "release").schema.columns}
    assert columns["visits"].edges[0] == 1 and columns["age"].high <= 127 and columns["age"].density
    status, out, err = dpgen("evaluate", tmp_path / "r" / "release", *words[:4], "--seconds", "0.02")
    assert status == 0 and out.startswith("PRIVATE") and "came encoded" not in out, err


def test_a_number_that_is_bought(dpgen, tmp_path):
    people.called.clear()
    words = [*SHORT[:-2], *DATA, *MODEL, "data.n=null", "data.n_share=0.1", "privacy=off", "trainer.accelerator=cpu"]
    status, out, err = dpgen("train", *words, f"run_dir={tmp_path / 'r'}")
    assert status == 0 and "counted, with noise" in out, err
    assert people.called == [300]


def test_other_models_on_own_data_are_evaluated(dpgen, tmp_path):
    run = tmp_path / "r"
    assert dpgen("train", *SHORT, *DATA, "model.hidden=8", "privacy=off", f"run_dir={run}")[0] == 0
    status, out, err = dpgen("evaluate", run / "release", *DATA, "--seconds", "0.02")
    assert status == 0 and out.startswith("PRIVATE") and "one column, mean" in out, err
    assert "reading: records that came encoded, so that values within a bin were drawn: 300" in out


def _failing():
    raise RuntimeError("two\nlines")


def _misfit():
    return encoded()[0], Encoded(np.zeros((3, 0), np.float32), np.full((3, 2), 9, np.uint8))


class _Plain(nn.Module):
    pass


class _Greedy(Independents):
    def __init__(self, schema, account, clipping, *, wanted, **rest):
        super().__init__(schema, account, clipping, **rest)


class _Failing(Independents):
    def __init__(self, *args, **rest):
        raise RuntimeError("out of\nluck")


def _with_network(make):
    class Changed(Independents):
        def __init__(self, *args, **rest):
            super().__init__(*args, **rest)
            make(self)

    return Changed


class _Unnamed(Independent):
    kind = "example_package.model:Independent"


class _Wide(Independent):
    kind = f"{__name__}:_Wide"

    def generate(self, offsets, generator):
        return torch.zeros(offsets[-1], 3)


class _Tracked(Independent):
    kind = f"{__name__}:_Tracked"

    def __init__(self, schema, k, **options):
        super().__init__(schema, k, **options)
        self.settings = {"k": 3}


def _network(kind):
    def put(module):
        module.network = kind(module.network.schema, module.network.k)

    return _with_network(put)


HERE = {
    "failing": _failing, "misfit": _misfit, "nothing": lambda: None, "text": "text", "triple": lambda: (1, 2, 3),
    "swapped": lambda: ("schema", "records"), "Plain": _Plain, "Greedy": _Greedy, "Failing": _Failing,
    "Unnamed": _network(_Unnamed), "Wide": _network(_Wide), "Tracked": _network(_Tracked),
}  # fmt: skip
BAD_DATA = {
    "no target": (["data=own"], "data.target"),
    "no name": (["data=own", "data.target=people"], "a module and a name"),
    "no module": (["data=own", "data.target=nosuch.people"], "nosuch cannot be imported"),
    "no such name": (["data=own", "data.target=example_package.nosuch"], "has no nosuch"),
    "no function": (["data=own", "data.target=here.text"], "is a str"),
    "it fails": (["data=own", "data.target=here.failing"], "RuntimeError: two lines"),
    "it gives nothing": (["data=own", "data.target=here.nothing"], "it returned (NoneType)"),
    "it gives three": (["data=own", "data.target=here.triple"], "(int, int, int)"),
    "it gives words": (["data=own", "data.target=here.swapped"], "it returned (str, str)"),
    "they do not fit": (["data=own", "data.target=here.misfit"], "encoded codes"),
    "a foreign option": ([*DATA, "data.options={colour: 3}"], "colour"),
    "a nested option": ([*DATA, "data.options={rows: [1]}"], "data.options.rows"),
    "options that are none": ([*DATA, "data.options=3"], "names and values"),
    "persons who are not there": ([*DATA, "data.person=who", "data.max_rows=2"], "say not whose"),
    "persons unbounded": (["data=own", "data.target=example_package.owned"], "say whose"),
    "a foreign setting": ([*DATA, "data.height=3"], "data.height"),
    "no class": ([*DATA, "model=own", "model.target=example_package.people"], "PrivateMixture"),
    "no target of a model": ([*DATA, "model=own"], "model.target"),
    "another class": ([*DATA, "model=own", "model.target=here.Plain"], "PrivateMixture"),
    "what it lacks": ([*DATA, "model=own", "model.target=here.Greedy"], "wanted"),
    "a foreign option of a model": ([*DATA, *MODEL, "model.options={colour: 3}"], "colour"),
    "an option with a setting": ([*DATA, *MODEL, "model.options={lr: 3}"], "model.options.lr"),
    "a setting of others": ([*DATA, *MODEL, "model.latent=3"], "model.latent"),
    "a target of none": ([*DATA, "model.target=example_package.Independents"], "model.target"),
    "it cannot be made": ([*DATA, "model=own", "model.target=here.Failing"], "RuntimeError: out of luck"),
    "a network without its name": ([*DATA, "model=own", "model.target=here.Unnamed"], "by which it is found again"),
    "a network of another width": ([*DATA, "model=own", "model.target=here.Wide"], "expected (2, 7)"),
    "a network with odd settings": ([*DATA, "model=own", "model.target=here.Tracked"], "'k'"),
}


@pytest.mark.parametrize(("words", "said"), BAD_DATA.values(), ids=BAD_DATA.keys())
def test_mistakes(dpgen, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    here = type(sys)("here")
    vars(here).update(HERE)
    monkeypatch.setitem(sys.modules, "here", here)
    status, _, err = dpgen("train", *SHORT, *words, "privacy=off", f"run_dir={tmp_path / 'run'}")
    assert status == 2 and len(err.splitlines()) == 1 and err.startswith("dpgen: ") and said in err, err
    assert not list(tmp_path.iterdir())


def test_of_a_frame_only_what_the_schema_says_is_published(monkeypatch):
    """Types that a function chose by the values are no part of the description, and other records are refused."""
    frame = pd.DataFrame({"age": np.array([3, 40], np.int8)})
    schema = schema_of({"columns": {"age": {"type": "integer", "low": 0, "high": 99, "bins": 4}}})
    monkeypatch.setattr(people, "frame_of_bytes", lambda: (frame, schema), raising=False)
    spec = load_settings(["data=own", "data.target=example_package.records.frame_of_bytes", "data.n=2"]).data
    source = source_of(spec)
    assert source.description == schema.as_json() and "types" not in source.declare().as_json()
    with pytest.raises(BadRecords, match="the records are a table: expected records of kind images"):
        source.records(ImageSchema(1, 1, levels=1))

"""Any override, however odd its names, is answered in one line."""

import itertools

import pytest

from lightning_dpgen.specs.config_files import conf_dir
from lightning_dpgen.specs.run import load_data_settings, load_projection_settings, load_settings
from lightning_dpgen.specs.usage_error import UsageError

WRONG = (
    "inf", "-inf", "nan", "1e308", "-1", "0", "true", "null", "x", "''", "[]", "[1]", "{}", "{a:1}", "${oc.env:HOME}",
    "10e400", "999999999999999999999999", "1_0", "0x10", "???",
)  # fmt: skip
GROUPS = sorted(path.name for path in conf_dir().iterdir() if path.is_dir() and path.name != "hydra")
FORMS = ("{}={}", "+{}={}", "++{}={}", "{}@x={}", "{}@_global_={}", "~{}={}")


@pytest.mark.parametrize("group", GROUPS)
def test_what_is_no_name_of_a_group_is_one_line(group):
    for value, form in itertools.product(WRONG, FORMS):
        with pytest.raises(UsageError) as said:
            load_settings([form.format(group, value)])
        assert len(str(said.value)) < 600, form.format(group, value)


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "[a]", "blobs"])
def test_a_source_is_one_of_those_that_there_are(dpgen, value):
    status, _, err = dpgen("train", f"data.source={value}")
    assert status == 2 and "data" in err and len(err.splitlines()) == 1, err
    with pytest.raises(UsageError):
        load_projection_settings([f"data.source={value.replace('blobs', 'table')}"])


PROJECT = ["budget", "project", "project.radius=9", "data.d=9", "data.n=9"]


@pytest.mark.parametrize("command", [["budget"], PROJECT, ["audit"]], ids=str)
def test_every_command_states_the_same_bounds_of_epsilon(dpgen, command):
    for epsilon in ("0", "1e-7", "1001", "1e308"):
        status, _, err = dpgen(*command, f"privacy.epsilon={epsilon}")
        expected = f"privacy.epsilon={epsilon}: expected a number from 1e-06 to 1000 or null"
        assert status == 2 and expected in err


SECRET = "no-one-may-see-this"
LOOKED_UP = (
    "seed=${oc.env:SECRET_}", "privacy.unit=${oc.env:SECRET_}", "privacy.unit='one ${oc.env:SECRET_}'", "seed=${data.n}",
    "+data.path=${oc.env:SECRET_}", "rows=${oc.decode:1}", "run_dir=${oc.env:SECRET_}", "privacy.unit=\\${oc.env:SECRET_}",
    "data.n=${oc.env:NOT_THERE_}", "privacy.unit=$\\{oc.env\\:SECRET_\\}",
)  # fmt: skip


@pytest.mark.parametrize("word", LOOKED_UP)
@pytest.mark.parametrize("command", [["train"], ["train", "-m"], ["budget"], ["project"], ["audit"]], ids=" ".join)
def test_nothing_is_looked_up(dpgen, tmp_path, monkeypatch, word, command):
    """A resolver would put a variable of the environment into a certificate."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET_", SECRET)
    status, out, err = dpgen(*command, word)
    assert status == 2 and "expected the value itself" in err and len(err.splitlines()) == 1, err
    assert SECRET not in out + err and "NOT_THERE_'" not in err and not list(tmp_path.iterdir())


def test_a_selection_looks_nothing_up(dpgen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET_", SECRET)
    selection = ["privacy.selection=logarithmic", "privacy.selection_score=fidelity", "privacy.fidelity_share=0.1"]
    looked_up = "${oc.env:SECRET_}"
    for words in ([f"model.lr=1e-3,{looked_up}"], [f"run_dir={looked_up}"], ["model.lr=1e-3,1e-2", f"seed={looked_up}"]):
        status, out, err = dpgen("train", *selection, *words)
        assert status == 2 and "expected the value itself" in err and SECRET not in out + err
        assert not list(tmp_path.iterdir())
    status, _, err = dpgen("train", "-m", "seed=1,2", "hydra.launcher.x=${oc.env:SECRET_}")
    assert status == 2 and "expected the value itself" in err


def test_the_files_of_settings_look_nothing_up():
    for path in conf_dir().rglob("*.yaml"):
        assert "${" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize("word", ["data@x=digits", "+data@x=digits", "data@_global_=digits", "seed@x=1", "@x=1"])
def test_a_name_has_no_package(word):
    with pytest.raises(UsageError, match="expected a name without @") as said:
        load_settings([word])
    assert "Did you mean" not in str(said.value) and "\n" not in str(said.value)


@pytest.mark.parametrize("value", ["inf", "nan", "x", "1.5"])
def test_settings_of_the_data_alone_are_named_as_they_were_given(value):
    with pytest.raises(UsageError, match=rf"^data\.n={value}: expected a whole number"):
        load_data_settings(["data=digits", f"data.n={value}"])


NUMBERS = {
    "data.n=10,000": "write the number as data.n=10000;",
    "privacy.epsilon=3,0": "write the number as privacy.epsilon=3.0;",
    "data.n=1,234,567": "write the number as data.n=1234567;",
    "seed=1,x": "dpgen train -m makes a run for each of several",
    "data=hospital.csv": "data=table data.path=hospital.csv",
    "data=stays/2024.parquet": "data=table data.path=stays/2024.parquet",
}


@pytest.mark.parametrize(("word", "told"), NUMBERS.items())
def test_a_number_with_commas_and_a_file_are_told_how_they_are_given(word, told):
    with pytest.raises(UsageError, match=told) as said:
        load_data_settings([word]) if word.startswith("data") else load_settings([word])
    assert "\n" not in str(said.value)


def test_a_number_of_records_is_asked_for_once_file_and_schema_are_there(dpgen, tmp_path):
    (tmp_path / "t.csv").write_text("a\n1\n")
    (tmp_path / "t.yaml").write_text("columns: {a: {type: boolean}}")
    words = ["train", "data=table", f"data.path={tmp_path}/t.csv"]
    assert "no such file" in dpgen(*words, f"data.schema={tmp_path}/none.yaml")[2]
    status, _, err = dpgen(*words, f"data.schema={tmp_path}/t.yaml")
    assert status == 2 and "not counted in the file; or data.n=null data.n_share=0.01" in err and len(err.splitlines()) == 1

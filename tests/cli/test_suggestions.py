"""An unknown word is answered with the nearest known one."""

import copy
import difflib
import re

import pytest

from lightning_dpgen.cli.main import COMMANDS
from lightning_dpgen.common.nearest_word import nearest, suggest_file
from lightning_dpgen.data.declarations import words_of
from lightning_dpgen.specs.compose import compose_settings
from lightning_dpgen.specs.config_files import conf_dir
from lightning_dpgen.specs.run import RunSpec, load_settings_without_slow_defaults
from lightning_dpgen.specs.spec import declared_settings, parse
from lightning_dpgen.specs.usage_error import UsageError

ASKED = {
    "a command": (["trian"], "dpgen train"),
    "an option of settings": (["train", "--cgf"], "--cfg"),
    "an option of a grid": (["train", "-m", "--multirum"], "--multirun"),
    "an option of a release": (["sample", "x", "--sed", "3"], "--seed"),
    "a choice of an option": (["schema", "x.csv", "--from", "svd"], "sdv"),
    "a kind of settings": (["train", "--cfg", "jobs"], "--cfg job"),
    "a file of a group": (["train", "data=mnst"], "data=mnist"),
    "a group": (["train", "privcy.epsilon=2"], "privacy"),
    "a setting": (["budget", "model.lrr=2"], "model.lr"),
    "a setting of a projection": (["project", "project.radios=2"], "project.radius"),
    "a setting without its group": (["train", "epsilon=2"], "privacy.epsilon"),
    "the same, misspelled": (["train", "epsilom=2"], "privacy.epsilon"),
    "a setting in a grid": (["train", "-m", "seed=1,2", "model.lrr=1,2"], "model.lr"),
    "a value": (["train", "model.optimizer=adm"], "model.optimizer=adam"),
    "a value in a selection": (
        ["train", "privacy.selection=logarithmic", "model.optimizer=adam,adm"],
        "model.optimizer=adam",
    ),
}


@pytest.mark.parametrize(("argv", "meant"), ASKED.values(), ids=ASKED.keys())
def test_an_unknown_word_is_answered_with_the_nearest(dpgen, argv, meant):
    status, _, err = dpgen(*argv)
    assert status == 2 and f"did you mean {meant}?" in err and len(err.splitlines()) == 1, err


def test_a_setting_of_another_choice_is_said_to_be_one(dpgen):
    assert "it is one of model=vae" in dpgen("train", "model=measured", "model.steps=5")[2]


@pytest.fixture(scope="module")
def composed():
    return compose_settings([], "config")


@pytest.mark.parametrize("name", sorted(declared_settings(RunSpec)))
def test_a_setting_with_a_letter_too_many_is_found(name, composed):
    """Over all settings: what is suggested is the setting, or one that is as near to what was written."""
    group, dot, last = name.rpartition(".")
    written = f"{last[:-1]}x{last[-1]}" if len(last) > 1 else f"{last}{last}"
    values = copy.deepcopy(composed)
    (values.setdefault(group, {}) if group else values)[written] = 1
    with pytest.raises(UsageError) as refused:
        parse(RunSpec, values)
    suggested = re.search(r"; did you mean ([\w.]+)[?,]", str(refused.value))[1]

    def likeness(own):
        return difflib.SequenceMatcher(None, own, written).ratio()

    assert suggested.startswith(f"{group}{dot}")
    assert suggested == name or likeness(suggested.rpartition(".")[2]) >= 0.6


@pytest.mark.parametrize("group", ["data", "model", "clipping"])
def test_a_choice_without_its_first_letter_is_found(group):
    for path in sorted((conf_dir() / group).glob("*.yaml")):
        if len(path.stem) > 3:
            with pytest.raises(UsageError, match=rf"did you mean {group}={path.stem}\?$"):
                load_settings_without_slow_defaults([f"{group}={path.stem[1:]}"])


def test_nothing_is_suggested_for_a_word_like_none():
    assert nearest("zzzz", COMMANDS) is None and nearest("", COMMANDS) is None


def test_a_file_beside_it_is_suggested_and_a_hostile_name_is_not(tmp_path):
    (tmp_path / "people.csv").touch()
    assert suggest_file(tmp_path / "poeple.csv") == f"; did you mean {tmp_path / 'people.csv'}?"
    (tmp_path / "people.csv").rename(tmp_path / "people\n.csv")
    assert suggest_file(tmp_path / "people.csv") == "" == suggest_file(tmp_path / "none" / "people.csv")


def test_files_of_other_names_are_not_suggested(tmp_path):
    """Every name with one slip leads to its file, and no name leads to an unrelated one that ends alike."""
    names = ["bank.csv", "t.csv", "bank.schema.yaml", "visits_2024.parquet", "people.xlsx", "report.txt"]
    for name in names:
        (tmp_path / name).touch()

    def found(name):
        return suggest_file(tmp_path / name).rpartition("/")[2].rstrip("?") or None

    for name in names:
        stem, dot, rest = name.partition(".")
        for place in range(len(stem) - 1) if len(stem) > 3 else ():
            slips = [stem[:place] + stem[place + 1 :], stem[: place + 1] + "x" + stem[place + 1 :]]
            slips.append(stem[:place] + stem[place + 1] + stem[place] + stem[place + 2 :])
            assert {found(slip + dot + rest) for slip in slips} == {name}
        assert found(stem.upper() + dot + rest) == name
    assert [found(name) for name in ("bank", "bank.scv", "bank.yaml", "people.csv")] == [
        "bank.csv", "bank.csv", "bank.schema.yaml", "people.xlsx",
    ]  # fmt: skip
    others = (
        "nope.csv",
        "a.csv",
        "tt.csv",
        "samples.csv",
        "private.xlsx",
        "other.schema.yaml",
        "x",
        ".csv",
        "reports_2023.txt",
    )
    assert not any(found(name) for name in others)


def test_names_of_columns_are_asked_for_where_few_letters_differ():
    columns = ["age", "sex", "job", "marital", "education", "income", "duration", "previous", "pdays"]
    pairs = {"aeg": "age", "martial": "marital", "educaton": "education", "pday": "pdays", "Income": "income", "sxe": "sex"}
    assert {word: nearest(word, columns) for word in pairs} == pairs
    assert not any(nearest(word, columns) for word in ("colour", "day", "outcome", "region", "dur", "a", "label", "name"))


FILES = {
    "records": (
        ["data=table", "data.path=poeple.csv", "data.schema=s.yaml", "data.n=300"],
        r"did you mean \S+people.csv\?",
    ),
    "a schema": (
        ["data=table", "data.path=people.csv", "data.schema=schmea.yaml", "data.n=300"],
        r"did you mean \S+schema\.yaml\?",
    ),
    "a column of persons": (
        ["data=table", "data.path=people.csv", "data.schema=s.yaml", "data.n=300", "data.person=idd", "data.max_rows=1"],
        r"did you mean id\?",
    ),
    "a column": (["data=table", "data.path=other.csv", "data.schema=s.yaml", "data.n=300"], r"is 'aeg' 'age'\?"),
    "a label": (["data=table", "data.path=people.csv", "data.schema=label.yaml", "data.n=300"], r"did you mean age\?"),
    "a key": (["data=table", "data.path=people.csv", "data.schema=key.yaml", "data.n=300"], r"did you mean 'separator'\?"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("words", "meant"), FILES.values(), ids=FILES.keys())
def test_unknown_files_and_columns_are_answered_with_the_nearest(dpgen, tmp_path, monkeypatch, words, meant):
    monkeypatch.chdir(tmp_path)
    columns = "columns:\n  id: {type: drop}\n  age: {type: integer, low: 0, high: 9, bins: 10}\n"
    for name, head in {
        "s.yaml": "",
        "schema.yaml": "",
        "label.yaml": "label: agee\n",
        "key.yaml": "separater: ';'\n",
    }.items():
        (tmp_path / name).write_text(head + columns)
    (tmp_path / "people.csv").write_text("id,age\n1,2\n")
    (tmp_path / "other.csv").write_text("id,aeg\n1,2\n")
    status, _, err = dpgen("train", "model=measured", *words, f"run_dir={tmp_path / 'run'}")
    assert status == 2 and re.search(meant, err), err
    assert not (tmp_path / "run").exists()


def test_words_of_a_setting_are_its_choices():
    assert words_of(declared_settings(RunSpec)["model.optimizer"][0]) == ["adam", "sgd"]

"""Words of a command line: what is typed is what is set, and what is written is read back."""

import re
import shlex
from pathlib import Path

import pytest

from lightning_dpgen.cli.launch import how_to_go_on
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.specs.compose import compose
from lightning_dpgen.specs.config_files import OwnFiles
from lightning_dpgen.specs.grid import expand_grid
from lightning_dpgen.specs.run import AuditSpec, load_projection_settings, load_settings
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.specs.words import replace_setting, write_word

HOSTILE = (
    "a b", " a", "'", '"', "'\"", "\\", "a\\", '\\"', "(x)", "[1]", "a,b", "Käse", "~", "~/x", "$", "$HOME", "a=b", "",
    "12", "1e3", "2024_11", "null", "true", "nan", "inf", "#", "a:b", "{a:1}", "a\\\\b", "range(3)", "/plain/path-1_0.x",
    "/a b/ü",
)  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE)
def test_a_written_word_gives_its_value_back(value):
    words = [
        "privacy.unit=other",
        write_word("data.query", value),
        *replace_setting(["+privacy.unit=x"], "privacy.unit", f"u{value}"),
    ]
    database = ["data=table", "data.url=sqlite:///v.db", "data.schema=v.yaml", "data.n=400"]
    spec = load_settings([*database, *shlex.split(shlex.join(words))])
    assert (spec.data.query, spec.privacy.unit) == (value, f"u{value}")


@pytest.mark.parametrize("name", [name for name in HOSTILE if name])
def test_the_command_that_goes_on_names_the_same_folder(name, tmp_path):
    said = how_to_go_on("train", ["++run_dir=other", "seed=3", "run_dir=gg"], RunFolder(tmp_path / name))
    command = shlex.split(said.partition(": ")[2])
    spec = load_settings(command[2:])
    assert command[:2] == ["dpgen", "train"] and spec.seed == 3 and Path(spec.run_dir) == tmp_path / name


@pytest.mark.parametrize("text", ["2024_11_25", "1e3", "007", "1.50", "nan", "+3", "-1", "0x10", "1_0"])
def test_text_is_what_was_typed(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = load_settings([f"run_dir={text}", "privacy.study=other", f"privacy.study={text}", f"++privacy.unit={text}"])
    assert (spec.privacy.study, spec.privacy.unit, Path(spec.run_dir)) == (text, text, tmp_path / text)


@pytest.mark.parametrize(
    "words",
    [
        ["model=glob(*)"],
        ["seed=glob(*)"],
        ["model.lr=interval(1,2)"],
        ["seed=range(0)"],
        ["seed=range(1e12)"],
        ["seed=range(0,200)", "model.steps=range(1,200)"],
    ],
    ids=" ".join,
)
def test_a_grid_without_an_end_or_a_value_is_refused(words):
    with pytest.raises(UsageError, match="expected") as said:
        expand_grid(words)
    assert words[0].partition("=")[0] in str(said.value) and "\n" not in str(said.value)


ONE_LINE = {
    "several values": (
        ["privacy.epsilon=1,2"],
        r"^privacy\.epsilon=1,2: expected one value: write the number as .*; dpgen train -m",
    ),
    "a range": (["privacy.epsilon=range(3)"], r"^privacy\.epsilon=range\(3\): expected one value"),
    "several after a plus": (["++seed=1,2"], r"^seed=1,2: expected one value"),
    "a whole number that is none": (["model.steps=1e3"], r"^model\.steps=1e3: expected a whole number"),
    "the last of two": (["model.steps=5", "model.steps=0"], r"^model\.steps=0: expected a whole number"),
    "a setting taken away": (["~seed=3"], "gives a setting its default back"),
    "a launcher of no sweep": (["hydra.launcher.n_jobs=4"], "works only with dpgen train -m"),
    "a launcher of no sweep, added": (["+hydra/launcher=joblib"], "works only with dpgen train -m"),
    "a line break": (["privacy.unit='a\nverdict: CONSISTENT'"], r"^privacy\.unit='a\\nverdict.*without control characters"),
    "an escape": (["privacy.unit='a\x1b[2K'"], "without control characters"),
}


@pytest.mark.parametrize(("words", "message"), ONE_LINE.values(), ids=ONE_LINE)
def test_a_mistake_is_told_in_the_words_of_the_program(words, message):
    for read in (load_settings, load_projection_settings, lambda words: load_settings(words, AuditSpec)):
        if read is load_projection_settings and words[0].startswith("model"):
            continue
        with pytest.raises(UsageError, match=message) as said:
            read(words)
        assert "\n" not in str(said.value) and "++" not in str(said.value)


@pytest.mark.parametrize("plus", ["+", "++"])
def test_a_plus_before_a_name_changes_nothing(plus):
    assert load_settings([f"{plus}model=rbm", f"{plus}seed=3"]) == load_settings(["model=rbm", "seed=3"])


@pytest.mark.parametrize("value", ["3", "true", "{a:1}"])
@pytest.mark.parametrize("name", ["columns", "classes", "label_x", "max_items"])
def test_a_setting_of_another_type_is_refused(name, value):
    words = ["data=baskets", "data.path=v.csv", "data.n=400", "data.items=1..10", "data.max_items=2"]
    if (name, value) == ("max_items", "3"):
        return
    with pytest.raises(UsageError, match=f"data.{name}"):
        load_settings([*words, f"data.{name}={value}"])


BY_MODEL = """# @package _global_
defaults: [override /data: digits]
model: {steps: 7}
by_model: {vae: {latent: 2, hidden: 5}, rbm: {hidden: 9, steps: 8}}
"""


@pytest.mark.parametrize(
    ("words", "model"),
    {
        (): {"name": "vae", "steps": 7, "latent": 2, "hidden": 5},
        ("model=rbm",): {"name": "rbm", "steps": 8, "hidden": 9},
        ("model=rbm", "model.hidden=3"): {"name": "rbm", "steps": 8, "hidden": 3},
        ("model=rbm", "~model.hidden"): {"name": "rbm", "steps": 8},
        ("model=wgan",): {"name": "wgan", "steps": 7},
    }.items(),
    ids=str,
)
def test_the_chosen_model_alone_gets_what_an_experiment_sets_for_it(words, model, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/both.yaml").write_text(BY_MODEL, encoding="utf-8")
    for typed in (["experiment=both", *words], [*words, "experiment=both"]):
        values = compose(typed, "config", OwnFiles((str(tmp_path),))).values
        assert values["model"] == model and "by_model" not in values


@pytest.mark.parametrize(
    ("wrong", "said"),
    {
        "{wgna: {steps: 7}}": "by_model.wgna: expected one of",
        "wgan": "by_model=wgan: expected settings below names of models",
        "[wgan]": "expected settings below names of models",
        "{rbm: hello}": "by_model.rbm=hello: expected settings of that model",
        "{rbm: {name: vae, steps: 7}}": "by_model.rbm.name: the model is chosen by model=",
    }.items(),
    ids=str,
)
def test_settings_of_each_model_are_checked(wrong, said, tmp_path):
    (tmp_path / "experiment").mkdir()
    text = BY_MODEL.replace("{vae: {latent: 2, hidden: 5}, rbm: {hidden: 9, steps: 8}}", wrong)
    (tmp_path / "experiment/both.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=re.escape(said)):
        compose(["experiment=both"], "config", OwnFiles((str(tmp_path),)))


def test_settings_of_each_model_are_no_words():
    with pytest.raises(UsageError, match="there is no setting 'by_model'"):
        load_settings(["experiment=dpgm_mnist", "by_model.vae.hidden=3"])

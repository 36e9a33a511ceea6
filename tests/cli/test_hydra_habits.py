"""Each habit of a Hydra user in docs/how_to/hydra_habits.md works, or is refused in one line."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lightning_dpgen.cli.main import main
from lightning_dpgen.cli.sweepers import as_list
from lightning_dpgen.runs.candidates import read_candidates
from lightning_dpgen.runs.reporter import SilentReporter
from lightning_dpgen.specs.as_yaml import as_yaml
from lightning_dpgen.specs.config_files import OwnFiles
from lightning_dpgen.specs.plain_words import plain_words
from lightning_dpgen.specs.run import load_settings
from lightning_dpgen.specs.usage_error import UsageError

PAGE = Path(__file__).parents[2] / "docs/how_to/hydra_habits.md"
QUICK = ["split.k=2", "split.iterations=2", "split.features=16", "rows=20", "model.steps=3"]
FILES = {
    "model/team_vae.yaml": "defaults: [vae, _self_]\nhidden: 12\nlatent: ${model.hidden}\n",
    "model/size/big.yaml": "# @package model\nhidden: 99\n",
    "model/target.yaml": "_target_: mine.Net\noptions: {width: 3, name: 'a b'}\n",
    "optim/careful.yaml": "# @package model\nlr: 1.0e-4\n",
    "experiment/small.yaml": "# @package _global_\ndefaults:\n  - override /model: team_vae\n  - override /clipping: fixed"
    "\nmodel: {steps: 20}\n",
    "experiment/nothing.yaml": "# @package _global_\n",
    "team.yaml": "defaults: [config, override model: team_vae, _self_]\nprivacy: {epsilon: 3.0}\n",
    "sized.yaml": "defaults: [config, {model/size: null}, _self_]\n",
}
SHOWN = ["--cfg", "job"]
# For each word of the page: more words that make it quick, and what is printed. Where there is nothing, settings are.
WORKS = {
    "--config-dir team": (["model=team_vae", *SHOWN], "latent: 12"),
    "--config-name team": (["-cd", "team", *SHOWN], r"epsilon: 3\.0"),
    "--config-path team": (["--config-name", "team", *SHOWN], r"epsilon: 3\.0"),
    "hydra.searchpath=[file://team]": (["model=team_vae", *SHOWN], "latent: 12"),
    "experiment=small": (["-cd", "team", *SHOWN], "rule: fixed"),
    "+optim=careful": (["-cd", "team", *SHOWN], "lr: 0.0001"),
    "model/size=big": (["-cd", "team", "-cn", "sized", *SHOWN], "hidden: 99"),
    "model=rbm": (SHOWN, "name: rbm"),
    "+model.hidden=8": (["++model.latent=3", *SHOWN], "hidden: 8\n  latent: 3"),
    "~model.hidden": (["-cd", "team", "model=team_vae", "model.latent=2", *SHOWN], "model:\n  name: vae\n  latent: 2\n"),
    "~experiment": (SHOWN, "name: vae"),
    "model=own model._target_=mine.Net": (SHOWN, "target: mine.Net"),
    "--cfg job": (["-m", "seed=1,2"], "# job 1: seed=2"),
    "--cfg hydra": (["hydra/launcher=joblib"], r"_target_: hydra_plugins\.hydra_joblib_launcher"),
    "--cfg job --resolve": ([], "source: digits"),
    "--cfg job --package model": ([], r"\Aname: vae\n\Z"),
    "--info searchpath": (["-cd", "team"], "command-line .*team"),
    "--run --cfg job": ([], "source: digits"),
    "--hydra-help": ([], "--multirun"),
    "--version": ([], "dpgen .*, Hydra 1"),
    "hydra.run.dir=out": (SHOWN, "run_dir: out"),
    "-m seed=1,2 hydra.sweep.dir=out": (SHOWN, "run_dir: out"),
    "-m seed=choice(1,2)": (SHOWN, "# job 1: seed=2"),
    "-m seed=1,2 hydra/launcher=joblib": (SHOWN, "# job 1: seed=2"),
    # Those that are not installed are composed in the slow tests.
    "-m seed=1,2 hydra/launcher=submitit_slurm": (SHOWN, "# job 1: seed=2"),
    "-m seed=1,2 hydra/launcher=ray": (SHOWN, "# job 1: seed=2"),
}


@pytest.fixture
def team(tmp_path, monkeypatch):
    """Work in a folder that holds one of files of settings."""
    for name, text in FILES.items():
        path = tmp_path / "team" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return OwnFiles(("team",))


def _rows():
    """Return the rows of the page: what is typed, and what happens."""
    table = PAGE.read_text(encoding="utf-8").partition("## Habit by habit")[2].partition("\n\nOwn code")[0]
    return dict(re.findall(r"^\| `(.+?)` \| (.+) \|$", table, re.MULTILINE))


def test_each_row_of_the_page_is_tried():
    rows = _rows()
    assert {typed for typed, what in rows.items() if what.startswith("works")} == set(WORKS)
    assert all(re.match(r"works|no: .*\"", what) for what in rows.values())


@pytest.mark.parametrize("typed", WORKS)
def test_a_habit_works(dpgen, team, typed):
    more, printed = WORKS[typed]
    status, out, err = dpgen("train", *shlex.split(typed), *more)
    assert status == 0 and re.search(printed, out), (out, err)
    assert not err and [path.name for path in Path().iterdir()] == ["team"]


@pytest.mark.parametrize("typed", [typed for typed, what in _rows().items() if what.startswith("no:")])
def test_a_habit_that_cannot_be_had_is_refused_in_the_words_of_the_page(dpgen, team, typed):
    status, out, err = dpgen("train", *typed.split())
    assert status == 2 and not out and err.count("\n") == 1
    assert re.search(r'"(.+?)"', _rows()[typed])[1] in err


@pytest.mark.parametrize("kind", ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"])
def test_hydra_shows_its_information(dpgen, team, kind):
    status, out, err = dpgen("train", "--info", kind, "-cd", "team", "experiment=small", "++model.hidden=5")
    assert status == 0 and out.strip() and not err
    assert kind not in ("all", "config", "defaults") or "team_vae" in out or "hidden: 5" in out


MISTAKES = {
    "a folder that is not there": (["-cd", "nosuch"], "nosuch: there is no such folder"),
    "a file that is not there": (["-cd", "team", "-cn", "nosuch"], "team has no such file"),
    "a file for a folder": (["-cd", "team/team.yaml"], "team.yaml: is a file: --config-dir "),
    "a group without its plus": (
        ["-cd", "team", "optim=careful"],
        "dpgen: optim=careful: no list of defaults has the group optim: type +optim=careful, as for any group of your own",
    ),
    "a launcher": (["-m", "seed=1,2", "hydra/launcher=jobli"], "jobli: there is none; did you mean hydra/launcher=joblib?"),
    "a sweeper": (["-m", "seed=1,2", "hydra/sweeper=optun"], "optun: there is none; did you mean hydra/sweeper=optuna?"),
    "a file of a group": (["-cd", "team", "model=team_va"], "did you mean model=team_vae"),
    "an experiment without its folder": (["experiment=small"], "experiment=small: there is none"),
    "two at once": (["--run", "-m", "seed=1,2"], "--run --multirun: expected one of them"),
    "a part of nothing": (["--package", "model"], "--package: works only with --cfg"),
    "a part that is not there": (["--cfg", "job", "--package", "nosuch"], "--package nosuch: there is none"),
    "a kind of information": (["--info", "nosuch"], "invalid choice: 'nosuch'"),
    "a kind of settings": (["--cfg", "resolve"], "did you mean --cfg resolved"),
    "a setting that is not there": (["~model.hiddn"], "there is no setting 'model.hiddn'; did you mean ~model.hidden"),
    "folders that are no list": (["hydra.searchpath=team"], "hydra.searchpath=team: expected a list of folders"),
    "an own file in a selection": (
        ["-cd", "team", "model=vae,team_vae", "privacy.selection=logarithmic"],
        "model=team_vae: the certificate of a selection",
    ),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line(dpgen, team, words, message):
    status, out, err = dpgen("train", *words)
    assert status == 2 and not out and message in err.splitlines()[-1] and err.count("dpgen: ") == 1


WRONG_FILES = {
    "a secret": (
        "model: {hidden: '${oc.env:HOME}'}",
        r"model\.hidden=\$\{oc\.env:HOME\}: a file may refer to another setting",
    ),
    "a clock": ("privacy: {unit: 'one ${now:%Y}'}", "to nothing else"),
    "a resolver within": ("model: {hidden: '${data.${oc.env:HOME}}'}", "to nothing else"),
    "a resolver by a name within": ("run_dir: env\nmodel: {hidden: '${oc.${run_dir}:HOME}'}", "to nothing else"),
    "a resolver in two pieces": ("run_dir: $\nmodel: {hidden: '${run_dir}{oc.env:HOME}'}", r"model\.hidden"),
    "a reference to nothing": ("model: {hidden: '${model.nosuch}'}", "nosuch"),
    "a reference to Hydra": ("run_dir: '${hydra.runtime.cwd}'", "hydra"),
    "a value to be given": ("model:\n  hidden: ???", r"model\.hidden: must be given, as in model\.hidden=\.\.\."),
    "a name": ("model: {hiden: 3}", r"there is no setting 'model\.hiden' of model=vae; did you mean model\.hidden"),
    "a helper": ("paths: {root: /data}", "there is no setting 'paths"),
    "a type": ("model: {hidden: many}", r"model\.hidden=.?many.?: expected a whole number"),
    "a range": ("privacy: {epsilon: -1}", r"privacy\.epsilon=-1: expected"),
    "no YAML": ("model: {hidden: 3", "cannot be read"),
    "two targets": ("model: {name: own, _target_: a.B, target: a.C}", "leave out one of the two"),
    "a folder by the clock": ("hydra: {run: {dir: 'out/${now:%Y}'}}", "take it out of the file"),
    "a folder for each job": ("hydra: {job: {chdir: true}}", r"hydra\.job\.chdir=true: leave it out"),
}


@pytest.mark.parametrize(("text", "message"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_mistake_in_a_file_is_one_line(dpgen, team, text, message):
    Path("team/wrong.yaml").write_text(f"defaults: [config, _self_]\n{text}\n", encoding="utf-8")
    for more in ([], ["--cfg", "job"]):
        status, out, err = dpgen("train", "-cd", "team", "-cn", "wrong", *more)
        assert status == 2 and not out and re.search(message, err) and err.count("\n") == 1, err
    assert os.environ["HOME"] not in err


def test_a_file_alone_says_what_it_lacks(dpgen, team):
    Path("team/alone.yaml").write_text("model: {name: vae}\n", encoding="utf-8")
    status, _, err = dpgen("train", "-cd", "team", "-cn", "alone")
    assert status == 2 and "data: the files say nothing of it" in err and "defaults: [config, _self_]" in err


VALUES = (
    "a b",
    "'",
    '"',
    "\\",
    "a\\",
    "(x)",
    "a,b",
    "Käse",
    "~/x",
    "a=b",
    "12",
    "1e3",
    "null",
    "true",
    "#",
    "a:b",
    "{a:1}",
)


@pytest.mark.parametrize(
    "value", [*VALUES, 3.5, 1e-7, True, ["a b", "c,d"], {"width": 3, "deep": "x y"}, [], None], ids=str
)
def test_plain_words_set_what_a_file_sets(team, value):
    """Whatever signs a text holds, and for values that are no text."""
    model = {"name": "own", "target": value if isinstance(value, str) else "a.B", "options": {"x": value}}
    Path("team/odd.yaml").write_text(as_yaml({"defaults": ["config", "_self_"], "model": model}), encoding="utf-8")
    words = plain_words([], OwnFiles(("team",), name="odd"))
    assert words[0] == "model=own"
    found = load_settings(words).model
    assert (found.target, found.options) == (model["target"], model["options"])


def test_plain_words_need_no_folder(team):
    """They are few, and take back what a file of the package has set and one of one's own has not."""
    words = ["experiment=small", "seed=5"]
    plain = plain_words(words, team)
    assert plain == [
        "model=vae", "clipping=fixed", "model.hidden=12", "model.latent=12", "model.steps=20", "seed=5",
    ]  # fmt: skip
    Path("team/experiment/nothing.yaml").write_text("# @package _global_\ndefaults:\n  - override /data: bare\n")
    Path("team/data").mkdir()
    Path("team/data/bare.yaml").write_text("source: mnist\nn: 500\n", encoding="utf-8")
    plain = plain_words(["experiment=nothing"], OwnFiles((str(Path("team").absolute()),)))
    assert plain == ["data=mnist", "model=vae", "~data.classes", "data.n=500"]
    assert load_settings(plain).data.classes is None
    assert plain_words(words, None) == words


def test_a_target_in_a_file_is_the_same_setting(team):
    plain = plain_words(["model=target"], team)
    own = load_settings(plain).model
    assert (own.name, own.target, own.options) == ("own", "mine.Net", {"width": 3, "name": "a b"})


@pytest.mark.parametrize("more", [[], ["model=vae"]], ids=["chosen", "named"])
def test_a_table_chooses_its_model_also_where_files_are_ones_own(team, more):
    Path("team/table.yaml").write_text("defaults: [config, override data: adult, _self_]\n", encoding="utf-8")
    plain = plain_words(more, OwnFiles(("team",), name="table"))
    assert load_settings(plain) == load_settings(["data=adult", *more])


def test_files_are_for_the_other_commands_too(dpgen, team):
    status, out, err = dpgen("budget", "-cd", "team", "experiment=small", "split.k=2")
    assert status == 0 and "training" in out, err
    status, _, err = dpgen("audit", "-cd", "team", "experiment=small", "audit.draws=5")
    assert status == 2 and "audit.draws=5: expected" in err
    Path("team/far.yaml").write_text("defaults: [project, _self_]\nproject: {radius: 3}\n", encoding="utf-8")
    status, out, err = dpgen("project", "-cd", "team", "-cn", "far", "--cfg", "job")
    assert status == 0 and "radius: 3" in out, err
    for command in ("budget", "audit", "project"):
        assert "works only with dpgen train" in dpgen(command, "--info")[2]


def test_what_hydra_is_told_by_a_file_counts_in_a_sweep(dpgen, team, monkeypatch):
    text = (
        "defaults: [config, override hydra/launcher: joblib, _self_]\nhydra: {launcher: {n_jobs: 3}, sweep: {dir: out}}\n"
    )
    Path("team/launched.yaml").write_text(text, encoding="utf-8")
    from lightning_dpgen.cli import sweep

    begun = []
    monkeypatch.setattr(sweep, "_launch", lambda *given: begun.append(given))
    dpgen("train", "-cd", "team", "-cn", "launched", "-m", *QUICK, "seed=1,2")
    ((root, count, hydra),) = begun
    assert (root.name, count, list(hydra)) == ("out", 2, ["hydra/launcher=joblib", "hydra.launcher.n_jobs=3"])
    status, out, _ = dpgen("train", "-cd", "team", "-cn", "launched", "--cfg", "job")
    assert status == 0 and "run_dir" not in out


def test_the_words_of_a_selection_are_those_that_it_takes(dpgen):
    """A refused sweeper names them: typed as they stand, they plan a selection over the same space."""
    words = ["-m", *QUICK, "hydra/sweeper=optuna", "hydra.sweeper.n_trials=4", "hydra.sweeper.params.split.k=choice(2,3)"]
    status, _, err = dpgen("train", *words, "+hydra.sweeper.params.model.lr=tag(log, interval(0.001, 0.1))")
    typed = shlex.split(err.partition("from the same space: dpgen train ")[2])
    assert status == 2 and "privacy.selection_mean=4" in typed
    names = ("split.k", "model.lr")
    assert [word for word in typed if word.startswith(names)][-2:] == [
        "split.k=choice(2,3)", "model.lr=0.001,0.00316,0.01,0.0316,0.1",
    ]  # fmt: skip
    candidates = read_candidates([word for word in typed if word != "split.k=2"], SilentReporter())
    assert candidates.mean == 4 and len(candidates.settings) == 10


def test_an_interval_becomes_a_few_values():
    assert as_list("split.k=interval(2, 3)") == "split.k=2,3"
    assert as_list("model.lr=interval(0, 1)") == "model.lr=0,0.25,0.5,0.75,1"
    assert as_list("seed=[0,1") == "seed=[0,1"


@pytest.mark.slow
def test_a_run_and_the_one_from_its_settings_are_the_same(dpgen, team):
    """A run keeps what it was asked for; a file that changes after it has begun changes nothing."""
    status, _, err = dpgen("train", "-cd", "team", "experiment=small", *QUICK, "run_dir=first")
    assert status == 0, err
    again = ["--config-dir", "first/private", "--config-name", "settings", "run_dir=second"]
    assert dpgen("train", *again)[0] == 0
    first, second = (yaml.safe_load(Path(name, "release/privacy.json").read_text()) for name in ("first", "second"))
    assert first["declared"] == second["declared"] and first["declared"]["model"]["hidden"] == 12
    assert not Path("first/private/settings.yaml").stat().st_mode & 0o077


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("joblib", marks=pytest.mark.filterwarnings("ignore")),
        "submitit_local",
        "ray",
    ],
)
def test_jobs_start_elsewhere_with_what_files_said_here(team, launcher):
    """The folder of files is gone when they start, which its values do not follow."""
    plugin = {"joblib": "hydra_joblib_launcher", "submitit_local": "hydra_submitit_launcher", "ray": "hydra_ray_launcher"}
    pytest.importorskip(f"hydra_plugins.{plugin[launcher]}")
    words = ["-cd", "team", "model=team_vae,rbm", *QUICK, f"hydra/launcher={launcher}", "run_dir=out"]
    words += ["hydra.launcher.n_jobs=2"] if launcher == "joblib" else []
    code = (
        "import shutil, sys\nfrom lightning_dpgen.cli import sweep\nfrom lightning_dpgen.cli.main import main\n"
        "begin = sweep._launch\nsweep._launch = lambda *given: (shutil.rmtree('team'), begin(*given))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, "train", "-m", *words], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    table = Path("out/summary.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in table] == ["model", "team_vae", "rbm"]
    declared = yaml.safe_load(Path("out/0/release/privacy.json").read_text())["declared"]
    assert declared["model"]["hidden"] == 12
    kept = sorted(Path("out/private").glob("job*.log"))
    assert (not kept) == (launcher == "joblib") and all(not path.stat().st_mode & 0o077 for path in kept)
    assert launcher == "joblib" or "records take part" not in done.stdout


def test_a_setting_of_files_is_told_by_its_command(team):
    with pytest.raises(UsageError, match="there is no such folder"):
        plain_words(["seed=1"], OwnFiles(("nosuch",)))
    assert OwnFiles(("team",), "x", "y").flags()[:3] == ["--config-name", "y", "--config-path"]
    assert main(["train", *OwnFiles(("team",)).flags(), "model=team_vae", *SHOWN]) == 0

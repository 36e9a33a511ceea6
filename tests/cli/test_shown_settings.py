"""`--cfg` shows the settings that a run would have, and runs nothing; `-v` tells what a run does."""

import pytest
import yaml

from lightning_dpgen.cli.main import main
from lightning_dpgen.specs.run import load_projection_settings, load_settings
from lightning_dpgen.specs.settings import complete_settings
from lightning_dpgen.specs.source import source_of

pytestmark = pytest.mark.filterwarnings("ignore")
CASES = {
    "train": ["train", "model.lr=1e-3", "privacy.unit=2024_11", "split.k=3"],
    "a measured model": ["train", "model=measured", "seed=5", "privacy=off"],
    "a table": ["train", "data=adult"],
    "a projection": ["project", "project.radius=3", "privacy.epsilon=2"],
}


def _words(values, within=""):
    """Write settings as words of a command line, groups by their names."""
    names = {"data": "source", "model": "name", "clipping": "rule"}
    for name, value in values.items():
        if isinstance(value, dict):
            if name in names:
                yield f"{name}={value[names[name]]}"
            if name == "privacy" and value["noise"] == "off":
                yield "privacy=off"
            yield from _words({own: v for own, v in value.items() if own != names.get(name)}, f"{name}.")
        elif (within, name, value) != ("privacy.", "noise", "off"):
            yield f"{within}{name}={'null' if value is None else value}"


@pytest.mark.parametrize(
    ("case", "kind"),
    [("train", "job"), ("a table", "job"), ("a measured model", "resolved"), ("a projection", "resolved")],
)
def test_shown_settings_are_those_of_the_run(dpgen, tmp_path, monkeypatch, case, kind):
    """Written out as words, they make the same settings; and what is resolved is what defaults fill in."""
    monkeypatch.chdir(tmp_path)
    command, *words = CASES[case]
    status, out, err = dpgen(command, *words, "--cfg", kind)
    assert status == 0 and not err and not list(tmp_path.iterdir())
    read = load_settings if command == "train" else load_projection_settings
    asked, again = read(words), read(list(_words(yaml.safe_load(out))))
    if kind == "resolved" and command == "train":
        asked = complete_settings(asked, source_of(asked.data)).spec
    assert again.model_dump() == asked.model_dump()


def test_each_job_of_a_grid_is_shown(dpgen):
    status, out, _ = dpgen("train", "-m", "seed=3,4", "model.lr=1e-3", "--cfg=job")
    found = list(yaml.safe_load_all(out))
    assert status == 0 and [one["seed"] for one in found] == [3, 4] and "# job 1: seed=4" in out


@pytest.mark.parametrize("words", [["--cfg"], ["--cfg", "nosuch"], ["--cfg", "job", "model.lr=x"]])
def test_a_mistake_is_told_in_place_of_settings(dpgen, words):
    status, out, err = dpgen("train", *words)
    assert status == 2 and not out and len(err.splitlines()) == 1


def test_verbose_tells_steps_and_where_a_mistake_was_found(capsys):
    assert main(["-v", "train", "data=nosuch"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["train", "privacy.epsilon=1e-5", "-v"]) == 3
    assert "s] planning" in capsys.readouterr().err
    assert main(["train", "data=nosuch"]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("epsilon", "warned"), [(20, False), (21, True)])
def test_a_large_epsilon_warns(dpgen, epsilon, warned):
    """The plan of a run decides, which may cost less than its budget."""
    for argv in (["budget", "model=measured"], ["budget", "project", "project.radius=3"]):
        status, _, err = dpgen(*argv, f"privacy.epsilon={epsilon}")
        assert status == 0 and ("is above 20" in err) == warned

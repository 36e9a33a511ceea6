"""Whatever stands in the place of a name, the answer is one line."""

import itertools

import pytest

from lightning_dpgen.cli.configuration import conf_dir, read_conf, read_project_conf
from lightning_dpgen.cli.mistake import Mistake

WRONG = (
    "inf", "-inf", "nan", "1e308", "-1", "0", "true", "null", "x", "''", "[]", "[1]", "{}", "{a:1}", "${oc.env:HOME}",
    "10e400", "999999999999999999999999", "1_0", "0x10", "???",
)  # fmt: skip
GROUPS = sorted(path.name for path in conf_dir().iterdir() if path.is_dir() and path.name != "hydra")
FORMS = ("{}={}", "+{}={}", "++{}={}", "{}@x={}", "{}@_global_={}", "~{}={}")


@pytest.mark.parametrize("group", GROUPS)
def test_what_is_no_name_of_a_group_is_one_line(group):
    for value, form in itertools.product(WRONG, FORMS):
        with pytest.raises(Mistake) as said:
            read_conf([form.format(group, value)])
        assert len(str(said.value)) < 600, form.format(group, value)


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "[a]", "blobs"])
def test_a_source_is_one_of_those_that_there_are(dpgen, value):
    status, _, err = dpgen("train", f"data.source={value}")
    assert status == 2 and "data" in err and len(err.splitlines()) == 1, err
    with pytest.raises(Mistake):
        read_project_conf([f"data.source={value.replace('blobs', 'table')}"])


PROJECT = ["budget", "project", "project.radius=9", "data.d=9", "data.n=9"]


@pytest.mark.parametrize("command", [["budget"], PROJECT, ["audit"]], ids=str)
def test_every_command_states_the_same_bounds_of_epsilon(dpgen, command):
    for epsilon in ("0", "1e-7", "1001", "1e308"):
        status, _, err = dpgen(*command, f"privacy.epsilon={epsilon}")
        expected = f"privacy.epsilon={float(epsilon)}: expected a number from 1e-06 to 1000, or privacy=off"
        assert status == 2 and expected in err

"""Every boundary reads the input of strangers, or refuses it in one line: the corpus, and some hundred mutations of it.

All inputs run in children of one process that has nothing else in it (`children.py`), so a crash is a finding.
``python -m tests.fuzz --minutes 60`` goes on from here.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .planted import TITLES
from .runs import CORPUS
from .targets import TARGETS, Finding, check_not_forged, unpacked
from .worst import QUICK

ROOT = Path(__file__).parents[2]
# Seconds of the processor, and megabytes beyond those in use before, that `verify` and `load_release` may take.
SECONDS, MEGABYTES = 10.0, 1000.0


def _said(*words):
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_default_part():
    """It is one test, since all of it runs in one process beside this one."""
    said = _said("--default")
    assert said["targets"].keys() == TARGETS.keys() and said["costs"].keys() == QUICK.keys()
    for target, found in said["targets"].items():
        assert not found["findings"], f"{target}:\n" + "\n\n".join(found["findings"])
        # Mutations that are all refused, or all read, would test one half of a boundary.
        assert min(found["counts"].get(kind, 0) for kind in ("read", "refused")) >= 5, (target, found["counts"])
    for title, cost in said["costs"].items():
        _check_cost(title, cost)
    # Each planted kind of finding is found, and the next input is still read.
    assert said["planted"] == {title: ["finding", "read"] for title in TITLES}


@pytest.mark.slow
def test_the_dearest_releases_that_are_allowed():
    for title, cost in _said("--worst").items():
        _check_cost(title, cost)


def _check_cost(title, cost):
    kind, seconds, megabytes, told = cost
    assert kind in ("read", "refused"), (title, told)
    assert seconds < SECONDS and megabytes < MEGABYTES, (title, seconds, megabytes)


def test_seeds_are_sound():
    for target in TARGETS:
        assert any("seed" in path.name or "words" in path.name for path in (CORPUS / target).iterdir()), target


@pytest.mark.parametrize("change", ["less epsilon", "another file", "not private"])
def test_the_oracle_knows_a_forgery(tmp_path, change):
    """It does not ask `verify`, so a `verify` that accepted everything would be found out."""
    (tmp_path / "x.zip").write_bytes((CORPUS / "verify" / "seed_run.zip").read_bytes())
    folder = unpacked(tmp_path / "x.zip")
    check_not_forged(folder)
    certificate = json.loads((folder / "privacy.json").read_text())
    if change == "less epsilon":
        said = f"({certificate['epsilon']:g}, "
        certificate["epsilon"] *= 0.9
        certificate["statement"] = certificate["statement"].replace(said, f"({certificate['epsilon']:g}, ")
    elif change == "another file":
        (folder / "model.json").write_text("{}")
    else:
        certificate["private"] = False
    (folder / "privacy.json").write_text(json.dumps(certificate))
    with pytest.raises(Finding, match="verified"):
        check_not_forged(folder)

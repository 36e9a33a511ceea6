"""Every boundary reads what strangers hand it, or refuses it in a line: the corpus, and some hundred mutations of it.

All of it runs in children of one process that has nothing else in it (`children.py`), so a crash is a finding.
``python -m tests.fuzz --minutes 60`` goes on from here.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from .runs import CORPUS
from .targets import TARGETS, Finding, check_not_forged, unpacked
from .worst import QUICK, SLOW

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("fuzz")
# What `verify` and `load_release` may take of the processor, and of memory beyond what is there before.
SECONDS, MEGABYTES = 10.0, 1000.0


@functools.cache
def _said(*words):
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found(target):
    found = _said("--default")[0][target]
    assert not found["findings"], "\n\n".join(found["findings"])
    # Mutations that are all refused, or all read, would look at one half of a boundary.
    assert min(found["counts"].get(kind, 0) for kind in ("read", "refused")) >= 5


@pytest.mark.parametrize("title", QUICK)
def test_a_hostile_release_is_cheap(title):
    _check_cost(title, _said("--worst", "quick"))


@pytest.mark.slow
@pytest.mark.parametrize("title", SLOW)
def test_the_dearest_release_that_is_allowed(title):
    _check_cost(title, _said("--worst", "slow"))


def _check_cost(title, costs):
    kind, seconds, megabytes, told = {name: cost for name, *cost in costs}[title]
    assert kind in ("read", "refused") and seconds < SECONDS and megabytes < MEGABYTES, (seconds, megabytes, told)


@pytest.mark.parametrize("title", ["a crash", "a hang", "too much memory", "a wrong error", "an error without words"])
def test_a_finding_is_found(title):
    """Each kind of finding, planted; the next input is read all the same."""
    planted, after = {name: outcomes for name, *outcomes in _said("--planted")}[title]
    assert planted == "finding" and after == "read"


def test_seeds_are_sound():
    for target in TARGETS:
        assert any("seed" in path.name or "words" in path.name for path in (CORPUS / target).iterdir()), target


@pytest.mark.parametrize("change", ["less epsilon", "another file", "not private"])
def test_the_oracle_knows_a_forgery(tmp_path, change):
    """It does not ask `verify`, so a `verify` that said yes to everything would be found out."""
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

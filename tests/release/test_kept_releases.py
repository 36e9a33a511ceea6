"""Kept releases of every format of certificates from 0.1.0 on are verified, read and drawn from by today's software."""

import json
import re
import zipfile

import numpy as np
import pytest
import safetensors.torch
from keep_releases import KEPT, KINDS, Line

from lightning_dpgen.cli.main import main
from lightning_dpgen.models.gaussians import StackedCopula
from lightning_dpgen.release.certificate import FORMAT_VERSION, digest
from lightning_dpgen.release.drawing.opened import file_hash
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.files import CERTIFICATE, MODEL, WEIGHTS, NotARelease
from lightning_dpgen.verification.verify import verify

ARCHIVES = sorted(KEPT.glob("format_*/*.zip"))
_LARGEST = 40_000


@pytest.fixture(params=ARCHIVES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def kept(request, tmp_path):
    """Return the kind of a kept release, the number of its format, and its unpacked folder."""
    with zipfile.ZipFile(request.param) as archive:
        archive.extractall(tmp_path)
    return request.param.stem, int(request.param.parent.name.removeprefix("format_")), tmp_path


def test_a_kept_release_is_consistent(kept):
    kind, number, folder = kept
    certificate = json.loads((folder / CERTIFICATE).read_text())
    assert certificate["format_version"] == number and certificate["private"]
    verdict = verify(folder)
    assert verdict.problems == [] and verdict.epsilon == pytest.approx(certificate["epsilon"], rel=1e-3)
    units = {"persons": "one person with at most 3", "projection": "one row"}
    assert certificate["unit"].startswith(units.get(kind, "one "))


def test_a_kept_release_is_read_and_drawn_from(kept, tmp_path_factory):
    kind, _, folder = kept
    if kind == "weights":
        # A network of the user's own is read into the class that it was trained as.
        Line().load_state_dict(safetensors.torch.load_file(folder / WEIGHTS))
        return
    release = load_release(folder)
    if kind == "projection":
        assert release.rows.shape == (50, 3)
        return
    rows = release.sample(7, seed=1)
    assert len(rows) == 7
    if kind == "persons":
        some = rows.assign(age=["", 40, 50, "", 60, 70, 80]).drop(columns="place")
        whole = release.complete(some, seed=1)
        assert list(whole) == list(rows) and whole["age"][[1, 2, 4]].tolist() == [40, 50, 60]
        assert whole["returned"].tolist() == rows["returned"].tolist() and whole["place"].notna().all()
        assert list(rows) == ["age", "place", "returned"] and rows["age"].between(18, 90).all()
    elif kind == "numbers":
        assert isinstance(release.mixture.network, StackedCopula) and len(list(rows)) == 102
        assert release.sample(9, seed=1, where={"q3": True})["q3"].all() and rows["age"].between(18, 90).all()
    elif kind == "trees":
        assert list(rows) == ["place", "town", "owns"] and max(release.mixture.network.settings["parents"]) >= 0
        assert release.sample(9, seed=1, where={"town": 3})["town"].eq(3).all()
        told = release.predict(rows)
        assert told.columns[0] == "owns" and np.allclose(told.filter(like="p_").sum(axis=1), 1.0)
    else:
        assert np.isfinite(np.asarray(rows[0] if isinstance(rows, tuple) else rows)).all()
    drawn = tmp_path_factory.mktemp("drawn") / "drawn.csv"
    assert main(["sample", str(folder), "-n", "5", "--seed", "1", "-o", str(drawn)]) == 0
    assert len(drawn.read_text().splitlines()) == 6


def test_every_format_from_the_first_on_is_kept_with_each_kind():
    numbers = [int(path.name.removeprefix("format_")) for path in sorted(KEPT.glob("format_*"))]
    assert sorted(numbers) == list(range(min(numbers), FORMAT_VERSION + 1)), "python tests/release/keep_releases.py"
    for number in numbers:
        assert {path.stem for path in (KEPT / f"format_{number}").iterdir()} == KINDS.keys()
    assert all(path.stat().st_size <= _LARGEST for path in ARCHIVES)


def test_an_altered_release_is_noticed(tmp_path):
    """A reader that accepted anything would pass the tests above."""
    with zipfile.ZipFile(ARCHIVES[0]) as archive:
        archive.extractall(tmp_path)
    text = (tmp_path / CERTIFICATE).read_text()
    (tmp_path / CERTIFICATE).write_text(re.sub(r'"epsilon": [\d.]+', '"epsilon": 0.5', text, count=1))
    assert verify(tmp_path).problems


# Words by which Python speaks of the code that has read a value.
_PYTHON = (
    r"NoneType|unhashable|object (is|has)|not supported|positional argument|must be real|unsupported operand|"
    r"cannot be read: '\w+'$"
)


def _places(value, path=()):
    """Yield the places of all values in a JSON value, of the first two in each list."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in list(value)[:200] if isinstance(value, dict) else range(min(len(value), 2)):
            yield from _places(value[key], (*path, key))


def test_no_value_in_a_file_of_a_release_makes_its_check_speak_of_python(kept):
    """Whatever one value of the certificate, or of the model's description, becomes: there is a verdict in plain words."""
    _, _, folder = kept
    random = np.random.default_rng(0)
    before = json.loads((folder / CERTIFICATE).read_text())
    for name in (MODEL, CERTIFICATE):
        places = [*_places(json.loads((folder / name).read_text()))]
        for which in random.permutation(len(places))[:10]:
            *above, key = places[which]
            content = json.loads((folder / name).read_text())
            part = content
            for step in above:
                part = part[step]
            new = [None, "x", [], {}, -1, "gone"][random.integers(6)]
            if new == "gone":
                del part[key]
            else:
                part[key] = new
            changed = {MODEL: (folder / MODEL).read_text()}
            certificate = before if name == MODEL else content
            if name == MODEL:
                (folder / MODEL).write_text(json.dumps(content))
                certificate = before | {"files": before["files"] | {MODEL: file_hash(folder / MODEL)}}
            if places[which] != ("digest",):
                certificate = certificate | {"digest": digest(certificate)}
            (folder / CERTIFICATE).write_text(json.dumps(certificate))
            try:
                said = verify(folder).problems
            except NotARelease as error:
                said = [str(error)]
            assert not any(re.search(_PYTHON, line) for line in said), (name, places[which], new, said)
            (folder / MODEL).write_text(changed[MODEL])
            (folder / CERTIFICATE).write_text(json.dumps(before))


def test_a_model_that_is_none_is_noticed(tmp_path):
    """Sizes, components, trees and shares are those of a model that can be drawn from, though all hashes agree."""
    changes = {
        "k": "mixture_weights must be 61 numbers",
        "parents": "a forest|expected for each",
        "mixture_weights": "add up to|numbers, 0 or more",
        "nan": "NaN or infinity",
        "shares": "rows that add up to 1",
    }
    for what, said in changes.items():
        folder = tmp_path / what
        folder.mkdir()
        with zipfile.ZipFile(KEPT / "format_2" / "trees.zip") as archive:
            archive.extractall(folder)
        model, tensors = json.loads((folder / MODEL).read_text()), safetensors.torch.load_file(folder / WEIGHTS)
        if what == "k":
            model["k"] += 1
        elif what == "parents":
            model["parents"] = [1, 0, *model["parents"][2:]]
        elif what == "mixture_weights":
            model["mixture_weights"] = [2.0 * weight for weight in model["mixture_weights"]]
        else:
            tensors["network.table_0"] = tensors["network.table_0"] * (float("nan") if what == "nan" else 2.0)
        (folder / MODEL).write_text(json.dumps(model))
        safetensors.torch.save_file(tensors, folder / WEIGHTS)
        certificate = json.loads((folder / CERTIFICATE).read_text())
        certificate["files"] |= {name: file_hash(folder / name) for name in (MODEL, WEIGHTS)}
        (folder / CERTIFICATE).write_text(json.dumps(certificate | {"digest": digest(certificate)}))
        problems = verify(folder).problems
        assert len(problems) == 1 and re.search(said, problems[0]), (what, problems)

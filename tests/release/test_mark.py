"""A release that is not private says so wherever it goes: in the metadata of its files, and in its pictures."""

import hashlib
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from contracts.sealed import rewrite
from PIL import Image
from release.released import account, released
from release.test_synthetic_pages import PEOPLE

from lightning_dpgen.cli.main import main
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.publishing.mark import METADATA, marked_picture
from lightning_dpgen.verification.verify import verify

SCHEMAS = {
    "table": PEOPLE,
    "grey pictures": ImageSchema(8, 8, levels=16, classes=3),
    "colour pictures": ImageSchema(4, 3, levels=255, channels=3),
    "series": SeriesSchema(5, 0.0, 9.5, classes=("day", "night"), decimals=1),
}
OPEN = {"privacy=off": {"epsilon": float("inf")}, "a seed": {"seed": 3}}


def _marked(path):
    if path.suffix == ".parquet":
        metadata = pq.read_schema(path).metadata or {}
        return {(name.encode(), text.encode()) for name, text in METADATA.items()} <= metadata.items()
    return METADATA.items() <= Image.open(path).text.items()


def _files(folder):
    return sorted(path for path in folder.iterdir() if path.suffix in (".parquet", ".png"))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_files_carry_the_mark_exactly_if_the_release_is_not_private(tmp_path, kind):
    released(tmp_path / "private", SCHEMAS[kind])
    files = _files(tmp_path / "private")
    assert len(files) == 1 + (kind != "table") and not any(map(_marked, files))
    assert b"private" not in (pq.read_schema(files[-1]).metadata or {}) and load_release(tmp_path / "private").private
    for name, paid in OPEN.items():
        folder = tmp_path / name
        certificate = released(folder, SCHEMAS[kind], paid=account(**paid))
        assert not certificate["private"] and all(map(_marked, _files(folder))) and not load_release(folder).private
        assert pq.read_table(_files(folder)[-1]).equals(pq.read_table(files[-1])), "the mark changes no record"


@pytest.mark.parametrize("kind", [kind for kind in SCHEMAS if kind != "table"])
def test_a_picture_says_it_in_words(tmp_path, kind):
    """Above what it shows, and as wide as the words need."""
    released(tmp_path / "private", SCHEMAS[kind])
    released(tmp_path / "open", SCHEMAS[kind], paid=account(seed=3))
    plain, marked = (
        np.asarray(Image.open(tmp_path / name / "samples.png").convert("RGB"), dtype=int) for name in ("private", "open")
    )
    words = (np.abs(marked - [176, 0, 32]).sum(axis=2) < 60).sum()
    assert words > 100 > (np.abs(plain - [176, 0, 32]).sum(axis=2) < 60).sum()
    if kind != "series":
        height, width = plain.shape[:2]
        band = marked[: len(marked) - height]
        assert 20 <= len(band) <= 40 and (marked[-height:, :width] == plain).all()
        letters = (band > 200).all(axis=2)
        assert letters.sum() > 100 and not letters[:, [0, -1]].any(), "the words are within the band"


def test_a_narrow_picture_is_as_wide_as_the_words():
    marked = np.asarray(marked_picture(Image.new("L", (10, 10), 255)))[:-10]
    letters = (marked > 200).all(axis=2)
    assert letters.sum() > 100 and not letters[:, [0, -1]].any()


def test_samples_of_it_carry_the_mark_where_their_format_can(tmp_path, capsys):
    released(tmp_path / "private", PEOPLE, k=2)
    released(tmp_path / "open", PEOPLE, k=2, paid=account(**OPEN["privacy=off"]))
    for name in ("private", "open"):
        for more in ([], ["--component", "1"], ["--where", "member=true"]):
            out = tmp_path / f"{name}{len(more)}{''.join(more)}.parquet"
            assert main(["sample", str(tmp_path / name), "-n", "5", "-o", str(out), *more]) == 0
            assert _marked(out) == (name == "open")
            assert ("not private: this release protects no one" in capsys.readouterr().err) == (name == "open")
        assert main(["sample", str(tmp_path / name), "-n", "5", "-o", str(tmp_path / f"{name}.csv")]) == 0
        assert ("CSV has no place to say so" in capsys.readouterr().err) == (name == "open")
    assert load_release(tmp_path / "open").table(3).schema.metadata[b"private"] == b"false"


def test_a_certificate_cannot_promise_what_the_model_denies(tmp_path):
    released(tmp_path / "r", PEOPLE)
    path = tmp_path / "r" / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"private": False}))
    hashed = hashlib.sha256(path.read_bytes()).hexdigest()
    rewrite(tmp_path / "r", lambda certificate: certificate["files"].__setitem__("model.json", hashed))
    assert verify(tmp_path / "r").problems == ["model.json says that this is not private, and the certificate that it is"]

"""A model from a stranger that cannot be one is refused in one line."""

import json

import numpy as np
import pytest
import torch

from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.files.arrays import load_arrays, read_rows
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.models.forests import StackedForests, StackedProducts
from lightning_dpgen.models.labelled import Crossing, LabelledNetwork
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import Release, load_release
from lightning_dpgen.release.files import MODEL, NotARelease
from lightning_dpgen.release.projected import ProjectedRows, load_projected, write_projected
from lightning_dpgen.sampling.errors import BadRecords

NETWORK = StackedVAE(BasketSchema(tuple("abc"), 2), 1, latent=2, hidden=3)
WHOLE = {"model": NETWORK.kind, "schema": NETWORK.schema.as_json(), "k": 1, **NETWORK.settings, "mixture_weights": [1.0]}
MODELS = {
    "schema is text": {"schema": "x"},
    "schema is a number": {"schema": 0.5},
    "schema is nothing": {"schema": None},
    "a network of pictures": {"network": "conv"},
    "a huge weight": {"mixture_weights": [10**400]},
    "a large weight": {"mixture_weights": [1e308]},
    "a text for a weight": {"mixture_weights": ["x"]},
    "no weights": {"mixture_weights": {}},
}


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_a_description_that_makes_no_model_is_one_line(tmp_path, changes):
    write_model(tmp_path, Mixture(NETWORK, torch.ones(1)))
    assert load_release(tmp_path).components == 1 and json.loads((tmp_path / MODEL).read_text()) == WHOLE
    (tmp_path / MODEL).write_text(json.dumps(WHOLE | changes))
    with pytest.raises(NotARelease) as said:
        load_release(tmp_path)
    assert "\n" not in str(said.value)


FORESTS = {
    "a cycle": {"parents": [1, 0, -1]},
    "its own parent": {"parents": [0, -1, -1]},
    "no such group": {"parents": [3, -1, -1]},
    "one too few": {"parents": [-1, 0]},
    "another forest": {"parents": [-1, -1, -1]},
    "no whole numbers": {"parents": [-1, 0.0, -1]},
    "a long number": {"parents": [-1, 10**30, -1]},
    "lists": {"parents": [[-1], [0], [-1]]},
    "no list": {"parents": 0},
    "no parents": {"parents": None},
    "a label with a child": {"parents": [-1, 2, -1], "labelled": True},
    "series": {"schema": ImageSchema(2, 2, levels=1).as_json()},
}


def forests():
    schema = parse_schema(
        "{label: c, columns: {a: {type: boolean}, b: {type: category, values: [x, y, z]}, c: {type: boolean}}}"
    )
    return Mixture(LabelledNetwork(StackedForests(schema, 2, [-1, 0, -1])), torch.ones(2))


@pytest.mark.parametrize("changes", FORESTS.values(), ids=FORESTS)
def test_parents_that_are_no_forest_of_the_tables_are_one_line(tmp_path, changes):
    write_model(tmp_path, forests())
    description = json.loads((tmp_path / MODEL).read_text())
    assert description["parents"] == [-1, 0, -1] and len(load_release(tmp_path).sample(5, seed=0)) == 5
    (tmp_path / MODEL).write_text(json.dumps(description | changes))
    with pytest.raises(NotARelease) as said:
        load_release(tmp_path)
    assert "\n" not in str(said.value) and len(str(said.value)) < 400


# Crossings that stand in a release, in place of the one that it has.
OWN = {"groups": [0, 1], "parts": [[0, 1], [0, 1, 1]]}
CROSSINGS = {
    "a word": "crossings",
    "nothing": None,
    "a number": 1,
    "an object": OWN,
    "a list of words": ["a"],
    "deep": json.loads("[" * 500 + "]" * 500),
    "deep parts": [OWN | {"parts": [[[0], [1]], [0, 1, 1]]}],
    "no parts": [{"groups": [0, 1]}],
    "more keys": [OWN | {"evidence": 1}],
    "empty": [{"groups": [], "parts": []}],
    "no such group": [OWN | {"groups": [0, 3]}],
    "a group far away": [OWN | {"groups": [0, 10**30]}],
    "the label": [{"groups": [0, 2], "parts": [[0, 1], [0, 1]]}],
    "names": [OWN | {"groups": ["a", "b"]}],
    "one group": [{"groups": [0], "parts": [[0, 1]]}],
    "a group twice": [{"groups": [0, 0], "parts": [[0, 1], [0, 1]]}],
    "out of order": [{"groups": [1, 0], "parts": [[0, 1, 1], [0, 1]]}],
    "negative": [OWN | {"parts": [[0, -1], [0, 1, 1]]}],
    "no whole numbers": [OWN | {"parts": [[0, 1.0], [0, 1, 1]]}],
    "true": [OWN | {"parts": [[False, True], [0, 1, 1]]}],
    "a part too few": [OWN | {"parts": [[0, 1], [0, 1]]}],
    "a group without parts": [OWN | {"parts": [[0, 1]]}],
    "an empty part": [OWN | {"parts": [[0, 2], [0, 1, 1]]}],
    "a part far away": [OWN | {"parts": [[0, 10**12], [0, 1, 1]]}],
    "a part of hundreds of digits": [OWN | {"parts": [[0, 10**400], [0, 1, 1]]}],
    "twice the same": [OWN, OWN],
    "twice the same groups": [OWN, OWN | {"parts": [[0, 1], [0, 1, 2]]}],
    "thousands": [OWN] * 5000,
    "other cells": [OWN | {"parts": [[0, 1], [0, 1, 2]]}],
}


@pytest.mark.parametrize("crossings", CROSSINGS.values(), ids=CROSSINGS)
def test_crossings_that_are_none_of_the_tables_columns_are_one_line(tmp_path, crossings):
    plain = forests().network.network
    write_model(tmp_path, Mixture(LabelledNetwork(plain, [Crossing((0, 1), ((0, 1), (0, 1, 1)))]), torch.ones(2)))
    description = json.loads((tmp_path / MODEL).read_text())
    assert description["crossings"] == [OWN] and len(load_release(tmp_path).sample(5, seed=0)) == 5
    for changes in ({"crossings": crossings}, {"labelled": False}):
        (tmp_path / MODEL).write_text(json.dumps(description | changes))
        with pytest.raises(NotARelease) as said:
            load_release(tmp_path)
        assert "\n" not in str(said.value) and len(str(said.value)) < 400


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-30, 3e38, torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["table_0", "table_1", "tilts", "label_weights", "label_closeness"])
def test_tables_of_any_numbers_make_records_or_are_refused(tmp_path, name, value):
    mixture = forests()
    network = mixture.network if name.startswith("label") else mixture.network.network
    network.get_buffer(name).fill_(value)
    write_model(tmp_path, mixture)
    try:
        release = load_release(tmp_path)
        assert np.isfinite(release.predict(release.sample(9, seed=0)).filter(like="p_")).all(axis=None)
    except NotARelease as error:
        assert "\n" not in str(error) and (value <= 0.0 or value > 1.0 or not np.isfinite(value))


def test_one_of_very_many_components_takes_little_memory():
    k = 1_000_000
    with torch.device("meta"):
        network = StackedProducts(ImageSchema(1, 1, levels=1), k)
    # A square of so many is four terabytes.
    assert Release(Mixture(network, torch.ones(k))).component(3)._mixture.weights.nonzero().tolist() == [[3]]


def test_pictures_wider_than_a_table_are_refused_before_a_column_is_made(tmp_path):
    with torch.device("meta"):
        release = Release(Mixture(StackedProducts(ImageSchema(1025, 1024, levels=1), 1), torch.ones(1, device="cpu")))
    for make in (lambda: release.arrow, lambda: release.table(1), lambda: next(release.sample_blocks(1))):
        with pytest.raises(ValueError, match="a record of 1,049,600 numbers: expected at most 1,048,576 columns"):
            make()


def test_a_model_that_no_reader_takes_is_not_written(tmp_path):
    with torch.device("meta"):
        mixture = Mixture(StackedProducts(ImageSchema(4096, 4096, levels=1), 33), torch.ones(33, device="cpu"))
    with pytest.raises(ValueError, match="numbers: expected at most 536,870,912"):
        write_model(tmp_path, mixture)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [1.0, 1e99, 1e101, 1e154, 1e200, 1.7e308])
@pytest.mark.parametrize("what", ["matrix", "rows", "scale", "centre"])
def test_rows_are_whitened_or_refused(tmp_path, size, what):
    random = np.random.default_rng(0)
    sizes = {name: size if name == what else 1.0 for name in ("matrix", "rows", "scale", "centre")}
    matrix, rows = random.uniform(-1, 1, (5, 3)) * sizes["matrix"], random.uniform(-1, 1, (9, 3)) * sizes["rows"]
    try:
        projection = Projection(matrix, Neighbourhood("row", 1.0, None), "gaussian", np.ones(5) * sizes["centre"])
        rows = rows if size > 1e100 else np.rint(rows / projection.grid) * projection.grid
        write_projected(tmp_path, ProjectedRows(rows, projection, "gaussian", sizes["scale"], None))
        projected = load_projected(tmp_path)
    except (NotARelease, ValueError) as error:
        assert size > 1e100 and "\n" not in str(error)
    else:
        assert size <= 1e100 and np.isfinite(projected.whitened()).all()


def test_an_archive_by_the_name_of_an_array_is_none(tmp_path):
    path = tmp_path / "a.npy"
    with open(path, "wb") as file:
        np.savez(file, images=np.zeros((2, 3, 3), np.uint8))
    for read in (lambda: load_arrays(path, ("images",)), lambda: read_rows(path)):
        with pytest.raises(BadRecords, match=r"a\.npy"):
            read()
    np.save(path, np.arange(6).reshape(2, 3))
    assert isinstance(load_arrays(path, ("images",))["images"], np.memmap)
    assert read_rows(path).tolist() == [
        [0, 1, 2],
        [3, 4, 5],
    ]

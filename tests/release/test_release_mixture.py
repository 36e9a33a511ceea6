"""A mixture is released from Python as `dpgen train` releases one; what makes no sense closes no account."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from lightning_dpgen import (
    Account,
    ImageSchema,
    encode_images,
    load_release,
    make_plan,
    release_mixture,
    verify,
)
from lightning_dpgen.measure import GaussianRecipe
from lightning_dpgen.models.mixture import Mixture

N = 1797


@pytest.fixture
def measured():
    digits, schema = load_digits(), ImageSchema(height=8, width=8, levels=16, classes=10)
    recipe = GaussianRecipe(schema, k=10, n=N, size=12, radius=4.0, spread=2.5)
    account = Account(make_plan(recipe.specs(1.0), epsilon=4.0, delta=1e-5))
    records = encode_images(digits.images, digits.target, schema)
    return recipe.measure(records, torch.from_numpy(digits.target), account), account


def test_it_is_read_back_and_verified(measured, tmp_path):
    certificate = release_mixture(*measured, tmp_path / "release", data="digits", n=N, rows=20)
    assert certificate["epsilon"] <= 4.0 and certificate["declared"]["rows"] == 20
    assert not verify(tmp_path / "release").problems
    assert load_release(tmp_path / "release").sample(5, seed=1).shape == (5, 8, 8)


WRONG = [
    ({"n": 0}, "n=0: expected a whole number of records, 1 or more"),
    ({"rows": 2.5}, r"rows=2\.5: expected a whole number"),
    ({"seed": "a"}, "seed='a': expected a whole number, 0 or more"),
    ({"n": 2.0}, r"n=2\.0: expected a whole number of records, 1 or more"),
    ({"declared": {"n": 7}}, r"declared: holds \['n'\]"),
    ({"declared": {"max_rows": 1}}, r"declared: holds \['max_rows'\]"),
    ({"declared": {"who": object()}}, "declared: Object of type object is not JSON"),
    ({"declared": {"who": float("nan")}}, "declared: .*expected values that JSON can hold"),
    ({"unit": " "}, "unit=' ': expected words"),
    ({"data": ""}, "data='': expected words"),
    ({"unit": "a\nverdict: CONSISTENT"}, r"unit='a\\nverdict: CONSISTENT': expected text on one line"),
    ({"data": "a\x1b[2K"}, "data=.*without control characters"),
    ({"declared": {"schema": {}, "rows": 9}}, r"declared: holds \['rows', 'schema'\]"),
    (
        {"declared": {"classes": 10, "split": {}}},
        r"declared: holds \['classes', 'split'\], names of settings of dpgen train",
    ),
    ({"declared": {"model": {"name": "vae"}}}, "declared: model=.*expected words"),
]


def test_what_makes_no_sense_is_refused_and_the_account_stays_open(measured, tmp_path):
    for changed, says in WRONG:
        with pytest.raises(ValueError, match=says):
            release_mixture(*measured, tmp_path / "release", **({"data": "digits", "n": N, "rows": 5} | changed))
    release_mixture(*measured, tmp_path / "release", data="digits", n=N, rows=5)


def test_a_mixture_of_another_account_is_not_signed(measured, tmp_path):
    mixture, account = measured
    recipe = GaussianRecipe(mixture.network.schema, k=10, n=N, size=12, radius=4.0, spread=2.5)
    cheap = Account(make_plan(recipe.specs(1.0), epsilon=1.0, delta=1e-5))
    with pytest.raises(ValueError, match="learned on another account"):
        release_mixture(mixture, cheap, tmp_path / "release", data="digits", n=N, rows=5)
    with pytest.raises(ValueError, match="or on an unknown one"):
        release_mixture(Mixture(mixture.network, mixture.weights), account, tmp_path / "r", data="digits", n=N, rows=5)
    release_mixture(mixture, account, tmp_path / "release", data="digits", n=N, rows=5)


def test_a_fit_to_a_state_remembers_who_paid(tmp_path):
    digits, schema = load_digits(), ImageSchema(height=8, width=8, levels=16, classes=10)
    recipe = GaussianRecipe(schema, k=10, n=N, size=12, radius=4.0, spread=2.5)
    dear, cheap = (Account(make_plan(recipe.specs(1.0), epsilon=epsilon, delta=1e-5)) for epsilon in (100.0, 1.0))
    states = []
    records = encode_images(digits.images, digits.target, schema)
    recipe.measure(records, torch.from_numpy(digits.target), dear, save=states.append)
    recipe.measure(records, torch.from_numpy(digits.target), cheap)
    with pytest.raises(ValueError, match="learned on another account"):
        release_mixture(recipe.fit(states[-1]), cheap, tmp_path / "r", data="digits", n=N, rows=5)


def test_the_unit_of_a_plan_about_persons_is_a_person(tmp_path):
    digits, schema = load_digits(), ImageSchema(height=8, width=8, levels=16, classes=10)
    recipe = GaussianRecipe(schema, k=10, n=N, size=12, radius=4.0, spread=2.5)
    account = Account(make_plan(recipe.specs(1.0), epsilon=4.0, delta=1e-5, max_rows=2))
    records = dataclasses.replace(encode_images(digits.images, digits.target, schema), persons=np.arange(N) // 2)
    mixture = recipe.measure(records, torch.from_numpy(digits.target), account)
    certificate = release_mixture(mixture, account, tmp_path / "release", data="digits", n=N, rows=5)
    assert certificate["unit"] == "one person" and certificate["declared"]["max_rows"] == 2


def test_what_could_not_be_written_leaves_nothing_and_is_asked_for_again(measured, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("lightning_dpgen.release.synthetic.write_table", full)
        with pytest.raises(OSError, match="disk full"):
            release_mixture(*measured, tmp_path / "release", data="digits", n=N, rows=5)
    assert not list(tmp_path.iterdir())
    release_mixture(*measured, tmp_path / "release", data="digits", n=N, rows=5)
    assert [path.name for path in tmp_path.iterdir()] == ["release"]

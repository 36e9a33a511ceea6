"""The label drawn on top of a network: its distribution, its features, and its way to a release and back."""

import json

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.models.forests import StackedProducts
from lightning_dpgen.models.generators import StackedGenerator
from lightning_dpgen.models.labelled import KNOTS, LabelledNetwork, added_up, feature_count
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.rbm import StackedRBM
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.release.drawing.draws import block_streams
from lightning_dpgen.release.drawing.model_files import rebuilt, write_model
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.files import MODEL, NotARelease

TABLE = TableSchema(
    (
        column_of("income", {"type": "number", "low": 0, "high": 10, "encoding": "scaled"}),
        column_of("job", {"type": "category", "values": ["cook", "vet", "poet"]}),
        column_of("smoker", {"type": "category", "values": ["yes", "no", "once"]}),
        column_of("rich", {"type": "boolean"}),
    ),
    label="smoker",
)
LAYOUT = TABLE.layout
SMALL = {"hidden": 4, "generator": torch.Generator().manual_seed(0)}
NETWORKS = {
    "products": lambda: StackedProducts(TABLE, 2),
    "vae": lambda: StackedVAE(TABLE, 2, latent=2, likelihood="gaussian", **SMALL),
    "rbm": lambda: StackedRBM(TABLE, 2, chains=3, **SMALL),
    "wgan": lambda: StackedGenerator(TABLE, 2, latent=2, **SMALL),
    "wgan, labels first": lambda: StackedGenerator(TABLE, 2, latent=2, conditional=True, **SMALL),
}


def labelled(network, seed=0, closeness=0.7):
    """Return a network with a label of random weights."""
    random, found = torch.Generator().manual_seed(seed), LabelledNetwork(network)
    found.label_weights.normal_(0.0, 0.5, generator=random)
    found.label_level.normal_(0.0, 0.5, generator=random)
    found.label_closeness.fill_(closeness)
    return found


def products():
    network = StackedProducts(TABLE, 2)
    network.means[:, :1] = torch.tensor([[0.3], [0.8]])
    shares = [[0.2, 0.5, 0.3, 0.6, 0.3, 0.1, 0.9, 0.1], [0.6, 0.2, 0.2, 0.1, 0.1, 0.8, 0.4, 0.6]]
    network.means[:, 1:] = torch.tensor(shares)
    return network


def test_features_are_those_of_linear_interpolation():
    """The oracle is numpy's, for each unit by itself."""
    random = np.random.default_rng(0)
    layout = Layout(units=2, groups=(3, 2), label=1)
    rows = torch.from_numpy(random.normal(size=(feature_count(layout), 4)))
    units = np.concatenate([random.random((50, 2)), [[0.0, 1.0], [0.25, 0.75], [0.5, 0.99999994]]]).astype(np.float32)
    codes = np.stack([random.integers(0, 3, len(units)), random.integers(0, 2, len(units))], axis=1)
    found = added_up(Encoded(units, codes), layout, rows)
    places = np.linspace(0.0, 1.0, KNOTS)
    expected = np.stack([
        sum(np.interp(units[:, u], places, rows[u * KNOTS : (u + 1) * KNOTS, j]) for u in range(2))
        + rows[2 * KNOTS + codes[:, 0], j].numpy()
        for j in range(4)
    ], axis=1)  # fmt: skip
    np.testing.assert_allclose(found, expected, atol=1e-12)
    alone = torch.cat([added_up(Encoded(units[i : i + 1], codes[i : i + 1]), layout, rows) for i in range(len(units))])
    assert torch.equal(alone, found), "a record's own"


def test_labels_are_drawn_as_the_weights_say():
    """Chi squared over component, job, wealth and label, 30,000 draws: right shares fail with a chance of 1e-4, and those
    without the closeness always."""
    network, n = labelled(products()), 15_000
    mixture = Mixture(network, torch.tensor([0.5, 0.5]))
    component = torch.arange(2).repeat_interleave(n)
    drawn = mixture.sample_components(component, torch.Generator().manual_seed(1)).codes.astype(int)
    inner, weights = network.network.means.double().numpy(), network.label_weights.double().numpy()
    counts, fits, misfits = [], [], []
    for c in range(2):
        of_unit = np.interp(inner[c, 0], np.linspace(0, 1, KNOTS), np.arange(KNOTS))
        low = int(of_unit)
        for job in range(3):
            for rich in range(2):
                rows = (drawn[c * n : (c + 1) * n, [0, 2]] == [job, rich]).all(axis=1)
                chance = inner[c, 1 + job] * inner[c, 7 + rich]
                logits = (1 - of_unit + low) * weights[low] + (of_unit - low) * weights[low + 1]
                logits = logits + weights[KNOTS + job] + weights[KNOTS + 6 + rich] + network.label_level.numpy()
                for closeness, found in ((0.7, fits), (0.0, misfits)):
                    own = np.exp(logits + closeness * np.log(inner[c, 4:7]))
                    found.extend(n * chance * own / own.sum())
                counts.extend(np.bincount(drawn[c * n : (c + 1) * n, 1][rows], minlength=3))
    counts, fits, misfits = map(np.array, (counts, fits, misfits))
    assert fits.min() > 5
    assert chisquare(counts, fits * counts.sum() / fits.sum()).pvalue > 1e-4
    assert chisquare(counts, misfits * counts.sum() / misfits.sum()).pvalue < 1e-12


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_released_and_read_again(tmp_path, name):
    mixture = Mixture(labelled(NETWORKS[name]()), torch.tensor([0.3, 0.7]))
    write_model(tmp_path, mixture)
    release = load_release(tmp_path)
    mine, again = mixture.sample(40, block_streams(5, 0)[0]), release.sample_encoded(40, 5)
    assert np.array_equal(mine.codes, again.codes) and np.array_equal(mine.units, again.units)
    made = rebuilt(mixture.network).generate((0, 3, 8), torch.Generator().manual_seed(5))
    assert torch.equal(made, mixture.network.generate((0, 3, 8), torch.Generator().manual_seed(5)))
    # Whatever else is drawn of a record is drawn already, so its label is that of this record.
    for group, span in enumerate(LAYOUT.spans):
        torch.testing.assert_close(made[:, span].sum(dim=1), torch.ones(8))
        assert group == LAYOUT.label or set(made[:, span].unique().tolist()) <= {0.0, 1.0}
    assert mixture.network.generate((0, 0, 0), torch.Generator()).shape == (0, LAYOUT.width)


def test_under_a_condition_records_have_the_conditional_distribution(tmp_path):
    """Chi squared of the other columns given the label against draws that are kept by hand: chance of a failure 1e-4."""
    mixture = Mixture(labelled(products()), torch.tensor([0.3, 0.7]))
    write_model(tmp_path, mixture)
    release = load_release(tmp_path)
    found = release.sample_encoded(6000, 1, where={"smoker": "no"}).codes.astype(int)
    assert set(found[:, 1]) == {1}
    every = release.sample_encoded(120_000, 2).codes.astype(int)
    every = every[every[:, 1] == 1]
    one, other = (np.bincount(codes[:, 0] * 2 + codes[:, 2], minlength=6) for codes in (found, every))
    assert chisquare(one, other * one.sum() / other.sum()).pvalue > 1e-4


def test_numbers_that_are_not_finite_are_found_by_the_reader(tmp_path):
    network = labelled(products())
    network.label_weights.fill_(3e38)
    write_model(tmp_path, Mixture(network, torch.ones(2)))
    with pytest.raises(NotARelease, match="not finite"):
        load_release(tmp_path).sample(5)


@pytest.mark.parametrize("changes", [{"labelled": 1}, {"labelled": None}, {"labelled": [True]}, {"labelled": False}])
def test_a_description_that_does_not_fit_is_one_line(tmp_path, changes):
    write_model(tmp_path, Mixture(labelled(products()), torch.ones(2)))
    described = json.loads((tmp_path / MODEL).read_text())
    assert described["labelled"] is True and described["model"] == "product_mixture"
    (tmp_path / MODEL).write_text(json.dumps(described | changes))
    with pytest.raises(NotARelease) as said:
        load_release(tmp_path)
    assert "\n" not in str(said.value)


OTHERS = {
    "no label": TableSchema((column_of("rich", {"type": "boolean"}),)),
    "nothing but a label": TableSchema((column_of("rich", {"type": "boolean"}),), label="rich"),
    "pictures": ImageSchema(2, 2, levels=1, classes=3),
    "baskets": BasketSchema(tuple("abc"), 2, classes=("a", "b")),
}


@pytest.mark.parametrize("schema", OTHERS.values(), ids=OTHERS)
def test_other_records_take_no_label(tmp_path, schema):
    with pytest.raises(ValueError, match="expected a label, something besides it"):
        LabelledNetwork(StackedProducts(schema, 2))
    write_model(tmp_path, Mixture(StackedProducts(schema, 2), torch.ones(2)))
    described = json.loads((tmp_path / MODEL).read_text())
    (tmp_path / MODEL).write_text(json.dumps(described | {"labelled": True}))
    # Pictures with a label have a classifier, whose numbers are not there.
    with pytest.raises(NotARelease, match=r"expected a label|is missing"):
        load_release(tmp_path)

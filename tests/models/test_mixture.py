"""The numbers and the order of the components' records in a sample."""

import numpy as np
import pytest
import torch

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.models.forests import StackedProducts
from lightning_dpgen.models.mixture import Mixture

WEIGHTS = torch.tensor([0.0, 0.35, 0.0, 0.6, 0.05, 0.0])


def a_mixture(weights=WEIGHTS):
    """Make a mixture of pictures in which each component lights a pixel of its own."""
    network = StackedProducts(ImageSchema(1, len(weights), levels=1), k=len(weights))
    network.means.copy_(torch.eye(len(weights)))
    return Mixture(network, weights)


def components(n, seed, weights=WEIGHTS):
    units = a_mixture(weights).sample(n, torch.Generator().manual_seed(seed)).units
    assert units.shape == (n, len(weights)) and (units.sum(axis=1) == 1).all()
    return units.argmax(axis=1)


@pytest.mark.parametrize("weights", [[0.5], [0.5, 0.6, -0.1], [0.0, 0.0, 0.0], [[0.2, 0.3, 0.5]]])
def test_weights_that_are_none_are_refused(weights):
    network = StackedProducts(ImageSchema(1, 3, levels=1), k=3)
    with pytest.raises(ValueError, match=r"weights: .*expected \(3,\), one for each component"):
        Mixture(network, torch.tensor(weights))


@pytest.mark.parametrize("n", [0, 1, 7, 100, 12_345])
def test_each_component_has_its_share_give_or_take_one(n):
    """The counts of 12,345 independent draws would be off by 50 and more."""
    for seed in range(20):
        counts = np.bincount(components(n, seed), minlength=len(WEIGHTS))
        assert (np.abs(counts - n * WEIGHTS.numpy()) < 1.0 + 1e-3).all() and (counts[WEIGHTS == 0.0] == 0).all()


def test_every_place_has_each_component_with_its_weight():
    """2,000 samples of three: the share at each place is off by 5 of its deviations once in a million times."""
    drawn = np.stack([components(3, seed) for seed in range(2000)])
    for place in drawn.T:
        shares = np.bincount(place, minlength=len(WEIGHTS)) / len(place)
        assert (np.abs(shares - WEIGHTS.numpy()) <= 5.0 * (WEIGHTS * (1 - WEIGHTS) / len(place)).sqrt().numpy()).all()


def test_weights_of_any_sum_are_shares():
    assert np.bincount(components(100, 0, torch.tensor([3.0, 1.0]))).tolist() == [75, 25]

"""Successive sampling: every set as often as the product of its chances in every order says."""

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from lightning_dpgen.models.outputs import successive_sample

# The first is drawn with ease; the second has an item that takes nearly all draws, so that most rows end in the race.
RATES = {"even": [1.0, 2.0, 3.0, 4.0, 0.5], "one of nearly all": [1.0, 2.0, 3000.0, 4.0, 0.5]}


def _shares(rates, size):
    """Compute the chance of each set, by its bits: the sum over its orders of each item's chance among those left."""
    shares = np.zeros(2 ** len(rates))
    for order in permutations(range(len(rates)), size):
        chance, left = 1.0, sum(rates)
        for item in order:
            chance, left = chance * rates[item] / left, left - rates[item]
        shares[sum(2**item for item in order)] += chance
    return shares


@pytest.mark.parametrize("name", RATES)
def test_every_set_has_its_share(name):
    """Chi-squared over all sets of 1 to 4 of five items: four tests a case, each a false alarm in 1 of 10^5 runs.

    Those of other rates are rejected.
    """
    n, rates = 40_000, RATES[name]
    sizes = torch.arange(n) % 5
    rows, items = successive_sample(torch.tensor(rates).expand(n, 5), sizes, torch.Generator().manual_seed(1))
    assert (torch.bincount(rows, minlength=n) == sizes).all()
    sets = np.zeros(n, int)
    np.add.at(sets, rows.numpy(), 2 ** items.numpy())
    for size in range(1, 5):
        found = np.bincount(sets[sizes.numpy() == size], minlength=32)
        for other, fits in ((rates, True), (RATES["even"][::-1], False)):
            shares = _shares(other, size)
            assert not found[shares == 0].any()
            # Rare sets are taken together.
            rare = shares * found.sum() < 10
            counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (found, shares * found.sum()))
            seen = expected > 0
            assert (chisquare(counts[seen], expected[seen]).pvalue > 1e-5) == fits, (size, fits)


def test_all_none_and_no_rows():
    rates, generator = torch.rand(3, 7) + 0.1, torch.Generator().manual_seed(0)
    rows, items = successive_sample(rates, torch.tensor([7, 0, 7]), generator)
    assert sorted(zip(rows.tolist(), items.tolist(), strict=True)) == [(row, item) for row in (0, 2) for item in range(7)]
    for n in (0, 3):
        assert [len(part) for part in successive_sample(rates[:n], torch.zeros(n, dtype=torch.int64), generator)] == [0, 0]

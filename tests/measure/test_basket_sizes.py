"""Counts of baskets by size: few large baskets are found by what they hold, and noise makes none."""

import numpy as np
import pytest
import scipy.sparse
import torch

from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.baskets import BasketSizes, ItemsBySize, PairsBySize, halves, strata
from lightning_dpgen.measure.statistics import Marginals
from lightning_dpgen.measure.workload import Measured

ITEMS, LARGE = 100, 80


def measured(many, of_large, classes=(), noise=1.0, seed=0):
    """Return layout, exact counts by bin, and noisy sizes, items and pairs: small baskets, and some of 80 of 100 items."""
    random = np.random.default_rng(seed)
    sizes = np.concatenate([random.integers(1, 7, many), np.full(of_large, LARGE)])
    held = [random.choice(ITEMS, size, replace=False) for size in sizes]
    rows = np.repeat(np.arange(len(sizes)), sizes)
    units = scipy.sparse.csr_array((np.ones(len(rows), np.uint8), (rows, np.concatenate(held))), (len(sizes), ITEMS))
    schema = BasketSchema(tuple(range(ITEMS)), max_items=ITEMS, classes=classes)
    # The large ones, which are last, have the second label.
    labels = (np.arange(len(sizes)) >= many).astype(int) if classes else None
    records, layout = Records(schema, schema.encode(units, labels)), schema.layout
    none, generator = torch.zeros(len(records), dtype=torch.int64), torch.Generator().manual_seed(seed)
    found = []
    for statistic, deviation in (
        (Marginals(layout, [tuple(range(len(layout.groups)))]), 5.0),
        (ItemsBySize(layout, strata(layout)), 4.0),
        (PairsBySize(layout, halves(layout)), 2.0),
    ):
        sums = statistic.of_all(records, none).double() * statistic.unit
        drawn = torch.randn(sums.shape, dtype=torch.float64, generator=generator)
        found.append(Measured(sums + noise * deviation * drawn, noise * deviation))
    exact = np.bincount(records.encoded.codes[:, -1], minlength=len(layout.sizes))
    return layout, exact, found


def large_of(layout, counts):
    """Return how many baskets of 80 would hold as many pairs as those of 25 and more."""
    ends = [*layout.sizes[1:], layout.most + 1]
    mean = np.array(
        [np.mean([size * (size - 1.0) for size in range(a, b)]) for a, b in zip(layout.sizes, ends, strict=True)]
    )
    return (np.asarray(counts) * mean)[..., np.array(layout.sizes) >= 24].sum() / (LARGE * (LARGE - 1))


def test_few_large_baskets_are_found_by_what_they_hold():
    """The count of a dozen is 2.4 deviations of its noise; totals tell it within 2.1 baskets, one deviation."""
    found, alone = [], []
    for seed in range(8):
        layout, _, (sizes, items, pairs) = measured(1500, 12, seed=seed)
        found.append(large_of(layout, BasketSizes.of(layout, sizes, items, pairs).counts))
        nothing = (Measured(own.sums, 1e9) for own in (items, pairs))
        alone.append(large_of(layout, BasketSizes.of(layout, sizes, *nothing).counts))
    assert np.mean(found) == pytest.approx(12.0, abs=6.0)
    assert np.std(found) < 4.5 < np.std(alone)


def test_noise_makes_hardly_any_large_basket():
    """Each of eleven bins has noise of five baskets."""
    found, noisy = [], []
    for seed in range(8):
        layout, _, (sizes, items, pairs) = measured(1500, 0, seed=seed)
        found.append(large_of(layout, BasketSizes.of(layout, sizes, items, pairs).counts))
        noisy.append(large_of(layout, sizes.sums.clamp(min=0.0)))
    assert np.mean(found) < 1.5 < np.mean(noisy)


def test_clear_counts_are_hardly_moved():
    layout, exact, found = measured(6000, 0)
    counts = BasketSizes.of(layout, *found).counts[0].numpy()
    assert np.abs(counts - exact)[:7].max() < 20.0 and counts.min() >= 0.0


def test_without_noise_counts_are_exact():
    layout, exact, found = measured(300, 3, noise=0.0)
    sizes = BasketSizes.of(layout, *found)
    assert np.array_equal(sizes.counts[0], exact)
    assert sizes.live.tolist() == [exact[np.array(strata(layout)) == own].sum() > 0 for own in range(len(sizes.size))]


def test_each_label_has_its_own_counts():
    layout, _, (sizes, items, pairs) = measured(1500, 40, classes=("a", "b"))
    for of_all in (pairs, None):
        counts = BasketSizes.of(layout, sizes, items, of_all).counts
        assert counts.shape == (2, len(layout.sizes))
        assert large_of(layout, counts[0]) < 15.0 and large_of(layout, counts[1]) == pytest.approx(40.0, abs=20.0)
        assert float(counts[0].sum()) == pytest.approx(1500.0, abs=60.0)


def test_baskets_have_several_sizes_where_none_stands_out():
    """A count that is kept alone would be that of all baskets. Ten seeds; a distribution over one size is never found."""
    for seed in range(10):
        layout, _, (sizes, items, pairs) = measured(60, 0, noise=20.0, seed=seed)
        counts = BasketSizes.of(layout, sizes, items, pairs).counts[0].numpy()
        assert np.isfinite(counts).all() and counts.min() >= 0.0 and counts.sum() > 0.0
        assert counts[0] == 0.0 and counts.max() <= 0.75 * counts.sum(), (seed, counts)


def test_nothing_measured_leaves_sizes_alike():
    layout, _, (sizes, items, pairs) = measured(3, 0)
    none = (Measured(-own.sums.abs() - 100.0, own.deviation) for own in (sizes, items, pairs))
    counts = BasketSizes.of(layout, *none).counts[0].numpy()
    assert counts[0] == 0.0 and (counts[1:] > 0.0).all()

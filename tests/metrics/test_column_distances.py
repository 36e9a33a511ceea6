"""Distances of marginals and of associations, against plain counting and numpy, and the laws of a distance."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics.records import dense, drawn, layouts, table

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics.columns import choose_pairs
from lightning_dpgen.metrics.marginals import AssociationDistance, MarginalDistance, cramers_v
from lightning_dpgen.sampling.errors import BadRecords

METRICS = {MarginalDistance: "distances", AssociationDistance: "differences"}
law = settings(max_examples=30, deadline=None)


def compared(kind, layout, real, synthetic, parts=1):
    metric = kind(layout)
    for side, is_real in ((real, True), (synthetic, False)):
        for rows in np.array_split(np.arange(len(side)), parts):
            metric.update(side[rows], real=is_real)
    return {name: value.numpy() for name, value in getattr(metric, METRICS[kind])().items()}


def total_variation(left, right):
    left, right = Counter(left), Counter(right)
    shares = [(left[key] / left.total(), right[key] / right.total()) for key in left | right]
    return sum(abs(a - b) for a, b in shares) / 2


sides = st.tuples(layouts(), st.integers(1, 30), st.integers(1, 30), st.integers(0, 99))


@law
@given(sides)
def test_marginals_are_those_of_plain_counting(case):
    layout, n, m, seed = case
    real, synthetic = drawn(layout, n, seed), drawn(layout, m, seed + 1)
    found = compared(MarginalDistance, layout, real, synthetic)
    left, right = table(real, layout), table(synthetic, layout)
    assert found["one_way"] == pytest.approx([total_variation(a, b) for a, b in zip(left, right, strict=True)], abs=1e-12)
    pairs = itertools.combinations(range(len(left)), 2)
    expected = [total_variation(zip(left[a], left[b], strict=True), zip(right[a], right[b], strict=True)) for a, b in pairs]
    assert found["two_way"] == pytest.approx(expected, abs=1e-12)


@law
@given(sides)
@pytest.mark.parametrize("kind", METRICS)
def test_laws_of_a_distance(kind, case):
    layout, n, m, seed = case
    real, synthetic = drawn(layout, n, seed), drawn(layout, m, seed + 1)
    there, back = compared(kind, layout, real, synthetic), compared(kind, layout, synthetic, real, parts=3)
    order = np.random.default_rng(seed).permutation(n)
    same = compared(kind, layout, real, real[order])
    permuted = compared(kind, layout, real[order], synthetic)
    for name, values in there.items():
        assert (values >= 0).all() and (values <= (2 if name == "units" else 1) + 1e-12).all()
        assert values == pytest.approx(back[name], abs=1e-9)
        assert values == pytest.approx(permuted[name], abs=1e-9)
        assert same[name] == pytest.approx(0.0, abs=1e-9)


@law
@given(st.integers(0, 6), st.lists(st.integers(1, 4), max_size=2), st.integers(1, 20), st.integers(0, 99))
@pytest.mark.parametrize("kind", METRICS)
def test_sparse_units_are_as_dense_ones(kind, units, groups, n, seed):
    layout = Layout(units, 1, tuple(groups))
    found = [
        compared(kind, layout, drawn(layout, n, seed, sparse), drawn(layout, n + 1, seed + 1, sparse))
        for sparse in (False, True)
    ]
    for name in found[0]:
        assert found[0][name] == pytest.approx(found[1][name], abs=1e-12)


@law
@given(st.integers(2, 5), st.sampled_from([1, 255, None]), st.integers(2, 40), st.integers(0, 99))
def test_correlations_are_those_of_numpy(units, levels, n, seed):
    layout = Layout(units, levels)
    real, synthetic = drawn(layout, n, seed), drawn(layout, n, seed + 1)
    found = compared(AssociationDistance, layout, real, synthetic)["units"]
    with np.errstate(all="ignore"):
        both = [np.nan_to_num(np.corrcoef(dense(side).astype(float).T)) for side in (real, synthetic)]
    assert found == pytest.approx(np.abs(both[0] - both[1])[np.triu_indices(units, 1)], abs=1e-6)


@law
@given(st.integers(2, 5), st.integers(2, 5), st.integers(30, 300), st.integers(0, 99))
def test_association_is_that_of_the_chi_squared_statistic(rows, width, n, seed):
    from scipy.stats.contingency import association

    codes = drawn(Layout(0, None, (rows, width)), n, seed).codes
    counts = np.zeros((rows, width))
    np.add.at(counts, tuple(codes.T), 1)
    counts = counts[counts.sum(1) > 0][:, counts.sum(0) > 0]
    if min(counts.shape) > 1:
        r, k = counts.shape
        plain = association(counts.astype(int), method="cramer")
        square = max(0.0, plain**2 * (min(r, k) - 1) - (r - 1) * (k - 1) / (n - 1))
        fewest = min(r - (r - 1) ** 2 / (n - 1), k - (k - 1) ** 2 / (n - 1)) - 1
        assert cramers_v(counts) == pytest.approx(min(1.0, np.sqrt(square / fewest)), abs=1e-12)


@pytest.mark.parametrize("counts", [np.zeros((2, 2)), [[5, 0], [3, 0]], [[1, 0], [0, 0]], np.eye(3), np.zeros((0, 3))])
def test_where_nothing_can_be_said_there_is_no_association(counts):
    assert cramers_v(np.array(counts)) == 0.0


@law
@given(st.lists(st.integers(1, 9), max_size=12), st.integers(0, 40), st.integers(0, 400), st.integers(0, 5))
def test_a_choice_of_pairs_is_of_pairs_within_the_bounds(sizes, most, cells, seed):
    sizes = np.array(sizes, dtype=np.int64)
    pairs = choose_pairs(sizes, most, cells, seed)
    assert len({tuple(pair) for pair in pairs}) == len(pairs) <= most
    assert (pairs[:, 0] < pairs[:, 1]).all() and (pairs >= 0).all() and (pairs < max(1, len(sizes))).all()
    assert sizes[pairs].prod(axis=1).sum() <= cells
    everything = choose_pairs(sizes, 100, 10**6, seed).tolist()
    assert everything == [list(pair) for pair in itertools.combinations(range(len(sizes)), 2)]


BAD = {
    "other units": (np.zeros((2, 3), np.uint8), np.zeros((2, 1), np.uint8)),
    "other groups": (np.zeros((2, 2), np.uint8), np.zeros((2, 2), np.uint8)),
    "a code beyond its group": (np.zeros((2, 2), np.uint8), np.array([[0], [3]])),
    "a code below 0": (np.zeros((2, 2), np.uint8), np.array([[0], [-1]])),
    "a unit beyond its levels": (np.full((2, 2), 2, np.uint8), np.zeros((2, 1), np.uint8)),
    "other numbers of records": (np.zeros((3, 2), np.uint8), np.zeros((2, 1), np.uint8)),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("kind", METRICS)
def test_records_of_another_layout_are_refused(kind, case):
    with pytest.raises(BadRecords):
        kind(Layout(2, 1, (3,))).update(Encoded(*BAD[case]), real=True)


def test_nan_is_refused():
    with pytest.raises(BadRecords, match="NaN"):
        MarginalDistance(Layout(1)).update(Encoded(np.array([[np.nan]], np.float32), np.zeros((1, 0), np.uint8)), real=True)


@pytest.mark.parametrize("kind", METRICS)
def test_no_records_on_one_side_are_said(kind):
    layout = Layout(2, 1, (3, 2))
    metric = kind(layout)
    metric.update(drawn(layout, 5, 0), real=True)
    metric.update(drawn(layout, 0, 0), real=False)
    with pytest.raises(ValueError, match="expected at least one"):
        metric.compute()

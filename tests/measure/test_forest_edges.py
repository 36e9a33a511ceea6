"""Edges of the forest of a table: the strongest pairs, in trees within bounds."""

import itertools

import numpy as np
import pytest

from lightning_dpgen.data.layout import Layout
from lightning_dpgen.measure import forest_fit
from lightning_dpgen.measure.pair_tables import NoisyTables

TOTAL = 10_000.0


@pytest.mark.parametrize("seed", range(20))
def test_trees_are_bounded_and_no_edge_is_left_out_that_fits(seed):
    """Strongest first: a pair is left out where its ends hang together already, or where their trees would be too large."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 60, 30).tolist()
    pairs = list(itertools.combinations(range(30), 2))
    random.shuffle(pairs)
    pairs = [tuple(pair) for pair in pairs[:200]]
    kept = forest_fit._bounded(pairs, sizes)
    tree, left = {group: {group} for group in range(30)}, iter(kept)
    following = next(left, None)
    for first, second in pairs:
        joined = tree[first] | tree[second]
        cells = sum(sizes[one] * sizes[other] for one, other in itertools.combinations(joined, 2))
        fits = len(joined) <= forest_fit._MOST_GROUPS and cells <= forest_fit.MOST_CELLS
        assert ((first, second) == following) == (fits and second not in tree[first])
        if (first, second) == following:
            tree |= dict.fromkeys(joined, joined)
            following = next(left, None)
    assert following is None


def tables_of(joint):
    """Return the exact tables of the shares (..., choices of each group) of records."""
    groups = range(joint.ndim)
    singles = {own: TOTAL * joint.sum(axis=tuple(g for g in groups if g != own))[None] for own in groups}
    pairs = {
        pair: TOTAL * joint.sum(axis=tuple(g for g in groups if g not in pair))[None]
        for pair in itertools.combinations(groups, 2)
    }
    return Layout(0, groups=joint.shape), NoisyTables(singles, pairs, 1.0, 1.0, TOTAL)


def test_columns_that_are_missing_together_come_after_those_that_follow_from_each_other(monkeypatch):
    """Two columns hold the same number, and the second is missing with a third one in a few records."""
    joint = np.zeros((5, 6, 2))
    for number in range(5):
        joint[number, number, 0] = 0.194
        joint[number, 5, 1] = 0.006
    layout, tables = tables_of(joint)
    broken = np.zeros((layout.width, layout.width), bool)
    second, third = layout.spans[1], layout.spans[2]
    broken[second, third] = np.arange(6)[:, None] < 5
    broken[second.start : second.stop - 1, third.start] = False
    broken[second.stop - 1, third.start] = True
    monkeypatch.setattr(forest_fit, "_MOST_GROUPS", 2)
    forest = forest_fit.Forest.of(layout, tables, 0, broken=broken | broken.T)
    assert [sorted(tree) for tree in forest.trees if len(tree) > 1] == [[0, 1]]
    monkeypatch.setattr(forest_fit, "_MOST_GROUPS", 3)
    forest = forest_fit.Forest.of(layout, tables, 0, broken=broken | broken.T)
    assert [sorted(tree) for tree in forest.trees] == [[0, 1, 2]]


def test_choices_that_rules_bind_beyond_edges_are_found_with_all_that_they_leave():
    """Three columns are missing together in 2 %; a rule of two choices alone leaves the third one by the second."""
    joint = np.zeros((4, 4, 4))
    joint[:3, :3, :3] = 0.98 / 27
    joint[3, 3, 3] = 0.02
    layout, tables = tables_of(joint)
    broken = np.zeros((layout.width, layout.width), bool)
    missing = np.arange(4) == 3
    for first, second in ((0, 1), (1, 2)):
        broken[layout.spans[first], layout.spans[second]] = missing[:, None] != missing
    forest = forest_fit.Forest(layout, tables.shares(), {}, (-1, -1, -1), broken | broken.T)
    ((share, left),) = forest.forced(4)
    assert abs(share - 0.02) < 1e-3 and left.tolist() == 3 * missing.tolist()
    estimates = forest_fit.estimate_pairs(tables, tables.shares(), 0)
    along = forest_fit.Forest(layout, tables.shares(), estimates, (-1, 0, 1), broken | broken.T)
    assert along.forced(4) == []

"""Edges of the forest of a table: the strongest pairs, in trees within bounds."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from lightning_dpgen.common import pace
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.measure import forest_edges, forest_fit
from lightning_dpgen.measure.forest_errors import MixtureErrors
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
    kept = forest_edges._bounded(pairs, sizes)
    tree, left = {group: {group} for group in range(30)}, iter(kept)
    following = next(left, None)
    for first, second in pairs:
        joined = tree[first] | tree[second]
        cells = sum(sizes[one] * sizes[other] for one, other in itertools.combinations(joined, 2))
        fits = len(joined) <= forest_edges._MOST_GROUPS and cells <= forest_edges.MOST_CELLS
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
    monkeypatch.setattr(forest_edges, "_MOST_GROUPS", 2)
    forest = forest_edges.Forest.of(layout, tables, 0, broken=broken | broken.T)
    assert [sorted(tree) for tree in forest.trees if len(tree) > 1] == [[0, 1]]
    monkeypatch.setattr(forest_edges, "_MOST_GROUPS", 3)
    forest = forest_edges.Forest.of(layout, tables, 0, broken=broken | broken.T)
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
    forest = forest_edges.Forest(layout, tables.shares(), {}, (), broken=broken | broken.T)
    ((share, left),) = forest.forced(4)
    assert abs(share - 0.02) < 1e-3 and left.tolist() == 3 * missing.tolist()
    estimates = forest_edges.estimate_pairs(tables, tables.shares(), 0)
    along = forest_edges.Forest(layout, tables.shares(), estimates, [(0, 1), (1, 2)], broken=broken | broken.T)
    assert along.forced(4) == []


@pytest.mark.parametrize("copied", [pytest.param(False, marks=pytest.mark.slow), True])
def test_records_of_hidden_kinds_need_no_edges_and_columns_that_follow_from_others_do(copied):
    """All columns go together, since they depend on six hidden kinds; the last one may repeat the first."""
    torch.set_num_threads(1)
    random, n, noise = np.random.default_rng(0), 20_000, 60.0
    kind, shares = random.integers(0, 6, n), random.dirichlet(np.full(5, 0.4), (8, 6))
    columns = [(own[kind].cumsum(axis=1) < random.random((n, 1))).sum(axis=1).clip(max=4) for own in shares]
    if copied:
        columns[7] = columns[0]
    counts, drawn = {}, {}
    for groups in [*((group,) for group in range(8)), *itertools.combinations(range(8), 2)]:
        counts[groups] = np.zeros((1, *(5 for _ in groups)))
        np.add.at(counts[groups], (0, *(columns[group] for group in groups)), 1.0)
        drawn[groups] = np.sqrt(noise**2 + counts[groups]) * random.standard_normal(counts[groups].shape)
        counts[groups] += noise * random.standard_normal(counts[groups].shape)

    def moved(by):
        singles, pairs = ({k: counts[k] + by * drawn[k] for k in counts if len(k) == size} for size in (1, 2))
        deviation = noise * np.hypot(1.0, by)
        return NoisyTables({group: own for (group,), own in singles.items()}, pairs, deviation, deviation, float(n))

    forest = forest_edges.Forest.of(Layout(0, groups=(5,) * 8), moved(0.0), 0)
    assert len(forest.strong) > 8
    assert ((0, 7) in forest.strong[:1]) == copied
    seen, held_out = moved(0.7), moved(-1.0 / 0.7)
    alone = dataclasses.replace(forest, strong=())
    begin = forest_fit._Logarithms.near(alone, 20, 0)
    with pace.stage("fitting") as progress:
        reached = forest_fit._descend(MixtureErrors(alone, seen), begin, forest_fit._USUAL, 120, 0.2, progress)
    needless = forest_fit._needless(forest, forest.strong, reached.fit(alone), seen, held_out, 0)
    assert len(needless) > len(forest.strong) / 2 and not (copied and (0, 7) in needless)


@pytest.mark.parametrize("farther, kept", [(0.9, True), (1.1, False)])
def test_weak_edges_are_left_out_where_fits_without_them_are_nearer_by_more_than_chance(farther, kept, monkeypatch):
    """Two pairs go together: 0.28 nats are an edge anyway, 0.07 are tried; their table has six cells."""
    joint = np.einsum("ab,cd->abcd", [[0.22, 0.16, 0.12], [0.08, 0.14, 0.28]], [[0.45, 0.05], [0.1, 0.4]])
    layout, tables = tables_of(joint)
    tables = dataclasses.replace(tables, single_deviation=50.0, pair_deviation=50.0)
    forest = forest_edges.Forest.of(layout, tables, 0)
    weak, strong = (forest.estimates[pair].information for pair in ((0, 1), (2, 3)))
    assert forest_edges._STRONG < weak < forest_fit._CLEAR < strong and len(forest.edges) == 2

    def distance(errors, fit):
        return 1_000.0 + farther * 2.0 * np.sqrt(6.0) * (sum(parent >= 0 for parent in fit.parents) - 1)

    monkeypatch.setattr(forest_fit, "_distance", distance)
    monkeypatch.setattr(forest_fit, "_needless", lambda *_: set())
    fit = forest_fit.fit_forest(forest, tables, lambda _: (tables, tables), 4, 0, steps=5)
    assert (sum(parent >= 0 for parent in fit.parents) == 2) == kept


def test_pairs_of_which_the_label_tells_are_no_edges_where_tables_are_by_label():
    """Two columns go together by the label alone, and two others for each label alike."""
    of_label = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    together = np.array([[0.4, 0.1], [0.1, 0.4]])
    joint = np.einsum("l,la,lb,cd->labcd", [0.5, 0.5], of_label, of_label, together)
    layout, tables = tables_of(joint)
    assert {(1, 2), (3, 4)} <= set(forest_edges.Forest.of(layout, tables, 0).strong)
    groups = range(1, 5)
    singles = {g: TOTAL * joint.sum(axis=tuple({1, 2, 3, 4} - {g})) for g in groups}
    pairs = {(a, b): TOTAL * joint.sum(axis=tuple({1, 2, 3, 4} - {a, b})) for a, b in itertools.combinations(groups, 2)}
    by_label = dataclasses.replace(tables, singles=singles, pairs=pairs, label=0)
    forest = forest_edges.Forest.of(layout, by_label, 0)
    assert list(forest.strong) == [(3, 4)] and (1, 2) in forest.estimates
    # A rule may bind the label, which has no table by itself then.
    broken = np.zeros((layout.width, layout.width), bool)
    broken[layout.spans[0].start, layout.spans[1].start] = True
    ruled = forest_edges.Forest.of(layout, by_label, 0, broken=broken | broken.T)
    assert set(ruled.strong) == {(0, 1), (3, 4)}


def test_components_of_columns_that_are_independent_are_all_alike():
    """Nothing is tried then: what components told would be noise, and would tie columns by threes and fours."""
    shares = [np.array([0.2, 0.3, 0.5]), np.array([0.6, 0.4]), np.array([0.1, 0.9])]
    layout, tables = tables_of(np.einsum("a,b,c->abc", *shares))
    tables = dataclasses.replace(tables, single_deviation=50.0, pair_deviation=50.0)
    forest = forest_edges.Forest.of(layout, tables, 0)
    fit = forest_fit.fit_forest(forest, tables, lambda _: (tables, tables), 5, 0, steps=150)
    every = torch.cat([table[0] for table in fit.tables]) * fit.tilts
    for span, own in zip(layout.spans, shares, strict=True):
        made = every[:, span] / every[:, span].sum(dim=1, keepdim=True)
        assert np.abs(made.numpy() - own).max() < 0.02


def test_the_table_of_an_edge_follows_its_estimate_and_not_the_noise_of_each_cell():
    torch.set_num_threads(1)
    places, random = np.arange(16), np.random.default_rng(0)
    smooth = np.exp(-np.square(places[:, None] - places) / 8.0)
    layout, tables = tables_of(smooth / smooth.sum())
    shares, noise = tables.pairs[0, 1] / tables.total, 30.0
    counts = tables.pairs[0, 1] + noise * random.standard_normal((1, 16, 16))
    tables = dataclasses.replace(tables, pairs={(0, 1): counts}, single_deviation=noise, pair_deviation=noise)
    told = forest_edges.Forest.of(layout, tables, 0)

    def distance_of(estimate):
        forest = dataclasses.replace(told, estimates={(0, 1): dataclasses.replace(told.estimates[0, 1], shares=estimate)})
        fit = forest_fit.fit_forest(forest, tables, lambda _: (tables, tables), 4, 0, steps=150)
        (child,) = (group for group, parent in enumerate(fit.parents) if parent >= 0)
        # Components are alike.
        made = fit.tables[1 - child][0][:, None] * fit.tables[child]
        return 0.5 * np.abs((made if child else made.T).numpy() - shares[0]).sum()

    assert distance_of(shares[0]) < 0.05 < 0.15 < distance_of(counts[0] / tables.total)

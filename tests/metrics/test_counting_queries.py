"""Counting queries against plain sets, the law of their lengths, and rows of the protocol on a real data set."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_dpgen.metrics.baskets import SANITY, BasketDistance, CountingQueryError, queries_together, uniform_queries

law = settings(max_examples=50, deadline=None)


def baskets(n, items, seed):
    random = np.random.default_rng(seed)
    return (random.random((n, items)) < random.random(items)).astype(np.uint8)


def errors(queries, real, synthetic):
    metric = CountingQueryError(queries)
    for part in np.array_split(np.arange(real.shape[0]), 2):
        metric.update(real[part], real=True)
    metric.update(synthetic, real=False)
    return {name: values.numpy() for name, values in metric.errors().items()}


@law
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 8), st.integers(0, 99), st.booleans())
def test_errors_are_those_of_plain_sets(n, m, items, seed, sparse):
    real, synthetic = baskets(n, items, seed), baskets(m, items, seed + 1)
    queries = uniform_queries(items, items, np.random.default_rng(seed), count=10)
    asked = [set(np.flatnonzero(row)) for row in queries.toarray()]
    kind = scipy.sparse.csr_array if sparse else np.asarray
    found = errors(queries, kind(real), kind(synthetic))
    for reading, holds in (("all", set.issuperset), ("any", lambda held, query: bool(held & query))):
        for query, error in zip(asked, found[reading], strict=True):
            counts = [sum(holds(set(np.flatnonzero(row)), query) for row in side) for side in (real, synthetic)]
            estimate = counts[1] * n / m
            assert error == pytest.approx(abs(estimate - counts[0]) / max(counts[0], SANITY * n))


@law
@given(st.integers(1, 20), st.integers(1, 8), st.integers(0, 99))
def test_laws_of_baskets(n, items, seed):
    real = baskets(n, items, seed)
    queries = uniform_queries(items, items, np.random.default_rng(seed), count=5)
    shuffled = real[np.random.default_rng(seed).permutation(n)]
    assert all((values == 0).all() for values in errors(queries, real, np.concatenate([shuffled, shuffled])).values())
    other = baskets(n + 3, items, seed + 1)
    found = []
    for sides in ((real, other), (other, real), (scipy.sparse.csr_array(real), other), (real, shuffled)):
        metric = BasketDistance(items)
        metric.update(sides[0], real=True)
        metric.update(sides[1], real=False)
        found.append({name: float(value) for name, value in metric.compute().items()})
    assert found[0] == pytest.approx(found[1]) and found[0] == found[2]
    assert all(0.0 <= value <= 1.0 + 1e-12 for value in found[0].values())
    assert set(found[3].values()) == {0.0}


def test_lengths_are_uniform_and_items_do_not_repeat():
    queries = uniform_queries(9, 5, np.random.default_rng(0), count=5000)
    assert queries.data.max() == 1 and (np.diff(queries.indptr) == queries.sum(axis=1)).all()
    lengths = np.bincount(np.diff(queries.indptr), minlength=6)
    # Five shares and nine items, each within five standard deviations: false alarms in about 1 of 100,000 seeds.
    assert lengths[0] == 0 and np.abs(lengths[1:] - 1000).max() < 5 * np.sqrt(5000 * 0.2 * 0.8)
    items = np.asarray(queries.sum(axis=0))
    share = np.mean([1, 2, 3, 4, 5]) / 9
    assert np.abs(items - 5000 * share).max() < 5 * np.sqrt(5000 * share * (1 - share))


@law
@given(st.integers(1, 30), st.integers(2, 8), st.integers(0, 99))
def test_items_taken_together_are_in_one_basket(n, items, seed):
    real = baskets(n, items, seed)
    if real.sum(axis=1).max() < 2:
        with pytest.raises(ValueError, match="no basket has two items"):
            queries_together(real, np.random.default_rng(seed))
        return
    queries = queries_together(real, np.random.default_rng(seed), count=20).toarray()
    assert ((queries.sum(axis=1) >= 2) & (queries.sum(axis=1) <= 4) & (queries.max(axis=1) == 1)).all()
    assert ((real[:, None] >= queries[None]).all(axis=2)).any(axis=0).all()


@pytest.mark.parametrize("longest", [0, 6])
def test_queries_longer_than_the_universe_are_refused(longest):
    with pytest.raises(ValueError, match="expected 1 to 5"):
        uniform_queries(5, longest, np.random.default_rng(0))


def test_queries_that_do_not_fit_are_refused():
    metric = CountingQueryError(uniform_queries(5, 2, np.random.default_rng(0)))
    with pytest.raises(ValueError, match="expected 5"):
        metric.update(np.zeros((2, 4), np.uint8), real=True)
    with pytest.raises(ValueError, match="no items"):
        CountingQueryError(scipy.sparse.csr_array((1, 5), dtype=np.int8))
    with pytest.raises(ValueError, match="expected 3"):
        BasketDistance(3).update(np.zeros((2, 4), np.uint8), real=True)


def test_baskets_that_are_all_empty():
    for synthetic, distance in ((np.zeros((3, 4), np.uint8), 0.0), (np.ones((3, 4), np.uint8), 1.0)):
        metric = BasketDistance(4)
        metric.update(np.zeros((2, 4), np.uint8), real=True)
        metric.update(synthetic, real=False)
        assert [float(value) for value in metric.compute().values()] == [distance, distance]


@pytest.mark.slow
def test_rows_of_the_protocol_on_bms_webview_1():
    """Empty baskets, and independent items with the exact shares, score as in an independent program."""
    path = Path(os.environ.get("DPGEN_DATA", "data")) / "bms_webview1" / "BMS1.dat.gz"
    if not path.is_file():
        pytest.skip("BMS-WebView-1 is not there")
    with gzip.open(path, "rt") as file:
        rows = [np.unique(np.array(line.split(), dtype=int)) for line in file]
    names, places = np.unique(np.concatenate(rows), return_inverse=True)
    starts = np.cumsum([0] + [len(row) for row in rows])
    real = scipy.sparse.csr_array((np.ones(len(places), np.uint8), places, starts), shape=(len(rows), len(names)))
    random = np.random.default_rng(0)
    shares = np.asarray(real.mean(axis=0))
    parts = [scipy.sparse.csr_array((random.random((5000, len(names))) < shares).astype(np.uint8)) for _ in range(12)]
    independent = scipy.sparse.vstack(parts, format="csr")
    empty = scipy.sparse.csr_array((len(rows), len(names)), dtype=np.uint8)
    largest = int(np.diff(real.indptr).max())
    # Five draws of 1,000 queries: in sets 1 and 5 of random items the few that are short decide, so these vary by a fifth.
    found = {}
    for name, synthetic in (("empty", empty), ("independent", independent)):
        for number, longest in ((1, largest // 5), (5, largest)):
            draws = [errors(uniform_queries(len(names), longest, random), real, synthetic) for _ in range(5)]
            for reading in ("all", "any"):
                found[name, number, reading] = np.mean([draw[reading] for draw in draws])
        found[name, "together"] = errors(queries_together(real, random), real, synthetic)["all"].mean()
    assert found["empty", 1, "any"] == pytest.approx(1.0, abs=0.01)
    assert found["empty", 1, "all"] == pytest.approx(0.020, abs=0.006)
    assert found["empty", 5, "all"] == pytest.approx(0.002, abs=0.003)
    assert found["independent", 1, "all"] == pytest.approx(0.003, abs=0.002)
    assert found["independent", 1, "any"] == pytest.approx(0.086, abs=0.012)
    assert found["independent", 5, "any"] == pytest.approx(0.115, abs=0.012)
    assert found["empty", "together"] == pytest.approx(0.447, abs=0.05)
    assert found["independent", "together"] == pytest.approx(0.407, abs=0.05)


def test_queries_together_ask_for_what_is_held():
    """Places that are stored as 0, or twice, are no items of a basket."""
    plain = scipy.sparse.csr_array(np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]], np.int8))
    ones, places = np.array([1, 1, 0, 1, 1, 1, 0, 1], np.int8), np.array([0, 1, 3, 1, 2, 2, 0, 3])
    stored = scipy.sparse.csr_array((ones, places, np.array([0, 3, 6, 8])), shape=(3, 4))
    for baskets in (plain, stored):
        found = queries_together(baskets, np.random.default_rng(0), count=20).toarray()
        assert found.max() == 1 and {tuple(row) for row in found.tolist()} <= {(1, 1, 0, 0), (0, 1, 1, 0)}
    assert stored.nnz == 8

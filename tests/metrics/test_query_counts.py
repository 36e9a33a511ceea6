"""Counts of bits are those of a product of matrices, however many baskets, items and queries there are."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import lightning_dpgen.metrics.baskets as metric
from lightning_dpgen.metrics.baskets import QueryCounts


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(0, 300), items=st.integers(1, 40), count=st.integers(1, 140), share=st.floats(0.0, 1.0),
    asked=st.floats(0.0, 1.0), sparse=st.booleans(), most=st.sampled_from([1, 64, 100, 4096]), seed=st.integers(0, 999),
)  # fmt: skip
def test_counts_are_those_of_a_product(n, items, count, share, asked, sparse, most, seed):
    random = np.random.default_rng(seed)
    baskets = (random.random((n, items)) < share * random.random((n, 1))).astype(np.uint8)
    queries = random.random((count, items)) < asked * random.random(items)
    queries[np.arange(count), random.integers(0, items, count)] = True
    overlap = baskets.astype(int) @ queries.T.astype(int)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metric, "_MOST_ROWS", most)
        all_of, any_of = QueryCounts(scipy.sparse.csr_array(queries)).of(
            scipy.sparse.csr_array(baskets) if sparse else baskets
        )
    assert np.array_equal(all_of, (overlap == queries.sum(axis=1)).sum(axis=0))
    assert np.array_equal(any_of, (overlap > 0).sum(axis=0))


def test_repeated_entries_and_zeros_count_as_sets():
    parts = (np.array([1, 1, 0, 1]), np.array([2, 2, 0, 1]), np.array([0, 3, 4]))
    baskets = scipy.sparse.csr_array(parts, shape=(2, 3))
    found = QueryCounts(scipy.sparse.csr_array(parts, shape=(2, 3))).of(baskets)
    assert [counts.tolist() for counts in found] == [[1, 1], [1, 1]]

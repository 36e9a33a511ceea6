"""Counting queries on baskets, the DPGM paper's measure: the number of baskets that hold all, or any, of some items."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from torch import Tensor

from lightning_dpgen.metrics.query_counts import QueryCounts
from lightning_dpgen.metrics.two_sided import TwoSided
from lightning_dpgen.sampling.csr import mark_entries

# A true answer below this share of the baskets counts as this share: the paper's sanity bound.
SANITY = 0.001
QUERIES = 1000
# Numbers of items that are taken together from one basket, to test which go together.
TOGETHER = (2, 4)


class CountingQueryError(TwoSided):
    """Mean relative error of a set of counting queries, ``|estimate - true| / max(true, 0.1 % of N)``.

    The estimate is the share of synthetic baskets times the N real ones, so the sides may differ in size. A query is read
    in two ways: baskets that hold ALL its items, and baskets that hold ANY of them (the paper does not say which).

    Args:
        queries: (Q, items) of 0 and 1, CSR, at least one item in each row; see `uniform_queries` and `queries_together`.

    Example:
        >>> metric = CountingQueryError(scipy.sparse.csr_array(np.array([[1, 1, 0]])))
        >>> metric.update(np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1], [1, 1, 1]], np.uint8), real=True)
        >>> metric.update(np.array([[1, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]], np.uint8), real=False)
        >>> {name: round(float(value), 3) for name, value in metric.compute().items()}
        {'all': 0.5, 'any': 0.667}
    """

    def __init__(self, queries: scipy.sparse.csr_array, **kwargs) -> None:
        if not np.asarray(scipy.sparse.csr_array(queries).sum(axis=1)).all():
            raise ValueError("a counting query of no items: expected at least one item in each")
        counts = QueryCounts(queries)
        super().__init__({"all_of": (counts.count,), "any_of": (counts.count,)}, **kwargs)
        self.counts = counts

    def update(self, baskets: np.ndarray | scipy.sparse.csr_array, *, real: bool) -> None:
        """Take in baskets (N, items) of 0 and 1 of one side, dense or CSR.

        Raises:
            ValueError: for another number of items than the queries have.
        """
        if baskets.shape[1] != self.counts.items:
            raise ValueError(f"baskets of {baskets.shape[1]} items: expected {self.counts.items}, as the queries have")
        all_of, any_of = self.counts.of(baskets)
        self._add(real, baskets.shape[0], all_of=all_of, any_of=any_of)

    def errors(self) -> dict[str, Tensor]:
        """Return the relative error of each query, ``all`` and ``any`` (Q,).

        Raises:
            ValueError: where one side has no basket.
        """
        found = {}
        for name, counts in (("all", self.all_of), ("any", self.any_of)):
            synthetic, real = counts.double() / self._counts()
            found[name] = (synthetic - real).abs() / real.clamp(min=SANITY)
        return found

    def compute(self) -> dict[str, Tensor]:
        """Return the means over the queries, ``all`` and ``any``; 0 is exact, and there is no largest value."""
        return {name: values.mean() for name, values in self.errors().items()}


def uniform_queries(
    items: int, longest: int, random: np.random.Generator, *, count: int = QUERIES
) -> scipy.sparse.csr_array:
    """Draw queries (count, items) of lengths uniform on 1 to `longest`, their items from all without repeats.

    The paper's set i of five has a fifth, two fifths, ... of the largest basket as its longest.

    Raises:
        ValueError: for a longest query outside 1 to the number of items.

    Example:
        >>> queries = uniform_queries(50, 4, np.random.default_rng(0), count=300)
        >>> queries.shape, np.unique(queries.sum(axis=1)).tolist()
        ((300, 50), [1, 2, 3, 4])
    """
    if not 1 <= longest <= items:
        raise ValueError(f"longest={longest}: expected 1 to {items}, the number of items")
    lengths = random.integers(1, longest, size=count, endpoint=True)
    return _queries([random.choice(items, length, replace=False, shuffle=False) for length in lengths], items)


def queries_together(
    baskets: np.ndarray | scipy.sparse.csr_array, random: np.random.Generator, *, count: int = QUERIES
) -> scipy.sparse.csr_array:
    """Draw queries (count, items) of 2 to 4 items taken together from one basket. Private if the baskets are.

    Read as ALL they ask which items go together, as hardly any query of random items does.

    Args:
        baskets: (N, items) of 0 and 1. A query's length is uniform from 2 to 4, or to the size of the largest basket if
            that is less; its items are some of one basket, drawn from those that have as many.

    Raises:
        ValueError: where no basket has two items.

    Example:
        >>> baskets = np.array([[0, 1, 1, 0], [1, 0, 0, 0]], np.uint8)
        >>> queries_together(baskets, np.random.default_rng(0), count=2).toarray().tolist()
        [[0, 1, 1, 0], [0, 1, 1, 0]]
    """
    baskets = mark_entries(scipy.sparse.csr_array(baskets))
    sizes = np.diff(baskets.indptr)
    shortest, longest = TOGETHER[0], min(TOGETHER[1], int(sizes.max(initial=0)))
    if longest < shortest:
        raise ValueError("no basket has two items: there is nothing that goes together to ask for")
    lengths = random.integers(shortest, longest, size=count, endpoint=True)
    ascending = np.argsort(sizes, kind="stable")
    drawn = ascending[random.integers(np.searchsorted(sizes[ascending], lengths), len(sizes))]
    chosen = [
        random.choice(baskets.indices[baskets.indptr[row] : baskets.indptr[row + 1]], length, replace=False)
        for row, length in zip(drawn, lengths, strict=True)
    ]
    return _queries(chosen, baskets.shape[1])


def _queries(chosen: list[np.ndarray], items: int) -> scipy.sparse.csr_array:
    ends = np.cumsum([0] + [len(query) for query in chosen])
    places = np.concatenate(chosen)
    return scipy.sparse.csr_array((np.ones(len(places), np.int32), places, ends), shape=(len(chosen), items))

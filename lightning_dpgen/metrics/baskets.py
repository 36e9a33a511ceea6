"""Baskets: how often items are bought, how many at a time, and the DPGM paper's counting queries of some items."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from torch import Tensor

from lightning_dpgen.metrics.measure import Plot, Result, register
from lightning_dpgen.metrics.sides import EncodedSides, TwoSided, compare, curves_of_both, named_scores
from lightning_dpgen.sampling.csr import mark_entries

# Baskets that are taken at a time, fewer if they would have more cells of (items asked for, baskets) than this: so the
# work stays in the processor's cache.
_MOST_ROWS, _CELLS, _WORD = 1 << 12, 1 << 24, 64


class QueryCounts:
    """Counting queries, prepared once for any number of baskets.

    For ANY, each item is a row of bits, one for each query that names it, and the rows of a basket's items are joined. For
    ALL, each item is a row of bits, one for each basket that holds it, and the rows of a query's items are intersected;
    hardly any query has a basket left after three items.

    Args:
        queries: (Q, items) CSR, not 0 for items that are asked for; at least one in each row.

    Example:
        >>> counts = QueryCounts(scipy.sparse.csr_array(np.array([[1, 1, 0], [0, 0, 1]])))
        >>> counts.of(scipy.sparse.csr_array(np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]])))
        (array([1, 0]), array([2, 0]))
    """

    def __init__(self, queries: scipy.sparse.csr_array) -> None:
        queries = mark_entries(scipy.sparse.csr_array(queries))
        self.count, self.items = queries.shape
        asked, columns = np.unique(queries.indices, return_inverse=True)
        # The place of each item among those that are asked for.
        self._column = np.full(self.items, -1)
        self._column[asked] = np.arange(len(asked))
        self._asked, self._starts, self._lengths = columns, queries.indptr[:-1], np.diff(queries.indptr)
        named = np.zeros((len(asked), -(-self.count // _WORD) * _WORD), bool)
        named[columns, np.repeat(np.arange(self.count), self._lengths)] = True
        self._named = _packed(named)

    def of(self, baskets: np.ndarray | scipy.sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
        """Count the baskets (N, items), dense or CSR, that hold ALL and ANY of each query's items: (Q,) int64 each."""
        all_of, any_of = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        step = max(_WORD, min(_MOST_ROWS, _CELLS // len(self._named)))
        for start in range(0, baskets.shape[0], step):
            block = scipy.sparse.csr_array(baskets[start : start + step])
            held = block.data != 0
            column = self._column[block.indices[held]]
            row = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))[held][column >= 0]
            column = column[column >= 0]
            # A power of two, so that halves can be added.
            rows = 1 << max(6, (block.shape[0] - 1).bit_length())
            all_of += self._all(row, column, rows)
            any_of += self._any(row, column, rows)
        return all_of, any_of

    def _all(self, row: np.ndarray, column: np.ndarray, rows: int) -> np.ndarray:
        held = np.zeros((len(self._named), rows), bool)
        held[column, row] = True
        bits = _packed(held)
        counts, rest = np.zeros(self.count, np.int64), np.arange(self.count)
        both = bits[self._asked[self._starts]]
        for taken in range(1, int(self._lengths.max()) + 1):
            done = self._lengths[rest] == taken
            counts[rest[done]] = np.unpackbits(both[done].view(np.uint8), axis=1).sum(axis=1)
            on = ~done & both.any(axis=1)
            rest = rest[on]
            if not len(rest):
                break
            both = both[on] & bits[self._asked[self._starts[rest] + taken]]
        return counts

    def _any(self, row: np.ndarray, column: np.ndarray, rows: int) -> np.ndarray:
        sizes = np.bincount(row, minlength=rows)
        # The largest baskets first, so that those which have one more item are always the first ones.
        order = np.argsort(-sizes, kind="stable")
        starts, sizes = (np.cumsum(sizes) - sizes)[order], sizes[order]
        hit = np.zeros((rows, self._named.shape[1]), np.uint64)
        for taken in range(int(sizes[0])):
            some = np.searchsorted(-sizes, -taken)
            hit[:some] |= self._named[column[starts[:some] + taken]]
        return _column_sums(hit)[: self.count]


def _packed(bits: np.ndarray) -> np.ndarray:
    """Pack truth values (n, 64 w) into words (n, w)."""
    return np.packbits(bits, axis=1).view(np.uint64)


def _column_sums(bits: np.ndarray) -> np.ndarray:
    """Count (64 w,) the words (rows, w) that have each bit; rows are a power of two.

    Halves are added, again and again, as binary numbers whose digits lie in one array each.
    """
    digits = [bits]
    while len(digits[0]) > 1:
        half = len(digits[0]) // 2
        carry, added = np.zeros_like(digits[0][:half]), []
        for digit in digits:
            first, second = digit[:half], digit[half:]
            either = first ^ second
            added.append(either ^ carry)
            carry = (first & second) | (either & carry)
        digits = [*added, carry]
    return sum(np.unpackbits(digit.view(np.uint8)).astype(np.int64) << power for power, digit in enumerate(digits))


# The part of the private report that shows baskets, and sizes that find room side by side.
_HEADING, _SMALL = "Items and baskets", 30
# A true answer below this share of the baskets counts as this share: the paper's sanity bound.
SANITY = 0.001
QUERIES = 1000
# Sets of queries whose lengths go up to a fifth, two fifths, ... of the largest basket, as in the DPGM paper.
QUERY_SETS = 5
# Numbers of items that are taken together from one basket, to test which go together.
TOGETHER = (2, 4)


class BasketDistance(TwoSided):
    """Total variation distances between the items bought, and between the sizes of baskets: 0 equal, 1 disjoint.

    Example:
        >>> metric = BasketDistance(3)
        >>> metric.update(np.array([[1, 1, 0], [1, 0, 1]], np.uint8), real=True)
        >>> metric.update(np.array([[1, 0, 0], [1, 0, 1]], np.uint8), real=False)
        >>> {name: round(float(value), 3) for name, value in metric.compute().items()}
        {'items': 0.25, 'sizes': 0.5}
    """

    def __init__(self, items: int, **kwargs) -> None:
        super().__init__({"items": (items,), "sizes": (items + 1,)}, **kwargs)

    def update(self, baskets: np.ndarray | scipy.sparse.csr_array, *, real: bool) -> None:
        """Take in baskets (N, items) of 0 and 1 of one side, dense or CSR.

        Raises:
            ValueError: for another number of items.
        """
        if baskets.shape[1] != self.items.shape[1]:
            raise ValueError(f"baskets of {baskets.shape[1]} items: expected {self.items.shape[1]}")
        held = scipy.sparse.csr_array(baskets) != 0
        sizes = np.bincount(np.asarray(held.sum(axis=1)), minlength=self.sizes.shape[1])
        self._add(real, baskets.shape[0], items=np.asarray(held.sum(axis=0)), sizes=sizes)

    def shares(self) -> dict[str, Tensor]:
        """Return the shares of baskets that hold each item, ``items`` (2, items), and that have each size from 0, ``sizes``
        (2, items + 1); synthetic first.

        Raises:
            ValueError: where one side has no basket.
        """
        counts = self._counts()
        return {name: getattr(self, name).double() / counts for name in ("items", "sizes")}

    def compute(self) -> dict[str, Tensor]:
        """Return the distance of ``items``, as shares of all that is bought, and of ``sizes``, as shares of baskets."""
        shares = self.shares()
        bought = shares["items"].sum(dim=1, keepdim=True)
        if bought.all():
            items = 0.5 * (shares["items"] / bought).diff(dim=0).abs().sum()
        else:
            items = bought.any().double()
        return {"items": items, "sizes": 0.5 * shares["sizes"].diff(dim=0).abs().sum()}


@register(
    "baskets", section="items and baskets", place=10, better="lower",
    says="Total variation distance between what is bought, and between the sizes of baskets.",
    glance={"items bought, total variation": "distance of items bought",
            "basket sizes, total variation": "distance of basket sizes"},
)  # fmt: skip
def _compare_baskets(sides: EncodedSides) -> Result:
    metrics = compare(BasketDistance(sides.layout.units), sides, lambda encoded: encoded.units)
    words = {"items": "items bought, total variation", "sizes": "basket sizes, total variation"}
    items, sizes = (curves_of_both(metrics[0].shares()[name]) for name in words)
    ranked = {side: np.sort(shares)[::-1] for side, shares in items.items()}
    # Shares of 0 are not on a logarithmic axis.
    ranked = {side: np.where(shares > 0, shares, np.nan) for side, shares in ranked.items()}
    largest = 1 + max(int(np.flatnonzero(shares).max(initial=0)) for shares in sizes.values())
    sized = {side: np.where(shares > 0, shares, np.nan)[:largest] for side, shares in sizes.items()}
    share = "share of baskets"
    by_rank = {"alt": "item shares by rank", "along": "rank", "up": share, "scales": ("log", "log")}
    scales = ("linear" if largest <= _SMALL else "symlog", "log")
    by_size = {"alt": "basket sizes", "along": "items in a basket", "up": share, "at": range(largest), "scales": scales}
    plots = [
        Plot(_HEADING, "Items by how often they are bought", "lines", ranked | by_rank),
        Plot(_HEADING, "Each item", "scatter", items | {"alt": "item shares, real and synthetic", "of": share}),
        Plot(_HEADING, "Sizes of baskets", "lines", sized | by_size),
    ]
    return Result(*named_scores(metrics, words), plots=plots)


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
        errors = {}
        for name, counts in (("all", self.all_of), ("any", self.any_of)):
            synthetic, real = counts.double() / self._counts()
            errors[name] = (synthetic - real).abs() / real.clamp(min=SANITY)
        return errors

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


@register(
    "baskets", section="counting queries", place=40, better="lower",
    says="How many baskets hold all, or any, of some items: mean relative error of 1,000 random queries in each row, true "
    "answers below 0.1 % of the baskets counted as that. Few baskets hold many random items, so answering 0 does well "
    "where all are asked for; items taken together test which go together.",
    glance={"all of 2 to 4 items taken together": "error of items together"},
)  # fmt: skip
def _ask(sides: EncodedSides) -> Result | str:
    """Ask five sets of random items, and items that were taken together."""
    baskets = sides.real.units
    largest = int(np.asarray((baskets != 0).sum(axis=1)).max(initial=0))
    if not largest:
        return "all real baskets are empty: no item to ask for"
    random = np.random.default_rng(sides.seed)
    results = [{} for _ in sides.compared]
    for number in range(1, QUERY_SETS + 1):
        longest = max(1, number * largest // QUERY_SETS)
        metric = CountingQueryError(uniform_queries(sides.layout.units, longest, random))
        for scores, beside in zip(results, compare(metric, sides, lambda encoded: encoded.units), strict=True):
            for reading, value in beside.compute().items():
                scores[f"{reading}, set {number}: of up to {longest} items"] = float(value)
    if largest > 1:
        metric = CountingQueryError(queries_together(baskets, random))
        for scores, beside in zip(results, compare(metric, sides, lambda encoded: encoded.units), strict=True):
            scores["all of 2 to 4 items taken together"] = float(beside.compute()["all"])
    # All queries that ask for ALL before those that ask for ANY.
    results = [dict(sorted(scores.items(), key=lambda score: score[0].startswith("any"))) for scores in results]
    synthetic, *real = ([value for name, value in scores.items() if name.startswith("any")] for scores in results)
    axes = {"along": "longest query, % of the largest basket", "up": "relative error", "at": range(20, 101, 20)}
    content = {"synthetic": synthetic, "alt": "errors of counting queries"} | axes
    plots = [Plot(_HEADING, "Queries for any of some items", "lines", {"real": own} | content) for own in real]
    return Result(*results, plots=plots)

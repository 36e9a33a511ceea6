"""Baskets without a universe, for a mechanism that finds it privately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.baskets.files import Entries, entries_in_memory, entries_of
from lightning_dpgen.data.baskets.form import BasketForm
from lightning_dpgen.data.baskets.sets import as_sets
from lightning_dpgen.data.names import shown, whole_numbers
from lightning_dpgen.data.numbers import texts_of
from lightning_dpgen.data.reading import Numbering
from lightning_dpgen.sampling.errors import BadRecords


@dataclass(frozen=True, eq=False, repr=False)
class BasketKeys:
    """Baskets as they are, for a mechanism that finds their universe privately. Private.

    Args:
        indptr: (N + 1,) int64, where the items of each basket begin in `ids`.
        ids: (E,) int32, places in `names`; each basket's own are different, and in order.
        names: all that occur, sorted.
    """

    indptr: np.ndarray
    ids: np.ndarray
    names: pa.Array


def basket_keys(source: Any, *, integers: bool = False, form: BasketForm | None = None) -> BasketKeys:
    """Return all baskets of a source without a schema; every one of its names is private.

    Args:
        source: as for `read_baskets`, but no matrix.
        integers: whether items are publicly declared to be whole numbers, since a look at them would tell.
        form: the form of the baskets, with a label to leave out or without.

    Raises:
        MissingData: if there is no such file.
        BadRecords: for what cannot be read, or an item that is no whole number where all were declared to be.

    Example:
        >>> keys = basket_keys([["tea", "bread"], [], ["tea"]])
        >>> keys.indptr.tolist(), keys.ids.tolist(), keys.names.to_pylist()
        ([0, 2, 2, 3], [0, 1, 1], ['bread', 'tea'])
    """
    if isinstance(source, list | tuple):
        blocks = iter([entries_in_memory(source, None, None)])
    else:
        blocks = entries_of(source, form or BasketForm())
    numbers, kept, n = Numbering(), [], 0
    for entries in blocks:
        items = _whole(entries) if integers else texts_of(entries.items)
        kept.append((entries.baskets, numbers.of(items)))
        n = max(n, int(entries.heads.max(initial=-1)) + 1)
    names = sorted(numbers.known)
    ranks = np.empty(len(names), np.int64)
    ranks[[numbers.known[name] for name in names]] = np.arange(len(names))
    baskets = np.concatenate([np.empty(0, np.int64), *(pair[0] for pair in kept)])
    ids = np.concatenate([np.empty(0, np.int64), *(ranks[pair[1]] for pair in kept)])
    indptr, ids = as_sets(baskets, ids, n, max(1, len(names)))
    return BasketKeys(indptr, ids, pa.array(names, pa.int64() if integers else pa.string()))


def _whole(entries: Entries) -> pa.Array:
    values = whole_numbers(entries.items)
    wrong = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
    if len(wrong):
        first = int(wrong[0])
        item = shown(entries.items[first].as_py())
        raise BadRecords(f"{entries.place(first)}: the item {item} is not a whole number: all were declared to be")
    return values

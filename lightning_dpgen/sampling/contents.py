"""Looks through all records of a store: whether they are finite, and a digest of them."""

from __future__ import annotations

import hashlib

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.sampling.dataset_store import DatasetStore, choices_of
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.stores import Store

# Records that are looked at together.
_ROWS = 4096


def check_finite(store: Store) -> None:
    """Look through all records once, in blocks, before anything is spent.

    Items of a Dataset are known only when they are fetched, so they pass unseen: if such a record is not finite, it adds
    exact zeros to the gradient later.

    Raises:
        BadRecords: for NaN or infinite values. The message names no record, so it may be shown.

    Example:
        >>> from lightning_dpgen.sampling.as_store import store_of
        >>> check_finite(store_of(np.array([[0.0, np.nan]])))
        Traceback (most recent call last):
        lightning_dpgen.sampling.errors.BadRecords: the records hold NaN or infinite values: replace or drop them first
    """
    for block in store.blocks():
        # The sum is quick, and finite only if all numbers are; it may overflow where they are finite.
        if block.is_floating_point() and not block.sum().isfinite() and not block.isfinite().all():
            raise BadRecords("the records hold NaN or infinite values: replace or drop them first")


def check_same_records(ranks: Ranks, store: Store) -> None:
    """Check that all ranks hold the same records in the same order.

    Raises:
        RanksDiffer: in every rank, naming one that differs.
    """
    if ranks.size > 1:
        ranks.assert_equal("number of records", len(store))
        ranks.assert_equal("content or order of records", content(store))


def content(store: Store) -> bytes:
    """Return a private digest of all records in their order.

    Items of a Dataset may be drawn, so they are left out: it is empty, but for the places that a `Subset` of torch chose,
    since a split without a seed chooses others each time.
    """
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(store, DatasetStore):
        choices, _ = choices_of(store.dataset)
        for places in choices:
            digest.update(np.asarray(places, dtype=np.int64))
        return digest.digest() if choices else b""
    for start in range(0, len(store), _ROWS):
        for part in tree_leaves(store.stretch(slice(start, min(start + _ROWS, len(store))))):
            arrays = (part.data, part.indices, part.indptr) if scipy.sparse.issparse(part) else (_as_bytes(part),)
            for array in arrays:
                digest.update(np.ascontiguousarray(array))
    return digest.digest()


def _as_bytes(values: Tensor) -> np.ndarray:
    return values.contiguous().flatten().view(torch.uint8).numpy()

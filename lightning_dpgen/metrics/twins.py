"""Identical records: held-out ones that stand among those that were learned from, or among synthetic ones. Private."""

from __future__ import annotations

import hashlib

import numpy as np
import scipy.sparse
from scipy.stats import binom

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.metrics.columns import blocks
from lightning_dpgen.sampling.csr import mark_entries

# The share of the held-out records that would be new, at least so much of which is found where they are copies; and the
# chance that as many are found where they are none.
_COPIED, _BY_CHANCE = 0.5, 1e-3
COPIES = "WARNING: these look like copies of records that were learned from, so that attacks find nothing"


def told_twins(held_out: Encoded, real: Encoded, synthetic: Encoded, seen: str = "as the model sees records") -> str:
    """Tell in one line how many held-out records are identical to others, and warn where they seem to be copies.

    Records of few columns coincide. The share of real records that are identical to another one estimates the share that
    does so without any copy (Good 1953). Where at least half of the held-out records that should be new are not, and more
    than by chance, they are called copies.

    Args:
        real: all records that were learned from.
        seen: the way in which records are compared, in words.

    Example:
        >>> codes = np.arange(40, dtype=np.uint8)[:, None]
        >>> records = Encoded(np.zeros((40, 0), np.uint8), codes)
        >>> found, *_ = told_twins(records[:10], records[10:], records[9:11]).split("; ")
        >>> found
        'as the model sees records, 0 of 10 held-out ones (0 %) are identical to one that was learned from'
        >>> COPIES in told_twins(records[:10], records, records[9:11])
        True
    """
    own, learned, made = (_digests(part) for part in (held_out, real, synthetic))
    _, counts = np.unique(learned, return_counts=True)
    doubled = int(counts[counts > 1].sum())
    found, drawn = (int(np.isin(own, others).sum()) for others in (learned, made))
    shares = (found / len(own), doubled / len(learned), drawn / len(own), float(np.isin(learned, made).mean()))
    copied, twins, like_made, learned_like_made = map(_percent, shares)
    line = (
        f"{seen}, {found:,} of {len(own):,} held-out ones ({copied}) are identical to one that "
        f"was learned from; of those learned from {twins} are to another; {drawn:,} held-out ones ({like_made}) are to a "
        f"synthetic one; of those learned from {learned_like_made} are"
    )
    expected = (doubled + 1) / (len(learned) + 2)
    new = found / len(own) >= expected + _COPIED * (1.0 - expected)
    return f"{line}; {COPIES}" if new and binom.sf(found - 1, len(own), expected) < _BY_CHANCE else line


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def _digests(encoded: Encoded) -> np.ndarray:
    """Return a number (N,) for each record, equal for identical ones; others share one with a chance of 2^-64."""
    found = []
    for block in blocks(encoded, encoded.units.shape[1]):
        codes, units = block.codes.astype(np.int32), block.units
        if scipy.sparse.issparse(units):
            rows = [places.tobytes() for places in _places(units)]
        else:
            # Types of other readers are brought together; adding 0 makes a negative zero positive.
            kind = np.float32 if units.dtype.kind == "f" else np.int32
            rows = [row.tobytes() for row in np.ascontiguousarray(units.astype(kind) + kind(0))]
        found += [
            hashlib.blake2b(row + own.tobytes(), digest_size=8).digest() for row, own in zip(rows, codes, strict=True)
        ]
    return np.frombuffer(b"".join(found), np.uint64)


def _places(units: scipy.sparse.csr_array) -> list[np.ndarray]:
    """Return the places of the ones of each record, in order."""
    tidy = mark_entries(units)
    return np.split(tidy.indices.astype(np.int32), tidy.indptr[1:-1])

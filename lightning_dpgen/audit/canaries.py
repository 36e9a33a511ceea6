"""Canaries: records that are made up from a schema alone, and the coins that decide which of them take part."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from lightning_dpgen.data.layout import Encoded, smallest_integer
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.privacy.noise.stream import PrivateStream


def canaries_of(schema: Schema, count: int, seed: int = 0) -> Records:
    """Draw `count` records whose numbers are as uniform as the schema allows; public.

    Args:
        seed: seed of these numbers, public.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> len(canaries_of(ImageSchema(2, 2, levels=1), 5))
        5
    """
    layout, random = schema.layout, np.random.default_rng(seed)
    codes = np.stack([random.integers(choices, size=count) for choices in layout.groups] or [np.empty(count)], axis=1)[
        :, : len(layout.groups)
    ].astype(smallest_integer(max(layout.groups, default=1)))
    if layout.most is not None:
        sizes = [_held(layout, code[-1:], random) for code in codes]
        held = [np.sort(random.choice(layout.units, size=size, replace=False)) for size in sizes]
        ends = np.cumsum([0, *map(len, held)])
        places = np.concatenate([np.empty(0, np.int64), *held])
        ones = np.ones(len(places), np.uint8)
        return Records(schema, Encoded(scipy.sparse.csr_array((ones, places, ends), shape=(count, layout.units)), codes))
    if layout.levels is None:
        units = random.random((count, layout.units)).astype(np.float32)
    else:
        # Only the two ends: nothing is farther from the rest.
        units = (layout.levels * random.integers(2, size=(count, layout.units))).astype(smallest_integer(layout.levels))
    return Records(schema, Encoded(units, codes))


def _held(layout, size: np.ndarray, random: np.random.Generator) -> int:
    """Draw the number of units that a record with this code of its size holds."""
    if not layout.sizes:
        return int(random.integers(1, layout.most + 1))
    ends = [*(first - 1 for first in layout.sizes[1:]), layout.most]
    return min(int(random.integers(layout.sizes[int(size[0])], ends[int(size[0])] + 1)), layout.units)


def coins(count: int) -> np.ndarray:
    """Toss a coin (count,) for each canary, which takes part if it is True: fair, secret and independent."""
    return PrivateStream().integers(count, 2).astype(bool)

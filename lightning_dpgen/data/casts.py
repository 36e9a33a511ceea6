"""The first value that Arrow cannot cast."""

from __future__ import annotations

import pyarrow as pa


def first_misfit(values: pa.Array, kind: pa.DataType) -> int | None:
    """Return the place of the first value that cannot be cast to this type; None if all can be.

    Example:
        >>> first_misfit(pa.array(["1", "x", "3", "y"]), pa.int64())
        1
    """
    # The first `good` can be cast, the first `bad` cannot.
    good, bad = 0, len(values) + 1
    while bad - good > 1:
        # All of them first.
        middle = len(values) if bad > len(values) else (good + bad) // 2
        try:
            values.slice(good, middle - good).cast(kind)
            good = middle
        except pa.ArrowInvalid:
            bad = middle
    return None if good == len(values) else good

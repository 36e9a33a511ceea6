"""The bound of records that follows from their layout."""

from __future__ import annotations

import math

from lightning_dpgen.data.layout import Layout


def default_radius(layout: Layout) -> float:
    """Return the L2 bound that records are clipped to for the means.

    Where a record is one choice of each group, its length is known. Other records without a known norm, such as pictures,
    are kept whole if at most a fifth of their numbers are 1.

    Example:
        >>> default_radius(Layout(units=0, groups=(3, 40, 2, 9))), default_radius(Layout(units=100))
        (2.0, 5.5)
    """
    if layout.norm is not None:
        return layout.norm
    return 0.45 * math.sqrt(layout.width) + 1.0 if layout.units else math.sqrt(len(layout.groups))

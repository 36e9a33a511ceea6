"""A public hash of whole numbers, by which choices look random and depend on nothing else."""

from __future__ import annotations

import numpy as np

_STEP, _FIRST, _SECOND = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def mixed(values: np.ndarray) -> np.ndarray:
    """Mix uint64 by SplitMix64 (Steele, Lea and Flood 2014): a bijection that looks random.

    Example:
        >>> f"{mixed(np.zeros(1, np.uint64))[0]:x}"
        'e220a8397b1dcdaf'
    """
    values = values + _STEP
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))

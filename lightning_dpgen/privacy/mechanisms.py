"""The only door to noise: a mechanism draws against an open access and nowhere else."""

from __future__ import annotations

import math

from torch import Tensor

from lightning_dpgen.privacy.account import OpenAccess


def gaussian(access: OpenAccess, name: str, values: Tensor, *, sensitivity: float) -> Tensor:
    """The Gaussian mechanism: add noise of standard deviation ``multiplier * sensitivity`` to `values`, in place.

    Args:
        access: an open access; its ledger line is on disk already.
        name: which of its noises to use up; the multiplier comes from the plan and not from the caller.
        values: a contiguous float tensor, exact and private; after the call it is noisy and public.
        sensitivity: the largest L2 change of all of `values` when one record is added or removed. Stacked blocks of
            which a record touches one have the sensitivity of one block.

    Guarantee:
        Gaussian-DP with ``mu = 1 / multiplier`` for one record added or removed (Dong, Roth and Su 2019, Theorem 1),
        up to the low-order bits of floating point (docs/PRIVACY.md, "What is not claimed").
        With multiplier 0 (the non-private twin) the values are returned as they are.

    Raises:
        LedgerError: if the access is closed or the noise was drawn already.
        ValueError: if the sensitivity is not positive and finite while noise is due.
    """
    multiplier = access.take(name)
    if multiplier == 0.0:
        return values
    if not (sensitivity > 0.0 and math.isfinite(sensitivity)):
        raise ValueError(f"sensitivity={sensitivity} of {name!r}: expected a positive finite number")
    return access.stream.add_normal_(values, multiplier * sensitivity)

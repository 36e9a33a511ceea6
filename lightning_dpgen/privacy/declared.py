"""The declared number of records: it stands in the plan, and all other parts take it from there."""

from __future__ import annotations

import math
from typing import SupportsIndex

from lightning_dpgen.privacy.number_arguments import check_number, read_whole
from lightning_dpgen.privacy.plan import Plan

# Far more than rounding moves a product, and far less than one record.
_ROUNDING = 1e-6


def declared_records(plan: Plan, n: SupportsIndex | None) -> int:
    """Return the declared number of records: the plan's, or `n` where the plan has none.

    Raises:
        ValueError: if neither says it, or they differ, or `n` is no whole number.
    """
    if n is None:
        if plan.n is None:
            raise ValueError("n=None: the plan has no number of records: pass the declared one, or plan with n=...")
        return plan.n
    n = read_whole("n", n, of=" of records")
    if plan.n not in (None, n):
        raise ValueError(f"n={n}: the plan was made for n={plan.n} records: leave n out, or make the plan for {n}")
    return n


def expected_lot_size(plan: Plan, stage: str, size: float | None, number: int = 0) -> float:
    """Return the expected number of records in a lot of a stage: rate times declared number, or `size` without a number.

    Args:
        size: what the caller takes it for; None leaves it to the plan.
        number: the number of accesses of the stage that come before.

    Raises:
        ValueError: if neither the plan nor `size` says it, if they differ by more than rounding, or for a size that is no
            positive number.
    """
    rate = plan.stage(stage).access_at(number).sample_rate
    if size is None:
        if plan.n is None:
            raise ValueError(
                "expected_batch_size=None: the plan has no number of records: pass sample_rate * n, or plan with n=..."
            )
        return rate * plan.n
    check_number("expected_batch_size", size, lambda value: 0.0 < value < math.inf, "above 0, finite")
    if plan.n is not None and not math.isclose(size, rate * plan.n, rel_tol=_ROUNDING):
        raise ValueError(
            f"expected_batch_size={size:g}: the plan says sample_rate * n = {rate:g} * {plan.n} = {rate * plan.n:g}: leave "
            "it out, or make the plan with other numbers"
        )
    return size

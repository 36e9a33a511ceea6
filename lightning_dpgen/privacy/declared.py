"""The declared number of records: it stands in the plan, and all other parts take it from there."""

from __future__ import annotations

import math

from lightning_dpgen.privacy.plan import Plan

# Far more than rounding moves a product, and far less than one record.
_ROUNDING = 1e-6


def declared_records(plan: Plan, n: int | None) -> int:
    """Return the declared number of records: the plan's, or `n` where the plan has none.

    Raises:
        ValueError: if neither says it, or they differ.
    """
    if n is None and plan.n is None:
        raise ValueError("n=None: the plan has no number of records: hand over the declared one, or plan with n=...")
    if None not in (n, plan.n) and n != plan.n:
        raise ValueError(f"n={n}: the plan was made for n={plan.n} records: leave n out, or make the plan for {n}")
    return plan.n if n is None else n


def expected_lot_size(plan: Plan, stage: str, size: float | None) -> float:
    """Return the expected number of records in a lot of a stage: rate times declared number, or `size` without a number.

    Raises:
        ValueError: if neither the plan nor `size` says it, if they differ by more than rounding, or for a size that is no
            positive number.
    """
    rate = plan.stage(stage).access.sample_rate
    if size is None:
        if plan.n is None:
            raise ValueError(
                "expected_batch_size=None: the plan has no number of records: hand over sample_rate * n, or plan with n=..."
            )
        return rate * plan.n
    if not (size > 0 and math.isfinite(size)):
        raise ValueError(f"expected_batch_size={size}: expected a positive number")
    if plan.n is not None and not math.isclose(size, rate * plan.n, rel_tol=_ROUNDING):
        raise ValueError(
            f"expected_batch_size={size:g}: the plan says sample_rate * n = {rate:g} * {plan.n} = {rate * plan.n:g}: leave "
            "it out, or make the plan with other numbers"
        )
    return size

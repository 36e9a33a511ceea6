"""The declared number of records: it stands in the plan, and all other parts take it from there."""

from __future__ import annotations

import math
import warnings
from typing import SupportsIndex

from lightning_dpgen.common.number_arguments import check_number, read_whole
from lightning_dpgen.privacy.plan import Plan

# Far more than rounding moves a product, and far less than one record.
_ROUNDING = 1e-6
# A declared number that is so many times the true one, or one in so many, is worth a word.
_FAR = 1.1


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


def declared_warning(n: int, records: int, *, setting: str = "n", shown: bool = False) -> str | None:
    """Return a warning of a declared number that is far from the number of records that take part; None for another.

    It is private, as that number is: it is said at the curator's terminal and in files of theirs alone.

    Args:
        setting: the name by which the caller declares it.
        shown: whether the warning says the number of records.
    """
    if n / _FAR <= records <= n * _FAR:
        return None
    part = f" (private, stays here: {records:,} record{'s take' if records != 1 else ' takes'} part)" if shown else ""
    return (
        f"{setting}={n:,} is far from the number of records{part}: sums are divided by {setting}, so less is learned; it "
        "must be a public number, not one that is read off the data"
    )


def warn_of_declared(n: int | None, records: int) -> None:
    """Warn of a declared number, if there is one, that is far from the number of records that take part."""
    if n is not None and (warning := declared_warning(n, records)) is not None:
        warnings.warn(warning, stacklevel=3)


def expected_lot_size(plan: Plan, stage: str, size: float | None) -> float:
    """Return the expected number of records in a lot of a stage: rate times declared number, or `size` without a number.

    Args:
        size: what the caller takes it for; None leaves it to the plan.

    Raises:
        ValueError: if neither the plan nor `size` says it, if they differ by more than rounding, or for a size that is no
            positive number.
    """
    rate = plan.stage(stage).access.sample_rate
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

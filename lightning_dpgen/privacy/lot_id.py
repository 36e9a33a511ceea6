"""The identity of a draw of records, which ties gradients to the one sampled lot that they are computed from."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class LotId:
    """One draw of records, for one access.

    `Account.sample` issues the draws that an access may be opened against. One that is made by hand belongs to records
    that no sampler has drawn: gradients may be computed from them, but no step can be taken.

    Args:
        stage: the stage of the plan that the records were drawn for.
        size: the number of records; private.
        parts: the number of processes that have a part of the lot each.
    """

    stage: str | None = None
    size: int | None = field(default=None, repr=False)
    parts: int = 1

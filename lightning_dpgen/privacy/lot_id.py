"""The identity of a draw of records: what ties gradients to the one sampled lot that they are computed from."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class LotId:
    """One draw of records, for one access.

    `Account.sample` issues the draws that an access may be opened against. One that is made by hand belongs to records
    that no sampler has drawn: gradients may be computed of them, and no step can be taken.

    Args:
        stage: of the plan, for an access of which the records were drawn.
        size: how many records they are; private.
        parts: among how many processes the lot is divided, of which each has a part.
    """

    stage: str | None = None
    size: int | None = field(default=None, repr=False)
    parts: int = 1

"""Conditions on synthetic records: how long records are drawn until enough fit, and what is said when too few do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# A draw is given up after so many records for each that is asked for, or so many in all,
MOST_DRAWN_EACH, MOST_DRAWN = 1_000, 100_000
# and after so many as soon as that would hardly be enough.
FIRST_LOOK = 1_000_000


class TooRare(ValueError):
    """The model makes too few records that fit the conditions."""


def check_rate(where: Mapping[str, Any], n: int, found: int, drawn: int) -> None:
    """Give up a draw of n records that has come to its end, or that hardly ever would come to a good one.

    Raises:
        TooRare: naming the rate: of those `drawn` so far, `found` fit the conditions.

    Example:
        >>> check_rate({"sex": "F"}, n=5_000, found=3_000, drawn=2_000_000)
        >>> check_rate({"sex": "F"}, n=100_000, found=104, drawn=1_000_000)
        Traceback (most recent call last):
        lightning_dpgen.release.rejection.TooRare: where sex=F: 104 of 1,000,000 records drawn fit, about 1 in 9,615, and \
100,000 were asked for: ask for 10 at most, or set fewer conditions
    """
    most = max(MOST_DRAWN, MOST_DRAWN_EACH * n)
    # Five standard deviations more than were seen, so that a draw that would succeed is hardly ever given up.
    at_most = (found + 5.0 * math.sqrt(found) + 25.0) / max(1, drawn) * most
    if drawn < most and (drawn < FIRST_LOOK or at_most >= n):
        return
    rate = f", about 1 in {drawn / found:,.0f}" if found else ""
    enough = found * MOST_DRAWN // drawn
    advice = f"ask for {enough:,} at most, or set fewer conditions" if enough else "set fewer conditions"
    said = ", ".join(f"{column}={'' if value is None else value}" for column, value in where.items())
    raise TooRare(f"where {said}: {found:,} of {drawn:,} records drawn fit{rate}, and {n:,} were asked for: {advice}")

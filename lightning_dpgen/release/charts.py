"""Small bar charts as inline SVG: crisp at any size, readable aloud, without a script."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from lightning_dpgen.release.lettering import printable

_WIDTH, _ROW, _LETTERS = 300, 19, 17
_HIGH, _BASE = 96, 112


def ranked(names: Sequence[str], shares: np.ndarray, said: str) -> Markup:
    """Horizontal bars, one below the other, each with its name and share.

    Args:
        names: of the bars, from the top.
        shares: (names,) in [0, 1].
        said: what the chart shows, for those who do not see it.
    """
    left, right = 118, 44
    top = max(float(np.max(shares, initial=0.0)), 1e-12)
    rows = Markup("").join(
        Markup(
            '<text class="name" x="{}" y="{}" text-anchor="end">{}</text>'
            '<rect x="{}" y="{}" width="{:.1f}" height="13" rx="1.5"/>'
            '<text x="{:.1f}" y="{}">{}</text>'
        ).format(
            left - 7, 13 + _ROW * i, printable(name, _LETTERS), left, 3 + _ROW * i, _long(share / top, left, right),
            left + _long(share / top, left, right) + 5, 13 + _ROW * i, percent(share),
        )
        for i, (name, share) in enumerate(zip(names, shares, strict=True))
    )  # fmt: skip
    return _svg(_ROW * len(names) + 2, said, rows)


def histogram(shares: np.ndarray, low: str, high: str, said: str, apart: Sequence[tuple[str, float]] = ()) -> Markup:
    """Upright bars side by side, and a few that stand apart.

    Args:
        shares: (bars,) in [0, 1].
        low, high: what is written under the first and the last bar.
        said: what the chart shows, for those who do not see it.
        apart: names and shares of bars that are no part of the range, such as missing values.
    """
    room = 46 * len(apart)
    step = (_WIDTH - 40 - room) / max(1, len(shares))
    top = max(float(np.max(shares, initial=0.0)), max((share for _, share in apart), default=0.0), 1e-12)
    gap = 1.0 if step > 3 else 0.0
    bars = [(36 + i * step, step - gap, float(share)) for i, share in enumerate(shares)]
    lone = [(_WIDTH - room + 46 * i + 12, 22, share) for i, (_, share) in enumerate(apart)]
    drawn = Markup("").join(
        Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"{}/>').format(
            x, _BASE - _HIGH * share / top, width, _HIGH * share / top, Markup(' class="apart"') if i >= len(bars) else ""
        )
        for i, (x, width, share) in enumerate(bars + lone)
    )
    words = [(36.0, "start", printable(low, 20)), (_WIDTH - 4.0 - room, "end", printable(high, 20))]
    words += [(x + 11, "middle", printable(name, 8)) for (x, _, _), (name, _) in zip(lone, apart, strict=True)]
    text = Markup("").join(
        Markup('<text x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(x, _BASE + 15, anchor, word)
        for x, anchor, word in words
    )
    axis = Markup(
        '<line class="grid" x1="36" x2="{0}" y1="{1}" y2="{1}"/><text x="30" y="{2}" text-anchor="end">{3}</text>'
    )
    return _svg(_BASE + 20, said, drawn + axis.format(_WIDTH - 4, _BASE, _BASE - _HIGH + 9, percent(top)) + text)


def percent(share: float) -> str:
    """A share as people write it.

    Example:
        >>> percent(0.5), percent(0.004), percent(0.0), percent(0.00001)
        ('50%', '0.4%', '0%', '<0.1%')
    """
    if 0.0 < share < 0.001:
        return "<0.1%"
    return f"{share:.1%}" if 0.0 < share < 0.0095 else f"{share:.0%}"


def _long(part: float, left: int, right: int) -> float:
    return max(0.6, part * (_WIDTH - left - right)) if part > 0 else 0.0


def _svg(height: int, said: str, inner: Markup) -> Markup:
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, height, said, inner
    )

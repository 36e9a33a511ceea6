"""Small charts of a public page as inline SVG: crisp at any size, readable aloud, without a script.

They are a tenth of the size of matplotlib's and are drawn at once: a page holds dozens. Plots with scales of their own are
matplotlib's (`private_plots`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from lightning_dpgen.release.text import printable

_WIDTH, _ROW, _LETTERS = 300, 19, 17
_HIGH, _BASE = 96, 112


def ranked(names: Sequence[str], shares: np.ndarray, said: str, top: float | None = None) -> Markup:
    """Horizontal bars, one below the other, each with its name and share.

    Args:
        names: of the bars, from the top.
        shares: (names,) in [0, 1].
        said: what the chart shows, for those who do not see it.
        top: the share of the longest bar that there could be; None for the largest of these.
    """
    left, right = 130, 44
    top = float(np.max(shares, initial=0.0)) if top is None else top
    rows = Markup("").join(
        Markup(
            '<text class="name" x="{}" y="{}" text-anchor="end">{}</text>'
            '<rect x="{}" y="{}" width="{:.1f}" height="13" rx="1.5"/>'
            '<text x="{:.1f}" y="{}">{}</text>'
        ).format(
            left - 7, 13 + _ROW * i, printable(name, _LETTERS), left, 3 + _ROW * i, width, left + width + 5, 13 + _ROW * i,
            percent(share),
        )
        for i, (name, share) in enumerate(zip(names, shares.tolist(), strict=True))
        for width in [max(0.6, share / top * (_WIDTH - left - right)) if share else 0.0]
    )  # fmt: skip
    return _svg(_ROW * len(names) + 2, said, rows)


def histogram(shares: np.ndarray, low: str, high: str, said: str) -> Markup:
    """Upright bars side by side.

    Args:
        shares: (bars,) in [0, 1].
        low, high: what is written under the first and the last bar.
        said: what the chart shows, for those who do not see it.
    """
    left, right = 36, _WIDTH - 4
    step = (right - left) / max(1, len(shares))
    gap = 1.0 if step > 3 else 0.0
    top = float(np.max(shares, initial=0.0))
    bars = Markup("").join(
        Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            left + i * step, _BASE - _HIGH * share / top, step - gap, _HIGH * share / top
        )
        for i, share in enumerate(shares.tolist())
        if share
    )
    axis = Markup(
        '<line class="grid" x1="{0}" x2="{1}" y1="{2}" y2="{2}"/><text x="{3}" y="{4}" text-anchor="end">{5}</text>'
        '<text x="{0}" y="{6}">{7}</text><text x="{1}" y="{6}" text-anchor="end">{8}</text>'
    ).format(left, right, _BASE, left - 6, _BASE - _HIGH + 9, percent(top), _BASE + 15, printable(low), printable(high))
    return _svg(_BASE + 20, said, bars + axis)


def epsilon_curve(curve: Sequence[tuple[float, float]]) -> Markup | None:
    """Return epsilon over delta as one line; None for fewer than two points.

    Args:
        curve: pairs of delta and epsilon.
    """
    points = [(-math.log10(delta), epsilon) for delta, epsilon in curve]
    if len(points) < 2:
        return None
    top = max(epsilon for _, epsilon in points) * 1.15
    width, height, left, bottom = 520, 220, 48, 34

    def x(exponent: float) -> float:
        return left + (exponent - points[0][0]) / (points[-1][0] - points[0][0]) * (width - left - 26)

    def y(epsilon: float) -> float:
        return (height - bottom) * (1 - epsilon / top) + 6

    line = " ".join(f"{x(e):.1f},{y(epsilon):.1f}" for e, epsilon in points)
    ticks = "".join(f'<text x="{x(e):.1f}" y="{height - 14}" text-anchor="middle">1e-{e:.0f}</text>' for e, _ in points)
    levels = "".join(
        f'<line x1="{left}" x2="{width - 26}" y1="{y(v):.1f}" y2="{y(v):.1f}" class="grid"/>'
        f'<text x="{left - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.3g}</text>'
        for v in (0.0, top / 1.15 / 2, top / 1.15)
    )
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="epsilon over delta">{levels}'
        f'<polyline points="{line}"/>{ticks}<text x="{width / 2}" y="{height}" text-anchor="middle">delta</text></svg>'
    )


def percent(share: float) -> str:
    """A share as people write it.

    Example:
        >>> percent(0.5), percent(0.004), percent(0.0), percent(0.00001)
        ('50%', '0.4%', '0%', '<0.1%')
    """
    if 0.0 < share < 0.001:
        return "<0.1%"
    return f"{share:.1%}" if 0.0 < share < 0.0095 else f"{share:.0%}"


def _svg(height: int, said: str, inner: Markup) -> Markup:
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, height, said, inner
    )

"""Small charts of a public page as inline SVG: crisp at any size, readable aloud, without a script.

They are a tenth of the size of matplotlib's and are drawn at once: a page holds dozens. Plots with scales of their own are
matplotlib's (`private_plots`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from lightning_dpgen.release.pages.text import printable

_WIDTH, _ROW, _LETTERS = 300, 19, 17
_HIGH, _BASE = 96, 112
# Rows of a scatter plot, and the part of them that its axes span: a few far ones would squeeze the rest.
_SHOWN, _WITHIN = 1000, 0.99


def ranked(names: Sequence[str], shares: np.ndarray, alt: str, top: float | None = None) -> Markup:
    """Draw horizontal bars from the top, each with its name and share.

    Args:
        shares: (names,) in [0, 1].
        alt: the content of the chart, for those who do not see it.
        top: the share of a bar of full length; None for the largest of these.
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
    return _svg(_ROW * len(names) + 2, alt, rows)


def histogram(shares: np.ndarray, low: str, high: str, alt: str) -> Markup:
    """Draw upright bars for shares (bars,) in [0, 1], with the texts `low` and `high` under the first and the last."""
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
    return _svg(_BASE + 20, alt, bars + axis)


def epsilon_curve(curve: Sequence[tuple[float, float]]) -> Markup | None:
    """Draw epsilon over delta as one line through these pairs of delta and epsilon; None for fewer than two."""
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


def scatter(rows: np.ndarray) -> Markup:
    """Draw the first rows by their first two columns (by their place and their only column, if there is one)."""
    rows = rows[:_SHOWN].astype(np.float64)
    across, up = (rows[:, 0], rows[:, 1]) if rows.shape[1] > 1 else (np.arange(len(rows), dtype=np.float64), rows[:, 0])
    width, height = 520, 320
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>'
        for x, y in zip(_placed(across, 8, width - 8), _placed(up, height - 8, 8), strict=True)
        if 0.0 <= x <= width and 0.0 <= y <= height
    )
    names = ("projected_0", "projected_1") if rows.shape[1] > 1 else ("row", "projected_0")
    return Markup(
        f'<svg viewBox="0 0 {width} {height + 18}" role="img" aria-label="released rows"><rect width="{width}" '
        f'height="{height}" fill="none" class="grid"/><g class="dots">{dots}</g>'
        f'<text x="{width / 2}" y="{height + 14}" text-anchor="middle">the first {len(rows):,} rows: {names[0]} across, '
        f"{names[1]} up</text></svg>"
    )


def _placed(values: np.ndarray, start: float, end: float) -> np.ndarray:
    """Place values on an axis that holds most of them."""
    low, high = np.quantile(values, [(1.0 - _WITHIN) / 2.0, (1.0 + _WITHIN) / 2.0])
    return start + (values - low) / max(high - low, 1e-30) * (end - start)


def percent(share: float) -> str:
    """Write a share as people do.

    Example:
        >>> percent(0.5), percent(0.004), percent(0.0), percent(0.00001)
        ('50%', '0.4%', '0%', '<0.1%')
    """
    if 0.0 < share < 0.001:
        return "<0.1%"
    return f"{share:.1%}" if 0.0 < share < 0.0095 else f"{share:.0%}"


def _svg(height: int, alt: str, inner: Markup) -> Markup:
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, height, alt, inner
    )

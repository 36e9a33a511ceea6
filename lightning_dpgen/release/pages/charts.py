"""Small charts of a page as inline SVG: crisp at any size, readable aloud, without a script.

They are a tenth of the size of matplotlib's and are drawn at once: a page holds dozens. Plots with scales of their own are
matplotlib's (`private_plots`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from lightning_dpgen.release.pages.text import printable

_WIDTH, _ROW, _LETTERS, _SHORT = 300, 19, 17, 13
_HIGH, _BASE = 96, 112
# The colours of marks, of which the last is also that of missing ones, and the height of a person's line.
_COLOURS = ("var(--accent)", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#8c6bb1", "#8d6e3f", "var(--real)")
_LINE = 15
# Letters of what is said of a chart.
_ALT = 1000
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


def transitions(
    shares: np.ndarray, before: np.ndarray, names: Sequence[str], alt: str, framed: np.ndarray | None = None
) -> Markup:
    """Draw how often each choice (across) comes after each other one (down), in percent.

    Args:
        shares: (names, names), which add up to 1 in each row; NaN of a choice that nothing comes after.
        before: (names,) share of each choice among those that something comes after.
        framed: (names, names), the cells that have a frame.
    """
    # Names that are too long for their place, such as ranges of prices, are written closer.
    closer = [name if len(name) <= _SHORT else name.replace(" to ", "\N{EN DASH}") for name in names]
    left, right, short = 126, 4, [printable(name, _SHORT) for name in closer]
    cell = min(36.0, (_WIDTH - left - right) / max(1, len(names)))
    foot, parts = cell * len(names), []
    for row, name in enumerate(short):
        middle = cell * (row + 0.5) + 4
        told = Markup(
            '<g text-anchor="end"><text class="name" x="{}" y="{:.1f}">{}</text><text x="{}" y="{:.1f}">{}</text></g>'
        )
        parts.append(told.format(left - 38, middle, name, left - 6, middle, percent(float(before[row]))))
        for column in np.flatnonzero(~np.isnan(shares[row])).tolist():
            share, x = float(shares[row, column]), left + cell * column
            frame = ' class="frame"' if framed is not None and framed[row, column] else ""
            parts.append(
                Markup(
                    f'<rect x="{x + 1:.1f}" y="{cell * row + 1:.1f}" width="{cell - 2:.1f}" height="{cell - 2:.1f}"'
                    f' fill-opacity="{0.06 + 0.94 * share:.2f}"{frame}/><text class="{"over" if share > 0.65 else "name"}"'
                    f' x="{x + cell / 2:.1f}" y="{middle:.1f}" text-anchor="middle">{100 * share:.0f}</text>'
                )
            )
    for column, name in enumerate(short):
        at = f"{left + cell * (column + 0.5) + 4:.1f} {foot + 10:.1f}"
        turned = Markup('<text transform="translate({}) rotate(-45)" text-anchor="end">{}</text>')
        parts.append(turned.format(at, name))
    likely = [f"after {name} {names[int(own.argmax())]}" for name, own in zip(names, shares, strict=True) if own[0] >= 0]
    longest = max(map(len, short), default=0)
    return _svg(round(foot + 14 + 4.6 * longest), f"{alt}; most often {', '.join(likely)}", Markup("").join(parts))


def timelines(
    persons: Sequence[tuple[np.ndarray, np.ndarray]], names: Sequence[str], ends: tuple[str, str], alt: str, *, shades: int
) -> Markup:
    """Draw a line for each person, with a mark for each row, and the number of rows before it.

    Args:
        persons: the places (rows,) in [0, 1] of the rows of each, and their groups (rows,).
        names: of the groups.
        ends: the texts under the left and the right end.
        shades: how many of the first groups are in an order, and have shades of one colour.
    """
    left, right, foot = 30, _WIDTH - 6, _LINE * len(persons)
    most = max((len(places) for places, _ in persons), default=1)
    width = min(4.0, max(1.5, 0.8 * (right - left) / most))
    paints = [f"fill-opacity: {(shade + 1) / shades:.2f}" for shade in range(shades)]
    paints += [f"fill: {colour}" for colour in (_COLOURS[-1:] * 2 if shades else _COLOURS)]
    paths: list[list[str]] = [[] for _ in range(len(names) + 1)]
    lines = []
    for number, (places, groups) in enumerate(persons):
        top = _LINE * number
        lines.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{top + 8}" y2="{top + 8}"/>')
        lines.append(f'<text x="{left - 6}" y="{top + 12}" text-anchor="end">{len(places)}</text>')
        for x, group in zip((left + places * (right - left - width)).tolist(), groups.tolist(), strict=True):
            paths[group].append(f"M{x:.1f} {top + 2}h{width:.1f}v12h-{width:.1f}z")
    marks = [f'<path style="{paint}" d="{"".join(path)}"/>' for paint, path in zip(paints, paths, strict=False) if path]
    low, high = (printable(end) for end in ends)
    told = Markup('<text x="{}" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">{}</text>')
    key = [told.format(left, foot + 13, low, right, foot + 13, high)]
    for place, (name, paint) in enumerate(zip(names, paints, strict=False)):
        x, y = left + (right - left) // 2 * (place % 2), foot + 20 + 16 * (place // 2)
        swatch = Markup('<path style="{}" d="M{} {}h9v9h-9z"/><text class="name" x="{}" y="{}">{}</text>')
        key.append(swatch.format(paint, x, y, x + 14, y + 9, printable(name, _LETTERS)))
    return _svg(foot + 20 + 16 * -(-len(names) // 2), alt, Markup("".join(lines + marks)) + Markup("").join(key))


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
        _WIDTH, height, printable(alt, _ALT), inner
    )

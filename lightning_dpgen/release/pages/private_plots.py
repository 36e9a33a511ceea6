"""Plots of an evaluation, as pictures inside a page. Private, as the evaluation is."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from PIL import Image

from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.scales import MOMENTS
from lightning_dpgen.metrics.summaries import write_tick
from lightning_dpgen.release.pages.plot_style import DARK_RULES, LINE, REAL, SYNTHETIC, plot_style
from lightning_dpgen.release.pages.text import printable
from lightning_dpgen.release.rows.pictures import enlarged

_LABELLED, _BARS, _LETTERS, _UPRIGHT = 10, 60, 11, 40
_ROC = ("share of others taken for members", "share of members found", "guessing")


def drawn(draw: Callable[[Axes], None], width: float, height: float, alt: str) -> Markup:
    """Draw one plot, sized in inches, as an SVG inside an image, which runs no script and shares no names with others.

    `alt` is the content of the plot, for those who do not see it.
    """
    # Text stays text, in fonts that the reader has, which have the letters that matplotlib's font lacks.
    with plot_style(svg_fonttype="none", svg_hashsalt="evaluation", font_size=9):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot())
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True, dpi=160)
    plot = buffer.getvalue().replace(b"<defs>", b"<style>" + DARK_RULES.encode() + b"</style>\n<defs>", 1)
    return _image(plot, "image/svg+xml", alt)


def bars(
    real: np.ndarray, synthetic: np.ndarray, choices: Sequence[str] | None, alt: str, *, named: bool = False
) -> Markup:
    """Draw shares of the values of one column, real and synthetic side by side; lines if there are very many.

    Args:
        named: whether the picture is larger, and tells which side is which, where nothing else does.
    """

    def draw(axes: Axes) -> None:
        places = np.arange(len(real))
        if len(real) > _BARS:
            axes.fill_between(places, real, step="mid", color=REAL, linewidth=0, label="real")
            axes.step(places, synthetic, where="mid", color=SYNTHETIC, linewidth=1, label="synthetic")
        else:
            axes.bar(places - 0.2, real, 0.4, color=REAL, label="real")
            axes.bar(places + 0.2, synthetic, 0.4, color=SYNTHETIC, label="synthetic")
        if len(real) > _LABELLED:
            axes.set_xticks(places[:: -(-len(places) // _LABELLED)] if named else [0, len(real) - 1])
        else:
            axes.set_xticks(places)
        if choices is not None:
            names = [printable(choices[int(place)], _LETTERS) for place in axes.get_xticks()]
            long = len(real) <= _LABELLED and len(names) * max(map(len, names)) > 36
            axes.set_xticklabels(names, rotation=40 if long else 0, ha="right" if long else "center")
        top = max(real.max(initial=0.0), synthetic.max(initial=0.0)) or 1.0
        axes.set(ylim=(0.0, 1.04 * top), yticks=[0.0, top])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.2g}" if 0.0 < value < 0.01 else f"{value:.0%}")
        axes.tick_params(length=0)
        if named:
            axes.legend()

    return drawn(draw, *((4.6, 3.0) if named else (3.1, 2.0)), alt)


def heat_map(values: np.ndarray, names: Sequence[str], alt: str) -> Markup:
    """Draw a square of distances, NaN where there is none."""
    size = len(names)

    def draw(axes: Axes) -> None:
        shown = axes.imshow(values, cmap="Blues", vmin=0.0, vmax=max(0.05, float(np.nanmax(values, initial=0.0))))
        short = [printable(name, 18) for name in names]
        axes.set_xticks(range(size), short, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(size), short)
        axes.set_facecolor("#e3e6ea")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if size <= 16:
            for row, column in np.argwhere(np.isfinite(values)):
                light = values[row, column] > 0.6 * shown.get_clim()[1]
                axes.text(column, row, f"{values[row, column]:.2f}".lstrip("0"), ha="center", va="center", fontsize=7,
                          color="white" if light else "#1c2430")  # fmt: skip
        bar = axes.figure.colorbar(shown, ax=axes, shrink=0.6, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)

    inches = min(8.0, 2.4 + 0.32 * size)
    return drawn(draw, inches + 0.6, inches, alt)


def two_maps(
    real: np.ndarray, synthetic: np.ndarray, alt: str, *, names: Sequence[Sequence[str]], axes: Sequence[str]
) -> Markup:
    """Draw the shares (a, b) of the values of two columns together, real beside synthetic; both by their names."""
    # Values that no record has are left out.
    some = [np.flatnonzero((real + synthetic).sum(axis=axis)) for axis in (1, 0)]
    rows, columns = ([printable(own[int(place)], 14) for place in at] for own, at in zip(names, some, strict=True))
    # One common value would leave all others white.
    shades = PowerNorm(0.5, 0.0, float(max(real.max(), synthetic.max())))

    def draw(whole: Axes) -> None:
        sides = zip(_halves(whole, sharey=True), (real, synthetic), ("real", "synthetic"), strict=True)
        for own, shares, name in sides:
            own.imshow(shares[np.ix_(*some)], cmap="Blues", norm=shades, aspect="auto")
            own.set_xticks(range(len(columns)), columns, rotation=45, ha="right", rotation_mode="anchor")
            own.set_yticks(range(len(rows)), rows)
            own.set(title=name, xlabel=printable(axes[1], 30), ylabel=printable(axes[0], 30))
            own.label_outer()
            own.tick_params(length=0)
            own.spines[:].set_visible(False)

    return drawn(draw, 4.8, 3.2, alt)


def numbers(real: np.ndarray, synthetic: np.ndarray, alt: str, *, column: Numeric) -> Markup:
    """Draw the values (n,) and (m,) of a column: histograms over each other, and quantiles against each other."""
    both, whole = np.concatenate([real, synthetic]), column.scale.whole
    low, high = np.quantile(both, (0.005, 0.995), method="inverted_cdf")
    # A bar of whole values holds as many of them as any other.
    step = max(1.0, np.ceil((high - low + 1.0) / _UPRIGHT)) if whole else (high - low) / _UPRIGHT or 1.0
    edges = low - 0.5 * whole + step * np.arange(np.ceil((high - low + whole) / step) + 1)
    quantiles = [np.quantile(side, np.linspace(0.0, 1.0, 101), method="inverted_cdf") for side in (real, synthetic)]

    def draw(axes: Axes) -> None:
        left, right = _halves(axes)
        for values, colour in ((real, REAL), (synthetic, SYNTHETIC)):
            left.stairs(
                np.histogram(values, edges)[0] / len(values), edges, color=colour, fill=colour == REAL, linewidth=1.4
            )
        # A unit is declared as the number 1 is written.
        unit = (getattr(column.declared, "unit", None) or "value").replace("1", "").strip()
        left.set(xlabel=unit, ylabel="share of values", ylim=(0.0, None))
        right.plot([both.min(), both.max()], [both.min(), both.max()], color=LINE, linewidth=1.2)
        right.plot(*quantiles, color=SYNTHETIC, marker=".", markersize=3, linewidth=0.8)
        right.set(xlabel="real", ylabel="synthetic")
        for axis, most in ((left.xaxis, 2), (right.xaxis, 2), (right.yaxis, 3)):
            axis.set_major_locator(MaxNLocator(most, integer=whole))
            axis.set_major_formatter(lambda tick, _: write_tick(column, tick))
        if column.type in MOMENTS:
            # Two dates are wider than the picture.
            for own in (left, right):
                own.tick_params("x", rotation=25)

    return drawn(draw, 4.4, 2.2, alt)


def lines(
    real: np.ndarray,
    synthetic: np.ndarray,
    alt: str,
    *,
    along: str,
    up: str,
    spread: tuple[np.ndarray, np.ndarray] | None = None,
    at: Sequence[float] | None = None,
    scales: tuple[str, str] = ("linear", "linear"),
    steps: bool = False,
) -> Markup:
    """Draw a curve of each side, with a band of one spread (real, synthetic) around it if that is given.

    Args:
        steps: whether a curve stays as it is up to the next place, as a distribution function does.
    """

    def draw(axes: Axes) -> None:
        sides = ((real, REAL, "real", 3.6), (synthetic, SYNTHETIC, "synthetic", 1.6))
        for number, (values, colour, name, width) in enumerate(sides):
            places = np.arange(1, len(values) + 1) if at is None else np.asarray(at)
            style = "steps-post" if steps else "default"
            axes.plot(places, values, color=colour, linewidth=width, label=name, solid_capstyle="round", drawstyle=style)
            if spread is not None:
                band = spread[number]
                axes.fill_between(places, values - band, values + band, color=colour, alpha=0.16, linewidth=0)
        axes.set(xlabel=along, ylabel=up, xscale=scales[0], yscale=scales[1])
        if scales[0] == "linear" and (at is None or all(float(place).is_integer() for place in at)):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _plain_numbers(axes)
        axes.legend()

    return drawn(draw, 4.6, 3.0, alt)


def scatter(real: np.ndarray, synthetic: np.ndarray, alt: str, *, of: str) -> Markup:
    """Draw each item's value on both sides, on logarithmic axes; items that one side lacks are on its edge."""

    def draw(axes: Axes) -> None:
        least = min(values[values > 0].min(initial=1.0) for values in (real, synthetic))
        if not (real.all() and synthetic.all()):
            # Room for the edge.
            least /= 2
        x, y = np.maximum(real, least), np.maximum(synthetic, least)
        axes.plot([least, 1], [least, 1], color=LINE, linewidth=1.2)
        axes.scatter(x, y, s=5, color=SYNTHETIC, alpha=0.35, linewidths=0, rasterized=True)
        highest = max(x.max(initial=least), y.max(initial=least)) * 1.2
        axes.set(xscale="log", yscale="log", xlabel=f"{of}, real", ylabel=f"{of}, synthetic")
        axes.set(xlim=(least / 1.2, highest), ylim=(least / 1.2, highest))
        _plain_numbers(axes)

    return drawn(draw, 4.6, 3.0, alt)


def samples(curves: np.ndarray, alt: str) -> Markup:
    """Draw a few synthetic series, each in a line of its own shade."""

    def draw(axes: Axes) -> None:
        for number, curve in enumerate(curves):
            axes.plot(np.arange(1, len(curve) + 1), curve, color=SYNTHETIC, alpha=0.9 - 0.08 * number, linewidth=0.9)
        axes.set(xlabel="reading", ylabel="value")

    return drawn(draw, 4.6, 3.0, alt)


def operating_curves(rates: Mapping[str, tuple[np.ndarray, np.ndarray]], alt: str, *, axes: Sequence[str] = _ROC) -> Markup:
    """Draw true positive rates by false positive rates (ROC) or other shares; `axes` names both, and the diagonal."""

    def draw(plot: Axes) -> None:
        plot.plot([0, 1], [0, 1], color=LINE, linewidth=1.2, label=axes[2])
        for number, (name, curve) in enumerate(rates.items()):
            plot.plot(*curve, color=SYNTHETIC, linewidth=1.6, linestyle=("-", "--", ":")[number % 3], label=name)
        plot.set(xlabel=axes[0], ylabel=axes[1], xlim=(0, 1), ylim=(0, 1), aspect="equal")
        plot.legend()

    return drawn(draw, 4.0, 3.6, alt)


def sheet(pictures: np.ndarray, across: int, alt: str, *, least: int = 60) -> Markup:
    """Draw grey pictures (n, height, width) in [0, 1] side by side, dark on white, enlarged to `least` pixels."""
    n, height, width = pictures.shape
    down = -(-n // across)
    cells = np.zeros((down * across, height + 2, width + 2))
    cells[:n, 1:-1, 1:-1] = np.clip(np.nan_to_num(pictures), 0.0, 1.0)
    grid = cells.reshape(down, across, height + 2, width + 2).swapaxes(1, 2).reshape(down * (height + 2), -1)
    picture = Image.fromarray(255 - (255 * grid).round().astype(np.uint8))
    buffer = io.BytesIO()
    enlarged(picture, -(-least // max(height, width))).save(buffer, "PNG")
    return _image(buffer.getvalue(), "image/png", alt)


def _halves(axes: Axes, **shared: bool) -> np.ndarray:
    """Put two plots side by side in the place of one."""
    figure = axes.figure
    axes.remove()
    return figure.subplots(1, 2, **shared)


def _plain_numbers(axes: Axes) -> None:
    """Write powers of ten as numbers, since matplotlib writes formulas, and more numbers where there are few of these."""
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            low, high = axis.get_view_interval()
            if high < 10 * low:
                axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
                axis.set_minor_locator(NullLocator())
            elif high < 100 * low:
                axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        if axis.get_scale() != "linear":
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_minor_formatter(lambda value, _: "")


def _image(content: bytes, kind: str, alt: str) -> Markup:
    encoded = base64.b64encode(content).decode()
    return Markup('<img alt="{}" src="data:{};base64,{}">').format(alt, kind, encoded)

"""Sampled series as a picture, one panel a component and channel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.release.drawing.release import Release
from lightning_dpgen.release.pages.plot_style import SYNTHETIC, plot_style
from lightning_dpgen.release.pages.text import printable
from lightning_dpgen.release.publishing.mark import METADATA, NOT_PRIVATE

# Panels and the curves of each; further components and channels are not drawn.
PANELS, CHANNELS, CURVES = 12, 3, 6
_WARNING = "#b00020"


def write_curves(path: Path, release: Release) -> None:
    """Write a few series of each component as a PNG, on the declared scale of their channel; marked if not private."""
    schema = release.schema
    channels = min(CHANNELS, len(schema.channels))
    components = min(release.components, max(1, PANELS // channels))
    across = channels if channels > 1 else min(2, components)
    down = -(-components * channels // across)
    with plot_style(font_size=8):
        figure = Figure(figsize=(9.0, 0.35 + 1.45 * down), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(down, across, squeeze=False, sharex=True).ravel()
        for component in range(components):
            curves = _curves(release, component)
            for channel in range(channels):
                _draw(panels[component * channels + channel], curves[:, :, channel], schema, component, channel)
        for panel in panels[components * channels :]:
            panel.set_axis_off()
        if not release.private:
            figure.suptitle(NOT_PRIVATE, color=_WARNING, fontsize=11, fontweight="bold", x=0.01, horizontalalignment="left")
        metadata = {"Software": None} | ({} if release.private else METADATA)
        figure.savefig(path, format="png", dpi=110, metadata=metadata)


def _curves(release: Release, component: int) -> np.ndarray:
    """Draw curves (curves, length, channels) of one component, as they would be released; its number is the seed."""
    schema, encoded = release.schema, release.sample_component(component, CURVES, seed=component)
    batch = schema.decode(encoded, np.random.default_rng(component))
    numbers = np.column_stack([batch.column(i).to_numpy() for i in range(len(schema.columns))])
    return numbers.reshape(len(numbers), schema.length, len(schema.channels))


def _draw(axes: Axes, curves: np.ndarray, schema: SeriesSchema, component: int, channel: int) -> None:
    places = np.arange(schema.length)
    marker = "." if schema.length == 1 else None
    for number, curve in enumerate(curves):
        axes.plot(places, curve, color=SYNTHETIC, alpha=0.9 - 0.12 * number, linewidth=0.9, marker=marker)
    names, times = schema.words
    named = f", {printable(names[channel], 30)}" if len(names) > 1 or schema.written.columns is not None else ""
    axes.set_title(f"component {component + 1}{named}", fontsize=8)
    low, high = schema.low[channel], schema.high[channel]
    axes.set(ylim=(low - 0.02 * (high - low), high + 0.02 * (high - low)), yticks=[low, high])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    at = np.unique(np.linspace(0, schema.length - 1, 5).round().astype(int))
    axes.set_xticks(at, [printable(times[i], 10) if times else str(i) for i in at])
    axes.tick_params(length=0)

"""Pictures of the attacks of dp-GAN's Figures 5 and 6: accuracies, and operating curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.common.pictures import save_picture
from experiments.dpgan.operating_curves import WRONGLY

# The attacks that are drawn, of which a release without a critic has the second alone.
ON_CRITIC, ON_RELEASE = "critic by shadows", "densities by shadows"
_COLOURS = ("#b3261e", "#e07b39", "#7b3fa0", "#1f5fa8", "#2e7d32")
Rows = Mapping[tuple[str, int], Mapping[str, Any]]


def _names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(name for name, _ in rows))


def draw_attacks(rows: Rows, path: Path) -> None:
    """Draw Figure 5, of the smallest number of records, beside accuracies by number of records where there are several.

    Args:
        rows: what `attacks.row` returns, by variant and number of records.
    """
    sizes = sorted({n for _, n in rows})
    titles = [f"{side}, over training, n = {sizes[0]:,}" for side in ("critic", "release")]
    if len(sizes) > 1:
        titles += ["critic, by number of records", "release, by number of records"]
    figure, (panels,) = plt.subplots(1, len(titles), figsize=(3.75 * len(titles), 4.2), sharey=True, squeeze=False)
    for panel, title in zip(panels, titles, strict=True):
        panel.axhline(0.5, color="#777", linewidth=0.8, linestyle=":")
        panel.set_title(title, fontsize=11)
    for panel in panels[:2]:
        panel.set(xlabel="% of the training", xlim=(0, 105))
    for panel in panels[2:]:
        panel.set(xlabel="records learned from", xscale="log", xticks=sizes, xticklabels=[f"{n:,}" for n in sizes])
        panel.minorticks_off()
    for name, colour in zip(_names(rows), _COLOURS, strict=False):
        for place, attack in enumerate((ON_CRITIC, ON_RELEASE)):
            over = rows.get((name, sizes[0]))
            if over is not None and attack in over["accuracy"] and len(over["steps"]) > 1:
                parts = 100.0 * np.array(over["steps"]) / over["steps"][-1]
                _plot(panels[place], parts, over["accuracy"][attack], name, colour)
            by_size = {
                n: rows[name, n]["accuracy"][attack][-1]
                for n in sizes
                if (name, n) in rows and attack in rows[name, n]["accuracy"]
            }
            if by_size and len(sizes) > 1:
                _plot(panels[2 + place], list(by_size), list(by_size.values()), name, colour)
    panels[0].set_ylabel("accuracy of the attack")
    _end(figure, panels, path)


def _plot(panel: Axes, x: Sequence[float], points: list[dict[str, float]], name: str, colour: str) -> None:
    middle, low, high = np.array([[point["accuracy"], point["low"], point["high"]] for point in points]).T
    around = (middle - low, high - middle)
    panel.errorbar(x, middle, around, color=colour, label=name, marker="o", markersize=4, capsize=3, linewidth=1.4)


def draw_curves(rows: Rows, path: Path) -> None:
    """Draw Figure 6: the operating curve (ROC) of each variant with exact intervals, a row for each number of records.

    Small shares stand beside, on scales of logarithms. A dashed line is the most that the plan allows any attack.
    """
    sizes = sorted({n for _, n in rows})
    figure, panels = plt.subplots(len(sizes), 2, figsize=(8.4, 4.0 * len(sizes) + 0.4), squeeze=False)
    for line, n in zip(panels, sizes, strict=True):
        for panel in line:
            panel.plot([1e-4, 1.0], [1e-4, 1.0], color="#777", linewidth=0.8, linestyle=":")
            panel.set(title=f"{n:,} people", xlabel="others taken for members")
        line[0].set(xlim=(0, 1), ylim=(0, 1), ylabel="members found")
        line[1].set(xscale="log", yscale="log", xlim=(1e-3, 1), ylim=(5e-4, 1.05))
        for name, colour in zip(_names(rows), _COLOURS, strict=False):
            found = rows.get((name, n))
            if found is None:
                continue
            curve = found["curve"].get(ON_CRITIC, found["curve"].get(ON_RELEASE))
            ends = {key: [start, *curve[key], 1.0] for key, start in
                    (("wrongly", 0.0), ("rightly", 0.0), ("low", 0.0), ("high", curve["high"][0]))}  # fmt: skip
            label = name if ON_CRITIC in found["curve"] else f"{name} (its release)"
            for panel in line:
                panel.plot(ends["wrongly"], ends["rightly"], color=colour, label=label, linewidth=1.4)
                panel.fill_between(ends["wrongly"], ends["low"], ends["high"], color=colour, alpha=0.18, linewidth=0)
                if found["epsilon"] is not None and found["accurate"] < 1.0:
                    panel.plot(WRONGLY, found["most"], color=colour, linewidth=0.9, linestyle="--")
    _end(figure, panels[0], path)


def _end(figure: Figure, panels: Iterable[Axes], path: Path) -> None:
    """Set one legend of these panels below all, and write the picture."""
    named = {}
    for panel in panels:
        named |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    columns = min(len(named), int(figure.get_figwidth() // 2.2))
    low = 0.28 * -(-len(named) // columns) + 0.08
    figure.legend(named.values(), named.keys(), loc="lower center", ncols=columns, frameon=False)
    figure.tight_layout(rect=(0, low / figure.get_figheight(), 1, 1))
    save_picture(figure, path)

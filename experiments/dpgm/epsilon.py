"""Figure 2 of DPGM (TKDE and ICDM): epsilon of its Algorithm 1 against epochs, by its formula and in truth.

    python -m experiments.dpgm.epsilon FOLDER      (two minutes)

MNIST's setting: delta 1e-5, sigma_C 4, 20 iterations of k-means, 1/q steps an epoch, ten equal clusters, one record added
or removed. A panel varies one of q, sigma_K and sigma_G; the paper prints the values that it holds fixed, the varied ones
are ours. Dotted: Theorem 4, no guarantee. Dashed: the moments accountant on the algorithm's releases. Solid: privacy loss
distributions on the same, the truth to within the width of a line. Thin: the same noise with all components in one lot, as
`dpgen` trains. The picture is FOLDER/dpgm_epsilon.png.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import matplotlib
from dp_accounting import ComposedDpEvent
from matplotlib import pyplot

from experiments.common.kept import Kept
from experiments.common.pictures import save_picture
from experiments.dpgm.formulas import FIGURE_2, dpgm_corrected, dpgm_events, dpgm_theorem4
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon

matplotlib.use("Agg")
EPOCHS = (1, 5, 10, 20, 30, 40, 50)
PANELS = {"q": (0.0008, 0.0017, 0.0034), "sigma_K": (20.0, 40.0, 80.0), "sigma_G": (0.8, 1.0, 1.5)}
SHARE = 0.1
WAYS = {
    "DPGM, Theorem 4 (no guarantee)": {"ls": ":"},
    "moments accountant": {"ls": "--"},
    "privacy loss distributions": {"ls": "-"},
    "the same, all components in one lot": {"ls": "-", "lw": 0.6},
}


def epsilons(epochs: int, **varied: float) -> tuple[float, ...]:
    """Return one epsilon for each of WAYS."""
    setting = FIGURE_2 | varied
    setting["T_S"] = epochs * math.ceil(1 / setting["q"])
    noise = {name: value for name, value in setting.items() if name != "delta"}

    def true(share: float) -> float:
        return compute_epsilon(ComposedDpEvent(list(dpgm_events(**noise, share=share))), setting["delta"]).epsilon

    return dpgm_theorem4(**setting), dpgm_corrected(**setting, share=SHARE), true(SHARE), true(1.0)


def picture(found: dict[str, dict[float, list[Sequence[float]]]], path: Path) -> None:
    figure, axes = pyplot.subplots(1, len(found), figsize=(13, 4.2), sharey=True)
    for axis, (name, curves) in zip(axes, found.items(), strict=True):
        for i, (value, points) in enumerate(curves.items()):
            for j, (style, curve) in enumerate(zip(WAYS.values(), zip(*points, strict=True), strict=True)):
                axis.plot(EPOCHS, curve, color=f"C{i}", label=f"{name} = {value:g}" if j == 2 else None, **style)
        axis.set(xlabel="epochs of training", title=f"{name} varies")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="upper left")
    axes[0].set_ylabel("epsilon at delta 1e-5")
    lines = [pyplot.Line2D([], [], color="k", label=name, **style) for name, style in WAYS.items()]
    figure.legend(handles=lines, loc="lower center", ncols=len(lines), frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    kept, found = Kept(folder / "dpgm_epsilon.json"), {}
    print(f"{'':18}{'epochs':>8}{'Theorem 4':>12}{'moments':>10}{'true':>8}{'one lot':>10}")
    for name, values in PANELS.items():
        found[name] = {
            value: [
                kept.get({"epochs": epochs, name: value}, partial(epsilons, epochs, **{name: value})) for epochs in EPOCHS
            ]
            for value in values
        }
        for value, points in found[name].items():
            for epochs, (formula, moments, true, one) in zip(EPOCHS, points, strict=True):
                print(f"{f'{name} = {value:g}':18}{epochs:>8}{formula:>12.3f}{moments:>10.3f}{true:>8.3f}{one:>10.3f}")
    picture(found, folder / "dpgm_epsilon.png")


if __name__ == "__main__":
    main()

"""Distances between the first and second moments of real and synthetic records, and between the labels of pictures."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.metrics.measure import A_LABEL, Plot, Result, register
from lightning_dpgen.metrics.sides import EncodedSides
from lightning_dpgen.metrics.two_sided import TwoSided, compare, named_scores

# Records whose moments are summed at a time, and pictures that are drawn.
_AT_ONCE, _DRAWN = 10_000, 60


class MomentDistance(TwoSided):
    """Root mean squared difference of column means, and of covariances between columns.

    Args:
        width: number of columns m.

    Example:
        >>> metric = MomentDistance(2)
        >>> metric.update(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), real=True)
        >>> metric.update(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), real=False)
        >>> {name: round(float(value), 3) for name, value in metric.compute().items()}
        {'means': 0.0, 'covariances': 0.354}
    """

    def __init__(self, width: int, **kwargs) -> None:
        super().__init__({"sums": (width,), "squares": (width, width)}, torch.float64, **kwargs)

    def update(self, records: Tensor, *, real: bool) -> None:
        """Take in records (n, m) of one side."""
        rows = records.double()
        self._add(real, len(rows), sums=rows.sum(dim=0), squares=rows.T @ rows)

    def compute(self) -> dict[str, Tensor]:
        """Return ``means`` and ``covariances``, in the units of the records and their squares.

        Raises:
            ValueError: where one side has no record.
        """
        count = self._counts()
        means = self.sums / count
        covariances = self.squares / count[:, None] - means[:, :, None] * means[:, None]
        return {
            name: (synthetic - real).square().mean().sqrt()
            for name, (synthetic, real) in (("means", means), ("covariances", covariances))
        }


@register(
    "images", section="pictures", place=10, better="lower",
    says="Means of pixels, and covariances of pairs of them.",
)  # fmt: skip
def _compare_pixels(sides: EncodedSides) -> Result:
    metrics = compare(
        MomentDistance(sides.layout.units), sides, lambda encoded: torch.from_numpy(sides.readings(encoded)), _AT_ONCE
    )
    words = {"means": "pixel means, rms difference", "covariances": "pixel covariances, rms difference"}
    return Result(*named_scores(metrics, words), plots=_plots(sides))


def _plots(sides: EncodedSides) -> list[Plot]:
    if sides.shape is None:
        return []
    scale = sides.layout.levels or 1
    synthetic, real = (np.asarray(part.units.mean(axis=0)) / scale for part in (sides.synthetic, sides.real))
    three = np.stack([real, synthetic, np.abs(real - synthetic)]).reshape(-1, *sides.shape)
    drawn = (sides.synthetic.units[:_DRAWN] / scale).reshape(-1, *sides.shape)
    words = "Mean of the real pictures, of the synthetic ones, and how far they differ"
    return [
        Plot("Pictures", "Synthetic pictures", "sheet", {"pictures": drawn, "across": 12, "said": "synthetic pictures"}),
        Plot("Pictures", words, "sheet", {"pictures": three, "across": 3, "said": "mean pictures", "least": 150}),
    ]


@register(
    "images", section="pictures", place=11, better="lower", needs=(A_LABEL,),
    says="Shares of labels: total variation.",
)  # fmt: skip
def _compare_labels(sides: EncodedSides) -> Result:
    label = sides.layout.label
    real, *others = (
        np.bincount(side.codes[:, label], minlength=sides.layout.groups[label]) / len(side)
        for side in (sides.real, *sides.compared)
    )
    return Result(*({"labels, total variation": float(0.5 * np.abs(other - real).sum())} for other in others))

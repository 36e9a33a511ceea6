"""Series of readings: their mean curve and spread, their correlation in time, and the shape of a day."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.metrics.measure import Need, Plot, Result, register
from lightning_dpgen.metrics.sides import EncodedSides
from lightning_dpgen.metrics.two_sided import TwoSided, compare, curves_of_both, named_scores

# A series whose readings vary less than this has no autocorrelation: rounding in float32.
_CONSTANT = 1e-12
_DRAWN = 8


class SeriesDistance(TwoSided):
    """Differences of curves of real and synthetic series, readings in [0, 1] in the order of time.

    Args:
        readings: T, the number of readings of a series.

    Example:
        >>> metric = SeriesDistance(4)
        >>> metric.update(np.array([[0.0, 1.0, 0.0, 1.0]]), real=True)
        >>> metric.update(np.array([[0.0, 0.0, 1.0, 1.0]]), real=False)
        >>> {name: round(float(value), 3) for name, value in metric.compute().items()}
        {'mean': 0.707, 'spread': 0.0, 'autocorrelation': 1.0, 'shape': 0.5}
    """

    def __init__(self, readings: int, **kwargs) -> None:
        shapes = dict.fromkeys(("sums", "squares", "shapes"), (readings,)) | {"lagged": (readings // 2,)}
        super().__init__(shapes, torch.float64, **kwargs)
        self.readings = readings

    def update(self, series: np.ndarray, *, real: bool) -> None:
        """Take in series (N, T) of one side.

        Raises:
            ValueError: for another shape.
        """
        if series.ndim != 2 or series.shape[1] != self.readings:
            raise ValueError(f"series of shape {series.shape[1:]}: expected {self.readings} readings each")
        values = np.asarray(series, dtype=np.float64)
        shapes, lagged = _shapes(values).sum(axis=0), autocorrelations(values, self.readings // 2).sum(axis=0)
        squares = (values**2).sum(axis=0)
        self._add(real, len(values), sums=values.sum(axis=0), squares=squares, shapes=shapes, lagged=lagged)

    def curves(self) -> dict[str, Tensor]:
        """Return the curves that are compared, synthetic first.

        ``mean``, ``spread`` (standard deviation over records) and ``shape`` (the mean share of a series' sum that each
        reading is), each (2, T); ``autocorrelation`` (2, T // 2), the mean over records of that at lags 1, 2, ...

        Raises:
            ValueError: where one side has no record.
        """
        count = self._counts()
        mean = self.sums / count
        spread = (self.squares / count - mean.square()).clamp(min=0.0).sqrt()
        return {"mean": mean, "spread": spread, "autocorrelation": self.lagged / count, "shape": self.shapes / count}

    def compute(self) -> dict[str, Tensor]:
        """Return rms differences of ``mean``, ``spread`` and ``autocorrelation``; total variation of ``shape``."""
        found = {}
        for name, (synthetic, real) in self.curves().items():
            difference = synthetic - real
            mean_square = difference.square().sum() / max(1, len(difference))
            found[name] = 0.5 * difference.abs().sum() if name == "shape" else mean_square.sqrt()
        return found


def _shapes(values: np.ndarray) -> np.ndarray:
    """Divide each series by its sum; the shape of a series of zeros is flat."""
    sums = values.sum(axis=1, keepdims=True)
    flat = np.full(values.shape, 1.0 / max(1, values.shape[1]))
    return np.divide(values, sums, out=flat, where=sums > 0.0)


def autocorrelations(values: np.ndarray, lags: int) -> np.ndarray:
    """Estimate autocorrelations (N, lags) of each series at lags 1 to `lags`, with bias; 0 if a series is constant.

    Example:
        >>> autocorrelations(np.array([[0.0, 1.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5]]), 2).round(2).tolist()
        [[-0.75, 0.5], [0.0, 0.0]]
    """
    centred = values - values.mean(axis=1, keepdims=True) if values.size else values
    # Twice the length, so that the end of a series does not meet its beginning.
    spectrum = np.abs(np.fft.rfft(centred, n=2 * max(1, values.shape[1]), axis=1)) ** 2
    products = np.fft.irfft(spectrum, axis=1)[:, : lags + 1]
    variance = products[:, :1]
    varies = variance > _CONSTANT * max(1, values.shape[1])
    return np.divide(products[:, 1:], variance, out=np.zeros((len(values), lags)), where=varies)


@register(
    "series", section="curves", place=10, better="lower",
    says="Differences of curves of readings in [0, 1], and of the shape of a series, each reading a share of its sum.",
    needs=(Need(lambda sides: sides.layout.units > 0, "the records have no readings"),),
    glance={"mean curve, rms difference": "difference of mean curves"},
)  # fmt: skip
def _compare_curves(sides: EncodedSides) -> Result:
    metrics = compare(SeriesDistance(sides.layout.units), sides, sides.readings)
    words = {"mean": "mean curve, rms difference", "spread": "spread, rms difference",
             "autocorrelation": "autocorrelation, rms difference", "shape": "shape, total variation"}  # fmt: skip
    return Result(*named_scores(metrics, words), plots=_plots(sides, metrics[0]))


def _plots(sides: EncodedSides, metric: SeriesDistance) -> list[Plot]:
    mean, spread, lagged, shape = map(curves_of_both, metric.curves().values())
    low, width = sides.scale()
    mean = {side: low + width * curve for side, curve in mean.items()}
    bands = (width * spread["real"], width * spread["synthetic"])
    some = low + width * sides.readings(sides.synthetic[:_DRAWN])
    plots = [
        ("Mean, and one standard deviation around it", "lines",
         mean | {"said": "mean curves", "along": "reading", "up": "value", "spread": bands}),
        ("Shape: each reading as a share of its series", "lines",
         shape | {"said": "shapes", "along": "reading", "up": "share"}),
    ]  # fmt: skip
    if len(lagged["real"]):
        plots.append(
            ("Autocorrelation", "lines", lagged | {"said": "autocorrelations", "along": "lag", "up": "correlation"})
        )
    plots.append(("Some synthetic series", "samples", {"curves": some, "said": "synthetic series"}))
    return [Plot("Curves", *plot) for plot in plots]

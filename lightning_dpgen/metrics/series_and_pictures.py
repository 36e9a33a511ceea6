"""Distances of series and pictures: moments, step lengths and frequencies, nearest series, and the labels of pictures."""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from dtaidistance import dtw_ndim
from torch import Tensor

from lightning_dpgen.metrics.columns import subsample
from lightning_dpgen.metrics.measure import A_LABEL, Need, Plot, Result, register
from lightning_dpgen.metrics.sides import (
    Collected,
    EncodedSides,
    TwoSided,
    check_seconds,
    compare,
    curves_of_both,
    named_scores,
)

# A series whose readings vary less than this has no autocorrelation: rounding in float32.
_CONSTANT = 1e-12
_SERIES_DRAWN = 8


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
        distances = {}
        for name, (synthetic, real) in self.curves().items():
            difference = synthetic - real
            mean_square = difference.square().sum() / max(1, len(difference))
            distances[name] = 0.5 * difference.abs().sum() if name == "shape" else mean_square.sqrt()
        return distances


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
    # Mean curves of loads fill a small part of the declared range.
    glance={"mean curve, rms difference": "difference of mean curves"}, limits=(0.01, 0.05),
)  # fmt: skip
def _compare_curves(sides: EncodedSides) -> Result:
    metrics = compare(SeriesDistance(sides.layout.units), sides, sides.readings)
    words = {"mean": "mean curve, rms difference", "spread": "spread, rms difference",
             "autocorrelation": "autocorrelation, rms difference", "shape": "shape, total variation"}  # fmt: skip
    return Result(*named_scores(metrics, words), plots=_plot_series(sides, metrics[0]))


def _plot_series(sides: EncodedSides, metric: SeriesDistance) -> list[Plot]:
    mean, spread, lagged, shape = map(curves_of_both, metric.curves().values())
    low, width = sides.scale()
    mean = {side: low + width * curve for side, curve in mean.items()}
    bands = (width * spread["real"], width * spread["synthetic"])
    some = low + width * sides.readings(sides.synthetic[:_SERIES_DRAWN])
    plots = [
        ("Mean, and one standard deviation around it", "lines",
         mean | {"alt": "mean curves", "along": "reading", "up": "value", "spread": bands}),
        ("Shape: each reading as a share of its series", "lines",
         shape | {"alt": "shapes", "along": "reading", "up": "share"}),
    ]  # fmt: skip
    if len(lagged["real"]):
        plots.append(
            ("Autocorrelation", "lines", lagged | {"alt": "autocorrelations", "along": "lag", "up": "correlation"})
        )
    plots.append(("Some synthetic series", "samples", {"curves": some, "alt": "synthetic series"}))
    return [Plot("Curves", *plot) for plot in plots]


# Cells of the warping tables that are filled between two looks at the clock: a tenth of a second.
_CELLS = 1 << 24
# Series whose nearest real one is searched for, for so many seconds at most; and those of them that are drawn.
SEARCHED, SECONDS, _NEAREST_DRAWN = 200, 10.0, 6


class NearestSeries(Collected):
    """The distance of synthetic series to their nearest real ones by dynamic time warping (Sakoe and Chiba 1978).

    A distance is the root of the sum of squared differences along the best path, on which no reading is moved by more than
    `band`. All channels are warped together. Beside held-out real series it says whether made ones are as near to the data
    as real ones are to each other. The paths are those of `dtaidistance`.

    Args:
        readings: T, the number of times of a series.
        channels: the number of readings at each time, side by side in a record.
        band: the most places by which a reading is moved; None for a tenth of the length, rounded up.
        seconds: no further synthetic series is compared when this time is over; None without a limit.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> metric = NearestSeries(4, band=1)
        >>> metric.update(torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.5, 0.5, 0.5, 0.5]]), real=True)
        >>> metric.update(torch.tensor([[0.0, 1.0, 0.0, 0.0]]), real=False)
        >>> metric.nearest()
        (tensor([0.], dtype=torch.float64), tensor([0]))
    """

    higher_is_better = None
    _named = "series"

    def __init__(
        self, readings: int, *, channels: int = 1, band: int | None = None, seconds: float | None = None, **kwargs
    ) -> None:
        for name, value in (("readings", readings), ("channels", channels)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r}: expected a whole number, 1 or more")
        if band is not None and (type(band) is not int or not 0 <= band < readings):
            raise ValueError(f"band={band!r}: expected a whole number from 0, below the number of readings, {readings}")
        check_seconds(seconds)
        super().__init__(readings * channels, **kwargs)
        self.readings, self.channels, self.seconds = readings, channels, seconds
        self.band = narrow_band(readings) if band is None else band

    def nearest(self) -> tuple[Tensor, Tensor]:
        """Return the distance and the place among the real series of the nearest one, both (compared,).

        The synthetic series are taken in their order; those for which there was no time are left out, perhaps all.

        Raises:
            ValueError: where one side has no series.
        """
        real, synthetic = (side.cpu().numpy().reshape(-1, self.readings, self.channels) for side in self._sides())
        distances, places = nearest_series(real, synthetic, self.band, self.seconds)
        return torch.from_numpy(distances), torch.from_numpy(places)

    def compute(self) -> dict[str, Tensor]:
        """Return ``mean`` and ``median`` of the distances; NaN where there was time for none."""
        distances = self.nearest()[0]
        if not len(distances):
            return dict.fromkeys(("mean", "median"), torch.tensor(math.nan, dtype=torch.float64))
        return {"mean": distances.mean(), "median": torch.quantile(distances, 0.5)}


def narrow_band(readings: int) -> int:
    """Return a tenth of the length of a series, rounded up."""
    return min(readings - 1, -(-readings // 10))


def nearest_series(
    real: np.ndarray, synthetic: np.ndarray, band: int, seconds: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the distance and the place of the nearest real series (n, readings, channels), as `NearestSeries` does.

    Returns:
        both (compared,): for the first synthetic series (m, readings, channels), as many as there was time for.
    """
    started, nearest = time.monotonic(), []
    at_once = max(1, _CELLS // (real.shape[1] * (2 * band + 1) * real.shape[2]))
    for one in synthetic:
        best = (np.inf, 0)
        for start in range(0, len(real), at_once):
            if seconds is not None and time.monotonic() - started > seconds:
                break
            apart = _distances(one, real[start : start + at_once], band)
            place = int(apart.argmin())
            best = min(best, (float(apart[place]), start + place))
        else:
            nearest.append(best)
            continue
        break
    distances, places = zip(*nearest, strict=True) if nearest else ((), ())
    return np.array(distances, np.float64), np.array(places, np.int64)


def _distances(one: np.ndarray, real: np.ndarray, band: int) -> np.ndarray:
    # The library's window is the first shift that is not allowed.
    distances = dtw_ndim.distance_matrix_fast(
        np.concatenate([one[None], real]),
        real.shape[2],
        window=band + 1,
        block=((0, 1), (1, 1 + len(real))),
        compact=True,
        parallel=False,
    )
    return np.asarray(distances)


@register(
    "series", section="nearest real series", place=50, better="target",
    says="How far series are from the nearest real one by dynamic time warping, which moves a reading by up to a tenth of "
    "the length: the root of the sum of squared differences, in units of the range between the declared bounds. Below "
    "that of held-out real ones where records are copied, above it where they are like no real one.",
    glance={"distance, mean": "distance to the nearest real series, in ranges of the readings"},
)  # fmt: skip
def _compare_nearest(sides: EncodedSides) -> Result | str:
    """Find the nearest real series of some synthetic ones, and of held-out ones.

    Distances are of readings in [0, 1], whatever their levels. Each side has half of the time that is left, at most
    `SECONDS`.
    """
    length, channels = sides.layout.units // sides.channels, sides.channels
    limit = SECONDS if sides.seconds is None else min(SECONDS, sides.seconds / 2)
    real = sides.readings(sides.real).reshape(-1, length, channels)
    results, plots, notes = [], [], []
    for name, other in zip(("synthetic", "held-out"), sides.compared, strict=False):
        some = sides.readings(subsample(other, SEARCHED, sides.seed)).reshape(-1, length, channels)
        distances, places = nearest_series(real, some, narrow_band(length), limit)
        if len(distances) < len(some):
            compared = f"the first {len(distances)}" if len(distances) else "none"
            notes.append(f"{name} series: {compared} of {len(some)}, as {limit:.3g} seconds were over")
        if not len(distances):
            if other is sides.synthetic:
                return notes[0]
            continue
        if other is sides.synthetic:
            plots = _plot_nearest(sides, real[places[:_NEAREST_DRAWN]], some[: len(places)][:_NEAREST_DRAWN])
        results.append({"distance, mean": float(distances.mean()), "distance, median": float(np.median(distances))})
    return Result(*results, note="; ".join(notes) or None, plots=plots)


def _plot_nearest(sides: EncodedSides, real: np.ndarray, synthetic: np.ndarray) -> list[Plot]:
    """Draw synthetic series (n, readings, channels), each beside the real one that is nearest; their first channel."""
    low, width = (values[:: sides.channels] for values in sides.scale())
    pairs = zip(*(low + width * side[:, :, 0] for side in (real, synthetic)), strict=True)
    axes = {"alt": "a series and the nearest", "along": "reading", "up": "value"}
    return [
        Plot("Nearest real series", f"Synthetic series {number}", "lines", {"real": near, "synthetic": made} | axes)
        for number, (near, made) in enumerate(pairs, start=1)
    ]


# Records whose moments are summed at a time, and pictures that are drawn.
_AT_ONCE, _PICTURES_DRAWN = 10_000, 60


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
    return Result(*named_scores(metrics, words), plots=_plot_pictures(sides))


def _plot_pictures(sides: EncodedSides) -> list[Plot]:
    if sides.shape is None:
        return []
    scale = sides.layout.levels or 1
    synthetic, real = (np.asarray(part.units.mean(axis=0)) / scale for part in (sides.synthetic, sides.real))
    three = np.stack([real, synthetic, np.abs(real - synthetic)]).reshape(-1, *sides.shape)
    drawn = (sides.synthetic.units[:_PICTURES_DRAWN] / scale).reshape(-1, *sides.shape)
    words = "Mean of the real pictures, of the synthetic ones, and how far they differ"
    return [
        Plot("Pictures", "Synthetic pictures", "sheet", {"pictures": drawn, "across": 12, "alt": "synthetic pictures"}),
        Plot("Pictures", words, "sheet", {"pictures": three, "across": 3, "alt": "mean pictures", "least": 150}),
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

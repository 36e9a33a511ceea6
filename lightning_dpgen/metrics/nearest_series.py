"""The nearest real series of synthetic ones by dynamic time warping, which forgives a peak that comes a little later."""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from dtaidistance import dtw_ndim
from torch import Tensor

from lightning_dpgen.metrics.columns import subsample
from lightning_dpgen.metrics.measure import Plot, Result, register
from lightning_dpgen.metrics.sides import EncodedSides
from lightning_dpgen.metrics.two_sided import Collected, check_seconds

# Cells of the warping tables that are filled between two looks at the clock: a tenth of a second.
_CELLS = 1 << 24
# Series whose nearest real one is searched for, for so many seconds at most; and those of them that are drawn.
SEARCHED, SECONDS, _DRAWN = 200, 10.0, 6


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
    started, found = time.monotonic(), []
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
            found.append(best)
            continue
        break
    distances, places = zip(*found, strict=True) if found else ((), ())
    return np.array(distances, np.float64), np.array(places, np.int64)


def _distances(one: np.ndarray, real: np.ndarray, band: int) -> np.ndarray:
    # The library's window is the first shift that is not allowed.
    found = dtw_ndim.distance_matrix_fast(
        np.concatenate([one[None], real]),
        real.shape[2],
        window=band + 1,
        block=((0, 1), (1, 1 + len(real))),
        compact=True,
        parallel=False,
    )
    return np.asarray(found)


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
    found, plots, notes = [], [], []
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
            plots = _plots(sides, real[places[:_DRAWN]], some[: len(places)][:_DRAWN])
        found.append({"distance, mean": float(distances.mean()), "distance, median": float(np.median(distances))})
    return Result(*found, note="; ".join(notes) or None, plots=plots)


def _plots(sides: EncodedSides, real: np.ndarray, synthetic: np.ndarray) -> list[Plot]:
    """Draw synthetic series (n, readings, channels), each beside the real one that is nearest; their first channel."""
    low, width = (values[:: sides.channels] for values in sides.scale())
    pairs = zip(*(low + width * side[:, :, 0] for side in (real, synthetic)), strict=True)
    axes = {"said": "a series and the nearest", "along": "reading", "up": "value"}
    return [
        Plot("Nearest real series", f"Synthetic series {number}", "lines", {"real": near, "synthetic": made} | axes)
        for number, (near, made) in enumerate(pairs, start=1)
    ]

"""The nearest real series of synthetic ones by dynamic time warping, which forgives a peak that comes a little later."""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from dtaidistance import dtw_ndim
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lightning_dpgen.metrics.tensors import check_records, check_seconds

# Cells of the warping tables that are filled between two looks at the clock: a tenth of a second.
_CELLS = 1 << 24


class NearestSeries(Metric):
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

    full_state_update = False
    higher_is_better = None

    def __init__(
        self, readings: int, *, channels: int = 1, band: int | None = None, seconds: float | None = None, **kwargs
    ) -> None:
        super().__init__(**kwargs)
        for name, value in (("readings", readings), ("channels", channels)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r}: expected a whole number, 1 or more")
        if band is not None and (type(band) is not int or not 0 <= band < readings):
            raise ValueError(f"band={band!r}: expected a whole number from 0, below the number of readings, {readings}")
        check_seconds(seconds)
        self.readings, self.channels, self.seconds = readings, channels, seconds
        self.band = min(readings - 1, -(-readings // 10)) if band is None else band
        for side in ("real", "synthetic"):
            self.add_state(side, [], dist_reduce_fx="cat")

    def update(self, series: Tensor, *, real: bool) -> None:
        """Take in series (n, readings * channels) of one side, by time and then channel.

        Raises:
            ValueError: for no tensor of finite numbers, or another width.
        """
        check_records("series", series, self.readings * self.channels)
        (self.real if real else self.synthetic).append(series.to(torch.float64))

    def nearest(self) -> tuple[Tensor, Tensor]:
        """Return the distance and the place among the real series of the nearest one, both (compared,).

        The synthetic series are taken in their order; those for which there was no time are left out, perhaps all.

        Raises:
            ValueError: where one side has no series.
        """
        sides = [dim_zero_cat(side).cpu().numpy() if len(side) else () for side in (self.real, self.synthetic)]
        if not len(sides[0]) or not len(sides[1]):
            raise ValueError("nearest series of none: expected at least one on each side")
        real, synthetic = (side.reshape(-1, self.readings, self.channels) for side in sides)
        started, found = time.monotonic(), []
        at_once = max(1, _CELLS // (self.readings * (2 * self.band + 1) * self.channels))
        for one in synthetic:
            best = (np.inf, 0)
            for start in range(0, len(real), at_once):
                if self.seconds is not None and time.monotonic() - started > self.seconds:
                    break
                apart = self._distances(one, real[start : start + at_once])
                place = int(apart.argmin())
                best = min(best, (float(apart[place]), start + place))
            else:
                found.append(best)
                continue
            break
        distances, places = zip(*found, strict=True) if found else ((), ())
        return torch.tensor(distances, dtype=torch.float64), torch.tensor(places, dtype=torch.int64)

    def _distances(self, one: np.ndarray, real: np.ndarray) -> np.ndarray:
        # The library's window is the first shift that is not allowed.
        found = dtw_ndim.distance_matrix_fast(
            np.concatenate([one[None], real]),
            self.channels,
            window=self.band + 1,
            block=((0, 1), (1, 1 + len(real))),
            compact=True,
            parallel=False,
        )
        return np.asarray(found)

    def compute(self) -> dict[str, Tensor]:
        """Return ``mean`` and ``median`` of the distances; NaN where there was time for none."""
        distances = self.nearest()[0]
        if not len(distances):
            return dict.fromkeys(("mean", "median"), torch.tensor(math.nan, dtype=torch.float64))
        return {"mean": distances.mean(), "median": torch.quantile(distances, 0.5)}

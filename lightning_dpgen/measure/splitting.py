"""Two independent noisy measurements, made of one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lightning_dpgen.measure.workload import Measured


def split_noise(
    measured: Mapping[str, Measured], part: float, seed: int, chance: Mapping[str, Tensor] | None = None
) -> tuple[dict[str, Measured], dict[str, Measured]]:
    """Split noisy sums into two of the same records, whose noise is independent. Post-processing.

    A fit to the first is judged by its distance from the second, as by records that are held out (data fission, Leiner et
    al. 2023). With noise n of deviation d and z drawn anew from the same distribution, the sums are moved by ``part z`` and
    by ``-z / part``. Then ``n + part z`` and ``n - z / part`` are both normal, and their covariance is ``d^2 - d^2 = 0``.

    Args:
        measured: noisy sums by name; those without noise are in both as they are.
        part: the deviation that is added to the first, in units of d.
        seed: public.
        chance: variances of the sums beside that of their noise, by name, where these are to be split, too: records are a
            sample, and a fit that repeats its chance is not better. Chance that several sums share is split in each alone.

    Returns:
        Measurements of deviation ``d sqrt(1 + part^2)``, and of ``d sqrt(1 + part^-2)``.

    Example:
        >>> one, other = split_noise({"items": Measured(torch.zeros(3, dtype=torch.float64), 4.0)}, 0.75, seed=0)
        >>> one["items"].deviation, round(other["items"].deviation, 3)
        (5.0, 6.667)
    """
    generator = torch.Generator().manual_seed(seed)
    seen, held_out = {}, {}
    for name, own in measured.items():
        variance = own.deviation**2 + (0.0 if chance is None else chance[name])
        drawn = variance**0.5 * torch.randn(own.sums.shape, dtype=torch.float64, generator=generator)
        seen[name] = Measured(own.sums + part * drawn, own.deviation * (1.0 + part**2) ** 0.5, own.run)
        held_out[name] = Measured(own.sums - drawn / part, own.deviation * (1.0 + part**-2) ** 0.5, own.run)
    return seen, held_out

"""The log lines of a step: numbers of its lot, which are private, and its bounds, which are not."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.micro_batches import MicroBatches
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients, shares_of_slack
from lightning_dpgen.privacy.ranks import Ranks

# The beginning of a name says who may see the number: one under ``public/`` is covered by the ledger.
PRIVATE, PUBLIC = "private/", "public/"


class Pace:
    """The numbers of a log line that are of the steps before it, not of its lot."""

    def __init__(self) -> None:
        self._before: tuple[float, int] | None = None
        self._slack: float | None = None

    def look(self, gradients: PerSampleGradients) -> None:
        """Learn from the first lot with a record how much of a bound the room for rounding takes, at most."""
        # A captured step leaves its factors where they are not seen; the lot before it is not captured.
        if self._slack is None and type(gradients) is PerSampleGradients:
            self._slack = max(shares_of_slack(gradients), default=None)

    def numbers(self, step: int) -> dict[str, float]:
        """Return the steps a second since the line before, and the share that `look` has learnt, by name."""
        now, values = time.monotonic(), {}
        if self._before is not None:
            before, steps = self._before
            values[f"{PRIVATE}steps_per_second"] = (step - steps) / max(now - before, 1e-9)
        self._before = now, step
        return values if self._slack is None else values | {f"{PRIVATE}share_of_slack": self._slack}


def lot_numbers(
    gradients: Sequence[PerSampleGradients | MicroBatches | EmbeddingGradients],
    bounds: float | tuple | None,
    size: int,
    ranks: Ranks,
) -> dict[str, float]:
    """Return the lot's size, the mean loss, mean norm and share above the bound of each term, and the bounds, by name.

    Args:
        gradients: the gradients of each term, for this rank's part of the lot. One in micro-batches is gone through once
            more, with the parameters as they are now.
        bounds: `PrivateOptimizer.last_bound`.
        size: the size of this rank's part.
        ranks: the processes over which sums are taken; all of them call this.
    """
    of_terms = bounds if isinstance(bounds, tuple) and len(gradients) > 1 else (bounds,) * len(gradients)
    sums: dict[str, list[float]] = {}
    for j, (gradient_of_term, bound) in enumerate(zip(gradients, of_terms, strict=True)):
        behind = f"/{j}" if j else ""
        if isinstance(gradient_of_term, EmbeddingGradients):
            continue
        for part in gradient_of_term.parts():
            if part.losses is not None:
                _add(sums, f"loss{behind}", part.losses)
            norms = part.norms()
            finite = norms[norms.isfinite()]
            _add(sums, f"norm{behind}", finite)
            if isinstance(bound, float) and math.isfinite(bound):
                _add(sums, f"share_above_bound{behind}", finite > bound)
            del part
    flat = [float(size), *(number for pair in sums.values() for number in pair)]
    lot, *totals = ranks.sum_(torch.tensor(flat, dtype=torch.float64)).tolist()
    values = {f"{PRIVATE}lot_size": lot}
    values |= {
        f"{PRIVATE}{name}": total / count
        for name, total, count in zip(sums, totals[::2], totals[1::2], strict=True)
        if count
    }
    shown = [bound for bound in _flat(bounds) if bound is not None and math.isfinite(bound)]
    return values | {f"{PUBLIC}bound/{j}" if j else f"{PUBLIC}bound": bound for j, bound in enumerate(shown)}


def _add(sums: dict[str, list[float]], name: str, values: Tensor) -> None:
    """Add values to the sum of a name, and their number to the number there."""
    total = sums.setdefault(name, [0.0, 0.0])
    total[0] += float(values.detach().double().sum())
    total[1] += len(values)


def _flat(bound: float | tuple | None) -> list[float | None]:
    return [x for part in bound for x in _flat(part)] if isinstance(bound, tuple) else [bound]

"""Noise that takes back a part of what earlier steps have added, and the memory that it needs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_dpgen.privacy.noise.noise_grid import round_to_grid_
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.sampling.strategy import Strategy


class CorrelatedNoise:
    """The rows of ``C^-1 Z``, one after the other: Z is drawn anew in each step, and earlier rows are kept in memory.

    With coefficients c a row is ``x_t = z_t - sum_i c_i x_{t-i}``, and the memory holds the last rows. It is as secret as
    the noise of released steps, which it is made of.

    Rows whose memory was lost count as zeros. This costs no privacy, only accuracy: the matrix that was then followed has
    zeros in place of some entries of C, so that no record reaches farther (docs/guarantees/correlated_noise.md, "Correlated
    noise").

    Attributes:
        step: the number of steps that the memory stands after.

    Example:
        >>> noise = CorrelatedNoise(Strategy(steps=4, period=4, coefficients=(1.0, 0.5)), PrivateStream())
        >>> noise.add_(torch.zeros(3), step=0, multiplier=1.0, scale=0.1).shape
        torch.Size([3])
        >>> noise.step
        1
    """

    def __init__(self, strategy: Strategy, stream: PrivateStream) -> None:
        self._strategy, self._stream = strategy, stream
        self.step = 0
        # (bands - 1, d), the last rows: that of step t stands at t modulo their number.
        self._memory: Tensor | None = None

    @property
    def _slots(self) -> int:
        return len(self._strategy.coefficients) - 1

    def add_(self, out: Tensor, step: int, multiplier: float, scale: float) -> Tensor:
        """Add ``scale`` times the row of a step to `out`, in place, and round the sum to the grid of the noise drawn anew.

        The memory keeps the row as it was drawn: what is released is then a function of the sums with all rows.

        Args:
            out: a contiguous tensor of d numbers; of the same d in each step.
            step: the number of the step, from 0; steps that were left out count as rows that were lost.
            multiplier: the standard deviation of the independent noise Z over the sensitivity of the strategy.
            scale: the sensitivity of this step's numbers to one record, public.

        Raises:
            ValueError: for a step that the memory stands behind, or another number of numbers than before.
        """
        if step < self.step:
            raise ValueError(f"step={step}: noise of {self.step} steps was drawn, and none is drawn twice")
        deviation = multiplier * self._strategy.sensitivity
        row = self._stream.add_normal_(torch.zeros_like(out).view(-1), deviation)
        if self._slots:
            memory = self._held(row)
            for lost in range(self.step, step):
                memory[lost % self._slots] = 0.0
            row.addmv_(memory.T, self._weights(step).to(row), alpha=-1.0)
            memory[step % self._slots] = row
        self.step = step + 1
        out.view(-1).add_(row, alpha=scale)
        return round_to_grid_(out, deviation * scale)

    def _held(self, row: Tensor) -> Tensor:
        """Return the memory, on the device of a row."""
        if self._memory is None:
            self._memory = row.new_zeros(self._slots, len(row))
        if self._memory.shape[1] != len(row):
            raise ValueError(
                f"{len(row)} numbers, and {self._memory.shape[1]} in the steps before: correlated noise needs the same "
                "parameters in every step"
            )
        self._memory = self._memory.to(row)
        return self._memory

    def _weights(self, step: int) -> Tensor:
        """Return the (slots,) parts of the memory that a step takes back."""
        weights = torch.empty(self._slots, dtype=torch.float64)
        places = (step - 1 - torch.arange(self._slots)) % self._slots
        weights[places] = torch.tensor(self._strategy.coefficients[1:], dtype=torch.float64)
        return weights

    @property
    def state(self) -> dict[str, Any]:
        """The memory and the number of steps that it stands after; as secret as the noise."""
        return {"step": self.step, "memory": None if self._memory is None else self._memory.cpu()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.step, self._memory = state["step"], state["memory"]

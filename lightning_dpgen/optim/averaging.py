"""An exponential moving average of parameters, a public function of private steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class ParameterAverage:
    """The average of parameters over the steps that were made, recent ones more (De et al. 2022, section 3.3).

    Parameters before the first step have no part in it, as in the means of Adam (Kingma and Ba 2015, section 3). Each is
    a function of noisy sums, so the average costs no privacy.

    Args:
        parameters: those of the trained network.
        keep: the part of the average that stays in a step, above 0, below 1.

    Raises:
        ValueError: for another number.

    Example:
        >>> p = nn.Parameter(torch.tensor([0.0]))
        >>> average = ParameterAverage([p], keep=0.5)
        >>> for number in (1.0, 4.0):
        ...     p.data.fill_(number)
        ...     average.update()
        tensor([1.])
        tensor([4.])
        >>> with average.in_their_place():
        ...     print(p.item())
        3.0
    """

    def __init__(self, parameters: Iterable[nn.Parameter], keep: float) -> None:
        if not (isinstance(keep, int | float) and 0.0 < keep < 1.0):
            raise ValueError(f"averaging={keep!r}: expected a number above 0, below 1")
        self.keep, self._parameters = float(keep), list(parameters)
        self._average = [p.detach().clone() for p in self._parameters]
        # The sum of the weights of all steps.
        self._weight = 0.0

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the parameters, after a step."""
        self._weight = self.keep * self._weight + 1.0 - self.keep
        part = (1.0 - self.keep) / self._weight
        for average, p in zip(self._average, self._parameters, strict=True):
            average.lerp_(p, part)

    @contextmanager
    def in_their_place(self) -> Iterator[None]:
        """Put the average into the parameters, within a ``with`` block."""
        before = [p.detach().clone() for p in self._parameters]
        self._copy(self._average)
        try:
            yield
        finally:
            self._copy(before)

    @torch.no_grad()
    def _copy(self, values: list[torch.Tensor]) -> None:
        for p, value in zip(self._parameters, values, strict=True):
            p.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a run needs to go on."""
        return {"average": self._average, "weight": self._weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave.

        Raises:
            ValueError: for the average of other parameters.
        """
        shapes = [tuple(average.shape) for average in self._average]
        if [tuple(average.shape) for average in state["average"]] != shapes:
            raise ValueError(f"state: an average of other parameters; expected those of shapes {shapes}")
        for average, value in zip(self._average, state["average"], strict=True):
            average.copy_(value)
        self._weight = float(state["weight"])

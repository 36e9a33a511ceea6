"""Opacus' ``grad_sample_mode="ghost"`` with the engine of this package: module and criterion of a loop that stays as it is.

Opacus calls the criterion on what the module returned, and its loss goes backward twice. Here the two are called again
within the loss of a record, whose gradient the engine finds without materialising it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.privacy.access import LotId
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.randomness import randomness_of_their_own


@dataclass(frozen=True)
class _Call:
    """A call of a module in training: its arguments, and what it returned."""

    args: tuple
    kwargs: dict[str, Any]
    output: Any


class GhostModule(nn.Module):
    """A module that remembers its last call in training, which a `GhostCriterion` makes again record by record.

    What it returns there has no graph. Its parameters have the names that Opacus' wrapper gives them.

    Args:
        module: the network.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self.last: _Call | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return self._module(*args, **kwargs)
        # Dropout would move a public generator on with each record.
        with torch.no_grad(), randomness_of_their_own():
            output = self._module(*args, **kwargs)
        self.last = _Call(args, kwargs, output)
        return output

    def to_standard_module(self) -> nn.Module:
        """Return the network."""
        return self._module


class GhostCriterion:
    """A criterion whose loss hands the gradients of records to the optimizer when it goes backward.

    Args:
        module: the module whose output it is called with, as it was returned.
        optimizer: the optimizer that steps by these gradients.
        criterion: a function of an output and targets, such as ``nn.CrossEntropyLoss()``. It is called with one record at
            a time, so its reduction is that within a record.
    """

    def __init__(self, module: GhostModule, optimizer: PrivateOptimizer, criterion: Callable[..., Tensor]) -> None:
        self._module, self._optimizer, self._criterion = module, optimizer, criterion

    def __call__(self, output: Any, *targets: Any, **options: Any) -> Tensor:
        """Return the loss of the batch, whose ``backward()`` computes the gradients of its records.

        Raises:
            ValueError: for another output than the last of the module in training.
        """
        call = self._module.last
        if call is None or output is not call.output:
            raise ValueError(
                "criterion: expected what the module returned for this batch in training, as in criterion(module(x), y): "
                "put what happens between them into the criterion, which may be a function"
            )
        with torch.no_grad(), randomness_of_their_own():
            loss: Any = self._criterion(output, *targets, **options).detach()
        # An attribute of this tensor alone: what is computed from it has none, and no graph either.
        loss.backward = functools.partial(self._backward, call, targets, options)
        return loss

    def _backward(self, call: _Call, targets: tuple, options: dict[str, Any]) -> None:
        leaves, form = tree_flatten((call.args, call.kwargs, targets, options))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        records = tuple(leaves[i] for i in places)
        if not records or any(not x.dim() or len(x) != len(records[0]) for x in records):
            raise ValueError(
                "the module and criterion were called with tensors of several lengths: expected one row for each record in "
                "each, and constants as attributes of the module"
            )
        network, criterion = self._module._module, self._criterion

        def loss(lot: Lot, noise: Tensor) -> Tensor:
            mixed = list(leaves)
            for i, x in zip(places, lot.records, strict=True):
                mixed[i] = x
            args, kwargs, of_record, more = tree_unflatten(mixed, form)
            return criterion(network(*args, **kwargs), *of_record, **more)

        def compute(draw: LotId) -> PerSampleGradients:
            lot = Lot(records, (0, len(records[0])), draw)
            return self._optimizer.compute_gradients(network, PerRecord(loss), lot, capture=False)

        self._optimizer.set_expected_gradients(compute)

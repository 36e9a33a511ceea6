"""Several optimizers of one module: private ones take turns at the lots, public ones step on terms that see no record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lightning_dpgen.gradients.shards import reshard
from lightning_dpgen.gradients.terms import DataFree, PerGroup, PerRecord
from lightning_dpgen.optim.private import PrivateOptimizer

Terms = list[PerRecord | PerGroup | DataFree]


def terms_of_each(given: Any, count: int) -> list[Terms]:
    """Return the terms of each of several optimizers, as a training step has given them; none where one has no step.

    Args:
        given: one entry for each optimizer: a term, a list of terms, or None.
        count: the number of optimizers.

    Raises:
        ValueError: for anything else.

    Example:
        >>> free = DataFree(lambda: torch.zeros(()))
        >>> [len(terms) for terms in terms_of_each((free, None, [free, free]), 3)]
        [1, 0, 2]
    """
    entries = [_as_list(entry) for entry in given] if isinstance(given, list | tuple) else []
    if len(entries) != count or not all(isinstance(t, PerRecord | PerGroup | DataFree) for e in entries for t in e):
        what = f"{len(entries)} entries" if len(entries) not in (0, count) else type(given).__name__
        raise ValueError(
            f"training_step returned {what} for {count} optimizers: expected one entry for each, as in return "
            "PerRecord(self.critic_loss), DataFree(self.generator_loss): PerRecord(loss(lot, noise)) where records are "
            "seen, DataFree(loss()) where none is, a list of several terms, or None for a public one that has no step "
            "now (examples/gan.py)"
        )
    return entries


def _as_list(entry: Any) -> list:
    return [] if entry is None else list(entry) if isinstance(entry, list | tuple) else [entry]


def sees_records(terms: Terms) -> bool:
    """Return True if a term is handed records, so that its optimizer has to be private."""
    return any(not isinstance(term, DataFree) for term in terms)


def check_kinds(optimizers: Sequence[Optimizer], of_optimizers: Sequence[Terms]) -> None:
    """Refuse terms that see records for a public optimizer, and none that does for a private one.

    Raises:
        ValueError: naming the optimizer.
    """
    for number, (optimizer, terms) in enumerate(zip(optimizers, of_optimizers, strict=True)):
        private = isinstance(optimizer, PrivateOptimizer)
        if private and not sees_records(terms):
            raise ValueError(
                f"training_step returned no term that sees records for optimizer {number}, which is private: every lot of "
                "its turns takes a step, so return a PerRecord or PerGroup term each time"
            )
        if sees_records(terms) and not private:
            raise ValueError(
                f"training_step returned a term that sees records for optimizer {number}, which is public: return only "
                "DataFree terms, or None, as at the beginning of the fit"
            )


def whose_turn(optimizers: Sequence[Optimizer], number: int) -> int:
    """Return which optimizer a lot is for: the private ones take turns, since a lot pays for one step.

    Args:
        number: the number of the lot, from 0.
    """
    private = [i for i, optimizer in enumerate(optimizers) if isinstance(optimizer, PrivateOptimizer)]
    return private[number % len(private)]


@contextmanager
def training_alone(module: nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Freeze all parameters of a module but those of an optimizer within the block, as Lightning's toggle does."""
    # After an evaluation the network may hold other parameters, whole ones, than its optimizers.
    reshard(module)
    mine = {id(p) for p in parameters_of(optimizer)}
    others = [p for p in module.parameters() if p.requires_grad and id(p) not in mine]
    try:
        for p in others:
            p.requires_grad_(False)
        yield
    finally:
        for p in others:
            p.requires_grad_(True)


def step_public(optimizer: Optimizer, terms: Sequence[DataFree]) -> None:
    """Step an optimizer on the sum of terms that see no record.

    Raises:
        ValueError: for a loss that is no single number, or does not depend on the optimizer's parameters.
    """
    if not terms:
        return
    parameters = parameters_of(optimizer)

    def compute() -> Any:
        loss = _sum_of(terms)
        # Written to these alone: the gradients of the others belong to private optimizers.
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        return loss

    optimizer.step(compute)


def check_public(terms: Sequence[DataFree]) -> None:
    """Compute the terms of a public optimizer once, without a step; raise what `step_public` would."""
    if terms:
        _sum_of(terms)


def in_terms(name: str, module: nn.Module, optimizers: Sequence[Optimizer], sees: Sequence[bool | None]) -> str:
    """Write the class of a module with manual optimization as it would give terms, whose losses are left to be filled in.

    Args:
        name: of the class.
        sees: for each optimizer whether its losses see records; None where that is not known, and is asked for.
    """
    head = f"class {name}(...):  # the other methods stay; leave out automatic_optimization = False"
    step = "    def training_step(self, batch, batch_idx):"
    if len(optimizers) == 1:
        return "\n".join((head, step, "        loss = ...  # of the batch, a mean over it", "        return loss"))
    names, entries, methods = loss_names(module, optimizers), [], []
    for loss, of_records in zip(names, sees, strict=True):
        entry, arguments = f"PerRecord(self.{loss}),", "self, lot, noise"
        seen = "lot.records is a batch of one record"
        if of_records is None:
            entry = f"...,  # PerRecord(self.{loss}) if this loss depends on the batch, else DataFree(self.{loss})"
            seen += "; for DataFree leave out lot and noise"
        elif not of_records:
            entry, arguments, seen = f"DataFree(self.{loss}),", "self", "it sees no record"
        entries.append(entry)
        methods += ["", f"    def {loss}({arguments}):", f"        loss = ...  # {seen}", "        return loss"]
    if None in sees:
        given = ["        return (", *(f"            {entry}" for entry in entries), "        )"]
    else:
        given = [f"        return {' '.join(entries).removesuffix(',')}"]
    return "\n".join((head, step, *given, *methods))


def loss_names(module: nn.Module, optimizers: Sequence[Optimizer]) -> list[str]:
    """Return a name for the loss of each optimizer, by the parts of the module that it steps.

    Example:
        >>> module = nn.ModuleDict({"critic": nn.Linear(1, 1), "generator": nn.Linear(1, 1)})
        >>> loss_names(module, [torch.optim.SGD(part.parameters()) for part in module.values()])
        ['critic_loss', 'generator_loss']
    """
    names: list[str] = []
    for number, optimizer in enumerate(optimizers):
        mine = {id(p) for p in parameters_of(optimizer)}
        parts = [part for part, child in module.named_children() if any(id(p) in mine for p in child.parameters())]
        name = "_and_".join(parts or [f"optimizer_{number}"]) + "_loss"
        names.append(f"{name}_of_{number}" if name in names or hasattr(module, name) else name)
    return names


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _sum_of(terms: Sequence[DataFree]) -> torch.Tensor:
    losses = [term.loss() for term in terms]
    for loss in losses:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ValueError(f"a DataFree loss must be one number, such as a mean over what was generated; it is {what}")
    total = torch.stack([loss.sum() for loss in losses]).sum()
    if not total.requires_grad:
        raise ValueError(
            "a DataFree loss follows from no parameter that is trained: its optimizer would change nothing; return the "
            "loss of what its parameters make"
        )
    return total

"""Book-keeping ghost clipping: per-record norms and clipped sums without per-record gradients.

One forward and one backward give, for each use of a parameter, its inputs ``a`` and output gradients ``g``. A record's
gradient is a sum of outer products ``g a^T``: its norm follows from inner products of these factors, and the clipped sum is
one weighted product ``(w g)^T a`` (Bu et al. 2023, "Differentially private optimization on large model at small cost";
Li et al. 2022 for the norms). The bound may be chosen between the two, from the lot's own norms.
"""

from __future__ import annotations

import itertools
import math
import warnings
import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lightning_dpgen.data.lots import Lot
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.layers import checked_layers
from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.gradients.rules import RULES
from lightning_dpgen.gradients.standins import AmbiguousSize, StandIn, Tape
from lightning_dpgen.gradients.terms import PerGroup, PerRecord, code_of
from lightning_dpgen.privacy.precision import full_precision


@dataclass
class _Known:
    """What earlier lots have shown of a network: sizes without records, functions that were warned of, shapes by loss."""

    constants: set[int] = field(default_factory=set)
    said: set[str] = field(default_factory=set)
    shapes: dict[Hashable, list[tuple[int, ...]]] = field(default_factory=dict)


_known: weakref.WeakKeyDictionary[nn.Module, _Known] = weakref.WeakKeyDictionary()


def ghost_gradients(
    network: nn.Module,
    term: PerRecord | PerGroup,
    lot: Lot,
    noise: Tensor,
    groups: Groups | None = None,
    *,
    at_least: int = 2,
) -> RecordGradients:
    """The gradients of a term for each record, or group of records, by one forward and one backward.

    Linear layers, convolutions in one and two dimensions and their transposes, embeddings, normalisation within a record,
    and parameters that are plain tensors have rules, wherever and however often they are used. For other functions a
    parameter's gradients are made by `torch.func`, for that function alone; a warning says so once. A term that brings its
    gradients in closed form is asked for these.

    Args:
        network: its trainable parameters are differentiated; `term.loss` calls it.
        term: a per-record or per-group loss.
        lot: B records; B may be 0.
        noise: (B, term.noise), the records' own randomness.
        groups: of the records, for a per-group loss.
        at_least: to how many records a lot is padded at least.

    Raises:
        ValueError: if a layer mixes records, or a tensor that depends on them has no dimension of records.
        RuntimeError: if a parameter is used by code that is no function of torch.
    """
    layers, count = checked_layers(network), None if groups is None else groups.count
    rows = len(lot) if count is None else count
    if not len(lot):
        nothing = noise.new_zeros(rows)
        return RecordGradients(
            {}, layers, rows, lot.draw, offsets=lot.offsets, groups=count, losses=lambda: nothing
        )
    if term.forms is not None:
        # Under autocast numbers of two precisions would meet, as torch converts nothing in a closed form.
        with full_precision(noise.device):
            forms, losses = term.forms(lot, noise) if groups is None else term.forms(lot, noise, groups)
        if groups is None:
            return RecordGradients(forms, layers, rows, lot.draw, offsets=lot.offsets, losses=losses)
        return RecordGradients(forms, layers, rows, lot.draw, groups=count, partition=groups, losses=losses)
    known = _known.setdefault(network, _Known())

    def say(name: str) -> None:
        if name not in known.said:
            known.said.add(name)
            warnings.warn(
                f"no rule for {name}: gradients of its parameters are made by torch.func, one a record: exact, and slower",
                stacklevel=2,
            )

    taken = _taken(layers, lot, noise) | ({rows} if groups else set())
    taken |= {n for buffer in network.buffers() for n in (*buffer.shape, buffer.numel())}
    for last in (False, False, True):
        padded, own, partition = _padded(lot, noise, groups, taken | known.constants, at_least)
        tape = Tape(len(padded), RULES, say)
        try:
            with _replaced(network, tape):
                marked = padded.mapped(tape.mark)
                losses = term.losses(marked, own) if groups is None else term.losses(marked, own, partition)
            if isinstance(losses, StandIn) or not losses.requires_grad or not tape.used:
                raise ValueError(
                    "this loss does not depend on both the records and the parameters of the network: a loss of parameters "
                    "alone is a DataFree term"
                )
            # Backward, and what follows from it, in full precision, whatever the losses were computed in.
            with full_precision(losses.device):
                forms = tape.gradients(losses)
            _check_shapes(known.shapes.setdefault(code_of(term.loss), tape.shapes), tape.shapes)
            break
        except AmbiguousSize:
            # By chance it does not happen again at another size.
            if last:
                raise
            known.constants.add(len(padded))
        finally:
            known.constants |= tape.constants
            tape.close()
    found = losses.detach()[:rows]
    return RecordGradients(
        forms,
        layers,
        rows,
        lot.draw,
        offsets=lot.offsets if groups is None else None,
        groups=count,
        partition=partition,
        losses=lambda: found,
    )


def _check_shapes(before: list[tuple[int, ...]], now: list[tuple[int, ...]]) -> None:
    if now == before:
        return
    pair = next(((a, b) for a, b in itertools.zip_longest(before, now) if a != b))
    raise ValueError(
        "what the loss computes of a record had other shapes in an earlier lot "
        f"({pair[0]} then, {pair[1]} now): a length that follows from the records of a lot is private, and would "
        "change what others add. Pad to a fixed length; where shapes change for a public reason, use another loss "
        "function for each"
    )


def _taken(layers: list[list[nn.Parameter]], lot: Lot, noise: Tensor) -> set[int]:
    """Sizes that a dimension may have which is not that of the records."""
    sizes = {n for layer in layers for p in layer for n in p.shape} | {noise.shape[1]}
    for x in lot.tensors:
        sizes.update(math.prod(x.shape[i:j]) for i in range(1, x.dim()) for j in range(i + 1, x.dim() + 1))
    return sizes


def _padded(
    lot: Lot, noise: Tensor, groups: Groups | None, taken: set[int], at_least: int
) -> tuple[Lot, Tensor, Groups | None]:
    """The lot with copies of a record behind it, in no group, so that no other dimension could be taken for theirs."""
    size = max(len(lot), at_least)
    while size in taken:
        size += 1
    more = size - len(lot)
    if not more:
        return lot, noise, groups
    noise = torch.cat([noise, noise[:1].expand(more, -1)])
    if groups is not None:
        groups = Groups(torch.cat([groups.index, groups.index.new_full((more,), groups.count)]), groups.count)
    return lot.padded(more), noise, groups


@contextmanager
def _replaced(network: nn.Module, tape: Tape) -> Iterator[None]:
    """The network with stand-ins for its trainable parameters, at every place that holds one."""
    held = [
        (module._parameters, name, p)
        for module in network.modules()
        for name, p in module._parameters.items()
        if p is not None and p.requires_grad
    ]
    try:
        for place, name, p in held:
            place[name] = tape.stand_in(p)
        yield
    finally:
        for place, name, p in held:
            place[name] = p

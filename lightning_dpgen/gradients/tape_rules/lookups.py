"""Rules of lookups: embeddings, bags of them, and rows of a parameter by index."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_dpgen.gradients.factors import GradientFactors, OuterSum
from lightning_dpgen.gradients.tape import Rule, Tape, TracedParameter, factor_dtype, value_of


def _looked_up(parameter: TracedParameter, indices: Tensor, rows: Tensor) -> tuple[Tensor, GradientFactors]:
    """Return the gradient from that of the rows (B, r, n) that were looked up at (B, r) indices."""
    source, shape = parameter.source, tuple(parameter.source.shape)
    rows = rows.to(factor_dtype(rows, parameter))
    return source, OuterSum([(indices, rows)], (shape[0], math.prod(shape[1:])), shape)


def _embedding(
    tape: Tape, input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False
):
    index = tape.rows(input)
    if not isinstance(weight, TracedParameter) or index is None:
        return NotImplemented

    def note(gradient):
        indices = index.reshape(len(index), -1).long()
        rows = gradient.reshape(*indices.shape, -1)
        if padding_idx is not None:
            rows = torch.where((indices == padding_idx % len(weight.source))[:, :, None], 0.0, rows)
        yield _looked_up(weight, indices, rows)

    return tape.note(lambda: F.embedding(index, value_of(weight)), note)


def _getitem(tape: Tape, parameter, index):
    """Take rows of a parameter at the indices of records: an embedding of any shape."""
    if not isinstance(parameter, TracedParameter) or not isinstance(index, Tensor) or index.dtype != torch.int64:
        return NotImplemented
    where = tape.rows(index)
    if where is None:
        return NotImplemented
    width = math.prod(parameter.source.shape[1:])

    def note(gradient):
        indices = where.reshape(len(where), -1) % len(parameter.source)
        yield _looked_up(parameter, indices, gradient.reshape(*indices.shape, width))

    return tape.note(lambda: value_of(parameter)[where], note)


def _embedding_bag(
    tape: Tape,
    input,
    weight,
    offsets=None,
    max_norm=None,
    norm_type=2,
    scale_grad_by_freq=False,
    mode="mean",
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=None,
):
    index = tape.rows(input)
    if not isinstance(weight, TracedParameter) or isinstance(per_sample_weights, TracedParameter) or index is None:
        return NotImplemented
    if offsets is not None or mode == "max" or index.dim() != 3:
        raise ValueError(
            "an EmbeddingBag takes the bag of a record as a row of indices, padded to a fixed length (padding_idx), in the "
            "modes sum and mean: offsets would say how long the bags of records are"
        )
    share = tape.rows(per_sample_weights)
    bags, there = index.flatten(0, 1).long(), torch.ones((), dtype=torch.bool, device=index.device)
    if padding_idx is not None:
        there = bags != padding_idx % weight.source.shape[0]
    there = there.expand(bags.shape)

    def compute():
        own = None if share is None else share.flatten(0, 1)
        options = {"mode": mode, "per_sample_weights": own, "padding_idx": padding_idx}
        return F.embedding_bag(bags, value_of(weight), **options)

    def note(gradient):
        weights = there.to(weight.source.dtype)
        if share is not None:
            weights = torch.where(there, share.detach().flatten(0, 1), 0.0).to(weight.source.dtype)
        if mode == "mean":
            weights = weights / there.sum(dim=1, keepdim=True).clamp(min=1)
        rows = weights[:, :, None] * gradient.to(weights.dtype)[:, None, :]
        size = len(index)
        yield _looked_up(weight, bags.reshape(size, -1), rows.reshape(size, -1, rows.shape[2]))

    return tape.note(compute, note, lambda y: y.unflatten(0, (len(index), -1)))


RULES: dict[Callable, Rule] = {
    F.embedding: _embedding,
    Tensor.__getitem__: _getitem,
    F.embedding_bag: _embedding_bag,
}

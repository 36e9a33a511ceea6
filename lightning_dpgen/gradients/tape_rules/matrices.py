"""Rules of matrix products, and of transposes of a matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_dpgen.gradients.factors import Dense, GradientFactors, RankOne, outer
from lightning_dpgen.gradients.isolation.hidden import is_hidden
from lightning_dpgen.gradients.tape import Rule, Tape, TracedParameter, factor_dtype, records_behind, value_of


def matrix_gradient(parameter: TracedParameter, pairs, shape: tuple[int, int]) -> tuple[Tensor, GradientFactors]:
    """Return the gradient with respect to a matrix, or to the matrix that it is the transpose of."""
    if parameter.transpose_of is None:
        return parameter.source, outer(pairs, shape, parameter.source.shape)
    return parameter.transpose_of, outer([(b, a) for a, b in pairs], shape[::-1], parameter.transpose_of.shape)


def _rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Reshape (B, ..., n) to (B, r, n), in a precision."""
    return x.detach().reshape(x.shape[0], -1, x.shape[-1]).to(dtype)


def _linear(tape: Tape, input, weight, bias=None):
    x = records_behind(tape, input, 1, weight, bias)
    if x is None:
        return NotImplemented
    # A result in more dimensions would be a view of one in two, which autograd copies where it is told its gradient.
    several = x.dim() > 2

    def note(gradient):
        if gradient.shape[0] == x.shape[0]:
            return _single(gradient, x, weight, bias)
        g = gradient.reshape(len(x), -1, gradient.shape[-1])
        uses = []
        if isinstance(weight, TracedParameter):
            dtype = factor_dtype(gradient, weight)
            uses.append(matrix_gradient(weight, [(g.to(dtype), _rows(x, dtype))], (g.shape[2], x.shape[-1])))
        if isinstance(bias, TracedParameter):
            uses.append((bias.source, Dense(g.sum(dim=1, dtype=bias.source.dtype))))
        return uses

    return tape.note(
        lambda: F.linear(x.flatten(0, -2) if several else x, value_of(weight), value_of(bias)),
        note,
        (lambda y: y.unflatten(0, x.shape[:-1])) if several else None,
    )


def _single(gradient: Tensor, x: Tensor, weight, bias) -> list[tuple[Tensor, GradientFactors]]:
    """Return the gradients of a linear map of one vector a record: one outer product, as most small networks have it."""
    traced = weight if isinstance(weight, TracedParameter) else bias
    g = gradient.reshape(x.shape[0], gradient.shape[-1]).to(factor_dtype(gradient, traced))
    uses: list[tuple[Tensor, GradientFactors]] = []
    if isinstance(weight, TracedParameter):
        inputs = x.detach().reshape(x.shape[0], x.shape[-1]).to(g.dtype)
        if weight.transpose_of is None:
            uses.append((weight.source, RankOne(g, inputs, tuple(weight.source.shape))))
        else:
            uses.append((weight.transpose_of, RankOne(inputs, g, tuple(weight.transpose_of.shape))))
    if isinstance(bias, TracedParameter):
        uses.append((bias.source, Dense(g)))
    return uses


def _matmul(tape: Tape, a, b, *, out=None):
    if out is not None:
        return NotImplemented
    if isinstance(b, TracedParameter) and b.source.dim() <= 2 and (x := records_behind(tape, a, 1)) is not None:

        def note(gradient):
            g = gradient[..., None] if b.source.dim() == 1 else gradient
            dtype = factor_dtype(gradient, b)
            g, inputs = _rows(g, dtype), _rows(x, dtype)
            yield matrix_gradient(b, [(inputs, g)], (inputs.shape[2], g.shape[2]))

        return tape.note(lambda: x @ value_of(b), note)
    if isinstance(a, TracedParameter) and a.source.dim() == 2 and (x := records_behind(tape, b, 1)) is not None:
        vector = x.dim() == 2

        def note(gradient):
            dtype = factor_dtype(gradient, a)
            g = _rows(gradient if vector else gradient.mT, dtype)
            inputs = _rows(x if vector else x.mT, dtype)
            yield matrix_gradient(a, [(g, inputs)], (g.shape[2], inputs.shape[2]))

        return tape.note(lambda: F.linear(x, value_of(a)) if vector else value_of(a) @ x, note)
    return NotImplemented


def _matmul_from_the_right(tape: Tape, b, a):
    return _matmul(tape, a, b)


def _addmm(tape: Tape, input, mat1, mat2, *, beta=1, alpha=1, out=None):
    if beta != 1 or alpha != 1 or out is not None or not is_hidden(mat1):
        return NotImplemented
    plain_bias = not is_hidden(input) and input.dim() == 1
    if isinstance(mat2, TracedParameter) and plain_bias and (x := records_behind(tape, mat1, 2)) is not None:
        # Together with a bias, it is a linear layer with its weight transposed.
        return _affine(tape, x, mat2, input)
    product = _matmul(tape, mat1, mat2) if isinstance(mat2, TracedParameter) else mat1 @ mat2
    return product + input


def _affine(tape: Tape, x: Tensor, matrix: TracedParameter, bias: Tensor):
    """Compute ``x @ matrix + bias`` of records (B, r, n), with a bias (o,) that is a parameter or public."""

    def note(gradient):
        dtype = factor_dtype(gradient, matrix)
        g = gradient.view(len(x), -1, gradient.shape[1]).to(dtype)
        yield matrix_gradient(matrix, [(_rows(x, dtype), g)], (x.shape[2], g.shape[2]))
        if isinstance(bias, TracedParameter):
            yield bias.source, Dense(g.sum(dim=1, dtype=bias.source.dtype))

    return tape.note(
        lambda: torch.addmm(value_of(bias), x.flatten(0, 1), value_of(matrix)), note, lambda y: y.unflatten(0, x.shape[:2])
    )


def _transpose(tape: Tape, matrix, *dimensions):
    """Trace the transpose of a matrix: gradients are carried back by exchanging factors."""
    if not isinstance(matrix, TracedParameter) or matrix.source.dim() != 2 or matrix.transpose_of is not None:
        return NotImplemented
    if dimensions and sorted(d % 2 for d in dimensions) != [0, 1]:
        return NotImplemented
    with tape.isolation.outside():
        return TracedParameter.of(matrix.source.t(), tape, transpose_of=matrix.source)


def _permute(tape: Tape, matrix, *dimensions):
    dimensions = dimensions[0] if len(dimensions) == 1 else dimensions
    return _transpose(tape, matrix) if tuple(d % 2 for d in dimensions) == (1, 0) else NotImplemented


RULES: dict[Callable, Rule] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    Tensor.addmm: _addmm,
    Tensor.__rmatmul__: _matmul_from_the_right,
    Tensor.T.__get__: _transpose,
    Tensor.mT.__get__: _transpose,
    Tensor.permute: _permute,
    torch.permute: _permute,
    **dict.fromkeys((torch.matmul, torch.mm, torch.mv, Tensor.matmul, Tensor.mm, Tensor.mv, Tensor.__matmul__), _matmul),
    **dict.fromkeys((torch.t, Tensor.t, torch.transpose, Tensor.transpose, torch.swapaxes, Tensor.swapaxes), _transpose),
}

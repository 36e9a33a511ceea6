"""Book-keeping ghost clipping: per-record norms and clipped sums without per-record gradients.

One forward and one backward give, for each linear layer, its inputs ``a`` and output gradients ``g``. A record's
gradient is the outer product ``g a^T``: its squared norm is ``|g|^2 |a|^2``, and the clipped sum is one weighted
product ``(w g)^T a`` (Bu et al. 2023, "Differentially private optimization on large model at small cost"; Li et al.
2022 for the norms). The bound may be chosen between the two, from the lot's own norms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_dpgen.data.lots import Lot
from lightning_dpgen.gradients.layers import check_layers
from lightning_dpgen.gradients.stacked import StackedLinear
from lightning_dpgen.gradients.terms import PerRecord

_LAYERS = (nn.Linear, StackedLinear)
# Of the square of the sum of the norms of the outer products; the float32 products that are released err by less.
_SLACK = 1e-6


@dataclass
class _Factors:
    """What one layer keeps: r inputs (B, r, n) and as many output gradients (B, r, o), one pair a position and call."""

    layer: nn.Module
    inputs: Tensor
    gradients: Tensor

    def squared_norms(self) -> Tensor:
        # In float64: in float32 squares vanish below 1e-23 and overflow above 1e19.
        a, g = self.inputs.double(), self.gradients.double()
        has_bias = self.layer.bias is not None and self.layer.bias.requires_grad
        if a.shape[1] == 1:
            gg = g.square().sum(dim=(1, 2))
            aa = a.square().sum(dim=(1, 2)) if self.layer.weight.requires_grad else torch.zeros_like(gg)
            return gg * (aa + 1.0) if has_bias else gg * aa
        # sum_ij (a_i . a_j)(g_i . g_j) is the squared norm of a sum of r outer products. Where they cancel, rounding
        # could leave too small a norm, and too large a contribution: the slack is never less than that error.
        gram = g @ g.transpose(1, 2)
        total = torch.zeros_like(gram[:, 0, 0])
        if self.layer.weight.requires_grad:
            total = total + ((a @ a.transpose(1, 2)) * gram).sum(dim=(1, 2))
            total = total + _SLACK * (a.norm(dim=2) * g.norm(dim=2)).sum(dim=1).square()
        if has_bias:
            total = total + gram.sum(dim=(1, 2)) + _SLACK * g.norm(dim=2).sum(dim=1).square()
        return total


class GhostGradients:
    """The gradients of a lot, held as factors of each layer: `RecordGradients` that are never materialised."""

    def __init__(self, factors: list[_Factors], lot: Lot) -> None:
        self._factors, self._offsets, self.draw = factors, lot.offsets, lot.draw

    @property
    def parameters(self) -> Set[nn.Parameter]:
        return {p for f in self._factors for p in f.layer.parameters(recurse=False) if p.requires_grad}

    def norms(self) -> Tensor:
        return torch.stack([f.squared_norms() for f in self._factors]).sum(dim=0).clamp(min=0.0).sqrt()

    def weighted_sum(self, weights: Tensor, out: Mapping[nn.Parameter, Tensor]) -> None:
        silenced = weights == 0
        some_silenced = bool(silenced.any())
        for f in self._factors:
            a, g = f.inputs, f.gradients * weights.to(f.gradients.dtype)[:, None, None]
            if some_silenced:
                # Weight 0 does not silence NaN in a product: both factors must be exact zeros.
                a = torch.where(silenced[:, None, None], 0.0, a)
                g = torch.where(silenced[:, None, None], 0.0, g)
            if isinstance(f.layer, StackedLinear):
                self._sum_stacked(f.layer, a[:, 0], g[:, 0], out)
            else:
                self._sum_plain(f.layer, a.flatten(0, 1), g.flatten(0, 1), out)

    def _sum_stacked(self, layer: StackedLinear, a: Tensor, g: Tensor, out) -> None:
        for c, (start, end) in enumerate(zip(self._offsets[:-1], self._offsets[1:], strict=True)):
            # Also right for an empty segment: the product over no record is an exact zero.
            if layer.weight.requires_grad:
                torch.mm(g[start:end].T, a[start:end], out=out[layer.weight][c])
            if layer.bias is not None and layer.bias.requires_grad:
                torch.sum(g[start:end], dim=0, out=out[layer.bias][c])

    def _sum_plain(self, layer: nn.Linear, a: Tensor, g: Tensor, out) -> None:
        if layer.weight.requires_grad:
            torch.mm(g.T, a, out=out[layer.weight])
        if layer.bias is not None and layer.bias.requires_grad:
            torch.sum(g, dim=0, out=out[layer.bias])


def unsupported(network: nn.Module) -> list[str]:
    """Names of the trainable parameters that this engine cannot serve: of other layers, or shared by two."""
    # Exactly these types: a subclass may do something else with its weight, or have parameters besides.
    places = Counter(id(p) for m in network.modules() if type(m) in _LAYERS for p in (m.weight, m.bias))
    return [name for name, p in network.named_parameters() if p.requires_grad and places[id(p)] != 1]


def ghost_gradients(network: nn.Module, term: PerRecord, lot: Lot, noise: Tensor) -> tuple[GhostGradients, Tensor]:
    """The per-record gradients of a term, by one forward and one backward.

    Args:
        network: its trainable parameters each belong to one `nn.Linear` or `StackedLinear` layer, and take part in the
            loss through calls of that layer alone.
        term: a per-record loss.
        lot: B records; B may be 0.
        noise: (B, term.noise), the records' own randomness.

    Returns:
        The gradients, and the private losses (B,).

    Raises:
        ValueError: if a trainable parameter belongs to another kind of layer, or to two layers, or a layer mixes records.
    """
    check_layers(network)
    missing = unsupported(network)
    if missing:
        raise ValueError(
            f"parameters {missing[:5]} are shared by two layers, or belong to layers that the book-keeping engine does "
            "not know (it knows nn.Linear and StackedLinear); use engine='func', which is exact and slower"
        )
    layers = [m for m in network.modules() if type(m) in _LAYERS and _trainable(m)]
    taped: list[tuple[nn.Module, Tensor, Tensor]] = []

    def record(layer: nn.Module, args: tuple, output: Tensor) -> None:
        if not output.requires_grad:
            output.requires_grad_()
        taped.append((layer, args[0].detach(), output))

    parameters = [p for p in network.parameters() if p.requires_grad]
    hooks = [layer.register_forward_hook(record) for layer in layers]
    try:
        # With the parameters out of the graph, backward walks the activations alone: no product is made twice.
        for p in parameters:
            p.requires_grad_(False)
        losses = term.loss(lot, noise)
        outputs = [output for _, _, output in taped]
        gradients = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
    finally:
        for p in parameters:
            p.requires_grad_(True)
        for hook in hooks:
            hook.remove()
    _check_losses(losses, len(lot))
    return GhostGradients(_gather(layers, taped, gradients, len(lot)), lot), losses.detach()


def _trainable(layer: nn.Module) -> bool:
    return any(p.requires_grad for p in layer.parameters(recurse=False))


def _check_losses(losses: Tensor, size: int) -> None:
    if losses.shape != (size,):
        raise ValueError(
            f"a per-record loss must have shape ({size},), one value a record; found {tuple(losses.shape)}. "
            "Use reduction='none' and sum over everything but the record"
        )


def _gather(layers, taped, gradients, size: int) -> list[_Factors]:
    """One pair of factors a layer; several calls, or positions within a record, become its r outer products."""
    factors = []
    for layer in layers:
        calls = [
            (_rows(a, size), _rows(torch.zeros_like(output) if g is None else g, size))
            for (taped_layer, a, output), g in zip(taped, gradients, strict=True)
            if taped_layer is layer
        ]
        if not calls:
            some = next(layer.parameters())
            calls = [(some.new_zeros(size, 1, _width(layer, 1)), some.new_zeros(size, 1, _width(layer, 0)))]
        a = torch.cat([a for a, _ in calls], dim=1) if len(calls) > 1 else calls[0][0]
        g = torch.cat([g for _, g in calls], dim=1) if len(calls) > 1 else calls[0][1]
        if isinstance(layer, StackedLinear) and a.shape[1] > 1:
            raise ValueError("a StackedLinear layer may be called once in a loss")
        factors.append(_Factors(layer, a, g))
    return factors


def _width(layer: nn.Module, back: int) -> int:
    return layer.weight.shape[-1 if back else -2]


def _rows(x: Tensor, size: int) -> Tensor:
    """(B, *, n) as (B, r, n)."""
    if x.shape[0] != size:
        raise ValueError(f"a layer was called with {x.shape[0]} rows for a lot of {size} records")
    return x.reshape(size, -1 if size else 1, x.shape[-1])

"""What an engine hands to the private step: the gradients of all records of a lot, in a form for each parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from lightning_dpgen.data.lots import Draw
from lightning_dpgen.gradients.forms import LONGEST, Form, Whole


class RecordGradients:
    """The gradients of B records, or of groups of records, with respect to some parameters. Private.

    Args:
        forms: of the parameters that the losses depend on, each with B rows or more; rows beyond B have no weight.
        layers: all parameters, those of a layer together; one without a form has gradients of zero.
        size: B.
        draw: the identity of the lot that the records came from.
        offsets: where the components of a mixture begin and end among the records, if they are sorted so.
        groups: how many groups there are, where rows are groups; a constant.
    """

    def __init__(
        self,
        forms: Mapping[nn.Parameter, Form],
        layers: Sequence[Sequence[nn.Parameter]],
        size: int,
        draw: Draw | None = None,
        *,
        offsets: Sequence[int] | None = None,
        groups: int | None = None,
    ) -> None:
        self._forms, self._layers, self._size = forms, layers, size
        self.parameters = {p for layer in layers for p in layer}
        self.draw, self.offsets, self.groups = draw or Draw(), offsets, groups
        self._squares: Tensor | None = None

    def norms(self) -> Tensor:
        """(B,) Euclidean norms over all parameters together, never rounded down; not finite where a gradient is not."""
        return self._layer_squares().sum(dim=0).sqrt_()[: self._size]

    def layer_norms(self) -> list[Tensor]:
        """(B,) for each layer."""
        return list(self._layer_squares().sqrt()[:, : self._size])

    def _layer_squares(self) -> Tensor:
        """(layers, B or more) squared norms."""
        if self._squares is None:
            if self._size and self._forms:
                squares, longest = self._measured(exact=False)
                # Also where one of them is NaN.
                if not float(longest) <= LONGEST:
                    squares, _ = self._measured(exact=True)
                self._squares = squares.clamp_(min=0.0)
            else:
                some = next(iter(self.parameters))
                self._squares = torch.zeros(len(self._layers), self._size, dtype=torch.float64, device=some.device)
        return self._squares

    def _measured(self, *, exact: bool) -> tuple[Tensor, Tensor]:
        each = {p: form.squared_norms(exact=exact) for p, form in self._forms.items()}
        nothing = torch.zeros_like(next(iter(each.values()))[0])
        rows = [sum((each[p][0] for p in layer if p in each), start=nothing) for layer in self._layers]
        return torch.stack(rows), torch.stack([longest for _, longest in each.values()]).amax()

    def parts(self) -> Iterator[RecordGradients]:
        """The lot in one piece; see `parts.Parts`."""
        yield self

    def weighted_sum(
        self, weights: Tensor | Sequence[Tensor], out: Mapping[nn.Parameter, Tensor], *, add: bool = False
    ) -> None:
        """Write ``sum_i weights[i] * gradient_i`` into `out`, or add it.

        Args:
            weights: (B,), or as many for each layer.
            out: a tensor for each parameter.
            add: whether to add to what is there.

        A record whose norm is not finite adds exact zeros.
        """
        squares = self._layer_squares()
        silenced = ~torch.isfinite(squares).all(dim=0)
        quiet = silenced if bool(silenced.any()) else None
        each = [weights] * len(self._layers) if isinstance(weights, Tensor) else weights
        for layer, own in zip(self._layers, each, strict=True):
            if squares.shape[1] > self._size:
                own = torch.cat([own, own.new_zeros(squares.shape[1] - self._size)])
            for p in layer:
                form = self._forms.get(p) if self._size else None
                if form is not None:
                    form.weighted_sum(own, quiet, out[p], add=add)
                elif not add:
                    out[p].zero_()


def materialised(gradients: Mapping[nn.Parameter, Tensor], draw: Draw | None = None) -> RecordGradients:
    """Gradients held as one tensor (B, *parameter) a parameter: what Opacus puts in ``p.grad_sample``."""
    size = len(next(iter(gradients.values())))
    return RecordGradients({p: Whole(g) for p, g in gradients.items()}, [[p] for p in gradients], size, draw)

"""What an engine hands to the private step: the gradients of all records of a lot, in a form for each parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from lightning_dpgen.data.lots import Draw
from lightning_dpgen.gradients.forms import Cut, Form, Segmented, Whole, slack


class RecordGradients:
    """The gradients of B records, or of groups of records, with respect to some parameters. Private.

    Args:
        forms: of the parameters that the losses depend on, each with B rows or more; rows beyond B have no weight.
        layers: all parameters, those of a layer together; one without a form has gradients of zero.
        size: B.
        draw: the identity of the lot that the records came from.
        offsets: where the components of a mixture begin and end among the records, if they are sorted so.
        groups: how many groups there are, where rows are groups; a constant.
        losses: gives the losses (B,), should anybody ask.
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
        losses: Callable[[], Tensor] | None = None,
    ) -> None:
        self._forms, self._layers, self._size = forms, layers, size
        self.draw, self.offsets, self.groups = draw or Draw(), offsets, groups
        self._held: dict[str, Tensor] = {}
        self._losses = losses

    @property
    def by_component(self) -> bool:
        """Whether each record reaches one slice of stacked parameters, that of its component."""
        return all(isinstance(form, Segmented | Cut) for form in self._forms.values())

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All of them."""
        return [p for layer in self._layers for p in layer]

    @property
    def losses(self) -> Tensor | None:
        """(B,) private losses; None where they are not known."""
        return None if self._losses is None else self._losses()

    def norms(self) -> Tensor:
        """(B,) Euclidean norms over all parameters together, never rounded down; not finite where a gradient is not."""
        return self._all_norms()[: self._size]

    def layer_norms(self) -> list[Tensor]:
        """(B,) for each layer."""
        squares = self._squares()
        rows = {p: i for i, p in enumerate(self._forms)}
        own = [squares[[rows[p] for p in layer if p in rows]] for layer in self._layers]
        return [s.sum(dim=0).sqrt_()[: self._size] for s in own]

    def _all_norms(self) -> Tensor:
        """(B or more,)"""
        if "norms" not in self._held:
            self._held["norms"] = self._squares().sum(dim=0).sqrt_()
        return self._held["norms"]

    def _squares(self) -> Tensor:
        """(forms, B or more) squared norms."""
        if "squares" not in self._held:
            some = self._layers[0][0]
            none = torch.zeros(0, self._size, dtype=torch.float64, device=some.device)
            self._held["squares"] = _squares(list(self._forms.values())) if self._size and self._forms else none
        return self._held["squares"]

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
        norms = self._all_norms()
        finite = torch.isfinite(norms)
        quiet = None if bool(finite.all()) else ~finite
        each = [weights] * len(self._layers) if isinstance(weights, Tensor) else weights
        for layer, own in zip(self._layers, each, strict=True):
            if len(norms) > self._size:
                own = torch.cat([own, own.new_zeros(len(norms) - self._size)])
            for p in layer:
                form = self._forms.get(p) if self._size else None
                if form is not None:
                    form.weighted_sum(own, quiet, out[p], add=add)
                elif not add:
                    out[p].zero_()


def _squares(forms: Sequence[Form]) -> Tensor:
    """(forms, R) squared norms in float64: those that are products of row lengths by a few operations for all."""
    rows = [form.rows() for form in forms]
    if not all(rows):
        return torch.stack([form.norms().double() for form in forms]).square_()
    # A layer's weight and bias have one factor in common.
    unique = {(x.data_ptr(), x.shape, x.stride()): x for pair in rows for x in pair}
    place = {key: i for i, key in enumerate(unique)}
    matrices = list(unique.values())
    device = matrices[0].device
    factors, more = torch.tensor([slack(x.shape[1]) for x in matrices], dtype=torch.float64, device=device).T[:, :, None]
    found = torch.stack([torch.linalg.vector_norm(x, dim=1) for x in matrices]).double().mul_(factors).add_(more).square_()
    found = torch.cat([found, found.new_ones(1, found.shape[1])])
    keys = [[place[x.data_ptr(), x.shape, x.stride()] for x in pair] + [len(matrices)] for pair in rows]
    return found[[pair[0] for pair in keys]] * found[[pair[1] for pair in keys]]


def materialised(gradients: Mapping[nn.Parameter, Tensor], draw: Draw | None = None) -> RecordGradients:
    """Gradients held as one tensor (B, *parameter) a parameter: what Opacus puts in ``p.grad_sample``."""
    size = len(next(iter(gradients.values())))
    return RecordGradients({p: Whole(g) for p, g in gradients.items()}, [[p] for p in gradients], size, draw)

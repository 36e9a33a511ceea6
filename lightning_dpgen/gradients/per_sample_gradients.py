"""The gradients of all records of a lot, held as factors for each parameter: an engine hands them to the private step."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from lightning_dpgen.common.precision import full_precision
from lightning_dpgen.gradients.component_factors import OneComponent, OneComponentMixed, Piece, joined
from lightning_dpgen.gradients.factors import Dense, GradientFactors, GramCache, OuterSum, slack
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.shards import is_sharded, room_for_sum
from lightning_dpgen.privacy.access import LotId
from lightning_dpgen.sampling.lots import Lot


class PerSampleGradients:
    """The gradients of B records, or of groups of records, with respect to some parameters. Private.

    Args:
        factors: the gradients for each parameter that the losses depend on, with B rows or more; rows beyond B have no
            weight.
        layers: all parameters, those of a layer together; one without factors has gradients of zero.
        size: B.
        draw: the identity of the lot that the records came from.
        offsets: where the components of a mixture begin and end among the records, if they are sorted by component.
        groups: the number of groups, where rows are groups; a constant.
        partition: the groups (or persons) of the records, where factors have a row for each record and not for each group.
        persons: (B,) the person of each record, counted from 0, where persons have several; None where it is not known.
        of_unit: True if a person with all records changes one row, and no other: rows are persons, or groups of whole ones.
        losses: returns the losses (B,), when they are asked for.
        places: (B,) the rows of the records among those of the factors; None for the first B.
    """

    def __init__(
        self,
        factors: Mapping[nn.Parameter, GradientFactors],
        layers: Sequence[Sequence[nn.Parameter]],
        size: int,
        draw: LotId | None = None,
        *,
        offsets: Sequence[int] | None = None,
        groups: int | None = None,
        partition: Groups | None = None,
        persons: Tensor | None = None,
        of_unit: bool = False,
        losses: Callable[[], Tensor] | None = None,
        places: Tensor | None = None,
    ) -> None:
        self._factors, self._layers, self._size = factors, layers, size
        self.draw, self.offsets, self.groups, self.of_unit = draw or LotId(), offsets, groups, of_unit
        self._losses, self._partition, self._persons, self._places = losses, partition, persons, places

    def __len__(self) -> int:
        return self._size

    @property
    def by_component(self) -> bool:
        """True if each record reaches one slice of stacked parameters, that of its component."""
        k = None if self.offsets is None else len(self.offsets) - 1
        return all(
            isinstance(factors, OneComponent | OneComponentMixed) and factors.components == k
            for factors in self._factors.values()
        )

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters."""
        return list(itertools.chain.from_iterable(self._layers))

    @property
    def losses(self) -> Tensor | None:
        """(B,) private losses; None where they are not known."""
        return None if self._losses is None else self._losses()

    def norms(self) -> Tensor:
        """Return Euclidean norms (B,) over all parameters, never rounded down; not finite where a gradient is not."""
        return self._of_records(self._all_norms)

    def _of_records(self, rows: Tensor) -> Tensor:
        """Return those of all rows that are records, or groups, in their order."""
        return rows[: self._size] if self._places is None else rows[self._places]

    def layer_norms(self) -> list[Tensor]:
        """Return norms (B,) for each layer, as `norms` does."""
        squares = self._all_squares
        rows = {p: i for i, p in enumerate(self._factors)}
        own = [squares[[rows[p] for p in layer if p in rows]] for layer in self._layers]
        return [self._of_records(s.sum(dim=0).sqrt_()) for s in own]

    @functools.cached_property
    def _all_norms(self) -> Tensor:
        """The norms of all rows, B or more."""
        return self._all_squares.sum(dim=0).sqrt_()

    @functools.cached_property
    def _all_squares(self) -> Tensor:
        """Squared norms (parameters with factors, B or more)."""
        all_factors = list(self._factors.values())
        if (self._size or self._places is not None) and all_factors:
            with full_precision(self._layers[0][0].device):
                if self._partition is not None:
                    all_factors = [self._partition.of(factors) for factors in all_factors]
                return _squares(all_factors)
        return torch.zeros(len(all_factors), self._size, dtype=torch.float64, device=self._layers[0][0].device)

    def products(self, onto: Mapping[nn.Parameter, Tensor]) -> Tensor:
        """Return inner products (B,) with one tensor for each parameter, in float64; private. Groups have none."""
        if self._partition is not None:
            raise ValueError("inner products are those of records; these gradients are of groups")
        own = [self._of_records(factors.project(onto[p])) for p, factors in self._factors.items()]
        some = self._layers[0][0]
        return torch.zeros(self._size, dtype=torch.float64, device=some.device) + sum(own)

    def of_persons(self, max_rows: int) -> PerSampleGradients:
        """Return gradients with a row for each person, the sum over that person's records; or these, if a unit is a row.

        Args:
            max_rows: the most records that a person has, as the plan says; 1 where a record is a unit.

        Raises:
            ValueError: if it is not known whose the records are, or these are groups that hold records of persons apart.
        """
        if max_rows == 1 or self.of_unit:
            return self
        if self._persons is None or self.groups is not None:
            raise ValueError(
                "PerPerson sums the gradients of a person, and the persons of these are not known: take lots as "
                "PoissonLots draws them (persons=...), and parts of a lot from Lot.cut or Lot.divide, which cut between "
                "persons"
            )
        index = self._persons.to(self._layers[0][0].device)
        count = int(index.max()) + 1 if len(index) else 0
        if self._places is not None:
            # Rows without a record are of no person.
            rows = index.new_full((len(self._all_norms),), count)
            index = rows.index_copy_(0, self._places, index)
        persons = Groups(index, count, most=max_rows)
        return PerSampleGradients(
            self._factors, self._layers, persons.count, self.draw, partition=persons, of_unit=True, losses=self._losses
        )

    def in_slots(self, lot: Lot) -> PerSampleGradients:
        """Return the gradients of a lot, from those of all of its slots; groups and persons are rows already.

        Args:
            lot: the records and their slots.
        """
        assert lot.slots is not None
        if self._partition is not None:
            return PerSampleGradients(
                self._factors, self._layers, self._size, lot.draw, groups=self.groups, partition=self._partition,
                of_unit=self.of_unit, losses=self._losses,
            )  # fmt: skip
        places, losses = lot.slots.places_on(self._layers[0][0].device), self._losses
        return PerSampleGradients(
            self._factors, self._layers, len(lot), lot.draw, offsets=lot.offsets, persons=lot.persons, places=places,
            losses=None if losses is None else lambda: losses()[places],
        )  # fmt: skip

    def parts(self) -> Iterator[PerSampleGradients]:
        """Give the lot in one piece; see `MicroBatches.parts`."""
        yield self

    def weighted_sum(
        self, weights: Tensor | Sequence[Tensor], out: Mapping[nn.Parameter, Tensor], *, add: bool = False
    ) -> None:
        """Write ``sum_i weights[i] * gradient_i`` into `out`, or add it; see `weighted_sums`."""
        weighted_sums([(self, weights)], out, add=add)

    def add_pieces(self, weights: Tensor | Sequence[Tensor], pieces: dict[nn.Parameter, list[Piece]]) -> None:
        """Add the pieces of a weighted sum: for each parameter its factors, the weights of rows, and the silenced rows."""
        if not len(self._all_norms):
            return
        norms = self._all_norms
        # A sum is finite only if all are.
        quiet = None if math.isfinite(float(norms.sum())) else ~torch.isfinite(norms)
        of_all = self._by_row(weights) if isinstance(weights, Tensor) else None
        if self._partition is not None:
            # Records of no group are silenced in any case: their own numbers may be infinite, and no group's norm shows it.
            left_out = self._partition.index >= self._partition.count
            if quiet is not None:
                quiet = left_out | self._partition.shared(quiet.to(norms.dtype)).bool()
            elif left_out.any():
                quiet = left_out
        for i, layer in enumerate(self._layers):
            of_layer = self._by_row(weights[i]) if of_all is None else of_all
            for p in layer:
                if p in self._factors:
                    pieces.setdefault(p, []).append((self._factors[p], of_layer, quiet))

    def _by_row(self, weights: Tensor) -> Tensor:
        """Turn weights (B,) into one for each row of the factors: a sum over groups is one over their records."""
        if self._partition is not None:
            return self._partition.shared(weights)
        if self._places is not None:
            return weights.new_zeros(len(self._all_norms)).index_copy_(0, self._places, weights)
        more = len(self._all_norms) - self._size
        return torch.cat([weights, weights.new_zeros(more)]) if more else weights


def weighted_sums(
    terms: Sequence[tuple[PerSampleGradients, Tensor | Sequence[Tensor]]],
    out: Mapping[nn.Parameter, Tensor],
    *,
    add: bool = False,
) -> None:
    """Write the sum of ``sum_i weights[i] * gradient_i`` over several terms into `out`, or add it.

    Args:
        terms: gradients with weights (B,), or with as many for each layer.
        out: a tensor for each parameter.
        add: add to what is there instead of overwriting it.

    A record whose norm is not finite adds exact zeros.
    """
    # The guarantee must not rest on each caller.
    with full_precision(next(iter(out.values())).device):
        pieces = _pieces(terms)
        for p, total in out.items():
            _write(pieces.get(p, ()), total, add=add)


def each_weighted_sum(
    terms: Sequence[tuple[PerSampleGradients, Tensor | Sequence[Tensor]]], parameters: Iterable[nn.Parameter]
) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Give the weighted sum of `weighted_sums` for one sharded parameter after the other, in its whole shape."""
    pieces = _pieces(terms)
    for p in parameters:
        whole = room_for_sum(p)
        _write(pieces.get(p, ()), whole, add=False)
        yield p, whole


def shares_of_slack(gradients: PerSampleGradients, count: int = 4) -> list[float]:
    """Return which part of the norms of the first records is room for rounding, by which clipped gradients are shorter.

    It takes the memory of one parameter. Shares are private.

    Args:
        count: the most records.
    """
    with full_precision(gradients.parameters[0].device):
        norms, shares = gradients.norms(), []
        for i in range(min(count, len(gradients))):
            alone = torch.zeros(len(gradients), dtype=gradients.parameters[0].dtype, device=norms.device)
            alone[i] = 1.0
            pieces, squares, norm = _pieces([(gradients, alone)]), 0.0, float(norms[i])
            for p in gradients.parameters:
                own = room_for_sum(p) if is_sharded(p) else torch.empty_like(p, requires_grad=False)
                _write(pieces.get(p, ()), own, add=False)
                squares += float(own.double().square().sum())
            if 0.0 < norm < math.inf:
                shares.append(1.0 - math.sqrt(squares) / norm)
    return shares


def _pieces(terms: Sequence[tuple[PerSampleGradients, Tensor | Sequence[Tensor]]]) -> dict[nn.Parameter, list[Piece]]:
    pieces: dict[nn.Parameter, list[Piece]] = {}
    for gradients, weights in terms:
        gradients.add_pieces(weights, pieces)
    return pieces


def _write(pieces: Sequence[Piece], out: Tensor, *, add: bool) -> None:
    if not pieces and not add:
        out.zero_()
    for factors, weights, silenced in pieces if len(pieces) < 2 else joined(pieces):
        factors.weighted_sum(weights, silenced, out, add=add)
        add = True


def _squares(all_factors: Sequence[GradientFactors]) -> Tensor:
    """Return squared norms (len(each), R) in float64: a few operations for all that are products of row lengths."""
    rows: list[list[Tensor]] = []
    apart: list[Tensor] = []
    grams: GramCache | None = None
    for factors in all_factors:
        rows.append(factors.rows())
        if not rows[-1]:
            grams = grams or GramCache(all_factors)
            apart.append((factors.norms(grams) if isinstance(factors, OuterSum) else factors.norms()).double())
    if not apart:
        return _products(rows)
    squares = torch.stack(apart).square_()
    if len(apart) == len(all_factors):
        return squares
    # The places of all among those that are computed together, with the others behind them.
    together, behind, places = 0, len(all_factors) - len(apart), []
    for pair in rows:
        places.append(together if pair else behind)
        together, behind = together + bool(pair), behind + (not pair)
    return torch.cat([_products([pair for pair in rows if pair]), squares])[_places(tuple(places), squares.device)]


def _products(rows: Sequence[list[Tensor]]) -> Tensor:
    """Return squares (len(rows), R) of the products of row lengths, of one or two matrices each, in float64."""
    # A layer's weight and bias have one factor in common.
    numbers: dict[tuple, int] = {}
    lengths, widths, left, right = [], [], [], []
    for pair in rows:
        of_pair = []
        for x in pair:
            key = x.data_ptr(), x.shape, x.stride()
            if key not in numbers:
                widths.append((x.shape[1], x.dtype))
                lengths.append(torch.linalg.vector_norm(x, dim=1, dtype=torch.float32))
                numbers[key] = len(lengths)
            of_pair.append(numbers[key])
        left.append(of_pair[0])
        # The first row, of ones, is for gradients of one factor.
        right.append(of_pair[1] if len(of_pair) > 1 else 0)
    device = lengths[0].device
    scale, more, one = _slacks(tuple(widths), device)
    squares = torch.stack([one.expand_as(lengths[0]), *lengths]).double().mul_(scale).add_(more).square_()
    factors = squares.index_select(0, _places(tuple(left), device))
    return factors.mul_(squares.index_select(0, _places(tuple(right), device)))


@functools.lru_cache(maxsize=256)
def _slacks(widths: tuple[tuple[int, torch.dtype], ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the factors and summands (1 + n, 1) of `slack` for a one and for lengths of these widths, and a one."""
    each = [(1.0, 0.0), *(slack(width, dtype) for width, dtype in widths)]
    scale, more = torch.tensor(each, dtype=torch.float64, device=device).T[:, :, None]
    return scale, more, torch.ones(1, device=device)


@functools.lru_cache(maxsize=256)
def _places(places: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(places, device=device)


def materialised(
    gradients: Mapping[nn.Parameter, Tensor], draw: LotId | None = None, *, persons: Tensor | None = None
) -> PerSampleGradients:
    """Hold gradients that are one tensor (B, *parameter) a parameter, as Opacus puts them in ``p.grad_sample``."""
    size, factors = len(next(iter(gradients.values()))), {p: Dense(g) for p, g in gradients.items()}
    return PerSampleGradients(factors, [[p] for p in gradients], size, draw, persons=persons)

"""A mixture of baskets of given sizes, fitted to noisy sizes, items and pairs of items."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.measure.baskets import CLEAR, BasketSizes, ItemsBySize, PairsBySize, halves, strata
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.statistics import Marginals, Statistic
from lightning_dpgen.measure.workload import Measured, State, Workload, check_share, split_noise
from lightning_dpgen.models.forests import StackedProducts
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.networks import check_seed
from lightning_dpgen.privacy.plan import Plan

ITEMS, PAIRS = "items", "pairs"
# The sizes' part of the first access's inverse squared noise.
_SIZES = 0.4
# Sizes are told where a fifth of all baskets would stand out of the noise.
_KINDS = 5
# The fits: how many are put together, their steps, the largest step, and how far components are apart at first.
_FITS, _STEPS, _LR, _APART = 4, 250, 0.2, 0.3
# Weights that hold components together, beside squared errors in deviations of the noise: for baskets of which many are
# alike in part, and for those in which a few items always go together.
_TOGETHER = (1.0, 0.2)
# The second is chosen where it lowers the error of pairs that is not noise by so much, in fits to sums with so many
# deviations of noise more.
_GAIN, _PART = 0.06, 0.7


@dataclass(frozen=True)
class BasketRecipe(Recipe):
    """Two accesses: how large baskets are and what is in them; then which of the most frequent items go together.

    Args:
        schema: of baskets; public.
        k: number of components of a fit; the mixture has those of four, for each value of the label, where there is one.
        n: the declared number of baskets.
        pairs_share: of the mu^2 of both accesses; the first gets the rest.
        most: the number of items whose pairs are measured: those that the first access found most often.
        seed: of the fit; public.

    Raises:
        ValueError: for records of other kinds, fewer than two items, or a share outside (0, 1).
    """

    schema: Schema
    k: int
    n: int
    pairs_share: float = 0.7
    most: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.schema.layout.sizes or self.schema.layout.units < 2:
            raise ValueError("expected baskets over two items or more")
        check_seed(self.seed)
        if type(self.most) is not int or self.most < 2:
            raise ValueError(f"most={self.most!r}: expected a whole number, 2 or more")
        check_share("pairs_share", self.pairs_share)

    @property
    def workloads(self) -> tuple[Workload, Workload]:
        """Sizes and items; pairs."""
        first = Workload(ITEMS, {"sizes": _SIZES, "items": 1.0 - _SIZES}, self.n, 1.0 - self.pairs_share)
        return first, Workload(PAIRS, {"pairs": 1.0}, self.n, self.pairs_share)

    def statistics(self, stage: str, state: State) -> dict[str, Statistic]:
        """Return the statistics of a stage: a basket changes one count by 1, items and pairs of one stratum by norm 1."""
        layout = self.schema.layout
        if stage == ITEMS:
            # By the label, where there is one.
            sizes = Marginals(layout, [tuple(range(len(layout.groups)))])
            return {"sizes": sizes, "items": ItemsBySize(layout, strata(layout))}
        items = state[ITEMS][0]["items"].sums.sum(dim=0)
        often = items.topk(min(self.most, len(items))).indices.sort().values
        return {"pairs": PairsBySize(layout, halves(layout), often.tolist())}

    def warnings(self, plan: Plan) -> list[str]:
        """Return how noisy the counts of sizes and of an item are where noise outweighs them."""
        multipliers = plan.stage(ITEMS).access.multipliers
        sizes, items = (multipliers[name] * plan.max_rows for name in ("sizes", "items"))
        if CLEAR * sizes > self.n / _KINDS:
            return [
                f"there are {self.n:,} baskets, and how many there are of a size has noise of standard deviation "
                f"{sizes:,.1f}: large and small ones are hardly told apart; raise epsilon"
            ]
        mean = self.n / self.schema.layout.units
        if items <= mean:
            return []
        return [
            f"there are {mean:,.1f} baskets an item, and what is measured of an item has noise of standard deviation "
            f"{items:,.1f}: those that are rare are not told apart; declare fewer items, or raise "
            "epsilon"
        ]

    def _mixture(self, state: State) -> Mixture:
        often = torch.from_numpy(self.statistics(PAIRS, state)["pairs"].of)
        first, pairs = state[ITEMS][0], state[PAIRS][0]["pairs"]
        # Items that are not paired would be missing from the total.
        of_all = pairs if len(often) == self.schema.layout.units else None
        sizes = BasketSizes.of(self.schema.layout, first["sizes"], first["items"], of_all)
        rates, mixing = fit_baskets(sizes, first["items"], pairs, often, self.k, self.seed)
        shares = (sizes.counts[:, None] * mixing.double()).flatten(0, 1)
        units, bins = self.schema.layout.units, len(sizes.stratum)
        network = StackedProducts(self.schema, len(shares))
        # `draw` turns a mean p into the rate -log(1 - p) again.
        network.means[:, :units] = -torch.expm1(-rates).repeat(len(sizes.counts), 1)
        network.means[:, -bins:] = shares / shares.sum(dim=1, keepdim=True).clamp(min=1e-30)
        if self.schema.layout.label is not None:
            network.means[:, self.schema.layout.labels] = torch.eye(len(sizes.counts)).repeat_interleave(len(rates), dim=0)
        return Mixture(network, (shares.sum(dim=1) / shares.sum()).float())


def fit_baskets(
    sizes: BasketSizes, items: Measured, pairs: Measured, often: Tensor, k: int, seed: int, steps: int = _STEPS
) -> tuple[Tensor, Tensor]:
    """Return rates (4 k, units) and shares (labels, 4 k, bins) whose sums are nearest to noisy ones. Post-processing.

    A basket of s items is drawn one item after the other, each in proportion to its rate among those still there. That is
    a race of exponential arrivals, stopped when s are there: an item of rate r is among them with chance
    ``p = 1 - exp(-r t)`` nearly, where t is when s are expected, and two with a chance in proportion to the product of
    theirs. Least squares over all sums, each divided by the deviation of its noise, by Adam from where the noisy pairs of
    some item point. A prior holds components to what all have in common, since noise would set them apart. How closely
    is chosen by fits to a part of the noise, judged by the rest (`split_noise`). Four fits from different starts
    are put together: each repeats noise in its own way, and their mean less of it.
    """
    together = _TOGETHER[0]
    # Without noise there is nothing to be judged by.
    if items.deviation and pairs.deviation:
        parts = split_noise({"items": items, "pairs": pairs}, _PART, seed)
        seen, held_out = (_Sums.of(sizes, part["items"], part["pairs"], often) for part in parts)
        together = _chosen(seen, held_out, k, seed, steps)
    sums = _Sums.of(sizes, items, pairs, often)
    common, rare = sums.common, sums.rare
    rates, shares = [], []
    for start in torch.randint(2**62, (_FITS,), generator=torch.Generator().manual_seed(seed)).tolist():
        theta, mixing, _ = _descended(sums, k, start, steps, together)
        own = torch.softmax(theta, dim=1)
        rates.append(own[:, -1:] * (common / common[rare].sum().clamp(min=1e-30)).float())
        rates[-1][:, often] = own[:, : len(often)]
        # In strata without baskets components are alike.
        shares.append(torch.full((len(sizes.counts), len(sizes.size), k), 1.0 / k))
        shares[-1][:, sizes.live] = torch.softmax(mixing, dim=2)
    return torch.cat(rates), torch.cat(shares, dim=2)[:, sizes.stratum].transpose(1, 2) / _FITS


@dataclass(frozen=True)
class _Sums:
    """Noisy sums of the frequent items and their pairs, and of one more item, which stands for all others alike.

    Args:
        common: (units,) shares of all items.
        rare: (units,) those that are not frequent.
        some: (items,) shares of the frequent items and of the others together.
        many: (items,) how many items each stands for.
        target, deviation: (labels, strata, items) sums of items, and (items,) the noise of each.
        together, by_pair: (halves, frequent, frequent) sums of pairs, and the noise of each.
        size, half: (strata,) mean size, and half of the pairs.
        roots, pair_roots: (labels, strata) what made-up chances are multiplied by to be sums.
    """

    common: Tensor
    rare: Tensor
    some: Tensor
    many: Tensor
    target: Tensor
    deviation: Tensor
    together: Tensor
    by_pair: float
    size: Tensor
    half: Tensor
    roots: Tensor
    pair_roots: Tensor

    @classmethod
    def of(cls, sizes: BasketSizes, items: Measured, pairs: Measured, often: Tensor) -> _Sums:
        labels, (strata_, units), live = len(sizes.counts), (len(sizes.size), items.sums.shape[1]), sizes.live
        common = _shares(items.sums.sum(dim=0))
        by_item, by_pair = max(items.deviation, 1.0), max(pairs.deviation, 1.0)
        target = items.sums.view(labels, strata_, units)[:, live]
        rare = torch.ones(units, dtype=torch.bool)
        rare[often] = False
        some, many, deviation = common[often], torch.ones(len(often)), torch.full((len(often),), by_item)
        rest = target[..., rare].sum(dim=2, keepdim=True)
        target = target[..., often]
        if rare.any():
            some, target = torch.cat([some, common[rare].sum()[None]]), torch.cat([target, rest], dim=2)
            many = torch.cat([many, (some[-1].square() / common[rare].square().sum())[None].float()])
            deviation = torch.cat([deviation, torch.tensor([by_item * math.sqrt(int(rare.sum()))])])
        together = _symmetric(pairs.sums.float(), len(often))
        size, half = sizes.size[live].float(), sizes.half[live]
        roots, pair_roots = (sizes.roots[:, live] / sizes.size[live]).float(), sizes.pair_roots[:, live].float()
        return cls(
            common, rare, some.float(), many, target.float(), deviation, together, by_pair, size, half, roots, pair_roots
        )

    def made_by(self, theta: Tensor, mixing: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of items (labels, strata, items) and of pairs (halves, frequent, frequent) of a mixture."""
        rates, shares = torch.softmax(theta, dim=1), torch.softmax(mixing, dim=2)
        # The last step has a gradient: that of the time at which so many are expected.
        expected = _held(rates, _later(rates, time, self.size, self.many), self.many)
        frequent = expected[..., : self.together.shape[1]]
        whole = (expected.sum(dim=2).square() - (expected.square() / self.many).sum(dim=2)).clamp(min=1e-6) / 2.0
        weight = (self.pair_roots[:, :, None] * shares).sum(dim=0) / whole
        pairs = []
        for own in range(len(self.together)):
            rows = frequent[self.half == own].flatten(0, 1)
            pairs.append(rows.T @ (weight[self.half == own].reshape(-1, 1) * rows))
        of_items = (self.roots[:, :, None] * shares).transpose(0, 1) @ expected
        return of_items.transpose(0, 1), torch.stack(pairs)

    def squared_errors(self, items: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of squared errors of items and of pairs, in deviations of the noise."""
        of_pairs = (pairs - self.together) / self.by_pair
        # An item is no pair with itself.
        of_pairs.diagonal(dim1=1, dim2=2).zero_()
        return ((items - self.target) / self.deviation).square().sum(), 0.5 * of_pairs.square().sum()


def _chosen(seen: _Sums, held_out: _Sums, k: int, seed: int, steps: int) -> float:
    """Return the weight whose fit to sums is nearer to pairs with other noise.

    The first is kept where there is little between them: of many sums with small errors the second may fit a few large
    ones better, and the rest worse.
    """
    first, second = (
        float(held_out.squared_errors(*seen.made_by(*_descended(seen, k, seed, steps, weight)))[1]) for weight in _TOGETHER
    )
    # Noise makes so much of an error, give or take a deviation.
    halves_, frequent = held_out.together.shape[:2]
    noise = halves_ * frequent * (frequent - 1) / 2.0
    return _TOGETHER[first - second > _GAIN * max(first - noise, math.sqrt(2.0 * noise))]


def _descended(sums: _Sums, k: int, seed: int, steps: int, together: float) -> tuple[Tensor, Tensor, Tensor]:
    """Fit a mixture that is near to sums, with components held together by a weight.

    Returns:
        Logarithms of rates (k, items) and of shares (labels, strata, k), and the times (strata, k) that go with them.
    """
    generator = torch.Generator().manual_seed(seed)
    theta = _starts(sums.some, sums.together, sums.by_pair, k, generator).requires_grad_()
    mixing = torch.zeros(len(sums.roots), len(sums.size), k, requires_grad=True)
    optimizer = torch.optim.Adam([theta, mixing], lr=_LR, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=_LR / 50)
    time = sums.size[:, None].expand(-1, k)
    for _ in range(steps if len(sums.size) else 0):
        optimizer.zero_grad()
        with torch.no_grad():
            time = _later(torch.softmax(theta, dim=1), time, sums.size, sums.many)
        of_items, of_pairs = sums.squared_errors(*sums.made_by(theta, mixing, time))
        (of_items + of_pairs + together * (theta - sums.some.log()).square().sum()).backward()
        optimizer.step()
        schedule.step()
    return theta.detach(), mixing.detach(), time


def _later(rates: Tensor, time: Tensor, size: Tensor, many: Tensor) -> Tensor:
    """Move times (strata, k) by one Newton step towards where so many items are expected."""
    held = _held(rates, time, many)
    slope = (rates * (1.0 - held.detach() / many)).sum(dim=2).detach()
    moved = time - (held.sum(dim=2) - size[:, None]) / slope.clamp(min=1e-9)
    return torch.minimum(torch.maximum(moved, time / 4.0), 4.0 * time + 1.0)


def _held(rates: Tensor, time: Tensor, many: Tensor) -> Tensor:
    """Return the expected number (strata, k, items) of each item, or of `many` that are alike."""
    return -many * torch.expm1(-rates / many * time[..., None])


def _starts(common: Tensor, together: Tensor, deviation: float, k: int, generator: torch.Generator) -> Tensor:
    """Draw logarithms of rates (k, items): half common, half what goes with an item drawn by its frequency."""
    frequent = together.shape[1]
    noise = deviation * math.sqrt(len(together))
    seeds = torch.multinomial(common[:frequent], k, replacement=True, generator=generator)
    beside = (together.sum(dim=0)[seeds] - noise).clamp(min=0.0)
    mixed = common.expand(k, -1).clone()
    mixed[:, :frequent] += beside / beside.sum(dim=1, keepdim=True).clamp(min=1e-9)
    return mixed.log() + _APART * torch.randn(mixed.shape, generator=generator)


def _symmetric(sums: Tensor, items: int) -> Tensor:
    """Return sums of pairs as symmetric matrices (halves, items, items)."""
    first, second = torch.triu_indices(items, items, 1)
    matrix = torch.zeros(len(sums), items, items)
    matrix[:, first, second] = sums
    return matrix + matrix.transpose(1, 2)


def _shares(sums: Tensor) -> Tensor:
    """Return the shares that are nearest to noisy sums and add up to 1: the sums are lowered until they do; none is 0."""
    total = float(sums.sum().clamp(min=1.0))
    ordered = sums.sort(descending=True).values
    excess = (ordered.cumsum(dim=0) - total) / torch.arange(1, len(sums) + 1)
    shift = excess[(ordered > excess).nonzero()[-1, 0]]
    shares = (sums - shift).clamp(min=1e-3 * total / len(sums))
    return shares / shares.sum()

"""Clipping rules: they choose the bounds of a lot, and say what that costs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.common.arguments import check_number, read_whole, show
from lightning_dpgen.gradients.isolation.loss_call import invalidate_escaped_tensors
from lightning_dpgen.gradients.scopes import Components, Flat, Layers, LotNorms, Scope
from lightning_dpgen.privacy.access import OpenAccess
from lightning_dpgen.privacy.mechanisms import noisy_histogram, rounded_gaussian

# Norms and weights carry float32 rounding of about 1e-6; shaving the bound keeps a clipped norm truly below it.
_SHAVE = 1.0 - 1e-5
# Their quotient stays a normal float32 number, whose rounding the shave covers. A larger norm counts as not finite.
_SMALLEST_BOUND, _LARGEST_NORM = 1e-7, 1e30
# Beside a gradient of zeros, a factor that is not finite would give NaN.
_LARGEST_FACTOR = 1e20
# Shares that records count as are multiples of this, so that their sums are whole.
_GRID = 2.0**-20


# The way to a bound in a loop of one's own.
_CHOOSE = "rule.bounds(access, lightning_dpgen.gradients.LotNorms([norms]), before), within account.open(...)"


class ClippingRule(ABC):
    """A rule that chooses the bounds of a lot, and how a longer gradient is shortened.

    A rule holds public settings and nothing else. It remembers only the bounds of the lot before, which the optimizer keeps
    and hands to it. Settings are those of a bound on a whole gradient; where each layer has a bound, these are smaller by
    the square root of their number, so that all of them together are as long.

    Attributes:
        scope: the part of a gradient that a bound is for: all of it, unless a wrapper (`PerLayer`, `PerComponent`) says
            otherwise.
        by_person: whether the gradients of a person are summed before they are clipped (`PerPerson`).
    """

    scope: ClassVar[Scope] = Flat()
    by_person: ClassVar[bool] = False

    @property
    def noise_shares(self) -> Mapping[str, float]:
        """The extra noises that the rule draws in each access, with the share of the access's inverse squared noise for
        each; the gradient gets the rest."""
        return {}

    def known(self, number: int) -> float | None:
        """Return the bound of the lot of that number, from 0, if it follows from the number alone; otherwise None."""
        return None

    def ahead(self, number: int, norms: LotNorms) -> tuple[float, ...] | None:
        """Return the bounds of the lot of that number, where they do not depend on its norms; otherwise None."""
        known = self.known(number)
        return None if known is None else (known / math.sqrt(norms.touched),) * len(norms.columns)

    @abstractmethod
    def bounds(self, access: OpenAccess, norms: LotNorms, before: Sequence[float] | None) -> tuple[float, ...]:
        """Choose the public bounds of this lot, one for each column of norms.

        Args:
            access: an open access; the rule draws from it the noises that it lists, once each.
            norms: the norms of the lot; private.
            before: the bounds of the lot before; None for the first.
        """

    def factors(self, norms: Tensor, bound: float) -> Tensor:
        """Return the factors (B,) that make no gradient longer than the bound; 0 where a norm is not finite.

        Raises:
            ValueError: for no bound, as `known` gives it for a rule that chooses it from the norms.
        """
        if bound is None:
            raise ValueError(f"bound=None: {type(self).__name__} chooses it from the noisy norms of a lot: {_CHOOSE}")
        return clip_weights(norms, bound)


def _checked(norms: LotNorms) -> LotNorms:
    """Refuse norms that do not say what they are of."""
    if not isinstance(norms, LotNorms):
        raise ValueError(f"norms: a {type(norms).__name__}: expected LotNorms, with a column of norms (B,): {_CHOOSE}")
    return norms


class _Known(ClippingRule):
    """A rule whose bound follows from the number of the lot."""

    def bounds(self, access: OpenAccess, norms: LotNorms, before: Sequence[float] | None) -> tuple[float, ...]:
        norms = _checked(norms)
        return self.ahead(access.number, norms)


@dataclass(frozen=True)
class Fixed(_Known):
    """One bound for the whole run.

    Args:
        c: the bound C, positive.

    Example:
        >>> Fixed(1.0).noise_shares
        {}
    """

    c: float

    def __post_init__(self) -> None:
        _check_bound("c", self.c)

    def known(self, number: int) -> float:
        return self.c


@dataclass(frozen=True)
class Decay(_Known):
    """A bound that shrinks by a factor every so many lots (dp-GAN, "clipping decay").

    Args:
        c: the first bound.
        factor: the factor of one decay, in (0, 1].
        every: lots between two decays; the lots of an epoch, for a decay by epoch.
        least: the bound below which it does not fall.

    Example:
        >>> Decay(1.0, factor=0.5, every=10).known(25)
        0.25
    """

    c: float
    factor: float = 0.99
    every: int = 1
    least: float = 1e-3

    def __post_init__(self) -> None:
        _check_bound("c", self.c)
        _check_bound("least", self.least)
        check_number("factor", self.factor, lambda factor: 0.0 < factor <= 1.0, "above 0, at most 1")
        object.__setattr__(self, "every", read_whole("every", self.every))
        if self.least > self.c:
            raise ValueError(f"least={self.least}: expected a number up to c={self.c}")

    def known(self, number: int) -> float:
        return max(self.c * self.factor ** (number // self.every), self.least)


@dataclass(frozen=True)
class Schedule(_Known):
    """Any bound that follows from the number of the lot alone.

    Args:
        at: returns the bound of the lot of that number, from 0. It must not look at records, or at anything made from them.

    Raises:
        ValueError: during a run, if it returns no valid bound; nothing has been released from that lot then.
    """

    at: Callable[[int], float]

    def __post_init__(self) -> None:
        if not callable(self.at):
            raise ValueError(f"at={show(self.at)}: expected a function of the number of a lot")

    def known(self, number: int) -> float:
        bound = self.at(number)
        if isinstance(bound, Tensor) and bound.numel() == 1:
            bound = bound.item()
        _check_bound(f"at({number})", bound)
        return float(bound)


@dataclass(frozen=True)
class DPNorm(ClippingRule):
    """The noisy mode of a histogram of the lot's norms (DPGM, TKDE, Algorithm 3).

    ``(0, c_max]`` is cut into `bins` equal intervals; the bound is the upper end of the fullest one after noise.
    Norms above `c_max` count in the last bin and a norm of 0 in the first, so each finite record counts exactly once:
    sensitivity 1 under add-or-remove-one, in real arithmetic (docs/guarantees/sums.md, "Decisions about a record"). Over
    groups a record moves a norm from one bin to another: sqrt 2. With a histogram for each of J layers, a record counts in
    all of them: sqrt J. The bound is never below ``c_max / bins``.

    Args:
        c_max: the largest bound.
        bins: number of intervals w.
        share: share of the lot's inverse squared noise that the histogram uses; the gradient gets the rest, and both
            are one merged Gaussian of the lot.
        noise: the name of that noise in the plan; it must be unique where several terms have such a rule.

    Example:
        >>> DPNorm(c_max=10.0, bins=100, share=0.05).noise_shares
        {'norms': 0.05}
    """

    c_max: float
    bins: int = 20
    share: float = 0.05
    noise: str = "norms"

    def __post_init__(self) -> None:
        _check_bound("c_max", self.c_max)
        object.__setattr__(self, "bins", read_whole("bins", self.bins, least=2))
        _check_bound(f"c_max={self.c_max} over bins={self.bins}", self.c_max / self.bins)
        _check_noise(self.share, self.noise)

    @property
    def noise_shares(self) -> Mapping[str, float]:
        return {self.noise: self.share}

    def bounds(self, access: OpenAccess, norms: LotNorms, before: Sequence[float] | None) -> tuple[float, ...]:
        width = self.c_max / math.sqrt(_checked(norms).touched) / self.bins
        places = []
        # numpy is quicker for few numbers.
        for j, column in enumerate(norms.columns):
            column = column.cpu().numpy().astype(np.float64, copy=False)
            finite = column[np.isfinite(column)]
            # `np.clip` would take longer than all else here.
            upper = np.maximum(np.minimum(np.ceil(finite / width), self.bins), 1.0)
            places.append(upper.astype(np.int64) + (j * self.bins - 1))
        histogram = noisy_histogram(
            access,
            self.noise,
            torch.from_numpy(np.concatenate(places)),
            self.bins * len(norms.columns),
            sensitivity=math.sqrt(norms.touched * (2 if norms.grouped else 1)),
            per_person=norms.of_unit,
        )
        return tuple((mode + 1) * width for mode in histogram.view(-1, self.bins).argmax(dim=1).tolist())


@dataclass(frozen=True)
class Quantile(ClippingRule):
    """A bound that follows a quantile of the norms (Andrew, Thakkar, McMahan and Ramaswamy 2021, Algorithm 1).

    The noisy share s of this lot's norms that are at most the bound C of the lot before gives the new bound
    ``C exp(-lr (s - target))``, for this lot already: both are one access. Each finite record counts as +1/2 or -1/2, so
    the sensitivity is 1/2, and 1 over groups; times sqrt J where a record counts in J layers. The share is taken of the
    expected lot (or of the number of groups), which the optimizer knows. The number of persons in a lot is not known: under
    `PerPerson` each counts as ``1 - target`` or ``-target``, whose sum is 0 at the target however many they are.

    Args:
        c: the first bound.
        target: share of the norms that the bound should be above.
        lr: the speed at which the bound follows.
        least, most: the smallest and the largest bound.
        share: share of the lot's inverse squared noise that the count uses.
        noise: the name of that noise in the plan.
    """

    c: float
    target: float = 0.5
    lr: float = 0.2
    least: float = 1e-3
    most: float = 1e3
    share: float = 0.05
    noise: str = "below"

    def __post_init__(self) -> None:
        for name in ("c", "least", "most"):
            _check_bound(name, getattr(self, name))
        if not self.least <= self.c <= self.most:
            raise ValueError(f"c={self.c}: expected a number from least={self.least} to most={self.most}")
        check_number("target", self.target, lambda target: 0.0 < target < 1.0, "between 0 and 1")
        check_number("lr", self.lr, lambda lr: 0.0 < lr < 100.0, "above 0, below 100")
        _check_noise(self.share, self.noise)

    @property
    def noise_shares(self) -> Mapping[str, float]:
        return {self.noise: self.share}

    def bounds(self, access: OpenAccess, norms: LotNorms, before: Sequence[float] | None) -> tuple[float, ...]:
        current = [self.c / math.sqrt(_checked(norms).touched)] * len(norms.columns) if before is None else before
        # The share that is counted from: half, or the target where the number of rows is not known.
        start = self.target if norms.of_unit and not norms.grouped else 0.5
        # In multiples of the grid a record counts as `above` or as that less a whole, so sums are exact.
        whole, above = round(1.0 / _GRID), -round(start / _GRID)
        signs = [
            torch.where(column[torch.isfinite(column)] <= c, whole + above, above).sum()
            for column, c in zip(norms.columns, current, strict=True)
        ]
        most = math.sqrt(norms.touched) * (1.0 if norms.grouped else max(-above, whole + above) * _GRID)
        noisy = rounded_gaussian(
            access, self.noise, torch.stack(signs).cpu(), unit=_GRID, sensitivity=most, per_person=norms.of_unit
        )
        # A component's share of the lot is private, so its count is divided by an equal part of the expected lot.
        parts = len(norms.columns) / norms.touched
        below = [min(max(start + float(s) * parts / norms.expected_rows, 0.0), 1.0) for s in noisy]
        return tuple(
            min(max(c * math.exp(-self.lr * (b - self.target)), self.least), self.most)
            for c, b in zip(current, below, strict=True)
        )


@dataclass(frozen=True)
class Normalised(_Known):
    """Gradients that are all brought near one length: "automatic clipping" (Bu et al. 2023, AUTO-S).

    A gradient becomes ``C g / (|g| + stability)``, which is shorter than C.

    Args:
        c: the bound C; the learning rate may do its work.
        stability: added to the norm, so that gradients of almost nothing stay small.
    """

    c: float = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        _check_bound("c", self.c)
        _check_bound("stability", self.stability)

    def known(self, number: int) -> float:
        return self.c

    def factors(self, norms: Tensor, bound: float) -> Tensor:
        return torch.where(norms < _LARGEST_NORM, _SHAVE * bound / (norms + self.stability), 0.0)


@dataclass(frozen=True)
class _Wrapper(ClippingRule):
    """Another rule, changed in one respect."""

    of: ClippingRule

    def __post_init__(self) -> None:
        if not isinstance(self.of, ClippingRule):
            raise ValueError(f"of={show(self.of)}: expected a clipping rule, such as Fixed(1.0)")
        if self.by_person and isinstance(self.scope, Components):
            raise ValueError(
                "PerPerson with PerComponent: a person may have records in several components, which share one bound: take "
                "PerPerson alone, whose norm is over all components"
            )

    @property
    def by_person(self) -> bool:
        return self.of.by_person

    @property
    def noise_shares(self) -> Mapping[str, float]:
        return self.of.noise_shares

    def known(self, number: int) -> float | None:
        return self.of.known(number)

    def bounds(self, access: OpenAccess, norms: LotNorms, before: Sequence[float] | None) -> tuple[float, ...]:
        return self.of.bounds(access, norms, before)

    def factors(self, norms: Tensor, bound: float) -> Tensor:
        return self.of.factors(norms, bound)


@dataclass(frozen=True)
class Smoothed(_Wrapper):
    """Another rule, whose bounds are averaged over lots: ``keep`` of the one before, and the rest of the new one.

    Args:
        keep: the share of the bound before, in [0, 1).

    Example:
        >>> Smoothed(DPNorm(c_max=10.0), keep=0.9).noise_shares
        {'norms': 0.05}
    """

    keep: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("keep", self.keep, lambda keep: 0.0 <= keep < 1.0, "from 0, below 1")

    @property
    def scope(self) -> Scope:
        return self.of.scope

    def known(self, number: int) -> None:
        return None

    def bounds(self, access: OpenAccess, norms: LotNorms, before: Sequence[float] | None) -> tuple[float, ...]:
        new = self.of.bounds(access, norms, before)
        if before is None:
            return new
        return tuple(self.keep * b + (1.0 - self.keep) * n for b, n in zip(before, new, strict=True))


@dataclass(frozen=True)
class PerLayer(_Wrapper):
    """Another rule, applied to each layer by itself: a bound C_j for each, and a sensitivity of ``sqrt(sum of C_j^2)``.

    Example:
        >>> PerLayer(DPNorm(c_max=10.0)).noise_shares
        {'norms': 0.05}
    """

    scope: ClassVar[Scope] = Layers()


@dataclass(frozen=True)
class PerPerson(_Wrapper):
    """Another rule, applied to each person: the sum of the gradients of a person's records is clipped once, to C.

    It is for plans whose unit of privacy is a person with up to m records (`persons` and `max_rows`). A person then moves
    the clipped sum by at most C; where each record is clipped, by m C. So the noise is m times smaller for the same C, and
    bounds are those of a sum of up to m gradients, over all components. A rule that looks at norms (DPNorm, Quantile)
    counts each person once. Where the unit is a record, it changes nothing. Groups of records (`PerGroup`) hold whole
    persons under any rule.

    Raises:
        ValueError: for a rule with a bound for each component, of which a person may reach several.

    Example:
        >>> PerPerson(DPNorm(c_max=10.0)).noise_shares
        {'norms': 0.05}
    """

    by_person: ClassVar[bool] = True

    @property
    def scope(self) -> Scope:
        return self.of.scope


@dataclass(frozen=True)
class PerComponent(_Wrapper):
    """Another rule, applied to each component of a mixture by itself; the noise of a component follows its own bound.

    A record belongs to one component, so all of them together cost as much as one.
    """

    scope: ClassVar[Scope] = Components()


def clip_weights(norms: Tensor, bound: float) -> Tensor:
    """Return the factor of each record: ``min(1, C / norm)``, shaved by 1e-5; exactly 0 where the norm is not finite
    (or above 1e30 under a finite bound).

    An infinite bound clips nothing.
    """
    largest = _LARGEST_NORM if math.isfinite(bound) else math.inf
    # `torch.where` with a number makes a tensor of it first.
    weights = norms.reciprocal().mul_(_SHAVE * bound).clamp_(max=1.0)
    return weights.masked_fill_(~(norms < largest), 0.0)


def choose_bounds(
    rule: ClippingRule, access: OpenAccess, norms: LotNorms, before: Sequence[float] | None
) -> tuple[float, ...]:
    """Return the bounds that a rule chooses; one that draws no noise of its own sees the number of columns, and no norm.

    Raises:
        ValueError: for anything but a bound for each column of norms; the access is spent.
    """
    # A rule that wrote into the norms themselves would clip nothing by them later.
    seen = [column.clone() if rule.noise_shares else column[:0] for column in norms.columns]
    bounds = rule.bounds(access, replace(norms, columns=seen), before)
    if not isinstance(bounds, tuple | list) or len(bounds) != len(norms.columns):
        raise ValueError(
            f"{type(rule).__name__}.bounds returned {show(bounds)}: expected a tuple with a bound for each of the "
            f"{len(norms.columns)} columns of norms"
        )
    for bound in bounds:
        # Written out, since each step comes here.
        if not (type(bound) is float and _SMALLEST_BOUND <= bound < _LARGEST_NORM):
            _check_bound(f"{type(rule).__name__}.bounds", bound)
    return tuple(bounds)


def cap_factors(rule: ClippingRule, norms: Tensor, bound: float) -> Tensor:
    """Return the factors of a rule, none of which leaves a gradient longer than the bound.

    The factor of a rule of another module is computed where each norm is alone, so that no record changes that of another,
    and it keeps none.

    Raises:
        ValueError: if such a factor is not one number for a norm, or needs to see the norm's value.
    """
    # A rule that clips too little would not be as private as the certificate says.
    most = norms.reciprocal().clamp_(max=_LARGEST_FACTOR).mul_(_SHAVE * bound)
    most.masked_fill_(~(norms < _LARGEST_NORM), 0.0)
    while _method(rule) is _Wrapper.factors:
        rule = rule.of
    if _method(rule) in (ClippingRule.factors, Normalised.factors):
        return torch.minimum(rule.factors(norms, bound), most)
    # The number of its calls must not tell whether a lot is empty.
    seen = norms.clone() if len(norms) else norms.new_ones(1)
    try:
        with invalidate_escaped_tensors():
            factors = torch.vmap(lambda norm: rule.factors(norm[None], bound).view(()))(seen)
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{type(rule).__name__}.factors sees the norm (1,) of one record at a time, hidden from Python, and failed "
            f"({str(error)[:200]}): expected a tensor (1,) that torch's functions make of it"
        ) from None
    return torch.minimum(factors[: len(norms)], most)


def _method(rule: ClippingRule) -> Any:
    """Return the function behind the factors of a rule; None where they are an attribute of the instance."""
    return getattr(rule.factors, "__func__", None)


def _check_bound(name: str, value: float) -> None:
    expected = f"from {_SMALLEST_BOUND:g} to {_LARGEST_NORM:g}"
    check_number(name, value, lambda bound: _SMALLEST_BOUND <= bound < _LARGEST_NORM, expected)


def _check_noise(share: float, noise: str) -> None:
    """Refuse a share that leaves nothing, or no name."""
    check_number("share", share, lambda share: 0.0 < share < 1.0, "between 0 and 1")
    if not (isinstance(noise, str) and noise):
        raise ValueError(f"noise={show(noise)}: expected the name of the noise in the plan, as text")

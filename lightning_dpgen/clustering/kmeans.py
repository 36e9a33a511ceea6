"""Private kernel k-means, and what a split releases about its clusters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.clustering.features import FEATURE_NORM, FourierFeatures
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.data.lots import persons_of
from lightning_dpgen.data.stores import Store, store_of
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.calibration import Draft
from lightning_dpgen.privacy.mechanisms import gaussian, noisy_histogram

CENTRE, LLOYD, FINAL = "initial centre", "clustering", "final pass"

_SPREAD = 0.1
# Numbers that are written out at a time.
_AT_ONCE = 1 << 22
# What is held in all varies over clusters by about this share of itself; a column by at most so many times its own spread.
_OF_TOTAL, _MOST_BETWEEN = 0.5, 1.0
# Share of the counts in the inverse squared noise of the final pass; the means get the rest.
_COUNTS = 0.1
# A kernel beyond these scales sees no difference between records, or nothing else.
_LARGEST = 1e9


@dataclass(frozen=True)
class SplitSettings:
    """Public settings of the split.

    Args:
        k: number of clusters.
        iterations: Lloyd iterations T.
        features: number d of Fourier features, even.
        gamma: kernel width; None follows from the layout (`fitted`).
        label_weight: weight of a label in the kernel, so that records of two classes have their kernel multiplied by
            ``exp(-label_weight)``; 0 leaves labels out of the split.
        radius: L2 bound to which records are clipped for the cluster means; None follows from the layout.
        centre_share: share of the budget's mu^2 for the noisy mean from which the centres start.
        lloyd_share: the same for all iterations together.
        means_share: the same for the counts and means under the final centres.
    """

    k: int = 10
    iterations: int = 10
    features: int = 100
    gamma: float | None = None
    label_weight: float = 0.0
    radius: float | None = None
    centre_share: float = 0.01
    lloyd_share: float = 0.1
    means_share: float = 0.2

    def __post_init__(self) -> None:
        for name, most in (("k", 10_000), ("iterations", 100_000), ("features", 1_000_000)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"split.{name}={getattr(self, name)}: expected a whole number from 1 to {most:,}")
        if self.features % 2:
            raise ValueError(f"split.features={self.features}: expected an even number (pairs of cosine and sine)")
        if not 0.0 <= self.label_weight <= _LARGEST:
            raise ValueError(f"split.label_weight={self.label_weight:g}: expected a number from 0 to {_LARGEST:g}")
        for name in ("centre_share", "lloyd_share", "means_share"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"split.{name}={getattr(self, name)}: expected a number between 0 and 1")
        together = self.centre_share + self.lloyd_share + self.means_share
        if together >= 1.0:
            raise ValueError(
                f"split.centre_share, split.lloyd_share and split.means_share add up to {together:g}: expected less than "
                "1, since training takes what is left"
            )
        for name in ("gamma", "radius"):
            value = getattr(self, name)
            if value is not None and not 1.0 / _LARGEST <= value <= _LARGEST:
                raise ValueError(
                    f"split.{name}={value:g}: expected {1 / _LARGEST:g} to {_LARGEST:g}, or null for the default"
                )

    def fitted(self, layout: Layout) -> SplitSettings:
        """With a gamma and a radius for records of that layout, where there are none.

        Records within a known norm are kept whole (`default_radius`), and a kernel of one over its square tells apart those
        with little in common.
        """
        m, norm = layout.width, layout.norm
        gamma = 4.0 / m if norm is None else 1.0 / norm**2
        radius = default_radius(layout)
        return replace(
            self,
            gamma=gamma if self.gamma is None else self.gamma,
            radius=radius if self.radius is None else self.radius,
        )

    def drafts(self, n: int, *, means: bool = True) -> list[Draft]:
        """The accesses of the split, for `n` declared records; what is not used gives its share back.

        A single cluster needs no clustering, and without `means` the final pass releases the counts alone, at the small
        share that they have beside the means.

        Counts get the share that minimises the error of a centre: the noise of d coordinates against that of a count
        multiplied by the norm of a centre, which is at most 1: ``1 : sqrt(d)`` in inverse squared noise.
        """
        counts = 1.0 / (1.0 + math.sqrt(self.features))
        final = Draft(FINAL, {"counts": _COUNTS, "means": 1.0 - _COUNTS}, 1, largest=n / self.k, share=self.means_share)
        if not means:
            final = replace(final, weights={"counts": 1.0}, share=_COUNTS * self.means_share)
        if self.k == 1:
            return [final]
        return [
            Draft(CENTRE, {"sum": 1.0}, 1, largest=n, share=self.centre_share),
            Draft(
                LLOYD,
                {"counts": counts, "sums": 1.0 - counts},
                self.iterations,
                largest=n / self.k,
                share=self.lloyd_share,
            ),
            final,
        ]


@dataclass(frozen=True)
class SplitState:
    """How far a split has come: all of it was released, so all of it is public.

    Args:
        iterations: how many Lloyd iterations are done; -1 before the first centres are known.
        centres: (k, features) the centres then; empty at first.
        counts: (k,) noisy sizes under the final centres; empty before the last pass.
        means: (k, m) noisy mean records; empty before the last pass.
        done: `Account.done` then.
    """

    iterations: int = -1
    centres: Tensor = field(default_factory=lambda: torch.zeros(0))
    counts: Tensor = field(default_factory=lambda: torch.zeros(0))
    means: Tensor = field(default_factory=lambda: torch.zeros(0))
    done: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Split:
    """What the split released, and the private assignment.

    Args:
        clusters: (N,) cluster of each record. Private.
        counts: (k,) noisy sizes under the final centres, floored at 1. Public.
        means: (k, m) noisy mean record of each cluster. Public. Empty where the plan has none.
    """

    clusters: Tensor
    counts: Tensor
    means: Tensor

    @property
    def weights(self) -> Tensor:
        """(k,) mixture weights: noisy counts, normalised. Public."""
        return self.counts / self.counts.sum()


def default_radius(layout: Layout) -> float:
    """The L2 bound to which records are clipped for the means.

    Where a record is one choice of each group, its length is known. Of other records without a known norm, such as
    pictures, those with a fifth of their numbers at 1 are kept whole.

    Example:
        >>> default_radius(Layout(units=0, groups=(3, 40, 2, 9))), default_radius(Layout(units=100))
        (2.0, 5.5)
    """
    if layout.norm is not None:
        return layout.norm
    return 0.45 * math.sqrt(layout.width) + 1.0 if layout.units else math.sqrt(len(layout.groups))


def private_split(
    records: Any,
    scale: Tensor,
    settings: SplitSettings,
    n: int,
    account: Account,
    generator: torch.Generator,
    *,
    state: SplitState | None = None,
    save: Callable[[SplitState], None] = lambda _: None,
) -> Split:
    """Kernel k-means on Fourier features with noisy counts and sums (DPGM, TKDE, Algorithm 2, corrected).

    Centres start at the noisy mean of all features plus small random directions, never at records. Each iteration
    releases the counts and the feature sums of the clusters from one access. A last pass under the final centres
    releases the counts that become mixture weights, and the mean record of each cluster.

    Args:
        records: what `store_of` takes and gives as (B, m) float32, finite. Private.
        scale: (m,) weight of each column in the kernel.
        settings: public settings.
        n: the declared number of records, a public denominator.
        account: its plan holds the drafts of `settings`.
        generator: public generator of features and starting directions.
        state: where an interrupted split goes on; None begins.
        save: called after each access, with the state from which it could go on.

    Guarantee:
        Add or remove one record: it changes one count by 1, one feature sum by a vector of norm 1, and one sum of
        records by at most the radius. Assignments use centres that are public already. A person changes them by as many
        times that as they have records.
    """
    state = state or SplitState()
    if settings.k == 1 and state.iterations < 0:
        state = SplitState(iterations=settings.iterations, centres=torch.zeros(1, settings.features))
    store, settings = store_of(records), settings.fitted(Layout(units=len(scale)))
    persons_of(store, None, account.plan.max_rows)
    features = FourierFeatures(scale, settings.features, settings.gamma, generator)
    directions = torch.randn(settings.k, settings.features, generator=generator)
    directions /= directions.norm(dim=1, keepdim=True)

    def reached(**fields) -> SplitState:
        reached = replace(state, **fields, done=account.done)
        save(reached)
        return reached

    if state.iterations < 0:
        with account.open(CENTRE) as access:
            total = gaussian(access, "sum", _feature_sums(features, store, None, 1)[0], sensitivity=FEATURE_NORM)
        state = reached(iterations=0, centres=(total / n).float() + _SPREAD * directions)
    while state.iterations < settings.iterations:
        clusters = _assigned(features, store, state.centres)
        with account.open(LLOYD) as access:
            counts = noisy_histogram(access, "counts", clusters, settings.k)
            sums = gaussian(
                access, "sums", _feature_sums(features, store, clusters, settings.k), sensitivity=FEATURE_NORM
            )
        # A count that two standard deviations of noise explain is an empty cluster: it starts again beside the
        # largest one. This and the division look at noisy numbers only.
        empty = counts < max(1.0, 2.0 * access.access.multipliers["counts"] * access.max_rows)
        centres = (sums / counts.clamp(min=1.0)[:, None]).float()
        centres[empty] = centres[counts.argmax()] + _SPREAD * directions[empty]
        state = reached(iterations=state.iterations + 1, centres=centres)
    clusters = _assigned(features, store, state.centres)
    if not len(state.counts):
        means, radius = torch.zeros(0), settings.radius
        with account.open(FINAL) as access:
            counts = noisy_histogram(access, "counts", clusters, settings.k).float().clamp(min=1.0)
            if "means" in access.access.multipliers:
                sums = gaussian(access, "means", clipped_sums(store, radius, clusters, settings.k), sensitivity=radius)
                deviation = access.access.multipliers["means"] * radius * access.max_rows
                means = _shrunk_means(sums.float(), counts, deviation)
        state = reached(counts=counts, means=means)
    return Split(clusters, state.counts, state.means)


def _shrunk_means(sums: Tensor, counts: Tensor, deviation: float) -> Tensor:
    """Noisy means, drawn to the mean of all where the noise is large: post-processing of released numbers.

    A cluster is expected to hold the mean p of all records, times how much its own records hold in all. Columns vary about
    that over clusters in proportion to ``sqrt(p (1 - p))``, by a factor that is found from how much more the noisy means
    vary than their noise, whose standard deviation is ``deviation / count``. The weight of a cluster's own mean is the
    share of the first variance in both (the linear Bayes estimate).
    """
    own, noise = sums / counts[:, None], deviation / counts[:, None]
    overall = sums.sum(dim=0) / counts.sum()
    total = overall.sum().clamp(min=1e-6)
    overall = _non_negative(overall[None], total[None])[0].clamp(max=1.0)
    # What is held in all has more noise than a column by the root of the width, and varies by about a half.
    believed = 1.0 / (1.0 + (noise[:, 0] / (_OF_TOTAL * total)).square() * sums.shape[1])
    totals = (believed * own.sum(dim=1) + (1.0 - believed) * total).clamp(min=0.0)
    expected = overall * (totals / total)[:, None]
    spread = overall * (1.0 - overall)
    beyond = ((own - expected).square() - noise.square()) * believed[:, None]
    factor = beyond.sum() / (believed.sum() * spread.sum()).clamp(min=1e-9)
    between = factor.clamp(0.0, _MOST_BETWEEN**2) * spread
    weight = between / (between + noise.square()).clamp(min=1e-12)
    return _non_negative(weight * own + (1.0 - weight) * expected, totals).clamp(max=1.0)


def _non_negative(rows: Tensor, totals: Tensor) -> Tensor:
    """The nearest rows without a negative number that add up to these totals: each number less the same, or 0."""
    descending = rows.sort(dim=1, descending=True).values
    excess = (descending.cumsum(dim=1) - totals[:, None]) / torch.arange(1, rows.shape[1] + 1, device=rows.device)
    kept = (descending > excess).sum(dim=1, keepdim=True).clamp(min=1)
    return (rows - excess.gather(1, kept - 1)).clamp(min=0.0)


def _assigned(features: FourierFeatures, store: Store, centres: Tensor) -> Tensor:
    """(N,) the nearest centre of each record, ``argmax z.c - |c|^2 / 2``."""
    clusters, half = torch.zeros(len(store), dtype=torch.int64), 0.5 * centres.square().sum(dim=1)[:, None]
    if len(centres) > 1:
        for rows, block in features.blocks(store):
            clusters[rows] = torch.addmm(-half, centres, block.T).argmax(dim=0)
    return clusters


def _feature_sums(features: FourierFeatures, store: Store, clusters: Tensor | None, k: int) -> Tensor:
    """(k, d) sums of the features of each cluster, in float64: in float32 one more record would also change the rounding of
    all the others."""
    sums = torch.zeros(k, features.d, dtype=torch.float64)
    for rows, block in features.blocks(store):
        if clusters is None:
            sums += block.double().sum(dim=0)
        else:
            sums.index_add_(0, clusters[rows], block.double())
    return sums


def clipped_sums(store: Store, radius: float, clusters: Tensor, k: int) -> Tensor:
    """(k, m) sums of the records of each cluster, each of them shortened to the radius; in float64."""
    sums = torch.zeros(k, store.take(np.zeros(0, np.int64)).shape[1], dtype=torch.float64)
    step = max(1, _AT_ONCE // sums.shape[1])
    for start in range(0, len(store), step):
        rows = store.take(np.arange(start, min(start + step, len(store))))
        norms = rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
        # Shaved, so that a clipped record stays within the radius in float32 too.
        rows *= (radius * (1.0 - 1e-5) / norms).clamp(max=1.0)
        sums.index_add_(0, clusters[start : start + len(rows)], rows.double())
    return sums

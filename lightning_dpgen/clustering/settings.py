"""Public settings of the private split, and the accesses that it plans."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from lightning_dpgen.clustering.features import KERNELS
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec

MOMENTS, LLOYD, FINAL = "feature moments", "clustering", "final pass"

# The share of the counts in the inverse squared noise of the final pass, where the means get the rest; and the share of the
# mean of the features, where their second moments get the rest.
_COUNTS, _MEAN = 0.1, 0.15
# The most features whose matrix of second moments still fits in memory.
_WIDEST = 4096
# Distances between centres of clear clusters (MNIST's digits), in few directions (True) and in all features; noise of that
# length hides them.
_APART = {True: 0.9, False: 0.4}
_SHARES = ("moments_share", "lloyd_share", "means_share")
# A kernel of a scale beyond this, or its inverse, sees all records as equal, or as equally far apart.
_LARGEST = 1e9


@dataclass(frozen=True)
class SplitSettings:
    """Public settings of the split.

    Args:
        k: number of clusters.
        kernel: ``rbf``, ``laplacian`` (see `FourierFeatures`), or ``identity``: the records themselves, within the radius.
        paired: features are cosines and sines in pairs; otherwise DPGM's single cosines, shortened to norm 1.
        start: where centres start: at the noisy ``mean`` of all features, at ``random`` directions, or at the features of
            ``public`` records. The latter two give the share of the mean back, unless there are `dimensions`.
        dimensions: the number of directions that clusters are searched in, the leading ones of the features' noisy second
            moments, where every record has length 1; None, or as many as there are features, for all of them (DPGM).
        iterations: Lloyd iterations T.
        features: number d of Fourier features, even if they are paired.
        gamma: kernel width; None for one that follows from the layout (`for_layout`).
        label_weight: weight of a label in the kernel: the kernel of records of two classes is multiplied by
            ``exp(-label_weight)``; 0 leaves labels out of the split.
        radius: L2 bound that records are clipped to for the cluster means; None for one that follows from the layout.
        moments_share: share of the budget's mu^2 for the noisy mean and second moments of the features; the mean alone
            takes 15 % of it.
        lloyd_share: share of the budget's mu^2 for all iterations together.
        means_share: share of the budget's mu^2 for the counts and means under the final centres.
    """

    k: int = 10
    kernel: str = "rbf"
    paired: bool = True
    start: str = "mean"
    dimensions: int | None = 16
    iterations: int = 10
    features: int = 100
    gamma: float | None = None
    label_weight: float = 0.0
    radius: float | None = None
    moments_share: float = 0.05
    lloyd_share: float = 0.1
    means_share: float = 0.2

    def __post_init__(self) -> None:
        for name, most in (("k", 10_000), ("iterations", 100_000), ("features", 1_000_000)):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"{name}={value!r}: expected a whole number from 1 to {most:,}")
        for name, expected in (("kernel", (*KERNELS, "identity")), ("start", ("mean", "random", "public"))):
            if getattr(self, name) not in expected:
                raise ValueError(f"{name}={getattr(self, name)}: expected one of {', '.join(expected)}")
        if self.paired and self.features % 2 and self.kernel != "identity":
            raise ValueError(f"features={self.features}: expected an even number (pairs of cosine and sine)")
        if self.dimensions is not None and not (type(self.dimensions) is int and 1 <= self.dimensions <= _WIDEST):
            raise ValueError(
                f"dimensions={self.dimensions!r}: expected a whole number from 1 to {_WIDEST:,}, or dimensions=None for all"
            )
        if self.projects and self.features > _WIDEST:
            raise ValueError(
                f"dimensions={self.dimensions} of {self.features:,} features: expected at most {_WIDEST:,} features, "
                "whose second moments are released, or dimensions=None"
            )
        if not 0.0 <= self.label_weight <= _LARGEST:
            raise ValueError(f"label_weight={self.label_weight:g}: expected a number from 0 to {_LARGEST:g}")
        for name in _SHARES:
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name}={getattr(self, name)}: expected a number between 0 and 1")
        for name in ("gamma", "radius"):
            value = getattr(self, name)
            if value is not None and not 1.0 / _LARGEST <= value <= _LARGEST:
                raise ValueError(
                    f"{name}={value:g}: expected {1 / _LARGEST:g} to {_LARGEST:g}, or {name}=None for the default"
                )

    @property
    def projects(self) -> bool:
        """True if clusters are searched in fewer dimensions than there are features."""
        return self.dimensions is not None and self.dimensions < self.features

    @property
    def space(self) -> int:
        """The number of coordinates of a centre."""
        return self.dimensions if self.projects else self.features

    def for_layout(self, layout: Layout) -> SplitSettings:
        """Fill in a gamma and a radius for records of that layout, where there are none.

        Records within a known norm are kept whole (`Layout.default_radius`), and a gamma of one over its square tells apart
        records with little in common.
        """
        m, norm = layout.width, layout.norm
        gamma = 4.0 / m if norm is None else 1.0 / norm**2
        radius = layout.default_radius
        return replace(
            self,
            features=m if self.kernel == "identity" else self.features,
            gamma=gamma if self.gamma is None else self.gamma,
            radius=radius if self.radius is None else self.radius,
        )

    def centre_noise(self, plan: Plan, n: int) -> float:
        """Return the expected length of the noise of a centre in one iteration, if all clusters are equally large.

        Features have norm 1, so centres are at most 2 apart, and rarely more than 1.
        """
        if self.k == 1:
            return 0.0
        multiplier = plan.stage(LLOYD).access.multipliers["sums"] * plan.max_rows
        return multiplier * math.sqrt(self.space) * self.k / n

    def warning(self, plan: Plan, n: int) -> str | None:
        """Return a warning of more clusters than the budget can tell apart; None where it can tell them apart."""
        noise, apart = self.centre_noise(plan, n), _APART[self.projects]
        if noise <= apart:
            return None
        smaller = "dimensions" if self.projects else "features"
        return (
            f"k={self.k}: the noise of a centre is about {noise:.2g} long, and centres of clear clusters are about "
            f"{apart:g} apart: expect clusters by chance; set a smaller k or {smaller}, or a larger lloyd_share"
        )

    def specs(self, n: int, *, means: bool = True) -> list[StageSpec]:
        """List the accesses of the split, for `n` declared records; stages that are not used give their shares back.

        A single cluster needs no clustering, and without `means` the final pass releases the counts alone, at the small
        share that they have beside the means.

        Counts get the share that minimises the error of a centre. It weighs the noise of the coordinates against the noise
        of a count times the norm of a centre, which is at most 1: ``1 : sqrt(d)`` in inverse squared noise.

        Raises:
            ValueError: for settings without a kernel without `for_layout`, since the number of features is not known yet;
                or where nothing of the budget is left.
        """
        if self.kernel == "identity" and self.radius is None:
            raise ValueError("kernel=identity: expected settings.for_layout(layout), which knows how many columns it has")
        counts = 1.0 / (1.0 + math.sqrt(self.space))
        final = StageSpec(
            FINAL, {"counts": _COUNTS, "means": 1.0 - _COUNTS}, 1, max_noise=n / self.k, share=self.means_share, n=n
        )
        if not means:
            final = replace(final, noise_shares={"counts": 1.0}, share=_COUNTS * self.means_share)
        if self.k == 1:
            return [final]
        moments = []
        if self.projects or self.start == "mean":
            weights = {"sum": _MEAN, "moments": 1.0 - _MEAN} if self.projects else {"sum": 1.0}
            share = self.moments_share * (1.0 if self.projects else _MEAN)
            moments = [StageSpec(MOMENTS, weights, 1, max_noise=n, share=share, n=n)]
        weights = {"counts": counts, "sums": 1.0 - counts}
        lloyd = StageSpec(LLOYD, weights, self.iterations, max_noise=n / self.k, share=self.lloyd_share, n=n)
        specs = [*moments, lloyd, final]
        if (together := math.fsum(spec.share for spec in specs)) >= 1.0:
            shares = ", ".join(f"{name}={getattr(self, name):g}" for name in _SHARES)
            raise ValueError(
                f"{shares}: the split uses {together:.3g} of the budget: expected less than 1, since the model takes the "
                "rest"
            )
        return specs

"""Rivals of a generative model of baskets without training, which it must beat on the same queries.

Each takes the private baskets and gives synthetic ones. Those with an epsilon are private under add or remove one: they
measure once, through a plan, an account and the Gaussian mechanism. Their noise is seeded, so that a table can be made
again; these baskets are simulated, and public. Those that are not private show how much of an error is the model's and not
the noise's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from scipy.optimize import brentq

from lightning_dpgen.data.baskets.reading import chosen
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import gaussian, noisy_histogram
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec

# The rival of independent items: the paper cuts baskets to 12 items for MWEM.
CUT = 12
BY_SIZE = "independent items by size"
# The rival of items by size: the part of the budget for the counts of sizes, and the ratio of sizes in one stratum.
SIZES_PART, GROWTH = 0.15, 1.35
# A stratum whose noisy count has fewer standard deviations is taken for empty.
FEWEST_DEVIATIONS = 2.5


@dataclass(frozen=True)
class Budget:
    """The budget of a rival under add or remove one, and the seed of its noise and its draws."""

    epsilon: float
    delta: float
    seed: int

    def account(self, stage: str, weights: dict[str, float], n: int) -> Account:
        """Return an account of one look at all n baskets, with these noises, for the whole budget."""
        return self.account_of(StageSpec(stage, weights, 1, max_noise=n))

    def account_of(self, *specs: StageSpec) -> Account:
        """Return an account of these stages for the whole budget."""
        return Account(make_plan(specs, epsilon=self.epsilon, delta=self.delta), stream=PrivateStream(self.seed))

    @property
    def random(self) -> np.random.Generator:
        """Return the generator of the draws after the measurement."""
        return np.random.default_rng([self.seed, 1])


Rival = Callable[[scipy.sparse.csr_array, int, Budget], scipy.sparse.csr_array]


def rivals(largest: int, epsilon: float) -> dict[str, Rival]:
    """Return rivals by name: functions of baskets (N, items), the most items that one may hold, and a budget.

    N is declared: it is public, also as the number of synthetic baskets.
    """
    cut = {
        f"independent items, cut to {most}, epsilon {epsilon:g}": lambda real, _, budget, most=most: cut_independent(
            real, most, budget
        )
        for most in sorted({min(CUT, largest), largest})
    }
    return {
        "constant 0": lambda real, *_: scipy.sparse.csr_array(real.shape, dtype=np.uint8),
        "independent items, exact shares, not private": exact_independent,
        **cut,
        f"{BY_SIZE}, epsilon {epsilon:g}": independent_by_size,
        "random half of the data, not private": half,
    }


def exact_independent(real: scipy.sparse.csr_array, _: int, budget: Budget) -> scipy.sparse.csr_array:
    """Draw each item by itself, with its exact share."""
    return independent(real.shape[0], _held(real.indices, real) / real.shape[0], budget.random)


def half(real: scipy.sparse.csr_array, _: int, budget: Budget) -> scipy.sparse.csr_array:
    """Draw a random half of the baskets (at least one), which shows the error of sampling alone."""
    n = real.shape[0]
    return real[np.sort(budget.random.choice(n, -(-n // 2), replace=False))]


def cut_independent(real: scipy.sparse.csr_array, most: int, budget: Budget) -> scipy.sparse.csr_array:
    """Draw each item by itself, with a noisy share of baskets that are cut to `most` of their items.

    A basket moves `most` counts by 1: sensitivity sqrt(most).
    """
    n = real.shape[0]
    kept = real.indices[chosen(real.indptr, real.indices, most)]
    account = budget.account("items", {"counts": 1.0}, n)
    with account.open("items") as access:
        counts = gaussian(access, "counts", torch.from_numpy(_held(kept, real)), sensitivity=math.sqrt(most))
    account.verify_complete()
    return independent(n, np.clip(counts.numpy() / n, 0.0, 1.0), budget.random)


def independent_by_size(real: scipy.sparse.csr_array, largest: int, budget: Budget) -> scipy.sparse.csr_array:
    """Draw each item by itself among baskets of about one size; see `Strata.measure`."""
    n = real.shape[0]
    account = budget.account_of(Strata.spec(n))
    measured = Strata.measure(real, largest, account)
    account.verify_complete()
    return measured.draw(n, budget.random)


@dataclass(frozen=True, eq=False)
class Strata:
    """Independent items among baskets of about one size.

    Args:
        weights: (strata,) the part of all baskets in each stratum.
        shares: (strata, items) shares of the baskets of a stratum that hold each item.
    """

    weights: np.ndarray
    shares: np.ndarray

    @staticmethod
    def spec(n: int, share: float | None = None) -> StageSpec:
        """Return the stage of `measure`, with so much of the budget's mu^2."""
        return StageSpec("strata", {"sizes": SIZES_PART, "items": 1.0 - SIZES_PART}, 1, max_noise=n, share=share)

    @classmethod
    def measure(cls, real: scipy.sparse.csr_array, largest: int, account: Account) -> Strata:
        """Measure counts of strata, and of items in each.

        The items of a basket count 1 / sqrt(largest size of its stratum) each, so that together they have norm 1 at most,
        and a basket is in one stratum: sensitivity 1.
        """
        items, ends = real.shape[1], strata(largest)
        sizes = np.diff(real.indptr)
        stratum = np.searchsorted(ends, sizes)
        cells = np.repeat(stratum, sizes) * items + real.indices
        sums = np.bincount(cells, minlength=len(ends) * items).reshape(len(ends), items)
        scale = np.sqrt(np.maximum(ends, 1))[:, None]
        with account.open("strata") as access:
            counts = noisy_histogram(access, "sizes", torch.from_numpy(stratum), len(ends)).numpy()
            noisy = gaussian(access, "items", torch.from_numpy(sums / scale), sensitivity=1.0).numpy() * scale
        deviation = account.plan.stage("strata").access.multipliers["sizes"]
        # The largest stratum is kept, however few baskets there are.
        kept = np.flatnonzero(counts >= min(FEWEST_DEVIATIONS * deviation, counts.max()))
        counts = np.maximum(counts[kept], 1.0)
        starts = np.concatenate([[0], ends[:-1] + 1])
        shares = [_shares(noisy[at] / count, starts[at], ends[at]) for at, count in zip(kept, counts, strict=True)]
        return cls(counts / counts.sum(), np.array(shares))

    def draw(self, n: int, random: np.random.Generator) -> scipy.sparse.csr_array:
        """Draw baskets (n, items), a stratum after the other."""
        drawn = random.multinomial(n, self.weights)
        parts = [independent(int(made), shares, random) for made, shares in zip(drawn, self.shares, strict=True) if made]
        return scipy.sparse.vstack(parts, format="csr")


def strata(largest: int) -> np.ndarray:
    """Return the largest size of each stratum, from 0 for empty baskets: single sizes first, then wider and wider.

    Example:
        >>> strata(20).tolist()
        [0, 1, 2, 3, 5, 7, 10, 14, 19, 20]
    """
    ends = [0, 1]
    while ends[-1] < largest:
        ends.append(min(largest, max(ends[-1] + 1, math.ceil(GROWTH * ends[-1]))))
    return np.array(ends)


def _shares(noisy: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return the shares of items in [0, 1] nearest to the noisy ones that add up to a size of the stratum.

    Noise that is cut at 0 would make baskets larger, most of all where there are few.
    """
    size = min(max(noisy.sum(), low), high, len(noisy))

    def excess(shift: float) -> float:
        return float(np.clip(noisy - shift, 0.0, 1.0).sum() - size)

    return np.clip(noisy - brentq(excess, noisy.min() - 1.0, noisy.max()), 0.0, 1.0)


def _held(items: np.ndarray, real: scipy.sparse.csr_array) -> np.ndarray:
    return np.bincount(items, minlength=real.shape[1]).astype(np.float64)


def independent(n: int, shares: np.ndarray, random: np.random.Generator) -> scipy.sparse.csr_array:
    """Draw n baskets (n, items), each of which holds each item independently with that item's share as its chance.

    Example:
        >>> independent(4, np.array([0.0, 1.0]), np.random.default_rng(0)).toarray().tolist()
        [[0, 1], [0, 1], [0, 1], [0, 1]]
    """
    columns = [_coins(n, share, random) for share in shares]
    ends = np.cumsum([0] + [len(column) for column in columns])
    rows = np.concatenate(columns)
    return scipy.sparse.csc_array((np.ones(len(rows), np.uint8), rows, ends), shape=(n, len(shares))).tocsr()


def _coins(n: int, share: float, random: np.random.Generator) -> np.ndarray:
    """Draw the heads among n coins: the waits between heads are geometric, so that tails cost nothing."""
    if share <= 0.0:
        return np.empty(0, np.int32)
    expected = n * share
    waits = random.geometric(share, int(expected + 6.0 * math.sqrt(expected) + 10.0))
    heads = np.cumsum(waits)
    while heads[-1] <= n:
        heads = np.concatenate([heads, heads[-1] + np.cumsum(random.geometric(share, len(waits)))])
    return (heads[: np.searchsorted(heads, n, side="right")] - 1).astype(np.int32)

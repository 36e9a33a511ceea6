"""Private discovery of what a curator could not declare: bounds of numbers, lists of categories, universes of items.

How numbers are distributed between their bounds is found in the same access (`data/discovery/value_tree.py`).

All of it is read in one access, the stage ``discovery``, beside the noisy count of the records. What is found is public
from then on; nothing else of the records is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri

from lightning_dpgen.data.discovery.counts import KeyCounts, KeyOwners, held_at_most
from lightning_dpgen.data.discovery.value_grid import values_of
from lightning_dpgen.data.persons import mixed
from lightning_dpgen.privacy.access import OpenAccess
from lightning_dpgen.privacy.accounting.epsilon_range import check_delta, gaussian_mu
from lightning_dpgen.privacy.accounting.event_parts import EpsilonDeltaDpEvent, remaining_delta
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.mechanisms import rounded_gaussian, select_keys
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.planning.stage_spec import StageSpec

DISCOVERY = "discovery"
# The part of the plan's delta that goes to keys which one record alone holds.
_KEYS_PART = 10.0


def bounds_of(column: str) -> str:
    """Return the name of the noise that buys the bounds of a column."""
    return f"bounds of {column}"


def keys_of(column: str) -> str:
    """Return the name of the noise that buys the categories of a column, or the items of sets."""
    return f"keys of {column}"


def discovery_stage(
    *,
    epsilon: float,
    delta: float,
    share: float = 0.0,
    count_share: float = 0.0,
    bounds: Mapping[str, int] | None = None,
    keys: Mapping[str, int] | None = None,
    delta_keys: float | None = None,
    values: Mapping[str, int] | None = None,
    values_share: float = 0.0,
) -> StageSpec:
    """Return the one access that buys bounds, keys, distributions and the number of records, before the run can be planned.

    The noises are ``n`` (if it is bought), `bounds_of` and `keys_of` each column, and `values_of` a column at each level of
    its tree. The first columns divide `share` in proportion to the square root of their numbers below, which makes the sum
    of their squared deviations smallest; all levels of all trees have equal parts of `values_share`, and so equal noise.

    Args:
        epsilon: the budget of the whole run; infinite for none.
        delta: of the whole run.
        share: of the budget's mu^2, for all bounds and keys together.
        count_share: the same for the number of records; 0 if it is declared.
        bounds: for each column of numbers, in how many buckets a person may count: 1 where the unit is a record.
        keys: for each column of categories or sets, for how many keys a record (or a person) may count.
        delta_keys: the probability with which a record's own keys are seen, for all columns together; None takes a tenth of
            delta. Without keys nothing is taken.
        values: for each column whose distribution is bought, the levels of its tree (`ValueGrid.levels`).
        values_share: as `share`, for all distributions together.

    Raises:
        ValueError: for shares, numbers or deltas out of range, columns without a share, or a share without columns.

    Example:
        >>> spec = discovery_stage(epsilon=2.0, delta=1e-5, share=0.04, bounds={"age": 1}, keys={"city": 1})
        >>> {name: round(weight, 3) for name, weight in spec.noise_shares.items()}
        {'bounds of age': 0.02, 'keys of city': 0.02}
    """
    check_delta(delta)
    if not epsilon > 0.0:
        raise ValueError(f"epsilon={epsilon}: expected a positive number, since what is found is bought with a share of it")
    bounds, keys = dict(bounds or {}), dict(keys or {})
    most = {bounds_of(column): m for column, m in bounds.items()} | {keys_of(column): m for column, m in keys.items()}
    for name, m in most.items():
        if type(m) is not int or m < 1:
            raise ValueError(f"{name}: {m!r} of them a record, expected a whole number (int), 1 or more")
    values = dict(values or {})
    for name, levels in values.items():
        if type(levels) is not int or levels < 1:
            raise ValueError(f"values of {name}: {levels!r} levels, expected a whole number (int), 1 or more")
    total = share + values_share + count_share
    fits = (share > 0.0) == bool(most) and (values_share > 0.0) == bool(values)
    if not fits or min(share, values_share, count_share) < 0.0 or not 0.0 < total < 1.0:
        raise ValueError(
            f"share={share:g} for {len(most)} columns, values_share={values_share:g} for {len(values)}, "
            f"count_share={count_share:g}: expected a share exactly where there is a column to look at, and less than 1 "
            "together"
        )
    together = delta / _KEYS_PART if delta_keys is None else delta_keys
    if keys and not 0.0 < together < delta:
        raise ValueError(f"delta_keys={together:g}: expected a positive number, well below delta={delta:g}")
    deltas = {keys_of(column): together / len(keys) for column in keys}
    rest = remaining_delta(delta, [(EpsilonDeltaDpEvent(0.0, d), 1) for d in deltas.values()], ADD_OR_REMOVE_ONE)
    roots = {name: math.sqrt(m) for name, m in most.items()}
    weights = {name: share * root / math.fsum(roots.values()) for name, root in roots.items()}
    trees = [values_of(column, level) for column, levels in values.items() for level in range(1, levels + 1)]
    weights |= {name: values_share / len(trees) for name in trees}
    weights |= {"n": count_share} if count_share else {}
    noise = None if math.isinf(epsilon) else 1.0 / (math.sqrt(total) * gaussian_mu(epsilon, rest))
    return StageSpec(DISCOVERY, weights, 1, max_noise=math.inf, share=total, noise=noise, deltas=deltas)


@dataclass(frozen=True)
class Buckets:
    """Zero, and for each sign and each of some powers of two the numbers from it to the next: a public grid.

    Args:
        least: numbers below ``2^least`` in size are in the bucket of zero.
        powers: how many; those beyond are in the last bucket.
    """

    least: int
    powers: int

    def __len__(self) -> int:
        return 2 * self.powers + 1

    def places(self, values: np.ndarray) -> np.ndarray:
        """Return the bucket (N,) of each number, counted from the lowest; infinities are in the outermost ones.

        Example:
            >>> Buckets(0, 3).places(np.array([-5.0, -1.0, 0.5, 1.0, 7.9, np.inf])).tolist()
            [0, 2, 3, 4, 6, 6]
        """
        size = np.abs(values)
        power = np.where(np.isinf(size), self.powers, np.frexp(size)[1] - 1 - self.least)
        steps = np.where(size < 2.0**self.least, 0, np.minimum(power, self.powers - 1) + 1)
        return (self.powers + np.where(values < 0, -steps, steps)).astype(np.int64)

    def ends(self, place: int) -> tuple[int | float, int | float]:
        """Return the smallest and largest number of a bucket; whole numbers where the grid begins at 1.

        Example:
            >>> Buckets(0, 3).ends(5), Buckets(0, 3).ends(1), Buckets(-1, 3).ends(4)
            ((2, 3), (-3, -2), (0.5, 1.0))
        """
        step = place - self.powers
        if step == 0:
            return (0, 0) if self.least == 0 else (0.0, 0.0)
        power = self.least + abs(step) - 1
        low, high = (2**power, 2 ** (power + 1) - 1) if self.least == 0 else (2.0**power, 2.0 ** (power + 1))
        return (low, high) if step > 0 else (-high, -low)


REAL, WHOLE = Buckets(-64, 128), Buckets(0, 63)


def count_buckets(
    values: np.ndarray,
    buckets: Buckets,
    owners: np.ndarray | None = None,
    most: int | None = None,
    salts: np.ndarray | None = None,
    stream: PrivateStream | None = None,
) -> np.ndarray:
    """Return how many owners count for each bucket, of which an owner counts for `most` (None for all), once for each.

    Args:
        values: (N,) numbers, private; NaN where there is none.
        owners: (N,) whole numbers, the owner of each; None where each value has one of its own.
        salts, stream: as for `counts.held_at_most`; salts are (N,).

    Returns:
        np.ndarray: (len(buckets),) int64, private.

    Example:
        >>> count_buckets(np.array([1.0, 1.5, np.nan, 5.0]), Buckets(0, 3)).tolist()
        [0, 0, 0, 0, 2, 0, 1]
    """
    there = ~np.isnan(values)
    places = buckets.places(values[there])
    if owners is not None:
        salts = None if salts is None else salts[there]
        hashes = mixed(np.arange(len(buckets), dtype=np.uint64))
        places = held_at_most(owners[there], places, most, hashes, salts, stream)
    return np.bincount(places, minlength=len(buckets))


def find_bounds(
    access: OpenAccess,
    name: str,
    values: np.ndarray,
    *,
    owners: np.ndarray | None = None,
    most: int = 1,
    whole: bool = False,
    chance: float = 1e-3,
    salts: np.ndarray | None = None,
) -> tuple[int | float, int | float] | None:
    """Find bounds of a column of numbers; see `find_bounds_in`.

    Args:
        access, name, whole, chance: as for `find_bounds_in`.
        values: (N,) numbers, private; NaN where there is none. Whole numbers and days as they are.
        owners: (N,) whole numbers, the owner of each row where the unit is a person; None where it is a record.
        most: the number of buckets in which a person counts, once in each; others of theirs are left out as if at random.
        salts: (N,) as for `counts.held_at_most`; None to draw them.

    Raises:
        LedgerError: as `find_bounds_in`.
        ValueError: if `most`, `chance` or the shapes are impossible.
    """
    values = np.asarray(values, dtype=np.float64)
    owners = None if owners is None else np.asarray(owners)
    whose = np.arange(len(values)) if owners is None else owners
    if values.ndim != 1 or whose.shape != values.shape or (len(whose) and whose.dtype.kind not in "iu"):
        raise ValueError(
            f"values {values.shape}, owners {whose.shape} {whose.dtype}: expected a whole number for each value"
        )
    _check_bounds(access, name, most, chance)
    counts = count_buckets(values, WHOLE if whole else REAL, owners, most if access.private else None, salts, access.stream)
    return find_bounds_in(access, name, counts, most=most, whole=whole, chance=chance)


def find_bounds_in(
    access: OpenAccess, name: str, counts: np.ndarray, *, most: int = 1, whole: bool = False, chance: float = 1e-3
) -> tuple[int | float, int | float] | None:
    """Find bounds of a column of numbers: the outermost buckets of a noisy histogram over powers of two that are not empty.

    A bucket counts if its noisy count is above what any of the empty ones exceeds with probability `chance`. So bounds are
    within a factor of 2 of values that are held by many; a few records far outside are not covered, and are clamped later.

    Args:
        access, name: as for `mechanisms.gaussian`; the name is `bounds_of` the column in a `discovery_stage`.
        counts: (B,) how many count for each bucket of `WHOLE` or `REAL`, private. The caller has made sure that a record
            (or a person, where that is the unit) counts in at most `most` buckets, and once in each.
        most: see `counts`; public.
        whole: whether bounds are whole numbers, below 2^63; else they are within 2^64, and below 2^-64 all is 0.
        chance: public; larger covers more of the values, and is the chance of a bound that is far too wide.

    Returns:
        (low, high), public; None if no bucket is above the threshold: the share is too small for these records.

    Guarantee:
        A noisy histogram of sensitivity ``sqrt(most)``; the rest follows from it.

    Raises:
        LedgerError: as for `mechanisms.gaussian`; or in a plan under replace-one.
        ValueError: if `most`, `chance` or the shape is impossible.
    """
    _check_bounds(access, name, most, chance)
    buckets = WHOLE if whole else REAL
    if counts.shape != (len(buckets),):
        raise ValueError(f"counts {counts.shape}: expected ({len(buckets)},), one for each bucket")
    threshold = bounds_threshold(access.access.multipliers.get(name, 0.0), most, whole=whole, chance=chance)
    noisy = rounded_gaussian(access, name, torch.from_numpy(counts), sensitivity=math.sqrt(most), per_person=True).numpy()
    above = np.flatnonzero(noisy > threshold)
    if not len(above):
        return None
    return buckets.ends(int(above[0]))[0], buckets.ends(int(above[-1]))[1]


def bounds_threshold(multiplier: float, most: int, *, whole: bool, chance: float = 1e-3) -> float:
    """Return the noisy count above which `find_bounds_in` takes a bucket for one that is not empty.

    Example:
        >>> round(bounds_threshold(10.0, 1, whole=True), 1)
        43.2
    """
    empty = -math.expm1(math.log1p(-chance) / len(WHOLE if whole else REAL))
    return -multiplier * math.sqrt(most) * float(ndtri(empty))


def _check_bounds(access: OpenAccess, name: str, most: int, chance: float) -> None:
    if type(most) is not int or most < 1 or not 0.0 < chance < 1.0:
        raise ValueError(f"most={most!r}, chance={chance}: expected a whole number (int) from 1, and a probability")
    if access.relation == REPLACE_ONE:
        raise LedgerError(f"noise {name!r}: the sensitivity of a histogram is stated here for a record added or removed")


def find_keys(access: OpenAccess, name: str, owners: KeyOwners, *, most: int = 1) -> list[Any]:
    """Return the categories of a column, or the items of sets, that enough records hold.

    Args:
        access, name: as for `mechanisms.select_keys`; the name is `keys_of` the column in a `discovery_stage`.
        owners: the keys and their owners, private.
        most: the number of keys for which a record (or a person) counts, once for each; others are left out as if at
            random.

    Returns:
        The keys, sorted, strings or whole numbers: public. Empty if none is held by enough: the share is too small.

    Guarantee, Raises:
        As `mechanisms.select_keys`.
    """
    counted = KeyCounts.of(owners, most if access.private else None, access.stream)
    return select_keys(access, name, counted.names, counted.counts, most=most)[0].tolist()

"""The only door to noise: a mechanism draws against an open access and nowhere else.

Each takes exact, private values and returns public ones. The multiplier comes from the plan, by the name of the noise; its
ledger line is on disk before the mechanism can be called. Sensitivities are those of one record under the relation of the
plan, add-or-remove-one or replace-one. Where the unit of privacy is a person with up to m records, a mechanism multiplies
the sensitivity by m itself: m records, one after the other. With multiplier 0 (the non-private twin) values stay exact.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from lightning_dpgen.privacy.access import OpenAccess
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.privacy.accounting.private_selection import draw_trial_count
from lightning_dpgen.privacy.drawn_noise import (
    CORRELATED,
    NOISY_MAX,
    REAL_GAUSSIAN,
    ROUNDED_GAUSSIAN,
    ROUNDED_LAPLACE,
    ROUNDED_SPHERICAL,
    DrawnNoise,
    Mechanism,
    write_unit,
)
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.noise.rounded_normal import SMALLEST_SIGMA
from lightning_dpgen.privacy.noise.rounded_vectors import SMALLEST_SCALE
from lightning_dpgen.privacy.noise.units import check_multiples, check_steps, check_unit, needs_float64, round_to_grid_


def gaussian(
    access: OpenAccess,
    name: str,
    values: Tensor,
    *,
    sensitivity: float,
    per_person: bool = False,
    of_shard: bool = False,
    largest: float = 0.0,
) -> Tensor:
    """Add Gaussian noise of standard deviation ``multiplier * sensitivity`` to `values`, in place, and round the sum.

    It is rounded to a power of two between 2^-9 and 2^-8 of that deviation (`round_to_grid_`).

    Args:
        access: an open access; its ledger line is on disk already.
        name: the noise of the access to use up; the multiplier comes from the plan and not from the caller.
        values: a contiguous float tensor, exact and private; after the call it is noisy and public. Noise is added in its
            own precision, unless `largest` asks for more, and is lost beside numbers 10^7 times as large in float32: pass
            large numbers as float64.
        sensitivity: the largest L2 change of all of `values` by one record. Where a record touches one of several stacked
            blocks, it is the sensitivity of one block.
        per_person: True if the sensitivity is that of a whole unit already, with all of its records.
        of_shard: True if each of the processes that share the access passes other numbers of one sum, exact over all of
            them, which it alone will hold. The sensitivity is that of all these numbers together.
        largest: the size that one of the values may reach, public. Where float32 is not fine enough beside it, noise is
            added, summed over processes and rounded in float64 (`needs_float64`); correlated noise is not.

    Guarantee:
        Gaussian-DP with ``mu = 1 / multiplier`` for one record added or removed (Dong, Roth and Su 2019, Theorem 1). In a
        plan under replace-one the standard deviation is half of ``multiplier * sensitivity``, and mu twice as large for
        one record replaced. Noise is computed in floating point, and rounding hides the low-order bits of the sum
        (docs/guarantees/noise.md, "Floating point").
        Where R processes share the access, each passes its part of a sum as `values` and adds the noise of its own R-th of
        the numbers. All of them get the sum back, where every number has the noise of one draw. With `of_shard` each adds
        the noise of all of its own numbers, and gets these back.
        Where the plan has a strategy for the stage, the noise is correlated, and the guarantee is that of all its steps
        together, of multiplier `multiplier` (`CorrelatedGaussianDpEvent`).

    Raises:
        LedgerError: if the access is closed, the noise was drawn already, or it is of another kind.
        TypeError: if `values` are neither float32 nor float64: rounded noise is another mechanism.
        ValueError: if the sensitivity is not positive and finite while noise is due, or values are not contiguous.
    """
    _check_real(name, values)
    multiplier = _take(access, name, REAL_GAUSSIAN if access.correlated is None else CORRELATED)
    if multiplier != 0.0 and access.correlated is not None:
        return access.correlated.add_(values, access.step, multiplier, _checked(name, sensitivity))
    if multiplier != 0.0:
        if access.relation == REPLACE_ONE:
            multiplier /= 2.0
        deviation = multiplier * _checked(name, sensitivity) * (1 if per_person else access.max_rows)
        exact = values.double() if needs_float64(values, largest, deviation) else values
        whole = of_shard or access.ranks.size == 1
        if access.ranks.size > 1:
            access.ranks.agree(name, deviation, None if of_shard else values.shape, exact.dtype)
        # Each process draws noise for its own part of the numbers, on behalf of all. Shards differ in size.
        part = exact if whole else access.ranks.part_of(exact)
        access.stream.add_normal_(part, deviation)
        # The sum over all processes is rounded, and no part of it: exact numbers would be added to a rounded part.
        noisy = round_to_grid_(exact if whole else access.ranks.sum_(exact), deviation)
        return values if noisy is values else values.copy_(noisy)
    return values if of_shard else access.ranks.sum_(values)


def rounded_gaussian(
    access: OpenAccess, name: str, multiples: Tensor, *, unit: float = 1.0, sensitivity: float, per_person: bool = False
) -> Tensor:
    """Return whole multiples of a unit plus Gaussian noise that is rounded to whole multiples.

    Args:
        access, name, per_person: as for `gaussian`.
        multiples: exact sums, int64 and contiguous, each below 2^62 in size; after the call they are noisy and public.
        unit: the number that a multiple of 1 stands for; public. A power of two loses nothing.
        sensitivity: the largest L2 change of ``unit * multiples`` by one record.

    Returns:
        float64 numbers ``unit * multiples``. Beyond 2^53 multiples, or with another unit than a power of two, they are
        rounded, which is post-processing.

    Guarantee:
        That of `gaussian`, with no reservation about floating point: for a whole number x, x + round(sigma Z) is
        round(x + sigma Z), a function of what the Gaussian mechanism in real numbers returns, and the noise has exactly
        that law (`rounded_normals`; docs/guarantees/noise.md, "Whole-number Gaussian noise"). Of R processes that share the
        access each adds the noise of its own R-th of the numbers, and all get the sum.

    Raises:
        LedgerError: as for `gaussian`.
        TypeError: if the multiples are not int64.
        ValueError: for a multiple of 2^62 or more, a unit that is not a positive number, or noise of more than 2^44
            units, before the noise is used up; else as for `gaussian`.

    Example:
        >>> from lightning_dpgen.privacy import Access, Account, Plan, Stage
        >>> with Account(Plan((Stage(Access("counts", {"size": 2.0}), 1, 1.0),), 3.0, 1e-5)).open("counts") as access:
        ...     noisy = rounded_gaussian(access, "size", torch.tensor([900]), sensitivity=1.0)
        >>> float(noisy[0]).is_integer()
        True
    """
    check_multiples(name, multiples, access.ranks.size)
    if access.correlated is not None:
        raise LedgerError(f"noise {name!r}: correlated noise is that of gradients, not of whole numbers")
    sigma = _take_scale(access, name, ROUNDED_GAUSSIAN, unit, sensitivity, per_person=per_person)
    if sigma:
        access.ranks.agree(name, sigma, unit, multiples.shape)
        sigma = max(sigma, SMALLEST_SIGMA)
        access.stream.add_rounded_normal_(access.ranks.part_of(multiples), sigma)
    return access.ranks.sum_(multiples).to(torch.float64).mul_(unit)


def rounded_laplace(access: OpenAccess, name: str, multiples: Tensor, *, unit: float = 1.0, sensitivity: float) -> Tensor:
    """Return whole multiples of a unit plus Laplace noise of scale ``multiplier * sensitivity``, rounded to multiples.

    Args:
        access, name, multiples, unit: as for `rounded_gaussian`.
        sensitivity: the largest L1 change of ``unit * multiples``.

    Returns:
        As `rounded_gaussian`.

    Guarantee:
        ``1 / multiplier``-private (Dwork, McSherry, Nissim and Smith 2006), with no reservation about floating point: the
        noise has exactly the law of the rounded number (`rounded_sphericals`), and x + round(y) is round(x + y) for a whole
        number x.

    Raises:
        LedgerError, TypeError, ValueError: as for `rounded_gaussian`.

    Example:
        >>> from lightning_dpgen.privacy import Access, Account, Plan, Stage
        >>> once = Stage(Access("sums", {"size": 2.0}, kinds={"size": "laplace"}), 1, 1.0)
        >>> with Account(Plan((once,), 0.5, 0.0)).open("sums") as access:
        ...     noisy = rounded_laplace(access, "size", torch.tensor([900]), sensitivity=1.0)
        >>> float(noisy[0]).is_integer()
        True
    """
    check_multiples(name, multiples)
    scale = _take_scale(access, name, ROUNDED_LAPLACE, unit, sensitivity)
    noisy = access.stream.add_rounded_laplace_(multiples, max(scale, SMALLEST_SCALE)) if scale else multiples
    return noisy.to(torch.float64).mul_(unit)


def rounded_spherical(
    access: OpenAccess, name: str, multiples: Tensor, *, unit: float = 1.0, sensitivity: float, by_row: bool = False
) -> Tensor:
    """Return whole multiples of a unit plus one vector of density ``exp(-|z| / (multiplier * sensitivity))``, rounded.

    Args:
        access, name, multiples, unit: as for `rounded_gaussian`.
        sensitivity: the largest L2 change of ``unit * multiples``.
        by_row: True adds an independent vector to each row of (n, k) multiples, for neighbours that differ in one row.

    Returns:
        As `rounded_gaussian`.

    Guarantee:
        ``1 / multiplier``-private (Hardt and Talwar 2010, the K-norm mechanism of the Euclidean ball), with no reservation
        about floating point, as for `rounded_laplace`.

    Raises:
        LedgerError, TypeError, ValueError: as for `rounded_gaussian`.
    """
    check_multiples(name, multiples)
    scale = _take_scale(access, name, ROUNDED_SPHERICAL, unit, sensitivity)
    if scale:
        access.stream.add_rounded_spherical_(multiples if by_row else multiples.view(1, -1), max(scale, SMALLEST_SCALE))
    return multiples.to(torch.float64).mul_(unit)


def noisy_histogram(
    access: OpenAccess, name: str, places: Tensor, bins: int, *, sensitivity: float = 1.0, per_person: bool = False
) -> Tensor:
    """Count how many of `places` fall into each bin, with Gaussian noise in whole numbers.

    Args:
        access, name: as for `gaussian`.
        places: (B,) whole numbers in 0..bins-1, one a record unless the sensitivity says otherwise.
        bins: the number of bins.
        sensitivity: 1 where a record is one place; sqrt m where it is m of them, or moves m / 2 from bin to bin.
        per_person: as for `gaussian`.

    Returns:
        (bins,) float64 whole numbers on the CPU.

    Guarantee:
        As `rounded_gaussian` at that sensitivity.

    Raises:
        LedgerError: as for `gaussian`.
        ValueError: if a place is outside the bins.
    """
    if len(places):
        low, high = (int(end) for end in places.aminmax())
        if low < 0 or high >= bins:
            raise ValueError(f"places from {low} to {high}: expected 0 to {bins - 1}")
    counts = torch.bincount(places, minlength=bins).cpu()
    return rounded_gaussian(access, name, counts, sensitivity=sensitivity, per_person=per_person)


def select_keys(
    access: OpenAccess, name: str, keys: np.ndarray, counts: np.ndarray, *, most: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Select the keys whose noisy counts are above `key_threshold`, of all that records hold (partition selection).

    Args:
        access, name: as for `gaussian`; the plan gives the noise a delta too (`Access.deltas`).
        keys: (K,) distinct strings or whole numbers, exactly those that are held; private.
        counts: (K,) the number of records that hold each, whole numbers from 1. The caller has made sure that a record (or
            a person, where that is the unit) counts for at most `most` of the keys, and once for each.
        most: see `counts`; public.

    Returns:
        The keys that were selected, in their own order, and their noisy counts; public.

    Guarantee:
        That of `rounded_gaussian` at sensitivity ``sqrt(most)``, composed with ``(0, delta)``: keys that one record alone
        holds are seen with probability at most delta, all of them together (docs/guarantees/sums.md, "Keys above a
        threshold").

    Raises:
        LedgerError: as for `gaussian`; or if the plan gives this noise no delta, or is one under replace-one.
        ValueError: if `most`, keys or counts are not as described above.

    Example:
        >>> from lightning_dpgen.privacy import Account, Plan, Stage
        >>> once = Stage(Access("keys", {"city": 2.0}, deltas={"city": 1e-7}), 1, 1.0)
        >>> with Account(Plan((once,), 3.0, 1e-5)).open("keys") as access:
        ...     found, _ = select_keys(access, "city", np.array(["Rome", "Paris", "Ur"]), np.array([900, 800, 1]))
        >>> found.tolist()
        ['Paris', 'Rome']
    """
    keys, counts = np.asarray(keys), np.asarray(counts)
    if type(most) is not int or most < 1:
        raise ValueError(f"most={most!r}: expected a whole number (int), 1 or more")
    if keys.ndim != 1 or keys.shape != counts.shape or (len(keys) and (counts.dtype.kind not in "iu" or counts.min() < 1)):
        raise ValueError(f"keys {keys.shape}, counts {counts.shape} {counts.dtype}: expected whole numbers from 1")
    planned = access.access
    if name in planned.multipliers and name not in planned.deltas:
        raise LedgerError(f"noise {name!r} of stage {planned.stage!r} has no delta in the plan: it selects no keys")
    if access.relation == REPLACE_ONE:
        raise LedgerError(f"noise {name!r}: the threshold for keys is proved for a record added or removed")
    keys, places = np.unique(keys, return_index=True)
    if len(keys) < len(counts):
        raise ValueError("keys are not distinct: expected each once, with all its records counted together")
    if access.ranks.size > 1:
        raise LedgerError(f"noise {name!r}: keys are found by one process alone")
    exact = torch.from_numpy(counts[places].astype(np.int64))
    released = rounded_gaussian(access, name, exact, sensitivity=math.sqrt(most), per_person=True).numpy()
    above = released > key_threshold(planned.multipliers[name], most, planned.deltas[name])
    return keys[above], released[above]


def key_threshold(multiplier: float, most: int, delta: float) -> float:
    """Return the noisy count above which `select_keys` shows a key, a whole number and a half.

    Where one record alone holds `most` keys, one or more of them are above it with probability delta at most. With normal
    noise of standard deviation ``s = multiplier * sqrt(most)`` that were delta itself at ``t``, where
    ``1 - Phi((t - 1) / s)^most = delta``. A noisy count is the nearest whole number to such a one, so the threshold is the
    first whole number and a half from ``t`` on: a count is above it just where what was rounded was. Without noise
    (multiplier 0) it is 0.

    Example:
        >>> key_threshold(10.0, 1, 1e-6)
        49.5
    """
    if multiplier == 0.0:
        return 0.0
    alone = -math.expm1(math.log1p(-delta) / most)
    # A little more than the noise, so that no rounding on the way lowers it.
    real = 1.0 - multiplier * math.sqrt(most) * float(ndtri(alone)) * (1.0 + 2.0**-30)
    return math.ceil(real - 0.5) + 0.5


def report_noisy_max(
    access: OpenAccess, name: str, multiples: Tensor, *, unit: float = 1.0, sensitivity: float, monotonic: bool = False
) -> int:
    """Return the place of a large score, by adding Gumbel noise and taking the largest (the exponential mechanism).

    Args:
        access, name: as for `gaussian`.
        multiples: (n,) exact scores, at least one, private: int64, each below 2^62 in size.
        unit: the score that a multiple of 1 stands for, a power of two; public.
        sensitivity: the largest change of any one score, ``unit * multiples``, by one record.
        monotonic: True if a record added never lowers any score (or never raises one): half the noise is enough. A record
            that is replaced may do both.

    Guarantee:
        ``1 / multiplier``-private (McSherry and Talwar 2007), with no reservation about floating point: the place is
        exactly that of real numbers (`find_noisy_maximum`; docs/guarantees/noise.md, "Noisy maximum").

    Raises:
        LedgerError, TypeError: as for `rounded_gaussian`.
        ValueError: as for `rounded_gaussian`; if there is no score; or if they are monotonic in a plan under replace-one.

    Example:
        >>> from lightning_dpgen.privacy import Access, Account, Plan, Stage
        >>> once = Stage(Access("choice", {"best": 2.0}, kinds={"best": "pure"}), 1, 1.0)
        >>> with Account(Plan((once,), 0.5, 0.0)).open("choice") as access:
        ...     place = report_noisy_max(access, "best", torch.tensor([0, 900, 20]), sensitivity=1.0)
        >>> place
        1
    """
    check_multiples(name, multiples)
    check_unit(name, unit)
    if multiples.ndim != 1 or not len(multiples):
        raise ValueError(f"scores of shape {tuple(multiples.shape)}: expected (n,), at least one")
    if monotonic and access.relation == REPLACE_ONE:
        raise ValueError(
            f"monotonic={monotonic} of {name!r} under replace-one: one record replaced lowers and raises scores"
        )
    moved = (1.0 if monotonic else 2.0) * _checked(name, sensitivity) * access.max_rows / unit
    if planned := access.access.multipliers.get(name, 0.0):
        check_steps(name, planned * moved)
    multiplier = _take(access, name, NOISY_MAX)
    if multiplier == 0.0:
        return int(multiples.argmax())
    # The product was rounded a few times, and may be below the scale that was paid for by some last bits.
    return access.stream.noisy_maximum(multiples, max(multiplier * moved * (1.0 + 2.0**-48), SMALLEST_SCALE))


def _take(access: OpenAccess, name: str, mechanism: Mechanism) -> float:
    """Use up a noise that is added to no sum of whole numbers, and return its multiplier; 0 in the non-private twin."""
    multiplier = access.consume(name, mechanism.kind)
    if multiplier != 0.0:
        access.drawn.append(DrawnNoise(mechanism.name, access.access.stage, name, multiplier))
    return multiplier


def _take_scale(
    access: OpenAccess, name: str, mechanism: Mechanism, unit: float, sensitivity: float, *, per_person: bool = False
) -> float:
    """Use up a noise on a sum of whole numbers, and return its size in units; 0 in the non-private twin.

    All is checked before.
    """
    check_unit(name, unit)
    records = 1 if per_person else access.max_rows
    planned = access.access.multipliers.get(name, 0.0)
    steps = planned * _checked(name, sensitivity) * records / unit if planned else 0.0
    check_steps(name, steps)
    multiplier = access.consume(name, mechanism.kind)
    if multiplier == 0.0:
        return 0.0
    bound = _checked(name, sensitivity) / unit
    noise = DrawnNoise(mechanism.name, access.access.stage, name, multiplier, write_unit(unit), bound, records)
    access.drawn.append(noise)
    scale = mechanism.scale_in_units(multiplier, bound, records, access.relation)
    # The product was rounded a few times, and may be below the size that was paid for by some last bits.
    return scale * (1.0 + 2.0**-48)


def _check_real(name: str, values: Tensor) -> None:
    # Rounding noise to whole or short numbers before it is added is not post-processing: it leaks.
    if values.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"values of {name!r} are {values.dtype}: expected float32 or float64")
    if not values.is_contiguous():
        raise ValueError(f"values of {name!r} are not contiguous: expected values.contiguous(), made noisy in place")


def _checked(name: str, sensitivity: float) -> float:
    if not (sensitivity > 0.0 and math.isfinite(sensitivity)):
        raise ValueError(f"sensitivity={sensitivity} of {name!r}: expected a positive finite number")
    return float(sensitivity)


def number_of_trials(access: OpenAccess, name: str) -> int:
    """Draw how many trials a selection makes: once, and secret for ever.

    Args:
        access: the access of a selection; its ledger line, with the law and all that a trial may cost, is on disk already.
        name: the name of the number.

    Guarantee:
        The best of so many independent trials costs what `Access.event` says, if each is drawn anew from the declared
        settings, and neither the others nor their number are told (Papernot and Steinke 2022, Theorems 2 and 6).

    Raises:
        LedgerError: as `gaussian`.
    """
    law = access.access.kind(name)
    return draw_trial_count(access.stream.words, law, access.consume(name, law))

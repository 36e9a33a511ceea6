"""The door to noise for sums in whole numbers: its law against an oracle, its ends, and rows on a grid."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, norm

from lightning_dpgen.privacy.access import LAPLACE, Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.mechanisms import rounded_gaussian
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.sampling import fixed_point
from lightning_dpgen.sampling.fixed_point import unit_of, whole_rows

INT64 = torch.int64


def opened(multiplier=2.0, *, seed=7, **plan):
    account = Account(
        Plan((Stage(Access("sums", {"x": multiplier}), 1, 1.0),), 99.0, 1e-5, **plan), stream=PrivateStream(seed)
    )
    return account.open("sums")


@pytest.mark.parametrize(
    ("unit", "sensitivity", "plan", "sigma"),
    [
        (1.0, 1.0, {}, 0.8),
        (0.25, 1.0, {}, 3.2),
        (0.5, 3.0, {"max_rows": 4}, 0.8 * 3.0 * 4 / 0.5),
        (1.0, 3.0, {"relation": REPLACE_ONE}, 1.2),
    ],
)
def test_noise_has_the_law_of_a_rounded_normal(unit, sensitivity, plan, sigma):
    """By chi-square over 40,000 draws at a false alarm of 1e-6; one of a sigma 10 % larger fails."""
    exact = torch.full((40_000,), 1000, dtype=INT64)
    with opened(0.8, **plan) as access:
        noisy = rounded_gaussian(access, "x", exact, unit=unit, sensitivity=sensitivity)
    drawn = (noisy / unit - 1000).numpy()
    assert noisy.dtype == torch.float64 and (drawn == np.rint(drawn)).all()

    def p_value(sigma):
        # Wide bins in the middle would hide a wrong deviation, and rare ones have no normal law.
        ends = np.unique(np.round(sigma * norm.ppf(np.linspace(0.0, 1.0, 12)[1:-1])) + 0.5)
        shares = np.diff(norm.cdf(np.r_[-np.inf, ends, np.inf] / sigma))
        counts = np.histogram(drawn, np.r_[-np.inf, ends, np.inf])[0]
        return chisquare(counts, shares * len(drawn)).pvalue

    assert p_value(sigma) > 1e-6 and p_value(1.1 * sigma) < 1e-6


def test_without_noise_sums_come_back():
    with opened(0.0) as access:
        assert rounded_gaussian(access, "x", torch.tensor([3, -5]), unit=0.5, sensitivity=1.0).tolist() == [1.5, -2.5]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"multiples": torch.zeros(2)}, TypeError, "multiples of 'x' are torch.float32 on cpu: expected int64"),
        ({"multiples": torch.zeros(2, 3, dtype=INT64).T}, ValueError, "not contiguous"),
        ({"multiples": torch.tensor([0, 2**62])}, ValueError, "reach 2^62: expected fewer records, or a larger unit"),
        ({"multiples": torch.tensor([0, -(2**62)])}, ValueError, "reach 2^62"),
        ({"unit": math.nan}, ValueError, "unit=nan of 'x': expected a positive number, best a power of two"),
        ({"unit": math.inf}, ValueError, "expected a positive number"),
        ({"unit": -1.0}, ValueError, "expected a positive number"),
        ({"sensitivity": 0.0}, ValueError, "sensitivity=0.0 of 'x': expected a positive finite number"),
        ({"unit": 2.0**-50}, ValueError, "standard deviation of 2.3e+15 units, expected at most 2^44"),
        ({"name": "y"}, LedgerError, "is not listed"),
    ],
)
def test_bad_sums_leave_the_noise_unused(change, error, message):
    given = {"name": "x", "multiples": torch.zeros(2, dtype=INT64), "unit": 1.0, "sensitivity": 1.0} | change
    with opened() as access:
        with pytest.raises(error) as raised:
            rounded_gaussian(access, given.pop("name"), given.pop("multiples"), **given)
        assert message in str(raised.value) and "1152" not in str(raised.value)
        assert rounded_gaussian(access, "x", torch.zeros(2, dtype=INT64), sensitivity=1.0).abs().sum() >= 0.0


def test_noise_of_another_kind_is_refused():
    account = Account(Plan((Stage(Access("sums", {"x": 1.0}, kinds={"x": LAPLACE}), 1, 1.0),), 99.0, 1e-5))
    with account.open("sums") as access:
        with pytest.raises(LedgerError, match="laplace in the plan, not gaussian"):
            rounded_gaussian(access, "x", torch.zeros(2, dtype=INT64), sensitivity=1.0)
        access.consume("x", LAPLACE)


def test_a_deviation_far_below_a_step_draws_zeros():
    with opened(1e-9) as access:
        assert not rounded_gaussian(access, "x", torch.zeros(1000, dtype=INT64), sensitivity=1.0).any()


def long_and_short(width, random):
    """Return rows at their ends, between, and beside the bound of 1, by a few last places."""
    count = 4000 if width < 100 else 400
    rows = random.normal(size=(count, width)) * np.exp(3.0 * random.normal(size=(count, 1)))
    ones = np.zeros((8, width))
    ones[:, 0] = [1.0, np.nextafter(1.0, 2.0), np.nextafter(1.0, 0.0), -1.0, 1e300, 1e-300, np.nan, -np.inf]
    even = np.full((4, width), 1.0 / math.sqrt(width)) * [[1.0], [1.0 + 1e-15], [1.0 - 1e-15], [2.0**-20]]
    return torch.from_numpy(np.concatenate([rows, ones, even]))


@pytest.mark.parametrize("width", [1, 2, 33, 784])
@pytest.mark.parametrize("bound", [1.0, 0.3, 7.7e5])
def test_rows_on_a_grid_stay_within_the_bound(width, bound):
    """The norm is that of Python's whole numbers. Rows are what they were, but for a part of the bound below 2^-20."""
    rows, unit = bound * long_and_short(width, np.random.default_rng(width)), unit_of(bound)
    whole = whole_rows(rows, bound, unit)
    most = math.floor(bound / unit)
    lengths = [math.isqrt(sum(n * n for n in row)) for row in whole.tolist()]
    assert max(lengths) <= most and max(lengths) >= most * (1.0 - 2.0**-16)
    # A row of numbers that no record has counts for nothing.
    near = (rows.abs() <= 1e100).all(dim=1)
    assert not whole[~near].any()
    norms = torch.linalg.vector_norm(rows[near], dim=1, keepdim=True).clamp(min=1e-300)
    short = rows[near] * (bound / norms).clamp(max=1.0)
    assert (whole[near].double() * unit - short).abs().max() <= bound * 2.0**-20 * math.sqrt(width)


@pytest.mark.parametrize("width", [1, 33, 784])
def test_a_row_on_a_grid_does_not_depend_on_others(width):
    rows = long_and_short(width, np.random.default_rng(0))
    whole = whole_rows(rows, 1.0, 2.0**-28)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    assert torch.equal(whole_rows(rows[order], 1.0, 2.0**-28), whole[order])
    assert torch.equal(torch.cat([whole_rows(part, 1.0, 2.0**-28) for part in rows.split(7)]), whole)
    assert whole_rows(rows[:0], 1.0, 2.0**-28).shape == (0, width)


def test_a_row_that_is_too_long_nevertheless_becomes_zero(monkeypatch):
    """A shortening that fails is noticed in whole numbers, also where their squares would leave int64."""
    rows = torch.tensor([[3.0, 4.0], [3e6, 0.0], [0.5, 0.0]], dtype=torch.float64)
    monkeypatch.setattr(fixed_point, "_shortening", lambda rows, bound, unit, bits, longest: 1.0 / unit)
    whole = whole_rows(rows, 1.0, 2.0**-28)
    assert whole.tolist() == [[0, 0], [0, 0], [2**27, 0]]
    # A bound that is no whole number of units; the lengths are 2, 5^(1/2), 8^(1/2), 3 and 5.
    beside = torch.tensor([[2.0, 0.0], [2.0, 1.0], [2.0, 2.0], [3.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    assert whole_rows(beside, 2.0 * math.sqrt(1.99), 1.0).tolist() == [[2, 0], [0, 0], [0, 0], [0, 0], [0, 0]]
    assert whole_rows(beside, 2.5, 1.0).any(dim=1).tolist() == [True, False, False, False, False]


def test_the_deviation_is_never_below_the_one_that_was_paid_for():
    """By fractions, which round nothing: products of floats may be below by some last bits."""
    random, drawn = np.random.default_rng(0), []
    for _ in range(60):
        multiplier, sensitivity, unit = (float(own) for own in np.exp(random.uniform(-1.0, 3.0, 3)))
        rows = int(random.integers(1, 9))
        with opened(multiplier, max_rows=rows) as access:
            access.stream.add_rounded_normal_ = lambda out, sigma: drawn.append(sigma) or out
            rounded_gaussian(access, "x", torch.zeros(1, dtype=INT64), unit=unit, sensitivity=sensitivity)
        exact = Fraction(multiplier) * Fraction(sensitivity) * rows / Fraction(unit)
        assert exact <= Fraction(drawn[-1]) <= exact * (1 + Fraction(1, 2**40))

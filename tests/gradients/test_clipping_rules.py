"""One law for every clipping rule: a positive public bound, each finite record counted once, no contribution above it."""

import dataclasses
import math
import re

import numpy as np
import pytest
import torch
from contracts.laws import clipping as laws
from hypothesis import given
from hypothesis import strategies as st

from lightning_dpgen import clipping
from lightning_dpgen.gradients.clipping import (
    Decay,
    DPNorm,
    Fixed,
    Normalised,
    PerLayer,
    Quantile,
    Schedule,
    Smoothed,
    cap_factors,
    choose_bounds,
    clip_weights,
)
from lightning_dpgen.gradients.scopes import LotNorms

RULES = laws.RULES | {"two bins": DPNorm(c_max=1e-3, bins=2, share=0.5)}
NORMS = {
    "none": [],
    "zeros": [0.0, 0.0],
    "at the top": [2.0, 2.0],
    "above the top": [3.0, 1e30, 3.4e38],
    "tiny": [1e-45, 1e-30],
    "not finite": [math.nan, math.inf, 0.3],
    "only nan": [math.nan],
    "usual": [0.1, 0.2, 0.24, 0.26, 1.9],
}


@pytest.fixture
def rule_on(account_of):
    """Find the bound that a rule chooses for some norms, at one noise multiplier."""

    def apply(rule, norms, multiplier=1.0, before=None, expected_rows=5.0):
        with account_of({**dict.fromkeys(rule.noise_shares, multiplier), "gradient": 1.0}).open("training") as access:
            bound = laws.bound_of(rule, access, torch.tensor(norms), before, expected_rows)
            assert set(access._undrawn) == {"gradient"}, "a rule draws exactly the noises that it lists"
            access.consume("gradient")
        return bound

    return apply


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS.keys())
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_the_bound_is_positive_and_finite_and_leaves_a_share_for_the_gradient(rule_on, rule, norms):
    bound = rule_on(rule, norms)
    assert 0.0 < bound < math.inf
    assert all(w > 0 for w in rule.noise_shares.values()) and sum(rule.noise_shares.values()) < 1.0


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS.keys())
def test_the_histogram_counts_each_finite_record_once(norms):
    laws.the_histogram_counts_each_finite_record_once(norms)


@pytest.mark.parametrize(("norms", "bound"), [([0.1, 0.6, 0.7], 0.75), ([9.0, 9.0, 0.1], 2.0), ([0.0, 0.0, 1.0], 0.25)])
def test_dpnorm_picks_the_fullest_interval_when_noise_is_tiny(rule_on, norms, bound):
    assert rule_on(DPNorm(c_max=2.0, bins=8), norms, multiplier=1e-6) == bound


@given(
    st.lists(st.floats(0, 2.0**127, width=32), max_size=8).map(lambda x: torch.tensor(x, dtype=torch.float32)),
    st.floats(1e-6, 1e6),
)
def test_a_weight_never_lets_a_norm_pass_the_bound(norms, bound):
    weights = clip_weights(norms, bound)
    assert ((weights >= 0) & (weights <= 1)).all()
    assert (weights.double() * norms.double() <= bound).all()
    inside = norms <= bound * (1 - 2e-5)
    assert (weights[inside] == 1.0).all(), "a record within the bound is kept whole"


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS.keys())
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_no_factor_lets_a_norm_pass_the_bound(rule, norms):
    norms = torch.tensor(norms)
    for bound in (1e-6, 0.37, 1e6):
        factors = rule.factors(norms, bound)
        finite = torch.isfinite(norms)
        assert ((factors >= 0) & torch.isfinite(factors)).all() and (factors[~finite] == 0).all()
        assert (factors[finite].double() * norms[finite].double() <= bound).all()


def test_a_bound_may_fall_with_the_lots(account_of):
    account = account_of({"gradient": 1.0}, count=4)
    for rule in (Decay(0.8, factor=0.5, every=2, least=0.3), Schedule(lambda lot: 0.8 if lot < 2 else 0.4)):
        assert rule.known(3) == 0.4
    seen = []
    for _ in range(4):
        with account.open("training") as access:
            seen.append(laws.bound_of(Decay(0.8, factor=0.5, every=2, least=0.5), access, torch.zeros(0)))
            access.consume("gradient")
    assert seen == [0.8, 0.8, 0.5, 0.5]
    for wrong in (-1.0, math.nan, "1", None, True):
        with pytest.raises(ValueError, match=re.escape(f"at(3)={wrong!r}: expected a number from")):
            Schedule(lambda lot, wrong=wrong: wrong).known(3)
    assert Schedule(lambda lot: torch.tensor(0.5)).known(3) == 0.5


def test_a_quantile_is_found_and_followed(rule_on):
    rule, norms = Quantile(0.01, target=0.7, lr=0.5), [i / 100 for i in range(400)]
    bound = None
    for _ in range(60):
        bound = rule_on(rule, norms, multiplier=1e-6, before=bound, expected_rows=400.0)
    assert bound == pytest.approx(2.8, rel=0.05), "70 % of 0 to 4"
    far, one = Quantile(1.0, least=0.5, most=2.0), {"multiplier": 1e-6, "expected_rows": 1.0}
    assert rule_on(far, [9.0] * 500, **one) <= 2.0 and rule_on(far, [0.0] * 500, **one) >= 0.5


def test_the_count_of_a_quantile_moves_by_half_a_record():
    """One more record, on either side of the bound, moves it by as much as the noise is calibrated to."""
    taken = []

    class Access:
        number, private = 0, True

    def exact(access, name, multiples, *, unit, sensitivity, per_person=False):
        taken.append((float(multiples * unit), sensitivity))
        return multiples * unit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning_dpgen.gradients.clipping.rounded_gaussian", exact)
        for norms in ([0.1, 0.9], [0.1, 0.9, 0.2], [0.1, 0.9, 5.0], [0.1, 0.9, math.nan]):
            laws.bound_of(Quantile(0.5), Access, torch.tensor(norms), expected_rows=2.0)
    values, sensitivities = zip(*taken, strict=True)
    assert values == (0.0, 0.5, -0.5, 0.0) and set(sensitivities) == {0.5}


def test_normalised_gradients_have_one_length():
    norms = torch.tensor([1e-3, 1.0, 1e3, math.inf])
    lengths = norms * Normalised(0.5, stability=1e-6).factors(norms, 0.5)
    assert lengths[:3] == pytest.approx([0.5] * 3, rel=2e-3) and Normalised(0.5).factors(norms, 0.5)[3] == 0.0


def test_a_smoothed_bound_is_an_average(rule_on):
    rule = Smoothed(Fixed(1.0), keep=0.75)
    assert rule_on(rule, []) == 1.0 and rule_on(rule, [], before=2.0) == 1.75
    assert Smoothed(Normalised(1.0)).factors(torch.tensor([2.0]), 1.0) == Normalised(1.0).factors(torch.tensor([2.0]), 1.0)


@pytest.mark.parametrize("bound", [1.0, math.inf])
def test_a_norm_that_is_not_finite_has_weight_zero(bound):
    assert clip_weights(torch.tensor([math.nan, math.inf, 0.0]), bound).tolist() == [0.0, 0.0, 1.0]


def test_an_infinite_bound_clips_nothing():
    assert clip_weights(torch.tensor([0.0, 1.0, 1e29]), math.inf).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "make",
    [
        *(lambda c=c: Fixed(c) for c in (0.0, -1.0, math.nan)),
        *(lambda c=c: DPNorm(c) for c in (0.0, -1.0, math.nan)),
        lambda: DPNorm(1.0, bins=1),
        *(lambda s=s: DPNorm(1.0, share=s) for s in (0.0, 1.0, -0.1, math.nan)),
        *(lambda f=f: Decay(1.0, factor=f) for f in (0.0, 1.1, math.nan)),
        lambda: Decay(1.0, every=0),
        lambda: Decay(1.0, least=2.0),
        *(lambda q=q: Quantile(1.0, target=q) for q in (0.0, 1.0, math.nan)),
        lambda: Quantile(1.0, least=2.0),
        lambda: Quantile(1.0, share=0.0),
        lambda: Normalised(1.0, stability=0.0),
        *(lambda k=k: Smoothed(Fixed(1.0), keep=k) for k in (1.0, -0.1, math.nan)),
    ],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ValueError, match="expected"):
        make()


VALID = {
    "Fixed": {"c": 1.0},
    "Decay": {"c": 1.0},
    "Schedule": {"at": abs},
    "DPNorm": {"c_max": 1.0},
    "Quantile": {"c": 1.0},
    "Normalised": {},
    "Smoothed": {"of": Fixed(1.0)},
    "PerLayer": {"of": Fixed(1.0)},
    "PerComponent": {"of": Fixed(1.0)},
    "PerPerson": {"of": Fixed(1.0)},
}
ARGUMENTS = [(name, field.name) for name in VALID for field in dataclasses.fields(getattr(clipping, name))]
WRONG = ["a", "", math.nan, math.inf, -1, -math.inf, True, None, [1.0], 1e40, torch.ones(2), Fixed]


def test_all_rules_are_under_the_law():
    assert set(VALID) == set(clipping.__all__) - {"ClippingRule"}


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_each_argument_of_each_rule_is_checked_when_the_rule_is_made(name, argument):
    """The message is one line that begins with the argument."""
    rule, text = getattr(clipping, name), argument == "noise"
    assert rule(**VALID[name])
    for wrong in [value for value in WRONG if not (text and value == "a") and not (argument == "at" and value is Fixed)]:
        with pytest.raises(ValueError, match=rf"^{argument}=.*: expected") as error:
            rule(**VALID[name] | {argument: wrong})
        assert "\n" not in str(error.value)
        assert not isinstance(wrong, str) or f"{argument}={wrong!r}:" in str(error.value)


def test_whole_numbers_of_numpy_are_taken():
    assert (
        DPNorm(np.float32(1.0), bins=np.int64(20)) == DPNorm(1.0, bins=20) and Decay(1, every=np.int8(3)).known(3) == 0.99
    )
    with pytest.raises(ValueError, match=r"^bins=2\.5: expected a whole number, 2 or more$"):
        DPNorm(1.0, bins=2.5)


class _Own(Fixed):
    """A rule of another module: `bound` chooses the bound from norms, `factor` the factor."""

    def __init__(self, bound=None, factor=None):
        super().__init__(1.0)
        object.__setattr__(self, "functions", (bound, factor))

    def bounds(self, access, norms, before):
        choose = self.functions[0]
        return super().bounds(access, norms, before) if choose is None else choose(norms.columns)

    def factors(self, norms, bound):
        choose = self.functions[1]
        return super().factors(norms, bound) if choose is None else choose(norms)


NORMS_OF_A_LOT = torch.tensor([0.5, 2.0, 40.0, math.inf, math.nan], dtype=torch.float64)


@pytest.mark.parametrize("wrap", [lambda rule: rule, Smoothed, PerLayer], ids=["itself", "smoothed", "by layer"])
@pytest.mark.parametrize(
    "factor",
    [lambda n: torch.ones_like(n) * 1000, lambda n: -n, lambda n: n * math.nan, lambda n: n, lambda n: n.mean() * 0 + 1.0],
)
def test_whatever_factor_another_rule_has_no_gradient_is_longer_than_the_bound(factor, wrap):
    weights = cap_factors(wrap(_Own(factor=factor)), NORMS_OF_A_LOT, 1.5)
    finite = NORMS_OF_A_LOT.isfinite()
    assert not (weights[finite] * NORMS_OF_A_LOT[finite] > 1.5).any() and not (weights[~finite] > 0.0).any()


def test_the_factor_of_another_rule_follows_from_its_own_norm_alone():
    """A factor over the mean of the norms would let a record change all others."""
    rule = _Own(factor=lambda norms: 0.1 / norms.mean())
    assert cap_factors(rule, NORMS_OF_A_LOT[:3], 1.0) == pytest.approx([0.2, 0.05, 0.0025])
    assert torch.equal(cap_factors(rule, NORMS_OF_A_LOT[:2], 1.0), cap_factors(rule, NORMS_OF_A_LOT[:3], 1.0)[:2])
    assert cap_factors(rule, NORMS_OF_A_LOT[:0], 1.0).shape == (0,)
    for wrong in (lambda norms: float(norms), lambda norms: torch.ones(3), lambda norms: None):
        with pytest.raises(ValueError, match=r"_Own.factors sees the norm .* of one record at a time.*expected a tensor"):
            cap_factors(_Own(factor=wrong), NORMS_OF_A_LOT, 1.0)


@pytest.mark.parametrize(
    ("choose", "says"),
    [
        (lambda columns: (float(columns[0].median()),), "bounds=nan: expected a number from"),
        (lambda columns: (len(columns[0]) * 1.0,), "bounds=0.0: expected"),
        (lambda columns: None, "returned None: expected a tuple with a bound for each of the 1 columns"),
        (lambda columns: (1.0, 2.0), "expected a tuple with a bound for each of the 1 columns"),
        (lambda columns: ("1",), "bounds='1': expected a number"),
        (lambda columns: (math.inf,), "bounds=inf: expected a number"),
    ],
)
def test_a_bound_that_no_noise_stands_behind_follows_from_no_norm(account_of, choose, says):
    with account_of({"gradient": 1.0}).open("training") as access:
        with pytest.raises(ValueError, match=re.escape(says)):
            choose_bounds(_Own(bound=choose), access, LotNorms((NORMS_OF_A_LOT,)), None)
        assert choose_bounds(_Own(), access, LotNorms((NORMS_OF_A_LOT,)), None) == (1.0,)
        access.consume("gradient")


@pytest.mark.parametrize(
    "factor",
    [
        lambda n, b: n.clamp_(max=b) / b,
        lambda n, b: n.div_(b).clamp_(min=1).reciprocal_(),
        lambda n, b: n.zero_() + 1.0,
        lambda n, b: n.nan_to_num_(posinf=b) / b,
    ],
)
def test_a_rule_that_writes_into_its_norms_clips_as_any_other(factor):
    norms = NORMS_OF_A_LOT.clone()
    weights = cap_factors(_Own(factor=lambda n: factor(n, 1.5)), norms, 1.5)
    torch.testing.assert_close(norms, NORMS_OF_A_LOT, rtol=0, atol=0, equal_nan=True)
    finite = norms.isfinite()
    assert not (weights[finite] * norms[finite] > 1.5).any() and not (weights[~finite] > 0.0).any()


def test_a_rule_with_noise_writes_into_norms_of_its_own(account_of):
    class Writes(DPNorm):
        def bounds(self, access, norms, before):
            for column in norms.columns:
                column.nan_to_num_(posinf=0.5).clamp_(max=0.5)
            return super().bounds(access, norms, before)

    norms = NORMS_OF_A_LOT.clone()
    with account_of({"norms": 1.0, "gradient": 1.0}).open("training") as access:
        choose_bounds(Writes(c_max=2.0), access, LotNorms((norms,)), None)
        access.consume("gradient")
    torch.testing.assert_close(norms, NORMS_OF_A_LOT, rtol=0, atol=0, equal_nan=True)


def test_factors_of_an_instance_are_those_of_another_module():
    """A function that stands among the attributes of a rule is no method of its class."""
    rule = Fixed(1.0)
    object.__setattr__(rule, "factors", lambda norms, bound: (bound / norms.max()).expand(len(norms)))
    norms = NORMS_OF_A_LOT[:3]
    assert torch.equal(cap_factors(rule, norms, 1.0)[:2], cap_factors(rule, norms[:2], 1.0))


def test_a_rule_keeps_no_norm_and_is_called_for_a_lot_without_a_record():
    kept, calls = [], []

    def factor(norms):
        calls.append(None)
        if kept:
            return norms * 0 + kept[-1].sum()
        kept.append(norms)
        return norms

    rule = _Own(factor=factor)
    assert len(cap_factors(rule, NORMS_OF_A_LOT[:0], 1.0)) == 0 and len(calls) == 1
    with pytest.raises(ValueError, match=r"_Own.factors sees the norm"):
        cap_factors(rule, NORMS_OF_A_LOT, 1.0)


@pytest.mark.parametrize("rule", [DPNorm(c_max=5.0), Quantile(1.0), Fixed(1.0), PerLayer(Fixed(1.0))])
def test_a_rule_alone_says_what_it_needs(rule):
    """A loop of one's own hands over norms, and a bound where it has none."""
    with pytest.raises(ValueError, match=r"norms: a Tensor: expected LotNorms.*rule\.bounds\(access, lightning_dpgen"):
        rule.bounds(None, torch.rand(4), None)
    if rule.known(3) is None:
        with pytest.raises(ValueError, match=rf"bound=None: {type(rule).__name__} chooses it from the noisy norms"):
            rule.factors(torch.rand(4), rule.known(3))

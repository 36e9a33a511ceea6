"""One law for every clipping rule: a positive public bound, each finite record counted once, no contribution above it."""

import math

import pytest
import torch
from contracts import laws
from hypothesis import given
from hypothesis import strategies as st

from lightning_dpgen.gradients.clipping import DPNorm, Fixed, clip_weights

RULES = {"fixed": Fixed(0.5), "dpnorm": DPNorm(c_max=2.0, bins=8), "two bins": DPNorm(c_max=1e-3, bins=2, share=0.5)}
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
    """The bound that a rule gives for some norms, at one noise multiplier."""

    def apply(rule, norms, multiplier=1.0):
        with account_of({**dict.fromkeys(rule.weights, multiplier), "gradient": 1.0}).open("training") as access:
            bound = rule.bound(access, torch.tensor(norms))
            assert set(access._left) == {"gradient"}, "a rule draws exactly the noises that it lists"
            access.take("gradient")
        return bound

    return apply


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS.keys())
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_the_bound_is_positive_and_finite_and_leaves_a_share_for_the_gradient(rule_on, rule, norms):
    bound = rule_on(rule, norms)
    assert 0.0 < bound < math.inf
    assert all(w > 0 for w in rule.weights.values()) and sum(rule.weights.values()) < 1.0


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
    ],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ValueError, match="expected"):
        make()

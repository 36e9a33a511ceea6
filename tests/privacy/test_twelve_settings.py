"""Ours against an independent quadrature, and Opacus, at some settings of ``experiments/accounting/accountants.py``."""

import pytest

from experiments.accounting import accountants


# One lot; many lots of half the data; the shape of a training run; Laplace, Gaussian and sampled parts together.
@pytest.mark.parametrize("place", [2, *(pytest.param(place, marks=pytest.mark.slow) for place in (3, 6, 11))])
def test_ours_is_never_below_and_half_a_percent_above_at_most(place):
    setting = accountants.SETTINGS[place]
    answers = accountants.ask(setting)
    assert answers.error < 1e-6
    assert answers.quadrature - answers.error <= answers.ours <= 1.005 * answers.quadrature
    assert answers.agrees
    if answers.prv is not None:
        # PRV adds its error of 0.01 to what it returns.
        assert answers.quadrature <= answers.prv <= answers.quadrature + 3 * accountants.PRV_ERROR
        assert answers.ours <= answers.rdp


def test_there_are_twelve_and_half_the_noise_would_be_noticed():
    assert len(accountants.SETTINGS) == 12
    setting = accountants.SETTINGS[3]
    more = accountants.lots(0.5, 3.5, 60, setting.delta)
    understated = accountants.Answers(
        accountants.compute_epsilon(setting.event, setting.delta).epsilon, None, None,
        *accountants.epsilon_by_quadrature(more.parts, more.delta), (0.0,) * 4,
    )  # fmt: skip
    assert not understated.agrees

"""The papers' formulas give the numbers that the papers print; the true ones are in contracts/test_errata.py."""

import doctest
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.special import gammaln, logsumexp

from experiments.accounting import moments
from experiments.accounting import papers as papers_accounting
from experiments.accounting.moments import epsilon_from_moments, gaussian_moment, sampled_moment
from experiments.dpgan import formulas as dpgan
from experiments.dpgm import formulas as dpgm
from experiments.privae import formulas as privae
from experiments.projection import formulas as jl_laplace
from lightning_dpgen.privacy.accounting.renyi import compute_epsilon_by_rdp

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", [moments, dpgm, privae, dpgan, jl_laplace], ids=lambda module: module.__name__)
def test_examples(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(("lam", "q", "sigma"), [(1, 0.0017, 1.0), (20, 0.0017, 1.0), (8, 0.00197, 0.6), (32, 0.3, 4.0)])
def test_quadrature_is_the_binomial_sum(lam, q, sigma):
    """Mironov, Talwar and Zhang 2019, section 3.3: at a whole order the moment is a finite sum."""
    order = lam + 1
    terms = [
        gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
        + i * math.log(q) + (order - i) * math.log1p(-q) + (i * i - i) / (2 * sigma**2)
        for i in range(order + 1)
    ]  # fmt: skip
    assert sampled_moment(lam, q, sigma) == pytest.approx(logsumexp(terms), rel=1e-9, abs=1e-12)


def test_without_sampling_the_quadrature_is_the_closed_form():
    assert sampled_moment(2.5, 1.0, 1.3) == pytest.approx(gaussian_moment(2.5, 1.3), rel=1e-9)


def test_the_plain_moments_accountant_is_a_bound():
    """Markov's inequality of 2016 is looser than the conversion of today's Renyi accountants, and never below it."""
    moments = epsilon_from_moments(lambda lam: 1000 * sampled_moment(lam, 0.01, 1.0), 1e-5)
    today = compute_epsilon_by_rdp(papers_accounting.steps(0.01, 1.0, 1000), 1e-5)
    assert today < moments < 1.25 * today


def test_figure_2_of_dpgm():
    """Printed: 1.74, at 20 epochs. Whatever ten values of j the authors took, the best of all j gives 1.742."""
    assert dpgm.FIGURE_2["T_S"] == 11_780
    assert dpgm.dpgm_theorem4(**dpgm.FIGURE_2) == pytest.approx(1.745, abs=5e-4)


def test_equation_4_of_dpgm_as_printed_does_not_give_figure_2():
    """T_K times the norm histogram, which Algorithm 2 draws once and the RBF kernel is said not to need."""
    assert dpgm.dpgm_theorem4(**dpgm.FIGURE_2, rbf=False) == pytest.approx(4.439, abs=5e-4)
    once = dpgm.dpgm_theorem4(**dpgm.FIGURE_2, rbf=False, norms_each_iteration=False)
    assert once == pytest.approx(1.917, abs=5e-4)


def test_kappa_of_privae():
    """Printed: about 2."""
    assert privae.privae_kappa(1e-5) == pytest.approx(2.0593, abs=1e-4)
    assert privae.privae_kappa(1e-300) == pytest.approx(2.0, abs=2e-3)


def test_smallest_t_of_jl_makes_its_bound_one():
    for k in (2, 3, 10, 20):
        assert jl_laplace.jl_theorem5(k)[1] == pytest.approx(1.0, rel=1e-12)
        assert jl_laplace.jl_theorem5(k, alpha=4.0)[0] == pytest.approx(2 * jl_laplace.jl_theorem5(k)[0])


def test_true_costs_of_figure_2():
    """The table prints two costs beside 1.74: of one lot for all components, and of Algorithm 1 with ten equal clusters."""
    assert papers_accounting.true(*papers_accounting.figure_2()) == pytest.approx(0.6953, abs=5e-4)
    assert papers_accounting.true(*papers_accounting.figure_2(0.1)) == pytest.approx(2.099, abs=2e-3)
    assert papers_accounting.figure_2_replaced() == pytest.approx(1.204, abs=1e-3)


def test_the_least_cost_of_a_small_cluster_is_above_that_of_the_mean_number_of_steps():
    """Chance decides how often a cluster is chosen, and a bound that counts it is above the cost of the mean number."""
    names = ("q", "T_S", "sigma_C", "sigma_G", "delta")
    least = dpgm.dpgm_least(**{name: dpgm.FIGURE_2[name] for name in names}, share=0.01)
    mean = papers_accounting.true(papers_accounting.figure_2(0.01)[1])
    assert mean == pytest.approx(7.898, abs=5e-4) and least == pytest.approx(8.0276, abs=5e-5)


@pytest.mark.slow
def test_the_table_that_the_page_of_dpgm_shows_is_printed():
    command = [sys.executable, "-m", "experiments.accounting.papers"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, cwd=ROOT)
    page = (ROOT / "docs/papers/dpgm.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    tidy = [[line.split() for line in text.splitlines()] for text in (block, done.stdout)]
    assert tidy[0] == tidy[1][: len(tidy[0])]

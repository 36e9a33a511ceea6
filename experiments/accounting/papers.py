"""Privacy as the four papers print it, as their formulas give it, and as it is.

    python -m experiments.accounting.papers      (about half a minute)

"True" is epsilon by `privacy.accounting.accountant.compute_epsilon` under add or remove one, unless the row says otherwise.
Why they differ: docs/papers/errata.md, "Errata of the four papers".
"""

from __future__ import annotations

import math

from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from scipy.optimize import brentq

from experiments.accounting.moments import epsilon_from_moments, sampled_moment
from experiments.dpgan.formulas import dpgan_asymptotic, dpgan_epsilon
from experiments.dpgm.formulas import FIGURE_2, dpgm_events, dpgm_least, dpgm_theorem3, dpgm_theorem4, joined
from experiments.privae.formulas import needed_noise, privae_kappa, privae_noise, privae_table1
from experiments.projection.formulas import jl_claim7, jl_theorem3, jl_theorem5, recovered_variance
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE

DELTA = 1e-5
# PriVAE, section 5.1: Fashion-MNIST, lots of 256 for 10 epochs, 16 groups; delta is not printed.
RATE, STEPS = 256 / 60_000, 2350
SHAPE = {"C1": 0.05, "C2": 0.005, "B": 256, "b": 16}
# Section 5.2, the pinwheel.
PINWHEEL = {"C1": 0.05, "C2": 0.0005, "B": 20, "b": 1}
# The bound of micro and batch aggregation there, and the share that a mean embedding has of a lot by default.
WHOLE, EMBEDDING = 0.0002, 0.05


def steps(rate: float, multiplier: float, count: int) -> DpEvent:
    """Return the event of `count` lots at `rate`, each released with one Gaussian."""
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), count)


def figure_2(share: float = 1.0) -> tuple[DpEvent, DpEvent]:
    """Return the event of the k-means and the training of DPGM's Figure 2 at 20 epochs."""
    return dpgm_events(**{name: value for name, value in FIGURE_2.items() if name != "delta"}, share=share)


def true(*events: DpEvent, relation: str = ADD_OR_REMOVE_ONE) -> float:
    return compute_epsilon(ComposedDpEvent(list(events)), DELTA, relation=relation).epsilon


def figure_2_replaced() -> float:
    """Return the event of Figure 2 when a record is replaced, all components in one lot.

    One iteration of k-means then moves by 2 / sigma_K^2 squared, if the record keeps its cluster (counts 0, sums 4 / 2) and
    if it does not (2 / 2 and 2 / 2). The accountant doubles every shift, so the multiplier is twice that move's inverse.
    """
    _, training = figure_2()
    split = SelfComposedDpEvent(GaussianDpEvent(math.sqrt(2) * FIGURE_2["sigma_K"]), FIGURE_2["T_K"])
    return true(split, training, relation=REPLACE_ONE)


def noise_for(epsilon: float, delta: float) -> float:
    """Return the noise multiplier with which PriVAE's steps cost (epsilon, delta), if each released one Gaussian."""
    return brentq(
        lambda m: compute_epsilon(steps(RATE, m, STEPS), delta, interval=5e-4).epsilon - epsilon, 0.3, 3.0, xtol=1e-3
    )


def dpgm_rows():
    split, training = figure_2()
    norms = GaussianDpEvent(math.sqrt(2) * FIGURE_2["sigma_C"])
    yield "Figure 2, 20 epochs: Algorithm 1, ten equal clusters", "1.74", dpgm_theorem4(**FIGURE_2), true(*figure_2(0.1))
    alone = {name: FIGURE_2[name] for name in ("q", "T_S", "sigma_C", "sigma_G", "delta")}
    yield "  training alone, a record in a cluster of 1 %: at least", "", None, dpgm_least(**alone, share=0.01)
    yield "  not Algorithm 1: all components in one lot", "", None, true(split, training)
    yield "  the same, one record replaced", "", None, figure_2_replaced()
    every = dpgm_theorem4(**FIGURE_2, rbf=False)
    yield "  with a norm histogram in k-means: equation 4 as printed", "", every, true(split, norms, *figure_2(0.1)[1:])
    once = dpgm_theorem4(**FIGURE_2, rbf=False, norms_each_iteration=False)
    yield "  the same, drawn once as in Algorithm 2", "", once, true(split, norms, *figure_2(0.1)[1:])
    q, sigma, count = 0.001, 0.7, 100_000
    hoelder = epsilon_from_moments(lambda lam: count * dpgm_theorem3(lam, q, sigma, sigma), DELTA)
    yield "Theorem 3, q 0.001, sigma 0.7 and 0.7, 1e5 steps", "", hoelder, true(steps(q, joined(sigma, sigma), count))


def privae_rows():
    for target in (1.0, 2.0, 4.0, 8.0):
        whole, half = noise_for(target, DELTA), noise_for(target / 2, DELTA / 2)
        yield f"kappa at epsilon {target:.0f}: formula; by the accountant", "2", privae_kappa(DELTA), half / whole
        both = true(steps(RATE, joined(half, half), STEPS))
        yield f"Theorem 2's proof: two terms at {target / 2:g}, one lot", "", target, both
        effective = whole * privae_noise(**SHAPE, sigma=1.0, delta=DELTA) / needed_noise(**SHAPE, sigma=1.0)
        yield "  Algorithm 1, noise by kappa, only the sum is seen", "", target, true(steps(RATE, effective, STEPS))
        drawn = privae_noise(**SHAPE, sigma=1e4 * whole, delta=DELTA)
        yield "  1e4 x noise of a step, groups: equation 16; needed", "", drawn, needed_noise(**SHAPE, sigma=1e4 * whole)
        embedded = 1e4 * whole * SHAPE["C1"] / SHAPE["B"] / math.sqrt(1.0 - EMBEDDING)
        yield "  the same with a mean embedding in place of groups", "", None, embedded
        yield "  the whole loss as one group: C; 2 C", "", 1e4 * whole * WHOLE, 2e4 * whole * WHOLE
    for name, shape in (("Fashion-MNIST", SHAPE), ("pinwheel", PINWHEEL)):
        drawn = privae_noise(**shape, sigma=1e4, delta=DELTA)
        yield f"1e4 x noise, sigma 1, {name}: equation 16; needed", "", drawn, needed_noise(**shape, sigma=1e4)
        yield "  Table 1; what is drawn", "", privae_table1(**shape, sigma=1e4, delta=DELTA), drawn


def dpgan_rows():
    q, sigma = 0.00197, 0.6
    yield "alpha(8), q 0.00197, sigma 0.6; true: quadrature", "", dpgan_asymptotic(8, q, sigma), sampled_moment(8, q, sigma)
    yield "epsilon of 10,000 steps of it", "", dpgan_epsilon(q, sigma, 10_000, DELTA), true(steps(q, sigma, 10_000))


def jl_rows():
    for d, k in ((3, 2), (10, 3), (50, 10), (100, 20)):
        yield f"Theorem 3, d {d}, k {k}: bound on the chance of failure", "", jl_theorem3(d, k)[1], None
    yield "Theorem 5, k 10, smallest t: the same", "", jl_theorem5(10)[1], None
    t = math.sqrt(2 * math.log(20 / 1e-5) / 10)
    yield "Theorem 5, k 10, c 17.03; true at d 1000 for all rows", "", jl_theorem5(10, t=t)[1], 1.0
    case = (2, 16.0, 0.5)
    yield "Claim 7, k 2, a^2 16, s^2 0.5; true: exact moments", "", jl_claim7(*case), recovered_variance(*case)


def main() -> None:
    print(f"{'':58s} {'printed':>8s} {'formula':>9s} {'true':>9s}")
    for paper, rows in (("DPGM", dpgm_rows), ("PriVAE", privae_rows), ("dp-GAN", dpgan_rows), ("JL + Laplace", jl_rows)):
        print(paper)
        for name, printed, formula, truth in rows():
            numbers = ("" if x is None else f"{x:.4g}" for x in (formula, truth))
            print(f"  {name:56s} {printed:>8s} {next(numbers):>9s} {next(numbers):>9s}", flush=True)


if __name__ == "__main__":
    main()

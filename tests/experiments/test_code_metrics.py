"""Metrics of codes against their definitions, and on distributions for which they are known."""

import math

import pytest
import torch

from experiments.privae.code_metrics import CodeDiscrepancy, HoyerSparsity, ImportanceLikelihood, log_weights
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.models.divergences import make_kernel
from lightning_dpgen.models.priors import NormalPrior, SparsePrior
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.sampling.lots import Lot


def _drawn(prior, n, seed=0):
    return prior.draw(torch.randn(n, prior.noise, generator=torch.Generator().manual_seed(seed)))


SCALE = {
    "standard normal": (NormalPrior(50), 0.231),
    "sparse, deviation .05": (SparsePrior(50, off=0.8, scale=0.05), 0.651),
    "sparse, variance .05": (SparsePrior(50, off=0.8, scale=0.05**0.5), 0.420),
}


@pytest.mark.parametrize(("prior", "expected"), SCALE.values(), ids=SCALE)
def test_the_scale_of_sparsity(prior, expected):
    """20,000 codes have a mean whose deviation is below .0005."""
    metric = HoyerSparsity(50)
    for part in _drawn(prior, 20_000).split(7000):
        metric.update(part)
    assert float(metric.compute()) == pytest.approx(expected, abs=0.005)


def test_sparsity_is_one_of_single_numbers_and_zero_of_equal_ones():
    single, equal = HoyerSparsity(4), HoyerSparsity(4)
    single.update(torch.eye(4))
    equal.update(torch.cat([torch.ones(3, 4), -torch.ones(3, 4)]))
    assert float(single.compute()) == pytest.approx(1.0) and float(equal.compute()) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("kernel", ["cauchy", "gaussian", "imq"])
def test_a_discrepancy_is_that_of_all_pairs_in_blocks_too(kernel, monkeypatch):
    monkeypatch.setattr("experiments.privae.code_metrics._PAIRS", 40)
    kernel = make_kernel(kernel, 3)
    z, draws = torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(0)).double()
    metric = CodeDiscrepancy(kernel, 3)
    for part in z.split(9):
        metric.update(part, prior=False)
    metric.update(draws, prior=True)
    off = ~torch.eye(20, dtype=torch.bool)
    expected = kernel(z, z)[off].mean() + kernel(draws, draws)[off].mean() - 2.0 * kernel(z, draws).mean()
    assert float(metric.compute()) == pytest.approx(float(expected), abs=1e-9)


def test_codes_of_several_processes_are_joined():
    """Torchmetrics hands one tensor of all processes to `compute`, in place of a list of parts."""
    z = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    for make in (lambda: HoyerSparsity(3), lambda: CodeDiscrepancy(make_kernel("imq", 3), 3)):
        metrics = [make() for _ in range(2)]
        for metric in metrics:
            for part in z.split(7):
                metric.update(part) if isinstance(metric, HoyerSparsity) else metric.update(part, prior=False)
            if isinstance(metric, CodeDiscrepancy):
                metric.update(z / 2, prior=True)
        for name in metrics[1].metric_state:
            setattr(metrics[1], name, torch.cat(getattr(metrics[1], name)))
        assert torch.equal(metrics[0].compute(), metrics[1].compute())


def test_likelihoods_are_means_of_weights():
    metric = ImportanceLikelihood()
    weights = torch.tensor([[0.1, 0.3], [0.5, 0.5]]).log()
    metric.update(weights)
    assert float(metric.compute()) == pytest.approx((math.log(0.2) + math.log(0.5)) / 2)


BAD = {
    "another width": (lambda: HoyerSparsity(3).update(torch.zeros(2, 4)), r"codes: \(2, 4\): expected \(n, 3\)"),
    "not finite": (lambda: HoyerSparsity(2).update(torch.full((2, 2), math.nan)), "finite"),
    "one dimension": (lambda: HoyerSparsity(1), "latent=1: expected a whole number from 2"),
    "another kernel": (lambda: CodeDiscrepancy(make_kernel("imq", 2), 0), "latent=0: expected 2, as many as the kernel's"),
    "an infinite weight": (lambda: ImportanceLikelihood().update(torch.full((2, 2), math.inf)), "no NaN or infinity"),
    "no draw": (lambda: ImportanceLikelihood().update(torch.zeros(3, 0)), r"log_weights: \(3, 0\)"),
    "a word for a kernel": (lambda: CodeDiscrepancy("imq", 2), "kernel='imq': expected a kernel"),
    "a list of codes": (lambda: HoyerSparsity(2).update([[1.0, 2.0]]), "codes: a list: expected a tensor"),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.filterwarnings("ignore")
def test_without_codes_nothing_is_known():
    for metric in (
        HoyerSparsity(2),
        CodeDiscrepancy(make_kernel("imq", 2), 2),
        ImportanceLikelihood(),
    ):
        assert math.isnan(float(metric.compute()))


def test_a_code_of_zeros_has_no_sparsity_and_one_code_no_mean():
    metric = HoyerSparsity(2)
    metric.update(torch.tensor([[0.0, 0.0]]))
    assert metric.compute().isnan()
    metric.update(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    assert 0.0 <= float(metric.compute()) <= 1.0


def test_log_weights_are_those_of_their_distributions():
    centres = torch.tensor([[1.0, 0.0], [-1.0, 0.5]])
    prior = {"kind": "mixture", "centres": centres.tolist(), "scale": 0.4}
    vae = StackedVAE(
        ImageSchema(2, 3, levels=255), 1, hidden=4, latent=2, prior=prior, likelihood="laplace", scale=0.2,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    lot, noise = Lot(torch.rand(5, 6, generator=generator), (0, 5)), torch.randn(5, 2, generator=generator)
    mean, log_variance = vae.encode(lot.records, (0, 5))
    code = torch.distributions.Normal(mean, torch.exp(0.5 * log_variance))
    z = code.loc + code.scale * noise
    parts = torch.distributions.Normal(centres, 0.4).log_prob(z[:, None]).sum(dim=2)
    of_prior = torch.logsumexp(parts, dim=1) - math.log(2.0)
    units = torch.distributions.Laplace(torch.sigmoid(vae.decode(z, (0, 5))), 0.2)
    wanted = units.log_prob(lot.records).sum(dim=1) + of_prior - code.log_prob(z).sum(dim=1)
    assert torch.allclose(log_weights(vae, lot, noise)[:, 0], wanted.detach(), rtol=1e-4, atol=1e-4)

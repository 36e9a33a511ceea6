"""Encoders see centred units where they are asked to, and codes begin as wide as their prior."""

import math

import pytest
import torch

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.gradients.terms import PerGroup, PerRecord
from lightning_dpgen.models.divergences import KERNELS, CodeEmbedding, make_kernel
from lightning_dpgen.models.priors import NormalPrior, make_prior
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.sampling.lots import Lot


@pytest.mark.parametrize("network", ["dense", "conv", "deep_conv"])
def test_codes_are_first_as_wide_as_a_part_of_their_prior(network):
    mixture = {"kind": "mixture", "centres": [[0.0], [1.0]], "scale": 0.2}
    for prior, width in (({"kind": "normal"}, 1.0), ({"kind": "sparse", "scale": 0.1}, 0.1), (mixture, 0.2)):
        vae = StackedVAE(ImageSchema(8, 8, levels=1), 2, network=network, hidden=4, filters=2, latent=1, prior=prior)
        _, log_variance = vae.encode(torch.zeros(4, 64), (0, 2, 4))
        assert torch.allclose(log_variance, torch.tensor(2.0 * math.log(width)), atol=1e-6)


def test_a_centred_encoder_sees_units_about_the_middle_and_choices_as_they_are():
    vae = StackedVAE(ImageSchema(1, 2, levels=255, classes=2), 1, hidden=4, latent=2, centred=True)
    x = torch.tensor([[0.0, 1.0, 0.0, 1.0]])
    root = math.sqrt(3.0)
    seen = torch.tensor([[-root, root, 0.0, 1.0]])
    assert torch.allclose(torch.cat(vae.encode(x, (0, 1)), dim=1), vae.encoder(seen, (0, 1)))
    assert StackedVAE(vae.schema, 1, **vae.settings).settings == vae.settings and vae.settings["centred"] is True
    with pytest.raises(ValueError, match="centred=True with network='conv'"):
        StackedVAE(ImageSchema(4, 4, levels=1), 1, network="conv", centred=True)


def _lot(network, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, network.schema.layout.width, generator=generator)
    return Lot(x, (0, count)), torch.randn(count, network.latent, generator=generator)


@pytest.mark.parametrize("kernel", KERNELS)
def test_parts_of_records_are_the_gradient_of_the_discrepancy_of_their_mean(kernel):
    vae = StackedVAE(ImageSchema(2, 3, levels=255), 1, hidden=4, latent=2, generator=torch.Generator().manual_seed(0))
    embedding = CodeEmbedding(make_kernel(kernel, 2, 0.5), vae.prior, 48, torch.Generator().manual_seed(1))
    (lot, noise), weight, parameters = _lot(vae, 7), 3.0, list(vae.encoder.parameters())
    mean, log_variance = vae.encode(lot.records, lot.offsets)
    of_lot = embedding(mean + torch.exp(0.5 * log_variance) * noise).mean(dim=0)
    discrepancy = weight * embedding.at_zero * (of_lot - embedding.of_prior).square().sum()
    wanted = torch.autograd.grad(discrepancy, parameters, retain_graph=True)
    term = vae.embedded_term(embedding, weight, of_lot.detach())
    parts = (term.losses(lot, noise) - vae.term.losses(lot, noise)).mean()
    for right, found in zip(wanted, torch.autograd.grad(parts, parameters), strict=True):
        assert torch.allclose(right, found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("width", [0.3, 2.0])
@pytest.mark.parametrize("name", KERNELS)
def test_products_of_embeddings_are_the_kernel_of_that_width(name, width):
    kernel = make_kernel(name, 2, width)
    embedding = CodeEmbedding(kernel, NormalPrior(2), 24_000, torch.Generator().manual_seed(0))
    z = torch.randn(30, 2, generator=torch.Generator().manual_seed(1))
    # Each product is a mean of 12,000 cosines and more, of deviation below .01: five of these and more.
    assert float((embedding(z) @ embedding(z).T - kernel(z, z) / kernel.at_zero).abs().max()) < 0.05


BAD = {
    "a word for a prior": (lambda: StackedVAE(ImageSchema(2, 2, levels=1), 1, prior="sparse"), "'sparse': expected a dict"),
    "a list for a prior": (lambda: make_prior(2, [1]), r"prior: \[1\]: expected a dictionary"),
    "no dimension": (lambda: make_prior(0, {"kind": "normal"}), "latent=0: expected a whole number"),
    "a list for a kernel": (lambda: make_kernel(["imq"], 2), r"kernel=\['imq'\]: expected one of cauchy, gaussian, imq"),
    "a kernel without a dimension": (lambda: make_kernel("imq", "2"), "latent='2': expected a whole number"),
    "a kernel of others": (lambda: CodeEmbedding(make_kernel("imq", 3), NormalPrior(2), 6), "of 2 dimensions: expected 3"),
    "a number for a loss": (lambda: PerRecord(3), r"loss=3: expected a function loss\(lot, noise\)"),
    "half a group": (lambda: PerGroup(lambda lot, noise, groups: noise, 1.5), "groups=1.5: expected a whole number"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD)
def test_an_argument_that_makes_no_sense_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()

"""Encoders see centred units where they are asked to, and codes begin as wide as their prior."""

import math

import pytest
import torch

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.models.vae import StackedVAE


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

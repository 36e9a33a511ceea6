"""A network generates released means on average, if its output bias is held at them."""

import numpy as np
import pytest
import torch

from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.models.generators import StackedGenerator
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.outputs import held_bias, means
from lightning_dpgen.models.vae import StackedVAE

LAYOUTS = {
    "pictures": Layout(units=6, levels=1),
    "pictures with a label": Layout(units=6, levels=255, groups=(3,), label=0),
    "a table": Layout(units=0, groups=(2, 5, 1, 3)),
    "a table with real numbers": Layout(units=2, groups=(2, 4)),
}


def _targets(layout, k):
    generator = torch.Generator().manual_seed(1)
    units = torch.rand(k, layout.units, generator=generator)
    return torch.cat([units, *(torch.rand(k, w, generator=generator).softmax(1) for w in layout.groups)], dim=1)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("strength", [0.0, 1.0, 6.0])
def test_averages_over_fresh_codes_are_the_targets(layout, strength):
    """200,000 other codes: a mean has a standard error of at most 0.0012, six of which raise a false alarm in 10^7 runs.

    The fixed codes are 4096 of a low-discrepancy sequence, off by less than the hundredth at which the search stops.
    """
    k, latent = 2, 3
    weight = strength * torch.randn(k, latent, layout.width, generator=torch.Generator().manual_seed(2))

    def decode(z, offsets):
        return torch.cat([z[offsets[c] : offsets[c + 1]] @ weight[c] for c in range(k)])

    targets = _targets(layout, k)
    bias = held_bias(decode, torch.zeros_like(targets), targets, torch.zeros(k), latent, layout)
    codes = torch.randn(200_000, latent, generator=torch.Generator().manual_seed(3))
    for c in range(k):
        made = means(codes @ weight[c] + bias[c], layout).mean(dim=0)
        assert ((made - targets[c]).abs() <= 0.007 + 0.01 * targets[c]).all()
    # The bias of a network whose codes make no difference is wrong where they make one.
    if strength == 6.0:
        flat = held_bias(lambda z, _: torch.zeros(len(z), layout.width), bias, targets, torch.zeros(k), latent, layout)
        wrong = means(codes @ weight[0] + flat[0], layout).mean(dim=0)
        assert ((wrong - targets[0]).abs() > 0.007 + 0.01 * targets[0]).any()


def test_nothing_is_nothing_and_all_is_all():
    """Means at their ends give probabilities below a ten-thousandth from them, and finite numbers."""
    layout = Layout(units=2, levels=1, groups=(3,))
    targets = torch.tensor([[0.0, 1.0, 0.0, 0.25, 0.75]])
    bias = held_bias(lambda z, _: z.expand(-1, 5), torch.zeros(1, 5), targets, torch.zeros(1), 1, layout)
    made = means(torch.linspace(-2, 2, 9)[:, None] + bias, layout).mean(dim=0)
    assert torch.isfinite(bias).all()
    assert made[0] < 1e-4 and made[1] > 1 - 1e-4 and made[2] < 1e-4


def test_noise_that_explains_a_difference_moves_little_and_a_real_one_is_put_right():
    """1,000 units at 0.2, whose released means are off by their noise of 0.05, or by a real difference besides."""
    layout, noise = Layout(units=1000, levels=1), torch.tensor([0.05])
    generator = torch.Generator().manual_seed(5)
    right = torch.full((1, 1000), 0.2)
    drawn = noise * torch.randn(1, 1000, generator=generator)
    at = torch.logit(right)
    for off, least, most in ((0.0, 0.0, 0.02), (0.2, 0.0, 0.06)):
        truth = right + off * (torch.rand(1, 1000, generator=generator) < 0.5)
        found = torch.sigmoid(held_bias(lambda z, _: z.expand(-1, 1000) * 0, at, truth + drawn, noise, 1, layout))
        error = (found - truth).square().mean().sqrt()
        assert least <= error < most, off
    # Believing either alone would be worse: the network by 0.14, the means by 0.05.
    assert error < 0.05


@pytest.mark.parametrize(
    "made", [lambda s: StackedVAE(s, 3, hidden=8, latent=2), lambda s: StackedGenerator(s, 3, hidden=8, latent=2)]
)
def test_networks_hold_and_their_bias_alone_moves(made):
    torch.manual_seed(0)
    schema = ImageSchema(2, 3, levels=1, classes=3)
    network = made(schema)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=1.0)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    targets = _targets(schema.layout, 3)
    network.hold_at(targets, torch.zeros(3))
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"output_bias"}
    generated = network.generate((0, 50_000, 100_000, 150_000), torch.Generator().manual_seed(4)).view(3, 50_000, -1)
    assert ((generated.mean(dim=1) - targets).abs() <= 0.014 + 0.01 * targets).all()


def test_rare_sizes_of_baskets_are_not_made_up():
    """A released network has the measured shares, also where its start had to leave every size a chance."""
    schema = BasketSchema([str(i) for i in range(30)], max_items=20)
    layout = schema.layout
    targets = torch.zeros(1, layout.width)
    targets[0, :30], targets[0, 31] = 1 / 30, 1.0
    network = StackedVAE(schema, 1, hidden=4, latent=2, fixed_bias=True)
    network.start_at(targets)
    sizes = [np.diff(Mixture(network, torch.ones(1)).sample(20_000, torch.Generator().manual_seed(0)).units.indptr)]
    network.hold_at(targets, torch.zeros(1))
    sizes += [np.diff(Mixture(network, torch.ones(1)).sample(20_000, torch.Generator().manual_seed(0)).units.indptr)]
    assert (sizes[0] == 1).mean() < 0.98
    assert (sizes[1] == 1).mean() > 0.998

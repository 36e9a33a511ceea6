"""A noisy mean embedding moves by at most 1 with a record, and is one event with the gradient that waits for it."""

import math

import pytest
import torch
from contracts.door import Door, overspent
from contracts.drawn import draw_of
from contracts.laws.accounts import account_of
from torch import nn

from lightning_dpgen.gradients.clipping import Fixed
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.per_sample_gradients import materialised
from lightning_dpgen.models.divergences import KERNELS, CodeEmbedding, make_kernel
from lightning_dpgen.models.priors import MixturePrior, NormalPrior, SparsePrior
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.privacy.access import LotId

ROWS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


def _step(rows):
    """Take a step of gradients that lean towards the noisy mean, as those of a divergence do."""
    weight, account = nn.Parameter(torch.zeros(3)), account_of({"embedding": 1.0, "gradient": 1.0})
    draw = draw_of(account, len(rows))
    optimizer = PrivateOptimizer(
        torch.optim.SGD([weight], lr=1.0),
        account=account,
        clipping=Fixed(0.5),
        expected_batch_size=5.0,
        embeddings=["embedding"],
    )
    seen = []

    def then(mean):
        seen.append(mean.clone())
        return materialised({weight: 10 * rows * mean}, draw)

    optimizer.set_gradients(EmbeddingGradients(rows, then, [weight], draw))
    optimizer.step()
    account.verify_complete()
    return seen[0], weight.detach()


def test_a_record_costs_no_more_than_the_access():
    for extra in (100 * ROWS[:1], 0.1 * ROWS[:1], torch.full((1, 3), float("nan"))):
        assert max(overspent(_step, ROWS, torch.cat([extra, ROWS]))) <= 1.0
    assert max(overspent(_step, ROWS[:0], 1e6 * ROWS[:1])) > 0.7, "both noises see it"


@pytest.mark.parametrize("shape", [(), (1,), (8,), (8, 16), (2, 3, 4), (0,)])
def test_a_record_adds_no_more_than_one_whatever_the_shape_of_an_embedding(shape):
    weight, draw = nn.Parameter(torch.zeros(3)), LotId()
    waits = EmbeddingGradients(
        5 * torch.ones(1, *shape), lambda mean: materialised({weight: torch.ones(1, 3)}, draw), [weight], draw
    )
    with Door() as door:
        door.walked(_released, waits)
        (drawn,) = door.walk
    assert drawn.exact.norm() <= 1.0 + 1e-9
    assert math.prod(shape) == 0 or drawn.exact.norm() > 0.999


def _released(waits):
    with account_of({"embedding": 1.0}).open("training") as access:
        waits.given(access, 1.0)


def test_the_mean_is_over_the_expected_lot_and_of_rows_no_longer_than_one():
    with Door() as door:
        door.walked(_step, torch.cat([100 * ROWS[:1], torch.full((1, 3), float("inf")), 0.1 * ROWS]))
        exact = door.walk[0].exact
    expected = ROWS[0] / ROWS[0].norm() + (0.1 * ROWS).sum(dim=0)
    torch.testing.assert_close(exact, expected.double(), rtol=1e-5, atol=1e-6)


PRIORS = {
    "normal": NormalPrior(3),
    "sparse": SparsePrior(3, off=0.7, scale=0.2),
    "mixture": MixturePrior([[1.0, 0.0, -1.0], [0.0, 2.0, 0.5]], scale=0.3),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
def test_an_embedding_has_norm_one_and_the_mean_of_its_prior(prior, kernel):
    embedding = CodeEmbedding(make_kernel(kernel, 3), prior, 36, torch.Generator().manual_seed(0))
    rows = embedding(prior.draw(torch.randn(100_000, prior.noise, generator=torch.Generator().manual_seed(1))))
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows)), rtol=1e-5, atol=0)
    # A coordinate is at most 0.236, so its mean has a deviation below 0.00075: one of 36 is off by 5.5 of these once in a
    # million runs.
    assert (rows.mean(dim=0) - embedding.of_prior).abs().max() < 5.5 * 0.236 / 100_000**0.5


@pytest.mark.parametrize("kernel", KERNELS)
def test_products_of_embeddings_approximate_the_kernel(kernel):
    """Features are means over pairs of independent frequencies: 9,000 of them are off by .05 once in a million runs."""
    kernel, (a, b) = make_kernel(kernel, 3), torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(2))
    embedding = CodeEmbedding(kernel, NormalPrior(3), 18_000, torch.Generator().manual_seed(0))
    found = embedding.at_zero * embedding(a) @ embedding(b).T
    assert (found - kernel(a, b)).abs().max() < 0.05 * kernel.at_zero
    torch.testing.assert_close(kernel(a, a).diagonal(), torch.full((6,), kernel.at_zero))

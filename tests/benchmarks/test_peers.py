"""The plain steps do train: a peer that does less than a whole step would make every ratio look worse than it is."""

import statistics

import peers
import pytest
import torch

# Opacus gives this warning at every step of a network whose records need no gradient.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


@pytest.fixture(autouse=True)
def _seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def _falls(step, steps):
    losses = [step() for _ in range(steps)]
    tenth = max(1, steps // 10)
    return statistics.mean(losses[:tenth]), statistics.mean(losses[-tenth:])


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (peers.linear_vae, {"lot": 100}),
        (peers.linear_vae, {"lot": 100, "fused": False}),
        (peers.linear_vae, {"lot": 128, "group": 16}),
        (peers.convolutional_vae, {"lot": 16, "lr": 3e-3}),
    ],
    ids=["fused", "default", "groups", "convolutional"],
)
def test_a_plain_vae_trains(make, settings):
    before, after = _falls(peers.vae_step(make(), peers.pictures(1000), **settings), 60)
    assert after < 0.5 * before


@pytest.mark.parametrize("ghost", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_opacus_trains(ghost):
    step = peers.opacus_step(peers.linear_vae(), peers.pictures(300), 16, ghost=ghost, multiplier=0.1)
    before, after = _falls(step, 60)
    assert after < 0.7 * before


def test_the_two_modes_of_opacus_take_the_same_step():
    """Without noise and with a large bound it is also the plain step."""
    records, after = peers.pictures(1).expand(100, -1), []
    for take in ("plain", "ghost", "hooks"):
        torch.manual_seed(1)
        model = peers.linear_vae()
        if take == "plain":
            step = peers.vae_step(model, records, 100)
        else:
            step = peers.opacus_step(model, records, 100, ghost=take == "ghost", bound=1e6, multiplier=0.0)
        torch.manual_seed(2)
        step()
        after.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach())
    for other in after[1:]:
        # Adam's first step is the sign of a gradient: a pixel whose gradient is rounding error may go either way.
        assert (other - after[0]).abs().gt(1e-5).float().mean() < 1e-3


def test_a_critic_trains():
    before, after = _falls(peers.critic_step(peers.critic(), peers.generator(), peers.rows(500), lr=1e-3), 60)
    assert before > 0 > after


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_an_rbm_trains(momentum):
    records, model = peers.pictures(500), peers.RBM()
    step = peers.rbm_step(model, records, momentum=momentum)

    def error():
        return float((model.visible_given(model.hidden_given(records)) - records).square().mean())

    before = error()
    for _ in range(60):
        step()
    assert error() < 0.5 * before
    assert set(model.chains.unique().tolist()) == {0.0, 1.0}
    # They start at a half, and a negative phase that did nothing would leave the weights to grow.
    assert float(model.chains.mean()) < 0.3


def test_a_coin_falls_as_often_as_it_should():
    p = torch.rand(200_000)
    assert float((peers.coin(p.clone()) - p).mean()) == pytest.approx(0.0, abs=5e-3)


def test_mmd_is_that_of_the_definition():
    codes, normals = torch.randn(3, 4, 2), torch.randn(3, 4, 2)

    def kernel(a, b):
        return (4.0 / (4.0 + torch.cdist(a, b).square())).mean(dim=(1, 2))

    expected = kernel(codes, codes) + kernel(normals, normals) - 2.0 * kernel(codes, normals)
    torch.testing.assert_close(peers.mmd(codes, normals), expected, rtol=1e-4, atol=1e-5)


def test_opacus_draws():
    sizes = [len(draw()) for draw in [peers.opacus_draw(10_000, 100)] for _ in range(30)]
    assert statistics.mean(sizes) == pytest.approx(100, abs=12)


def test_parameters():
    assert sum(p.numel() for p in peers.linear_vae().parameters()) == 315_988


def test_every_peer_runs():
    records = peers.pictures(50)
    for contenders in peers.families(records).values():
        for step in contenders.values():
            step()

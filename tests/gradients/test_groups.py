"""Gradients of groups of records equal those of a loop over the groups, and an empty group adds nothing."""

import dataclasses

import pytest
import torch
from gradients.families import RULED
from torch import nn

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.gradients.engines import ENGINES, term_gradients
from lightning_dpgen.gradients.factors import Dense, RankOne
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.gradients.terms import PerGroup, PerRecord
from lightning_dpgen.models.divergences import GRADIENTS_OF_GROUPS, KERNELS, OF_GROUPS, GroupCodes, make_kernel
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

PLAIN = ("one linear", "positions", "wide layer, few positions", "convolution", "embedding", "a scale and a shift")


def _spread(values, groups):
    """Make the variance of a network's outputs for the records of a group, which is no sum over its records."""
    held, there = groups.gather(values), groups.mask[:, :, None]
    mean = held.sum(dim=1, keepdim=True) / there.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(there, held - mean, 0.0).square().sum(dim=(1, 2)) + held.sum(dim=(1, 2))


def _term(case, groups):
    def loss(lot, noise, groups):
        return _spread(case.term.loss(lot, noise)[:, None] * (1 + noise[:, :1]), groups)

    return PerGroup(loss, groups, noise=case.term.noise, places=7)


def _group_by_group(case, term, lot, noise, groups):
    """Compute gradients (m, P) and losses (m,) by plain autograd, with each group's records in a lot of their own."""
    parameters, rows, losses = [p for p in case.network.parameters() if p.requires_grad], [], []
    for j in range(groups.count):
        members = (groups.index == j).nonzero()[:, 0]
        if not len(members):
            rows.append(torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64))
            losses.append(torch.zeros((), dtype=torch.float64))
            continue
        ends = torch.searchsorted(members, torch.tensor(lot.offsets)).tolist()
        alone = Groups(torch.zeros_like(members), 1)
        loss = term.loss(lot.map(lambda x, m=members: x[m], tuple(ends)), noise[members], alone).sum()
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in found]))
        losses.append(loss.detach())
    return torch.stack(rows), torch.stack(losses)


def _sums(gradients, parameters, count):
    buffer = GradientBuffer(parameters)
    rows = []
    for i in range(count):
        gradients.weighted_sum(torch.eye(count, dtype=torch.float64)[i], buffer.views)
        rows.append(buffer.flat.clone())
    return torch.stack(rows)


@pytest.mark.parametrize("name", [*PLAIN, *(n for n in RULED if n.startswith("vae k=3")), "stacked convolutions"])
@pytest.mark.parametrize(
    "index", [[0, 1, 2, 0, 1, 2], pytest.param([1] * 6, marks=pytest.mark.slow), [2, 0, 0, 2, 2, 2]], ids=str
)
def test_equals_a_loop_over_groups(name, index):
    torch.manual_seed(0)
    case = RULED[name]()
    lot, noise, groups = case.lot((0, 2, 4, 6)), case.noise(6), Groups(torch.tensor(index), 3, places=7)
    term, parameters = _term(case, 3), [p for p in case.network.parameters() if p.requires_grad]
    rows, losses = _group_by_group(case, term, lot, noise, groups)
    there = torch.bincount(groups.index, minlength=3) > 0
    for engine in ENGINES if case.k == 1 else ["ghost"]:
        gradients = ENGINES[engine](case.network, term, lot, noise, groups)
        assert gradients.groups == 3
        torch.testing.assert_close(gradients.losses[there], losses[there])
        torch.testing.assert_close(_sums(gradients, parameters, 3), rows, rtol=1e-9, atol=1e-11)
        # Where rows cancel, a norm has room for a thousandth of the lengths of what was added up.
        exact = rows.norm(dim=1)
        assert (gradients.norms() >= exact * (1.0 - 1e-7)).all()
        torch.testing.assert_close(gradients.norms(), exact, rtol=2e-3, atol=1e-7)
        assert (gradients.norms()[~there] < 1e-150).all()


@pytest.mark.parametrize("beyond", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_beyond_the_places_of_its_group_adds_nothing_whatever_its_numbers_are(engine, beyond):
    layer = nn.Linear(2, 1).double()
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [beyond, beyond], [5.0, 6.0]], dtype=torch.float64)
    term = PerGroup(lambda lot, _, groups: groups.gather(layer(lot.records)).sum(dim=(1, 2)), 2, places=2)
    groups = Groups(torch.tensor([0, 0, 0, 1]), 2, places=2)
    found = ENGINES[engine](layer, term, Lot(x, (0, 4)), torch.empty(4, 0), groups)
    expected = torch.tensor([[4.0, 6.0, 2.0], [5.0, 6.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(_sums(found, list(layer.parameters()), 2), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_records_beyond_the_places_of_a_group_are_left_out(engine):
    layer, x = nn.Linear(2, 1).double(), torch.rand(6, 2, dtype=torch.float64)
    term = PerGroup(lambda lot, _, groups: groups.gather(layer(lot.records)).sum(dim=(1, 2)), 2, places=2)
    groups = Groups(torch.tensor([0, 1, 0, 0, 0, 1]), 2, places=2)
    found = ENGINES[engine](layer, term, Lot(x, (0, 6)), torch.empty(6, 0), groups)
    kept = torch.stack([x[[0, 2]].sum(dim=0), x[[1, 5]].sum(dim=0)])
    expected = torch.cat([kept, torch.full((2, 1), 2.0, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(_sums(found, list(layer.parameters()), 2), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lot_of_no_records_has_groups_of_none(engine):
    layer = nn.Linear(2, 1)
    term = PerGroup(lambda lot, _, groups: groups.gather(layer(lot.records)).sum(dim=(1, 2)), 4, places=3)
    gradients = term_gradients(layer, term, Lot(torch.zeros(0, 2), (0, 0)), PrivateStream(1), engine=engine)
    losses = gradients.losses
    assert losses.tolist() == [0.0] * 4 and gradients.norms().shape == (4,) and (gradients.norms() < 1e-15).all()
    assert not _sums(gradients, list(layer.parameters()), 4).any()


def test_what_a_loss_draws_from_torch_is_private_and_leaves_public_numbers_alone():
    layer, seen = nn.Linear(2, 1), []
    term = PerRecord(lambda lot, _: (layer(lot.records) * 0.0 + torch.rand(len(lot), 1)).sum(dim=1))
    lot = Lot(torch.arange(6.0).view(3, 2), (0, 3))
    for stream in (PrivateStream(1), PrivateStream(1), PrivateStream(), PrivateStream(secure=True)):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        seen.append(term_gradients(layer, term, lot, stream).losses)
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(seen[0], seen[1])
    assert len({tuple(x.flatten().tolist()) for x in seen}) == 3


def test_the_oracle_draws_for_each_record_by_itself():
    layer = nn.Linear(2, 1)
    term = PerRecord(lambda lot, _: (layer(lot.records) * torch.rand(len(lot), 1)).sum(dim=1))
    gradients = term_gradients(layer, term, Lot(torch.ones(30, 2), (0, 30)), PrivateStream(1), engine="func")
    assert len(gradients.norms().unique()) == 30


def test_a_record_of_no_group_has_no_weight():
    groups = Groups(torch.tensor([0, 2, 1, 3, 0]), 2)
    assert groups.shared(torch.tensor([0.5, 0.25])).tolist() == [0.5, 0.0, 0.25, 0.0, 0.5]


@pytest.mark.parametrize("broken", [False, True])
def test_a_record_of_no_group_adds_nothing_whatever_its_numbers_are(broken):
    """Also beside a group that is silenced, since 0 times infinity is no number."""
    weight = nn.Parameter(torch.zeros(2, 3))
    left, right = torch.ones(4, 2), torch.ones(4, 3)
    left[3] = torch.inf  # the record of no group
    left[2] = torch.nan if broken else 1.0
    groups = Groups(torch.tensor([0, 0, 1, 2]), 2)
    gradients = PerSampleGradients({weight: RankOne(left, right, (2, 3))}, [[weight]], 2, groups=2, partition=groups)
    out = {weight: torch.zeros(2, 3)}
    gradients.weighted_sum(torch.ones(2), out)
    assert out[weight].tolist() == [[2.0 if broken else 3.0] * 3] * 2


def test_wrong_terms_are_named():
    layer, lot = nn.Linear(2, 1), Lot(torch.ones(3, 2), (0, 3))
    with pytest.raises(ValueError, match="one value for each group"):
        term = PerGroup(lambda lot, _, groups: layer(lot.records).sum(dim=1).expand(2), 4, places=3)
        term_gradients(layer, term, lot, PrivateStream(1))
    with pytest.raises(ValueError, match="groups=0"):
        PerGroup(lambda *_: None, 0)
    with pytest.raises(ValueError, match="places=0"):
        PerGroup(lambda *_: None, 2, places=0)
    with pytest.raises(ValueError, match="PerGroup"):
        term_gradients(layer, PerGroup(lambda lot, _, groups: None, 4), lot, PrivateStream(1))
    with pytest.raises(ValueError, match="DataFree"):
        term_gradients(layer, PerRecord(lambda lot, _: lot.records.sum(dim=1)), lot, PrivateStream(1))
    with pytest.raises(ValueError, match="not a loss of records"):
        term_gradients(layer, lambda lot: lot.records.sum(), lot, PrivateStream(1))


@pytest.mark.parametrize(
    "loss, message",
    [
        (lambda layer, x: (layer(x) @ layer(x).T * layer.bias).sum(dim=1), "beside it"),
        (lambda layer, x: layer(layer(x).flatten()[:, None].expand(-1, 2).reshape(1, -1)[:, :2]).sum() * x[:, 0],
         "beside it"),
    ],
)  # fmt: skip
def test_records_that_meet_each_other_are_refused(loss, message):
    layer, lot = nn.Linear(2, 1), Lot(torch.rand(5, 2), (0, 5))
    with pytest.raises(ValueError, match=message):
        term_gradients(layer, PerRecord(lambda lot, _: loss(layer, lot.records)), lot, PrivateStream(1))


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, gradient):
        x, scale = ctx.saved_tensors
        return gradient * scale, (gradient * x).sum()


class ScaledByRecord(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, scale):
        return x * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    backward = Scaled.backward


def _scaling(function):
    torch.manual_seed(0)
    layer = nn.Linear(2, 1)
    layer.register_parameter("scale", nn.Parameter(torch.tensor(2.0)))
    return layer, PerRecord(lambda lot, _: function.apply(layer(lot.records), layer.scale).sum(dim=1))


def test_a_function_with_a_backward_pass_of_its_own():
    lot = Lot(torch.rand(5, 2), (0, 5))
    with pytest.raises(ValueError, match=r"generate_vmap_rule = True.*test_groups.py"):
        term_gradients(*_scaling(Scaled), lot, PrivateStream(1))
    layer, term = _scaling(ScaledByRecord)
    with pytest.warns(UserWarning, match="no rule for"):
        found = term_gradients(layer, term, lot, PrivateStream(1)).norms()
    y = layer(lot.records)[:, 0]
    torch.testing.assert_close(found.float(), (4 * (lot.records.square().sum(dim=1) + 1) + y.square()).sqrt())


def test_an_auxiliary_network_and_several_passes_do_not_corrupt_a_gradient():
    """No gradient of another network in the graph is computed, and passes of other sizes are counted right."""
    critic, generator = nn.Linear(3, 1).double(), nn.Linear(2, 3).double()

    def loss(lot, noise):
        made = generator(noise[:, None, :].expand(-1, 4, -1))  # four a record
        return critic(lot.records).sum(dim=1) - critic(made).sum(dim=(1, 2)) / 4

    lot = Lot(torch.rand(5, 3, dtype=torch.float64), (0, 5))
    term = PerRecord(loss, noise=2)
    ghost = term_gradients(critic, term, lot, PrivateStream(1))
    func = term_gradients(critic, term, lot, PrivateStream(1), engine="func")
    parameters = list(critic.parameters())
    torch.testing.assert_close(_sums(ghost, parameters, 5), _sums(func, parameters, 5))
    assert all(p.grad is None for p in generator.parameters())


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=str)
def test_embeddings_that_change_with_the_lot_are_refused(options):
    lot = Lot(torch.tensor([[0, 1], [2, 3]]), (0, 2))
    layer = nn.Embedding(4, 2, **options)
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match=next(iter(options))):
        term_gradients(layer, PerRecord(lambda lot, _: layer(lot.records).sum(dim=(1, 2))), lot, PrivateStream(1))
    assert torch.equal(before, layer.weight.detach())


def test_bags_that_are_cut_by_offsets_are_refused():
    """The lengths of bags would be shapes."""
    layer, lot = nn.EmbeddingBag(6, 3, mode="sum"), Lot(torch.tensor([[1, 2, 0], [5, 5, 1]]), (0, 2))
    term = PerRecord(lambda lot, _: layer(lot.records.flatten(), torch.tensor([0])).sum(dim=1))
    with pytest.raises(ValueError, match="padded to a fixed length"):
        term_gradients(layer, term, lot, PrivateStream(1))


def _codes(network, lot, noise, groups):
    mean, log_variance = network.encode(lot.records, lot.offsets)
    z = mean + torch.exp(0.5 * log_variance) * noise
    return GroupCodes(*(groups.gather(x).detach() for x in (z, mean, log_variance)), groups.mask)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(("kind", "kernel"), [*(("mmd", kernel) for kernel in KERNELS), ("kl", "imq"), ("tc", "imq")])
def test_the_closed_form_of_a_divergence_of_groups(kind, k, kernel):
    prior, generator = {"kind": "sparse", "scale": 0.2}, torch.Generator().manual_seed(k)
    network = StackedVAE(ImageSchema(2, 3, levels=1, classes=2), k, hidden=4, latent=2, prior=prior, generator=generator)
    network.double()
    lot = Lot(torch.rand(9, 8, dtype=torch.float64, generator=generator), (0, 9) if k == 1 else (0, 4, 4, 9))
    draws = network.prior.draw(torch.randn(5, network.prior.noise, dtype=torch.float64, generator=generator))

    def weighted(function):
        return lambda codes: 3.0 * function(codes, draws, network.prior, make_kernel(kernel, 2, 1.5))

    divergence, known = weighted(OF_GROUPS[kind]), GRADIENTS_OF_GROUPS.get(kind)
    term = network.group_term(divergence, 4, places=6, gradient=None if known is None else weighted(known))
    groups = Groups(torch.tensor([0, 1, 1, 3, 0, 0, 1, 3, 0]), 4, places=6)
    noise = torch.randn(9, term.noise, dtype=torch.float64, generator=generator)
    rows = []
    by_autograd = network.group_term(divergence, 4, places=6)
    for own in (term, by_autograd, dataclasses.replace(term, forms=None)):
        for engine in ENGINES if k == 1 else ["ghost"]:
            gradients = ENGINES[engine](network, own, lot, noise, groups)
            torch.testing.assert_close(gradients.losses, divergence(_codes(network, lot, noise, groups)))
            rows.append(_sums(gradients, list(network.parameters()), 4))
            # Norms are in 32 bits, as in the families.
            torch.testing.assert_close(gradients.norms(), rows[-1].norm(dim=1), rtol=2e-5, atol=1e-9)
    for other in rows[1:]:
        torch.testing.assert_close(rows[0], other)


@pytest.mark.parametrize("shape", [(1, 7), (4, 200), (40, 50), (200, 300)])
def test_a_norm_of_a_group_is_not_lost_where_its_records_cancel(shape):
    """Two records with gradients of length 1e8 and more that cancel: the released sum rounds in another order."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(12, shape[0], generator=generator), torch.randn(12, shape[1], generator=generator)
    left, right = torch.stack([1e4 * left, -1e4 * left], dim=1).flatten(0, 1), 1e4 * right.repeat_interleave(2, dim=0)
    groups, out = Groups(torch.zeros(24, dtype=torch.int64), 1), torch.zeros(shape)
    # A slack of a thousandth of the lengths of what was added up, of which there are more than the longest.
    longest = float((left.norm(dim=1) * right.norm(dim=1)).sum())
    parameter = nn.Parameter(torch.zeros(shape))
    for factors in (RankOne(left, right, shape), Dense(RankOne(left, right, shape).materialise())):
        norm = float(PerSampleGradients({parameter: factors}, [[parameter]], 1, groups=1, partition=groups).norms())
        assert 0.9e-3 * longest < norm < (1e-2 * longest)
        for _ in range(20):
            order = torch.randperm(24, generator=generator)
            factors.mapped(lambda x, order=order: x[order]).weighted_sum(torch.ones(24), None, out, add=False)
            assert float(out.double().norm()) <= norm


@pytest.mark.parametrize("kind", ["mmd", "kl"])
def test_learned_centres_have_the_gradients_of_each_group(kind):
    """Draws of the prior move with its centres; each group is compared with plain autograd of its own loss."""
    centres = {"kind": "mixture", "centres": [[1.0, 0.0], [-1.0, 0.5]], "scale": 0.4, "learned": True}
    network = StackedVAE(ImageSchema(2, 3, levels=1), 1, hidden=4, latent=2, prior=centres).double()
    lot, numbers = Lot(torch.rand(9, 6, dtype=torch.float64), (0, 9)), torch.randn(5, 3, dtype=torch.float64)

    def divergence(codes):
        return OF_GROUPS[kind](codes, network.prior.draw(numbers), network.prior, make_kernel("imq", 2))

    term, groups = network.group_term(divergence, 4, places=6), Groups(torch.tensor([0, 1, 1, 3, 0, 0, 1, 3, 0]), 4)
    noise, parameters = torch.randn(9, term.noise, dtype=torch.float64), list(network.parameters())
    gradients = ENGINES["ghost"](network, term, lot, noise, groups)
    found = _sums(gradients, parameters, 4)
    losses = term.loss(lot, noise, groups)
    for group in range(4):
        own = torch.autograd.grad(losses[group], parameters, retain_graph=True, allow_unused=True)
        flat = torch.cat(
            [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, own, strict=True)]
        )
        torch.testing.assert_close(found[group], flat)
    assert losses[2] == 0.0 and float(found[0].norm()) > 0.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: PerRecord(lambda lot, noise, groups: noise),
            r"groups\): expected loss\(lot, noise\); a loss",
        ),
        (
            lambda: PerGroup(lambda lot, noise: noise, 4),
            r"expected loss\(lot, noise, groups\); a loss of each",
        ),
        (lambda: PerGroup(_spread, 0), "groups=0: expected a whole number"),
    ],
)
def test_a_term_of_another_kind_is_refused_when_it_is_made(make, said):
    with pytest.raises(ValueError, match=said):
        make()
    assert PerRecord(torch.sub).loss is torch.sub  # code without a signature is taken as it is

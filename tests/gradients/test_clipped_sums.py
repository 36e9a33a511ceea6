"""The clipped sum of either engine equals a plain loop: one record at a time, autograd, clip, add."""

import math
import warnings

import pytest
import torch
from gradients.families import BY_FUNC, FAMILY, RULED
from marks import only
from torch import nn

from lightning_dpgen.gradients.clipping import Fixed, clip_weights
from lightning_dpgen.gradients.engines import ENGINES, term_gradients
from lightning_dpgen.gradients.factors import CentredRankOne, MaskedRankOne, OuterSum, RankOne
from lightning_dpgen.gradients.per_sample_gradients import materialised
from lightning_dpgen.gradients.privatize import GradientBuffer, clipped_weights
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

LOTS = {"even": (0, 2, 4, 6), "hollow": (0, 5, 5, 6), "lonely": (0, 0, 1, 1), "as many as positions": (0, 1, 2, 3)}
# torch.func does not use closed forms, so it need not run the taped cases, too.
CASES = {
    f"{name}, by {engine}": (make, ENGINES[engine])
    for name, make in FAMILY.items()
    for engine in ENGINES
    if engine == "ghost" or not name.endswith("taped")
}


def _on_lots():
    """Yield each case with its lots; the end of the first component matters only to a mixture.

    The default suite has one lot of several records for each case, and for every third of our own rules one of a single
    record, too.
    """
    for place, (name, (make, engine)) in enumerate(CASES.items()):
        mixture = make().k > 1
        quick = {"hollow" if mixture else "even"} | ({"lonely"} if "by ghost" in name and not place % 3 else set())
        for lot, offsets in LOTS.items():
            if lot != "hollow" or mixture:
                marks = () if lot in quick else pytest.mark.slow
                yield pytest.param(make, engine, offsets, id=f"{name}, {lot}", marks=marks)


def _parameters(network):
    return [p for p in network.parameters() if p.requires_grad]


def _loop(term, lot, noise, parameters):
    """Compute the gradient of each record by itself, flat."""
    rows = []
    for i in range(len(lot)):
        alone = tuple(int(i < end) for end in lot.offsets[1:])
        loss = term.loss(Lot(lot.records[i : i + 1], (0, *alone)), noise[i : i + 1]).sum()
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.to_dense().flatten() for g in found]))
    return torch.stack(rows)


@pytest.mark.filterwarnings("ignore:no rule for")
@pytest.mark.parametrize("make, engine, offsets", _on_lots())
def test_equals_a_loop_over_single_records(make, engine, offsets):
    case = make()
    lot, noise, parameters = case.lot(offsets), case.noise(offsets[-1]), _parameters(case.network)
    rows = _loop(case.term, lot, noise, parameters)
    norms = rows.norm(dim=1)
    bound = float(norms.median()) * 0.9  # some are clipped, some are not
    gradients = engine(case.network, case.term, lot, noise)
    losses = gradients.losses
    torch.testing.assert_close(losses, case.term.loss(lot, noise).detach())
    torch.testing.assert_close(gradients.norms().double(), norms, rtol=case.rounding, atol=1e-7)
    buffer = GradientBuffer(parameters)
    buffer.flat.fill_(7.0)
    gradients.weighted_sum(clip_weights(norms, bound), buffer.views)
    expected = (rows * (bound * (1 - 1e-5) / norms).clamp(max=1.0)[:, None]).sum(dim=0)
    torch.testing.assert_close(buffer.flat, expected, rtol=1e-10, atol=1e-12)
    assert _parameters(case.network) == parameters, "what was there is there again"


@pytest.mark.parametrize("make", RULED.values(), ids=RULED.keys())
def test_everything_that_has_a_rule_is_served_by_it(make):
    case = make()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="no rule for|There is a performance drop")
        ENGINES["ghost"](case.network, case.term, case.lot((0, 1, 3, 4)), case.noise(4))


def test_gradients_under_a_mask_are_not_written_out():
    case = RULED["of a mask"]()
    found = ENGINES["ghost"](case.network, case.term, case.lot((0, 1, 3, 4)), case.noise(4))
    assert [type(factors) for factors in found._factors.values()] == [MaskedRankOne]


@pytest.mark.parametrize("make, name", BY_FUNC.values(), ids=BY_FUNC.keys())
def test_everything_else_says_once_that_it_is_not(make, name):
    case = make()
    for expected in ([name], []):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            ENGINES["ghost"](case.network, case.term, case.lot((0, 4)), case.noise(4))
        ours = [str(w.message) for w in said if str(w.message).startswith("no rule for")]
        assert [text.split()[3].rstrip(":") for text in ours] == expected


@pytest.mark.filterwarnings("ignore:no rule for")
@pytest.mark.parametrize("make", FAMILY.values(), ids=FAMILY.keys())
def test_in_float32_no_norm_is_rounded_down(make):
    case = make()
    case.float()
    lot, noise = case.lot((0, 7, 8, 11)), case.noise(11)
    lot = lot if case.indices else lot.to("cpu", torch.float32)
    gradients = ENGINES["ghost"](case.network, case.term, lot, noise.float())
    norms, buffer = gradients.norms(), GradientBuffer(_parameters(case.network))
    for i in range(len(lot)):
        gradients.weighted_sum(torch.eye(len(lot))[i], buffer.views)
        contribution = float(buffer.flat.double().norm())
        # The products themselves are rounded, by a few parts in ten million.
        assert contribution * (1 - 1e-6) <= float(norms[i]) <= contribution * (1 + 1e-3) + 1e-6


# The default suite has every third.
@pytest.mark.parametrize(("make", "engine"), only(CASES, *list(CASES)[::3]))
def test_a_lot_of_no_records_is_an_exact_zero(make, engine):
    case = make()
    gradients = engine(case.network, case.term, case.lot((0, 0, 0, 0)), case.noise(0))
    losses = gradients.losses
    assert gradients.norms().shape == losses.shape == (0,)
    buffer = GradientBuffer(_parameters(case.network))
    buffer.flat.fill_(7.0)
    gradients.weighted_sum(torch.zeros(0, dtype=torch.float64), buffer.views)
    assert (buffer.flat == 0).all()


def test_a_layer_that_the_loss_does_not_use_gets_an_exact_zero():
    used, idle = nn.Linear(3, 1), nn.Linear(7, 2)
    network = nn.ModuleList([used, idle])
    term = PerRecord(lambda lot, _: used(lot.records).sum(dim=1))
    gradients = ENGINES["ghost"](network, term, Lot(torch.rand(4, 3), (0, 4)), torch.empty(4, 0))
    buffer = GradientBuffer(network.parameters())
    buffer.flat.fill_(7.0)
    gradients.weighted_sum(torch.ones(4), buffer.views)
    assert all((buffer.views[p] == 0).all() for p in idle.parameters())
    torch.testing.assert_close(buffer.views[used.bias], torch.tensor([4.0]))


def test_each_record_gets_its_own_noise_from_the_private_stream():
    case = FAMILY["positions"]()
    network, term, lot = case.network, case.term, case.lot((0, 6))
    scale = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    noisy = PerRecord(lambda lot, noise: 0.0 * term.loss(lot, noise) + noise @ scale, noise=3)
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    losses = term_gradients(network, noisy, lot, PrivateStream(seed=1)).losses
    drawn = PrivateStream(seed=1).normal((6, 3), dtype=torch.float64)
    torch.testing.assert_close(losses, drawn @ scale)
    assert torch.equal(before, torch.random.get_rng_state()), "the public stream is not consumed"
    with pytest.raises(ValueError, match="engine='vmap'"):
        term_gradients(network, term, lot, PrivateStream(seed=1), engine="vmap")


def test_a_norm_is_not_lost_where_outer_products_cancel():
    """r outer products of norm 1e4 whose sum has norm 1: rounding must not make the record look smaller than it is."""
    layer = nn.Linear(3, 1, bias=False)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(200, 1, 3, generator=generator)
    records = torch.cat([1e4 * direction, -1e4 * direction + 0.1 * torch.rand(200, 1, 3, generator=generator)], dim=1)
    term = PerRecord(lambda lot, _: layer(lot.records).sum(dim=(1, 2)))
    gradients = ENGINES["ghost"](layer, term, Lot(records, (0, 200)), torch.empty(200, 0))
    exact = records.double().sum(dim=1).norm(dim=1)
    assert (gradients.norms().double() >= exact).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_norm_whose_square_is_no_float32_is_not_lost(engine):
    """A tiny output gradient on a huge record: its square underflows, and the contribution would pass the bound."""
    layer = nn.Linear(1, 100, bias=False)
    term = PerRecord(lambda lot, _: 2.6e-23 * layer(lot.records).sum(dim=1))
    lot = Lot(torch.full((1, 1), 1.8e19), (0, 1))
    gradients = term_gradients(layer, term, lot, PrivateStream(1), engine=engine)
    assert 2.6e-23 * 1.8e19 * 10 * 0.99999 < float(gradients.norms()) < 100


def test_many_small_numbers_beside_a_few_large_ones_count():
    weight = nn.Parameter(torch.zeros(1_000_064))
    gradient = torch.full((1, 1_000_064), 2e-4)
    gradient[0, :64] = 1.0
    norm = float(materialised({weight: gradient}).norms())
    exact = math.sqrt(64 + 1e6 * float(torch.tensor(2e-4)) ** 2)
    assert exact <= norm <= exact * 1.0005


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3)], ids=["bare", "affine"])
@pytest.mark.parametrize("engine", ENGINES)
def test_layers_that_mix_records_are_refused_without_a_trainer_too(layer, engine):
    network = nn.Sequential(nn.Linear(3, 3), layer)
    term = PerRecord(lambda lot, _: network(lot.records).sum(dim=1))
    with pytest.raises(ValueError, match=type(layer).__name__):
        term_gradients(network, term, Lot(torch.rand(4, 3), (0, 4)), PrivateStream(1), engine=engine)


@pytest.mark.parametrize("flushed", [False, True], ids=["denormals kept", "denormals flushed"])
def test_no_norm_is_too_small_where_squares_vanish_beside_huge_factors(flushed):
    """float32 squares below 1e-38 are lost, but products of large numbers and small ones are not."""
    torch.set_flush_denormal(flushed)
    try:
        for tiny, huge in ((9e-20, 7e18), (1e-22, 5e18), (3e-30, 1e15)):
            left, right = torch.full((2, 2, 5), tiny), torch.full((2, 2, 5), huge)
            chains, free = torch.full((3, 5), -tiny), torch.full((3, 5), huge)
            kinds = [
                OuterSum([(left, right)], (5, 5), (5, 5)),
                OuterSum([(right, left)], (5, 5), (5, 5)),
                RankOne(left[:, 0], right[:, 0], (5, 5)),
                MaskedRankOne(RankOne(left[:, 0], right[:, 0], (5, 5)), torch.ones(5, 5).tril()),
                CentredRankOne(RankOne(left[:, 0], right[:, 0], (5, 5)), chains, free),
            ]
            for factors in kinds:
                if isinstance(factors, CentredRankOne):
                    exact = left[:, 0, :, None].double() * right[:, 0, None].double() - chains.double().T @ free.double()
                else:
                    exact = factors.mapped(torch.Tensor.double).materialise()
                assert (factors.norms() >= exact.flatten(1).norm(dim=1) * (1 - 1e-6)).all()
    finally:
        torch.set_flush_denormal(False)


def test_a_record_that_is_not_finite_takes_nothing_of_what_is_shared():
    own = RankOne(torch.ones(2, 2), torch.ones(2, 2), (2, 2))
    factors = CentredRankOne(own, torch.ones(1, 2), torch.full((1, 2), 0.5))
    out = torch.zeros(2, 2)
    factors.weighted_sum(torch.ones(2), torch.tensor([True, False]), out, add=False)
    assert torch.equal(out, torch.full((2, 2), 0.5))


def test_a_factor_below_the_normal_numbers_is_zero():
    weight = torch.nn.Parameter(torch.zeros(1))
    gradients = materialised({weight: torch.full((1, 1), 5e29)})
    assert float(clipped_weights(gradients, Fixed(1e-7), (1e-7,), 1e6, torch.float32)) == 0.0
    assert float(clipped_weights(gradients, Fixed(1.0), (1.0,), 1.0, torch.float32)) > 0.0

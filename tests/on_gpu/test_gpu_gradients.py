"""Gradients on a GPU: those of the processor, in all bits where a bound rests on them, and each record alone."""

import pytest
import torch
import torch.nn.functional as F
from gradients import families
from on_gpu.gpu_mark import cases_on_gpu, needs_gpu
from torch import nn

from lightning_dpgen.common.precision import full_precision
from lightning_dpgen.gradients.clipping import Fixed, clip_weights
from lightning_dpgen.gradients.engines import ENGINES, term_gradients
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.per_sample_gradients import materialised
from lightning_dpgen.gradients.privatize import GradientBuffer, privatize
from lightning_dpgen.gradients.probes import ConstantDraws
from lightning_dpgen.gradients.terms import PerGroup, PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

pytestmark = [needs_gpu, pytest.mark.filterwarnings("ignore")]

GPU = "cuda"
FAMILY = cases_on_gpu(families.FAMILY)
CASES = {
    f"{name}, by {engine}": (make, ENGINES[engine])
    for name, make in FAMILY.items()
    for engine in ENGINES
    if engine == "ghost" or not name.endswith("taped")
}
# torch's kernel of a weight norm on a GPU takes its root in float32 (`sqrtf`), whatever the type. So the network itself is
# another one by 6e-8, and its gradients by a small multiple of that; each norm is that of the gradient that is summed.
ROUNDED = {name: 2e-6 for name in CASES if name.startswith("weight norm")}


def _found(make, engine, device, offsets):
    torch.manual_seed(0)
    case = make().to(device)
    parameters = [p for p in case.network.parameters() if p.requires_grad]
    gradients = engine(case.network, case.term, case.lot(offsets).to(device), case.noise(offsets[-1]).to(device))
    norms, buffer = gradients.norms(), GradientBuffer(parameters)
    known = norms.cpu().nan_to_num(1.0)
    bound = float(known.median()) * 0.9 if len(known) else 1.0
    gradients.weighted_sum(clip_weights(norms, bound), buffer.views)
    found = norms, buffer.flat, gradients.losses
    assert all(x.device.type == device for x in found)
    return [x.cpu().double() for x in found]


@pytest.mark.parametrize("name", CASES)
def test_norms_and_clipped_sums_are_those_of_the_processor(name):
    """In float64 both round in the sixteenth digit; norms of nearly cancelling products in the eighth."""
    (make, engine), sums = CASES[name], ROUNDED.get(name, 1e-9)
    for offsets in ((0, 5, 5, 6), (0, 0, 0, 0)):
        own, expected = (_found(make, engine, device, offsets) for device in (GPU, "cpu"))
        for found, there, tolerance in zip(own, expected, (max(1e-6, sums), sums, sums), strict=True):
            torch.testing.assert_close(found, there, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("make", FAMILY.values(), ids=FAMILY.keys())
def test_in_float32_no_norm_is_rounded_down_whatever_precision_is_asked_for(make):
    """The losses may be computed in eleven bits; what the bound rests on is not."""
    torch.manual_seed(0)
    case = make()
    case.float()
    case.to(GPU)
    lot, noise = case.lot((0, 7, 8, 11)), case.noise(11).float().to(GPU)
    lot = lot.to(GPU) if case.indices else lot.to(GPU, torch.float32)
    torch.set_float32_matmul_precision("high")
    try:
        gradients = ENGINES["ghost"](case.network, case.term, lot, noise)
        buffer = GradientBuffer(p for p in case.network.parameters() if p.requires_grad)
        with full_precision(torch.device(GPU)):
            norms = gradients.norms().tolist()
            for i in range(len(lot)):
                gradients.weighted_sum(torch.eye(len(lot), device=GPU)[i], buffer.views)
                contribution = float(buffer.flat.double().norm())
                assert contribution * (1 - 1e-6) <= norms[i] <= contribution * (1 + 1e-3) + 1e-6
    finally:
        torch.set_float32_matmul_precision("highest")


PRODUCTS = {
    "matrices": lambda x, w: x @ w,
    "convolution": lambda x, w: F.conv2d(x.view(16, 64, 8, 8), w.view(64, 64, 4, 4), padding=1),
    "the other way": lambda x, w: F.conv_transpose2d(x.view(16, 64, 8, 8), w.view(64, 64, 4, 4), padding=1),
}


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_full_precision_has_all_bits(product):
    """Outside of it products have eleven bits, so this test sees what it is about."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(256, 256, generator=generator).to(GPU) for _ in range(2))
    exact = product(x.double(), w.double())

    def error():
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        own, there = product(a, b), product(x.double(), w.double())
        gradient = torch.autograd.grad(own, b, torch.ones_like(own))[0].double()
        double = w.double().requires_grad_()
        expected = torch.autograd.grad(product(x.double(), double), double, torch.ones_like(there))[0]
        return max(
            float((found - known).abs().max() / known.abs().max()) for found, known in ((own, exact), (gradient, expected))
        )

    torch.set_float32_matmul_precision("high")
    try:
        rounded = error()
        with full_precision(torch.device(GPU)):
            whole = error()
        with torch.autocast(GPU, dtype=torch.bfloat16), full_precision(torch.device(GPU)):
            under_autocast = error()
    finally:
        torch.set_float32_matmul_precision("highest")
    assert whole < 1e-5 and under_autocast < 1e-5 and rounded > 1e-5


@pytest.mark.parametrize("autocast", [False, True])
def test_a_clipped_sum_is_not_longer_than_its_bound(account_of, autocast):
    """One record's gradient of a convolution, clipped to 1, is exactly that long, in spite of TF32 and autocast."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Tanh(), nn.Conv2d(16, 8, 3), nn.Flatten(), nn.Linear(288, 4))
    network.to(GPU)
    lot = Lot(5.0 * torch.rand(1, 3, 8, 8, device=GPU), (0, 1))
    term = PerRecord(lambda lot, _: network(lot.records).float().square().sum(dim=1))
    buffer = GradientBuffer(network.parameters())
    torch.set_float32_matmul_precision("high")
    try:
        with torch.autocast(GPU, dtype=torch.bfloat16, enabled=autocast):
            gradients = term_gradients(network, term, lot, PrivateStream(seed=0))
            with account_of({"gradient": 1e-6}).open("training") as access:
                privatize([(gradients, Fixed(1.0))], access, 1.0, buffer)
    finally:
        torch.set_float32_matmul_precision("highest")
    # Noise of 1e-6 in each of 3,000 numbers moves a length of 1 by 1e-6, and adds 2e-9 to it.
    assert 1 - 1e-4 < float(buffer.flat.double().norm()) < 1 + 2e-5


DRAWN = {
    "rand": lambda x: x * torch.rand(len(x), 4, device=x.device),
    "randint": lambda x: x * torch.randint(3, (len(x), 1), device=x.device),
    "randperm": lambda x: x * torch.randperm(4, device=x.device),
    "normal_": lambda x: x * torch.empty(len(x), 4, device=x.device).normal_(),
    "dropout": F.dropout,
    "multinomial": lambda x: x * torch.multinomial(torch.ones(len(x), 3, device=x.device), 1),
    "a code": lambda x: torch.distributions.Normal(x, x).rsample(),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN.keys())
def test_draws_of_a_loss_are_private_and_each_records_own(draw):
    """Two equal records draw other numbers, unless they are held still; the public generators stay where they were."""
    torch.manual_seed(0)
    network = nn.Linear(3, 4).to(GPU)
    term = PerRecord(lambda lot, _: draw(F.softplus(network(lot.records))).square().sum(dim=1))
    lot = Lot(torch.ones(64, 3, device=GPU), (0, 64))

    def losses(seed):
        return term_gradients(network, term, lot, PrivateStream(seed=seed)).losses

    before = torch.cuda.get_rng_state()
    first, again, other = losses(1), losses(1), losses(2)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.equal(first, again) and not torch.equal(first, other) and len(first.unique()) > 2
    with ConstantDraws():
        assert len(losses(1).unique()) == 1


REFUSED = {
    "a value of a record": (lambda network, x: network(x).square().sum(dim=1) * (x.sum().item() > 0), "looks"),
    "a public seed": (lambda network, x: torch.manual_seed(1) and network(x).square().sum(dim=1), "seeded"),
    "a seed of the GPU": (lambda network, x: (torch.cuda.manual_seed(1), network(x).square().sum(dim=1))[1], "seeded"),
    "a generator": (
        lambda network, x: network(x * torch.rand(4, device=GPU, generator=torch.Generator(GPU))).sum(dim=1), "generator",
    ),
    "a mean over the lot": (lambda network, x: network(x - x.mean(dim=0)).square().sum(dim=1), "depend|second record"),
}  # fmt: skip


@pytest.mark.parametrize("loss, reason", REFUSED.values(), ids=REFUSED.keys())
def test_what_a_loss_may_not_see_is_refused(loss, reason):
    torch.manual_seed(0)
    network = nn.Linear(4, 4).to(GPU)
    term = PerRecord(lambda lot, _: loss(network, lot.records))
    with pytest.raises((ValueError, RuntimeError), match=reason):
        term_gradients(network, term, Lot(torch.rand(6, 4, device=GPU), (0, 6)), PrivateStream(seed=0))


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_gradients_of_groups_are_those_of_the_processor(engine):
    """The groups are given: a seeded stream draws others where noise is drawn on another device before them."""
    index = torch.tensor([0, 2, 1, 1, 0, 2, 2, 0, 0])

    def found(device):
        torch.manual_seed(0)
        network = nn.Linear(4, 2).double().to(device)

        def loss(lot, noise, groups):
            codes = groups.gather(network(lot.records))
            return (codes.sum(dim=1) ** 2).sum(dim=1)

        lot = Lot(torch.rand(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), (0, 9)).to(device)
        term, groups = PerGroup(loss, groups=3, places=9), Groups(index.to(device), 3, 9)
        gradients = engine(network, term, lot, torch.zeros(9, 0, dtype=torch.float64, device=device), groups)
        buffer = GradientBuffer(network.parameters())
        gradients.weighted_sum(torch.ones(3, dtype=torch.float64, device=device), buffer.views)
        return gradients.norms().cpu(), buffer.flat.cpu()

    for own, expected in zip(found(GPU), found("cpu"), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-9)


def test_gradients_that_are_not_finite_add_zeros(account_of):
    weight = nn.Parameter(torch.zeros(3, device=GPU))
    rows = torch.tensor([[1.0, 0, 0], [torch.inf, 0, 0], [torch.nan, 1, 1]], device=GPU)
    buffer = GradientBuffer([weight])
    with account_of({"gradient": 1e-6}).open("training") as access:
        privatize([(materialised({weight: rows}), Fixed(1.0))], access, 1.0, buffer)
    torch.testing.assert_close(buffer.flat.cpu(), torch.tensor([1.0, 0, 0]), rtol=0, atol=2e-5)

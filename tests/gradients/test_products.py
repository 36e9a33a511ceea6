"""Products in low precision: no contribution is longer than the norm that it was clipped by, however sums were rounded."""

import math

import numpy as np
import pytest
import torch
from gradients.families import FAMILY
from marks import only
from torch import nn

from lightning_dpgen.common.precision import bfloat16_products, full_precision, multiplies_bfloat16
from lightning_dpgen.gradients import factors, products
from lightning_dpgen.gradients.clipping import Fixed
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.factors import Dense, OuterSum, RankOne, outer, slack
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients, materialised, shares_of_slack
from lightning_dpgen.gradients.privatize import GradientBuffer, add_clipped
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.sampling.lots import Lot

# A function that takes no numbers of two types is not called under autocast.
MIXED = {name: make for name, make in FAMILY.items() if "of its own" not in name}
PROCESSORS = only({"with AMX": True, "without": False}, "with AMX")


@pytest.fixture(params=PROCESSORS)
def amx(request, monkeypatch):
    """Take the path of a processor with AMX, or without; torch multiplies in all bits where there is none."""
    monkeypatch.setattr(products, "_AMX", request.param)


@pytest.mark.filterwarnings("ignore:no rule for", "ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("make", MIXED.values(), ids=MIXED.keys())
def test_under_autocast_no_contribution_is_longer_than_its_norm(make, amx):
    case = make()
    case.float()
    lot, noise = case.lot((0, 7, 8, 11)), case.noise(11).float()
    lot = lot if case.indices else lot.to("cpu", torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradients = ENGINES["ghost"](case.network, case.term, lot, noise)
    norms, buffer = gradients.norms(), GradientBuffer(p for p in case.network.parameters() if p.requires_grad)
    weights = 0.1 + torch.rand(len(lot), generator=torch.Generator().manual_seed(0))
    for i in range(len(lot)):
        gradients.weighted_sum(torch.zeros(len(lot)).index_fill(0, torch.tensor([i]), float(weights[i])), buffer.views)
        contribution = float(buffer.flat.double().norm() / weights[i].double())
        # Sums of float32 numbers are rounded once more at the end.
        assert contribution * (1 - 1e-6) <= float(norms[i]) <= contribution * (1 + 5e-3) + 1e-6


def _factors(records=6, terms=9, o=5, n=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(records, terms, width, generator=generator).bfloat16() for width in (o, n))
    return left, right


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_share_of_slack_is_what_a_formula_says(dtype):
    """Factors of ones: nothing is rounded, and the room of a product of lengths is known."""
    weight, records = nn.Parameter(torch.zeros(5, 700)), torch.ones(6, 700, dtype=dtype)
    records[1] = torch.inf
    factors = RankOne(torch.ones(6, 5, dtype=dtype), records, (5, 700))
    expected = 1.0
    for width in (5, 700):
        factor, more = slack(width, dtype)
        expected *= factor + more / math.sqrt(width)
    shares = shares_of_slack(PerSampleGradients({weight: factors}, [[weight]], 6))
    # One record of four is not finite.
    assert shares == [pytest.approx(1.0 - 1.0 / expected, abs=1e-7)] * 3 and 4e-5 < shares[0] < 1e-4


def _exactly(left, right):
    return torch.einsum("rto,rtn->ron", left.double(), right.double())


HELD = {
    "one product": lambda left, right: RankOne(left[:, 0], right[:, 0], (left.shape[2], right.shape[2])),
    "several": lambda left, right: OuterSum(
        [(left, right)], (left.shape[2], right.shape[2]), (left.shape[2], right.shape[2])
    ),
    "many": lambda left, right: OuterSum(
        [(left, right)], (left.shape[2], right.shape[2]), (left.shape[2], right.shape[2]), few=False
    ),
    "multiplied out": lambda left, right: outer(
        [(left, right)], (left.shape[2], right.shape[2]), (left.shape[2], right.shape[2])
    ),
    "one side": lambda left, right: Dense(left[:, 0]),
    "groups": lambda left, right: Groups(torch.arange(len(left)), len(left)).of(
        RankOne(left[:, 0], right[:, 0], (left.shape[2], right.shape[2]))
    ),
}


@pytest.mark.parametrize("hold", HELD.values(), ids=HELD.keys())
def test_products_of_rounded_factors_are_those_of_the_factors(hold, amx):
    held = hold(*_factors())
    exact = held.materialise().double().flatten(1)
    out = torch.empty(held.materialise().shape[1:])
    weights = torch.rand(6, generator=torch.Generator().manual_seed(1))
    held.weighted_sum(weights, None, out, add=False)
    torch.testing.assert_close(out.double().flatten(), weights.double() @ exact, rtol=1e-4, atol=1e-5)
    before = out.clone()
    held.weighted_sum(weights, torch.arange(6) >= 3, out, add=True)
    torch.testing.assert_close((out - before).double().flatten(), weights[:3].double() @ exact[:3], rtol=1e-4, atol=1e-5)
    lengths = exact.norm(dim=1)
    assert (held.norms().double() >= lengths * (1 - 1e-12)).all() and (
        held.norms().double() <= 1.001 * lengths + 1e-6
    ).all()


def test_factors_of_two_types_are_multiplied_in_the_wider_one(amx):
    """A float32 factor that was rounded to bfloat16 would be another one than that of the norm."""
    left, right = _factors()
    wide = right.float() * (1 + 2**-12)
    exact = _exactly(left, wide)
    torch.testing.assert_close(products.multiply(left.mT, wide).double(), exact, rtol=1e-5, atol=1e-5)
    out = torch.empty(exact.shape[1:])
    products.add_weighted(left, wide, torch.ones(6), out, add=False)
    torch.testing.assert_close(out.double(), exact.sum(dim=0), rtol=1e-5, atol=1e-5)
    inner = products.inner_products(left, left.float() * (1 + 2**-12))
    torch.testing.assert_close(inner.double(), (1 + 2**-12) * (left.double() @ left.double().mT), rtol=1e-6, atol=1e-6)


def test_weights_are_rounded_by_no_more_than_is_added_to_the_norm(monkeypatch):
    """Numbers whose rest has the longest rounding, all in one direction: half of what is added would not be enough."""
    monkeypatch.setattr(products, "_AMX", True)
    candidates = torch.arange(128, 256, dtype=torch.float32).bfloat16()
    weights = torch.linspace(0.5, 1.0, 100_001)
    high_and_low = [sum(x.double() for x in products._weighted(candidates.view(1, 1, -1).expand(len(w), -1, -1), w))
                    for w in weights.split(10_000)]  # fmt: skip
    added = torch.cat(high_and_low)[:, 0]
    error = added / (weights.double()[:, None] * candidates.double()) - 1
    worst = float(error.max())
    assert products.WEIGHTED / 2 < worst <= products.WEIGHTED
    row, column = divmod(int(error.argmax()), len(candidates))
    factors_of_worst = RankOne(candidates[column].expand(1, 4), torch.ones(1, 3).bfloat16(), (4, 3))
    out, weight = torch.empty(4, 3), weights[row : row + 1]
    factors_of_worst.weighted_sum(weight, None, out, add=False)
    assert float(out.double().norm() / weight) <= float(factors_of_worst.norms())


def _one_after_the_other(round_off):
    """Return a `bmm` that adds up products one after the other, each sum rounded by a function."""

    def bmm(a, b, out=None):
        a, b = a.double().numpy(), b.double().numpy()
        total = np.zeros((a.shape[0], a.shape[1], b.shape[2]))
        for k in range(a.shape[2]):
            total = round_off(total + a[:, :, k, None] * b[:, k, None, :])
        return torch.from_numpy(total.astype(np.float32))

    return bmm


def _nearest(x):
    return x.astype(np.float32).astype(np.float64)


def _cut_off(x):
    """Cut numbers off below the last bit of float32."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.trunc(mantissa * 2**24) / 2**24, exponent)


ROUNDED_BY = {"rounded": ("cpu", _nearest, 2.0**-12), "cut off": ("cuda", _cut_off, 2.0**-11.5)}


@pytest.mark.parametrize("kind, round_off, small", ROUNDED_BY.values(), ids=ROUNDED_BY.keys())
def test_sums_of_products_lose_no_more_than_is_added_to_the_norm(kind, round_off, small, monkeypatch):
    """A one before numbers whose squares are lost beside it, one after the other: the worst order of a worst record.

    With half of the slack the norm would be too short.
    """
    at_once = products._AT_ONCE[kind]
    monkeypatch.setattr(products, "_bmm", _one_after_the_other(round_off))
    monkeypatch.setitem(products._AT_ONCE, "cpu", at_once)
    monkeypatch.setitem(products._UNITS, "cpu", products._UNITS[kind])
    row = torch.full((at_once,), small).bfloat16()
    row[0] = 1.0
    left = right = row.expand(1, 1, -1)
    held = OuterSum([(left, right)], (at_once, at_once), (at_once, at_once))
    exact = float(left.double().square().sum())

    def norm(part):
        monkeypatch.setattr(factors, "_slack_of_products", lambda *of: part * slack(*of))
        monkeypatch.setattr(factors, "WEIGHTED", 0.0)
        return float(held.norms())

    slack = factors._slack_of_products
    assert norm(0.5) < exact <= norm(1.0) <= exact * (1 + 4 * slack((at_once, at_once), torch.device("cpu")))
    inner = float(products.inner_products(left, left))
    allowed = products.accumulation(at_once, torch.device("cpu"))
    assert allowed / 2.5 < 1 - inner / exact <= allowed


def _tensor_core(products_at_once, bits):
    """Return a `bmm` of a tensor core: it takes some products at a time, cuts all below the last of `bits` more bits than
    float32 has beside the largest of them and the sum so far, and cuts their sum to float32."""

    def bmm(a, b, out=None):
        a, b = a.double().numpy(), b.double().numpy()
        total = np.zeros((a.shape[0], a.shape[1], b.shape[2]))
        for k in range(0, a.shape[2], products_at_once):
            part = slice(k, k + products_at_once)
            terms = np.concatenate([total[..., None], a[:, :, None, part] * b.swapaxes(1, 2)[:, None, :, part]], axis=-1)
            largest = np.frexp(np.abs(terms).max(axis=-1, keepdims=True))[1]
            step = np.ldexp(1.0, largest - 24 - bits)
            total = _cut_off((np.trunc(terms / step) * step).sum(axis=-1))
        return torch.from_numpy(total.astype(np.float32))

    return bmm


@pytest.mark.parametrize("products_at_once, bits", [(8, 1), (16, 2), (4, 1)], ids=["Ampere", "Hopper", "of TF32"])
@pytest.mark.parametrize("width", [40, 128, 600])
def test_what_a_tensor_core_cuts_off_is_within_its_bound(products_at_once, bits, width, monkeypatch):
    bmm = _tensor_core(products_at_once, bits)
    monkeypatch.setattr(products, "_bmm", bmm)
    monkeypatch.setitem(products._AT_ONCE, "cpu", products._AT_ONCE["cuda"])
    generator = torch.Generator().manual_seed(width)
    scale = torch.logspace(0, -4, width)[torch.randperm(width, generator=generator)]
    rows = (torch.randn(3, 4, width, generator=generator) * scale).bfloat16()
    ones = torch.ones(3, 1, width).bfloat16() * torch.tensor([1.0, 2**-12, 1.0 + 2**-7])[:, None, None]
    ones[..., 0] = 1.0
    x = torch.cat([rows, ones], dim=1)
    found, exact = products.inner_products(x, x).double(), x.double() @ x.double().mT
    sizes = x.double().norm(dim=2)
    error = ((found - exact).abs() / (sizes[:, :, None] * sizes[:, None, :])).max()
    assert 0.0 < float(error) <= products.accumulation(width, torch.device("cuda"))


def test_a_long_sum_is_one_of_short_ones():
    x = torch.randn(2, 3, 3000, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = x.double() @ x.double().mT
    sizes = x.double().norm(dim=2)
    found = products.inner_products(x, x).double()
    error = ((found - exact).abs() / (sizes[:, :, None] * sizes[:, None, :])).max()
    allowed = products.accumulation(3000, x.device)
    assert float(error) <= allowed < 3000 * products.ROUNDING / 10


def _released(gradients, network, bound=1.0, divisor=1.0):
    """Return the clipped sum of a lot, in float64."""
    buffer = GradientBuffer(network.parameters())
    add_clipped(gradients, Fixed(bound), (bound,), divisor, buffer, add=False)
    return buffer.flat.double()


def test_numbers_below_the_normal_ones_count_where_products_are_many(amx):
    """Two products that cancel, of which AMX reads one as zero: in float64 alone the norm would be 0.4, and 80 remain."""
    tiny, huge = torch.full((160,), 2.0**-130), torch.full((640,), 2.0**126)
    left = torch.stack([huge, torch.full((640,), -1.0)])[None].bfloat16()
    right = torch.stack([tiny, torch.full((160,), 2.0**-4)])[None].bfloat16()
    held = OuterSum([(left, right)], (640, 160), (640, 160), few=False)
    out = torch.empty(640, 160)
    weight = torch.ones(1) / float(held.norms())
    held.weighted_sum(weight, None, out, add=False)
    assert float(out.double().norm()) <= 1.0


class _Triangular(torch.nn.Linear):
    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight * torch.ones(2, 2).tril())


def test_what_a_mask_leaves_out_is_finite_too(amx):
    """A product of 1e42 under a mask of zero would be NaN in the sum of all records."""
    network = _Triangular(2, 2, bias=False)
    term = PerRecord(lambda lot, _: (network(lot.records[:, :2]) * lot.records[:, 2:]).sum(dim=1))
    records = torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
    records[0] = torch.tensor([1e-21, 1e21, 1e21, 1e-21])
    for mixed in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            gradients = ENGINES["ghost"](network, term, Lot(records, (0, 4)), torch.empty(4, 0))
        assert float(gradients.norms()[0]) == math.inf
        assert torch.isfinite(_released(gradients, network, divisor=256.0)).all()


@pytest.mark.parametrize("sizes", [(1e32, 1e-32), (10.0**37.5, 1e-38)])
def test_weights_that_vanish_under_a_mask_have_room(sizes, amx):
    mask, (a, b) = torch.ones(64, 64).tril(), sizes
    left, right = torch.full((1, 64), b), torch.full((1, 64), a)
    for dtype in (torch.float32, torch.bfloat16):
        held = factors.masked(RankOne(left.to(dtype), right.to(dtype), (64, 64)), mask)
        norm, out = float(held.norms()), torch.zeros(64, 64)
        if math.isfinite(norm):
            held.weighted_sum(torch.tensor([1e-3 / (328.0 * norm)]), None, out, add=False)
        assert float(out.double().norm()) * 328.0 / 1e-3 <= 1.0


@pytest.mark.parametrize("count", only({"4096": 4096, "16384": 16384}, "4096"))
def test_rows_of_one_word_are_added_up_within_their_norm(count):
    """One word in all places: its rows are added up one after the other, each sum rounded."""
    network = torch.nn.Embedding(10, 4)
    term = PerRecord(lambda lot, _: (network(lot.records[0]) * lot.records[1]).sum(dim=(1, 2)))
    lot = Lot((torch.zeros(1, count, dtype=torch.int64), torch.ones(1, count, 1)), (0, 1))
    gradients = ENGINES["ghost"](network, term, lot, torch.empty(1, 0))
    for divisor in range(256, 1024, 32):
        # The shave of the bound is 1e-5.
        assert float(_released(gradients, network, divisor=float(divisor)).norm()) * divisor <= 1.0 - 0.9e-5


def test_settings_of_torch_reach_no_sum_of_factors(monkeypatch):
    """The sums set their own precision, as parts that Opacus passes are added outside of `privatize`."""
    weight = torch.nn.Parameter(torch.zeros(64, 64))
    gradients = materialised({weight: torch.rand(64, 64, 64, generator=torch.Generator().manual_seed(0))})
    weights, sums = torch.rand(64, generator=torch.Generator().manual_seed(1)), []
    for precision in ("highest", "medium"):
        torch.set_float32_matmul_precision(precision)
        try:
            out = {weight: torch.empty(64, 64)}
            gradients.weighted_sum(weights, out)
        finally:
            torch.set_float32_matmul_precision("highest")
        sums.append(out[weight])
    assert torch.equal(*sums)


def test_a_context_of_whole_products_opens_within_one_of_bfloat16():
    with bfloat16_products():
        with full_precision(torch.device("cpu")):
            assert not multiplies_bfloat16()
        assert multiplies_bfloat16()

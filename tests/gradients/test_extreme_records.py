"""Records with huge, tiny or no finite numbers: none adds more than its bound, and none changes what another adds."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lightning_dpgen.common.precision import HAS_AMX, full_precision
from lightning_dpgen.gradients import products
from lightning_dpgen.gradients.captured import CapturedTerm
from lightning_dpgen.gradients.clipping import Fixed, PerPerson, cap_factors
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.engines import ENGINES, term_gradients
from lightning_dpgen.gradients.factors import CentredRankOne, Dense, OuterSum, RankOne, _at_least_zero, masked, outer
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.per_sample_gradients import materialised
from lightning_dpgen.gradients.privatize import GradientBuffer, add_clipped
from lightning_dpgen.gradients.stacked import StackedConv2d
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.access import LotId
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.slots import Slots

WIDTH = 100


class _Rows(nn.Module):
    """Products of rows of `WIDTH` numbers, which are no multiple of 32: as layers, as functions, and of frozen numbers."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.first, self.last = kind, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.matrix = nn.Parameter(torch.rand(WIDTH, WIDTH) / WIDTH, requires_grad=kind != "frozen")

    def forward(self, x):
        if self.kind == "layers":
            x = torch.relu(self.first(x))
        elif self.kind == "positions":
            x = self.first(x[:, None].expand(-1, 3, -1)).relu().sum(dim=1)
        elif self.kind == "einsum":
            x = torch.einsum("bi,ij->bj", x, self.matrix)
        elif self.kind == "vector":
            x = x + (x @ self.matrix[0])[:, None]
        elif self.kind == "converted":
            x = (x.bfloat16() @ self.matrix.bfloat16()).float()
        else:
            x = x @ self.matrix
        return self.last(x)


@pytest.mark.filterwarnings("ignore:no rule for einsum")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["layers", "positions", "einsum", "vector", "converted", "frozen"])
@pytest.mark.parametrize("value", [math.nan, 3e38], ids=str)
def test_a_record_that_is_not_finite_changes_no_other(kind, engine, value):
    """In bfloat16, where a processor takes rows for longer than they are."""
    network = _Rows(kind)
    term = PerRecord(lambda lot, _: network(lot.records).square().sum(dim=1))
    records, found = torch.rand(64, WIDTH), []
    for spoiled in (False, True):
        if spoiled:
            records[40] = value
        lot = Lot(records, (0, 64), slots=Slots(71, torch.arange(64)))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind != "converted"):
            gradients = term_gradients(network, term, lot, PrivateStream(seed=3), engine=engine)
        buffer, weights = GradientBuffer(p for p in network.parameters() if p.requires_grad), torch.ones(64)
        weights[40] = 0.0
        gradients.weighted_sum(weights, buffer.views)
        found.append((gradients.norms(), buffer.flat))
    kept = torch.arange(64) != 40
    assert not found[1][0][40].isfinite() and found[0][0].isfinite().all()
    assert torch.equal(found[0][0][kept], found[1][0][kept])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-6, atol=1e-6 * float(found[0][1].abs().max()))


@pytest.mark.skipif(not HAS_AMX, reason="needs a processor with AMX")
def test_torch_lets_a_row_reach_the_one_before_it():
    """Without padding; if this fails, torch has mended it."""
    x = torch.rand(64, WIDTH).bfloat16()
    x[40] = math.nan
    assert not F.linear(x, torch.rand(64, WIDTH).bfloat16())[39].isfinite().all()


def test_squares_that_are_minus_infinite_are_no_zeros():
    squares = torch.tensor([-math.inf, -1.0, 2.0, math.inf])
    assert _at_least_zero(squares).tolist() == [math.inf, 0.0, 2.0, math.inf]
    left, right = torch.full((1, 1, 4), 1.5e19), torch.full((1, 1, 4), 1.5e19)
    centred = CentredRankOne(RankOne(left[0] * 1e-19, right[0] * 1e-19, (4, 4)), left[0], right[0])
    assert not float(centred.norms()[0]) < 1e38


def _contribution(factors, bound, divisor, groups=None):
    """Return by what part of its bound one record, or group, moves the sum."""
    with full_precision(torch.device("cpu")):
        source = factors if groups is None else groups.of(factors)
        weights = cap_factors(Fixed(bound), source.norms().double(), bound) / divisor
        weights = weights.masked_fill(~(weights >= torch.finfo(torch.float32).tiny), 0.0).float()
        out = torch.empty(factors.shape)
        factors.weighted_sum(weights if groups is None else groups.shared(weights), None, out, add=False)
    return float(out.double().norm()) * divisor / bound


@pytest.mark.parametrize(
    ("dtype", "amx"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)], ids=str
)
def test_numbers_that_vanish_beside_huge_ones_add_no_more_than_the_bound(dtype, amx, monkeypatch):
    """Products that nearly cancel, of which one is too small to be weighted exactly, among many of zeros."""
    monkeypatch.setattr(products, "_AMX", amx)
    for huge, tiny in ((1e38, (1e-13 * 1.01, -1e-13)), (2.0**127, (1.5 * 2.0**-40, -0.75 * 2.0**-40, -0.75 * 2.0**-40))):
        left, right = torch.zeros(1, 600, 2500), torch.zeros(1, 600, 2500)
        for place, number in enumerate(tiny):
            left[0, place], right[0, place] = number, huge
        factors = outer([(left.to(dtype), right.to(dtype))], (2500, 2500), (2500, 2500))
        assert isinstance(factors, OuterSum) and not factors.few
        for bound in (1e-2, 1e-3, 1e-4):
            assert _contribution(factors, bound, 1024.0) <= 1.0


@pytest.mark.parametrize(("dtype", "amx"), [(torch.float32, False), (torch.bfloat16, True)], ids=str)
@pytest.mark.parametrize("count", [128, 512, 2048])
@pytest.mark.parametrize("size", [4, 40])
def test_products_that_all_round_up_add_no_more_than_the_bound(dtype, amx, count, size, monkeypatch):
    """A product of size 1, and others just above half of its last bit, of one person."""
    monkeypatch.setattr(products, "_AMX", amx)
    left, right = torch.full((count, size), 2.0**-12 * (1 + 2**-6)), torch.full((count, size), 2.0**-12)
    left[0], right[0] = 1.0, 1.0
    factors = RankOne(left.to(dtype), right.to(dtype), (size, size))
    groups = Groups(torch.zeros(count, dtype=torch.int64), 1)
    norm = float(groups.of(factors).norms()[0])
    for mantissa in (1.0, 1 + 2**-7, 1.05):
        assert _contribution(factors, 0.5 * norm * mantissa, 1.0, groups) <= 1.0


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("count", [1, 5, 6, 1000])
def test_what_a_mask_leaves_out_is_finite_in_the_sum(mixed, count):
    class Triangle(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight * torch.ones(2, 2).tril())

    network = Triangle(2, 2, bias=False)
    term = PerRecord(lambda lot, _: (network(lot.records[:, :2]) * lot.records[:, 2:]).sum(dim=1))
    records = torch.tensor([[1e-20, 1.6e19, 1.6e19, 1e-20]]).repeat(count, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        gradients = ENGINES["ghost"](network, term, Lot(records, (0, count)), torch.empty(count, 0))
    buffer = GradientBuffer(network.parameters())
    add_clipped(gradients, Fixed(10.0), (10.0,), 4.0, buffer, add=False)
    assert buffer.flat.isfinite().all() and float(buffer.flat.double().norm()) <= count * 10.0 / 4.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_masks_silence_what_their_sum_could_not_hold(dtype):
    huge = 1e18 if dtype != torch.float64 else 1e160
    rows = torch.tensor([[huge, 1.0]], dtype=dtype)
    factors = masked(RankOne(rows, rows, (2, 2)), torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    # float64 holds it; the sum of two in float32 would not be finite beside so small a norm.
    assert factors.norms().isfinite().all() == (dtype == torch.float64 and huge < 1e150)
    ordinary = masked(RankOne(rows.clamp(max=3.0), rows.clamp(max=3.0), (2, 2)), torch.ones(2, 2).tril())
    assert ordinary.norms().isfinite().all()


@pytest.mark.parametrize("amx", [True, False])
def test_a_person_of_permuted_factors_adds_no_more_than_the_bound(amx, monkeypatch):
    """Three positions of a convolution whose weighted gradients round alike, and cancel otherwise."""
    monkeypatch.setattr(products, "_AMX", amx)
    network = nn.Module()
    network.conv = StackedConv2d(1, 8, 8, 3)
    network.conv.bias.requires_grad_(False)
    numbers = torch.tensor([1.9921875, 0.5390625, -2.53125])

    def loss(lot, _):
        y = network.conv(lot.records[..., :5].reshape(-1, 8, 3, 5), lot.offsets)
        return (y * lot.records[:, :, 0:1, 5:8]).sum(dim=(1, 2, 3))

    records = torch.zeros(1, 8, 3, 8)
    records[..., :5], records[:, :, 0, 5:] = 1.0, numbers
    lot = Lot(records, (0, 1), persons=torch.tensor([0]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradients = ENGINES["ghost"](network, PerRecord(loss), lot, torch.empty(1, 0)).of_persons(4)
    bound = 1.0089999437332153 * 2.0**-10 * float(gradients.norms()[0]) / 0.99999
    buffer = GradientBuffer([network.conv.weight])
    add_clipped(gradients, PerPerson(Fixed(bound)), (bound,), 1.0, buffer, add=False)
    assert float(buffer.flat.double().norm()) <= bound


def test_captured_gradients_are_added_in_all_bits():
    """Products in fewer bits, to which torch is set here, are not used for the sum."""
    torch.manual_seed(0)
    network = nn.Linear(256, 256, bias=False)
    term, stream = PerRecord(lambda lot, _: network(lot.records).square().sum(dim=1)), PrivateStream(seed=0)
    records, buffer = torch.rand(64, 256), GradientBuffer(network.parameters())
    lot = Lot(records, (0, 64), slots=Slots(71, torch.arange(64)))
    term_gradients(network, term, lot, stream)
    captured = CapturedTerm(network, term, lot, buffer.flat, buffer.views, stream, "ghost")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        alone = captured.gradients(Lot(records[:1], (0, 1), slots=Slots(71, torch.arange(1))))
        add_clipped(alone, Fixed(0.1), (0.1,), 1.0, buffer, add=False)
    finally:
        torch.set_float32_matmul_precision(before)
    assert 0.0999 < float(buffer.flat.double().norm()) <= 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_rule_of_another_module_beside_a_gradient_of_zeros(dtype):
    class Divided(Fixed):
        def factors(self, norms, bound):
            return bound / norms

    weight = nn.Parameter(torch.zeros(3, dtype=dtype))
    gradients = materialised({weight: torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0]], dtype=dtype)})
    buffer = GradientBuffer([weight])
    add_clipped(gradients, Divided(1.0), (1.0,), 2.0, buffer, add=False)
    torch.testing.assert_close(buffer.flat, torch.tensor([0.3, 0.0, 0.4], dtype=dtype), rtol=1e-4, atol=0.0)


def test_a_mean_embedding_has_room_for_its_rounding(monkeypatch):
    """A sum of squares of a million numbers is rounded by more than 1e-12."""
    told = {}

    def gaussian(access, name, values, *, sensitivity):
        told["length"], told["sensitivity"] = float(torch.linalg.vector_norm(values)), sensitivity
        return values

    monkeypatch.setattr("lightning_dpgen.gradients.embedding_gradients.gaussian", gaussian)
    rows, weight, draw = 1.0 + torch.rand(1, 10**6, dtype=torch.float64), nn.Parameter(torch.zeros(1)), LotId()
    then = materialised({weight: torch.zeros(1, 1)}, draw)
    EmbeddingGradients(rows, lambda mean: then, [weight], draw).given(None, 1.0)
    assert told["length"] <= told["sensitivity"] and told["sensitivity"] > 1.0 + 1e-10


@pytest.mark.parametrize("count", [256, 4096])
@pytest.mark.parametrize("shape", [(1, 1), (8, 1), (1, 100), (8, 8)], ids=str)
@pytest.mark.parametrize("kind", ["outer", "dense", "masked"])
def test_a_person_of_many_records_adds_no_more_than_the_bound(count, shape, kind):
    """A record of size 1, and others that a sum one after the other drops, or rounds up."""
    for other in (2.0**-24 * (1 - 2.0**-10), 2.0**-24 * (1 + 2.0**-10)):
        left, right = torch.full((count, shape[0]), other), torch.ones(count, shape[1])
        left[0] = 1.0
        if kind == "outer":
            factors = RankOne(left, right, shape)
        elif kind == "masked":
            factors = masked(RankOne(left, right, shape), torch.ones(shape))
        else:
            factors = Dense(left[:, :, None] * right[:, None])
        groups = Groups(torch.zeros(count, dtype=torch.int64), 1, most=count)
        source = groups.of(factors)
        for bound in (1e-3, 0.5 * float(source.norms()[0])):
            weights = cap_factors(Fixed(bound), source.norms().double(), bound).float()
            out = torch.empty(shape)
            factors.weighted_sum(groups.shared(weights), None, out, add=False)
            assert float(out.double().norm()) <= bound


@pytest.mark.parametrize("rows", [1024, 10**6])
def test_rows_that_a_library_adds_one_after_the_other_add_no_more_than_the_bound(rows, monkeypatch):
    """For any processor; the bound is exceeded if such a library is given all rows at a time."""

    def one_by_one(matrix, left, right, *, beta, out):
        total = beta * matrix if beta else torch.zeros_like(matrix)
        for row in range(len(right)):
            total += left[:, row, None] * right[row]
        return out.copy_(total)

    monkeypatch.setattr(products, "_ROWS", rows)
    monkeypatch.setattr(
        "lightning_dpgen.gradients.factors.summation", lambda count, device: min(count + 1, 2048) * products.ROUNDING
    )
    monkeypatch.setattr(torch, "addmm", one_by_one)
    count = 8192
    left, right = torch.full((count, 2), 2.0**-24 * (1 + 2.0**-10)), torch.ones(count, 2)
    left[0] = 1.0
    factors, groups = RankOne(left, right, (2, 2)), Groups(torch.zeros(count, dtype=torch.int64), 1, most=count)
    bound = 0.5 * float(groups.of(factors).norms()[0])
    assert (_contribution(factors, bound, 1.0, groups) <= 1.0) == (rows == 1024)


def test_squares_that_vanish_in_float64_leave_no_norm_of_zero():
    tiny, huge = (
        torch.full((1, 1, 1000), 1.4e-162, dtype=torch.float64),
        torch.full((1, 1, 1000), 4e152, dtype=torch.float64),
    )
    exact = math.sqrt(1000) * 1.4e-162 * math.sqrt(1000) * 4e152
    one, several = RankOne(tiny[:, 0], huge[:, 0], (1000, 1000)), OuterSum([(tiny, huge)], (1000, 1000), (1000, 1000))
    ones = masked(one, torch.ones(1000, 1000))
    centred = CentredRankOne(one, torch.zeros(1, 1000, dtype=torch.float64), torch.zeros(1, 1000, dtype=torch.float64))
    for factors in (one, several, ones, centred):
        assert float(factors.norms()[0]) >= exact


def test_a_mask_beside_a_huge_bound_is_finite_for_all():
    left, right = torch.tensor([[1e18, 1e8]]).repeat(1000, 1), torch.tensor([[1e18, 2e9]]).repeat(1000, 1)
    factors = masked(RankOne(left, right, (2, 2)), torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    weights = cap_factors(Fixed(1e17), factors.norms().double(), 1e17).float()
    silenced, out = ~factors.norms().isfinite(), torch.empty(2, 2)
    factors.weighted_sum(weights, silenced, out, add=False)
    assert out.isfinite().all() and silenced.all()

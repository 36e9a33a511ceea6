"""Kernels of private steps keep their promises in Triton's interpreter, and compile for devices that are not at hand."""

import math
import types

import pytest
import torch
import torch.nn.functional as F
from marks import only
from torch import nn
from triton_process import INTERPRETED, ended_process, interpreted  # noqa: F401

from lightning_dpgen.common import device_kernels
from lightning_dpgen.gradients import kernels
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.factors import _at_least_zero
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise import device_normals
from lightning_dpgen.sampling.lots import Lot

# The interpreter of older versions fails with numpy 2.4 and later; they compile the kernels all the same.
pytest.importorskip("triton", minversion="3.7")

# Factors that are too large for float16 are among the others in a lot.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ROUNDED, CUT = 2.0**-24, 2.0**-23
NAN, HUGE = float("nan"), 3e4
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def _cut_off(a, b, total):
    """Return ``total + a @ b`` of a tensor core: it adds 8 products at a time, one bit beyond float32, and cuts off."""

    def cut(x, largest, bits):
        unit = torch.ldexp(torch.ones_like(largest), torch.frexp(largest)[1] - bits)
        return torch.trunc(x / unit) * unit

    for first in range(0, a.shape[1], 8):
        products = a[:, first : first + 8].T[:, :, None] * b[first : first + 8][:, None, :]
        terms = torch.cat([total[None], products])
        total = cut(terms, terms.abs().amax(dim=0), 25).sum(dim=0)
        total = cut(total, total.abs(), 24)
    return total


def _as_device(patch):
    """Let the interpreter multiply bfloat16, add as tensor cores do, and round to bfloat16 instead of cutting it off."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast = InterpreterBuilder.cast_impl

    def exact(x):
        data = torch.from_numpy(x.data.copy())
        return (data.view(torch.bfloat16) if x.dtype.scalar == tl.bfloat16 else data).double()

    def create_dot(self, a, b, total, *options):
        return TensorHandle(_cut_off(exact(a), exact(b), exact(total)).float().numpy(), tl.float32)

    def cast_impl(self, x, to):
        if x.dtype.scalar == tl.float32 and to.scalar == tl.bfloat16:
            return TensorHandle(torch.from_numpy(x.data.copy()).bfloat16().view(torch.uint16).numpy(), tl.bfloat16)
        return cast(self, x, to)

    patch.setattr(InterpreterBuilder, "create_dot", create_dot)
    patch.setattr(InterpreterBuilder, "cast_impl", cast_impl)


# ---- Norms of sums of outer products


def _random(generator, *shape):
    """Return numbers of many sizes."""
    x = torch.randn(shape, generator=generator)
    return x * torch.logspace(-1, 1, shape[-1])[torch.randperm(shape[-1], generator=generator)]


def _opposed(generator, *shape):
    """Return rows in pairs that differ by the signs of half of their numbers, so that their products cancel."""
    x = _random(generator, *shape)
    half = shape[-1] // 2
    x[..., half : 2 * half] = x[..., :half]
    x[:, 1::2] = x[:, : 2 * (shape[1] // 2) : 2]
    x[:, 1::2, half:] *= -1
    return x


def _swallowed(generator, *shape):
    """Return rows whose first square is 1, and whose other squares are lost beside it where sums are cut off.

    Of 8 squares 7 are just below what a sum of 1 keeps one bit beyond float32, and one is just below twice that.
    """
    x = torch.full(shape, math.sqrt(0.998) * 2.0**-12)
    x[..., 4::8] *= 2.0**0.5
    x[..., 0] = 1.0
    return x


# Terms, widths, and the makers of both factors.
GRAMS = {
    "one term": (1, 5, 3, _random, _random),
    "one term, one number": (1, 1, 1, _random, _random),
    "a tail of a chunk": (5, 131, 40, _random, _random),
    "two tiles and a tail": (70, 200, 33, _random, _random),
    "cancelling": (6, 300, 24, _opposed, _random),
    "cancelling twice, wide": (4, 3840, 260, _opposed, _opposed),
    "swallowed": (1, 128, 1, _swallowed, _random),
    "swallowed, wide": (2, 3840, 129, _swallowed, _swallowed),
    "three tiles": (150, 40, 130, _random, _opposed),
    "wide, many terms": (129, 3840, 768, _opposed, _random),
}


def _constant(width):
    return min(width, 128) + math.ceil(width / 128)


def _found(left, right, u):
    """Return the errors of squares and lengths, and the bounds that `gram_norms` promises for them."""
    squares, longest, _ = kernels.gram_norms(left, right)
    assert squares.dtype == longest.dtype == torch.float64
    left, right = left.double(), right.double()
    exact = torch.einsum("rto,rtn->ron", left, right).square().sum(dim=(1, 2))
    lengths = (left.norm(dim=2) * right.norm(dim=2)).sum(dim=1)
    units = (_constant(left.shape[2]) + _constant(right.shape[2])) * u
    return (squares - exact).abs(), (units + 64 * ROUNDED) * lengths**2, (longest - lengths).abs(), units / 2 * lengths


def _factors(name, dtype):
    terms, o, n, of_left, of_right = GRAMS[name]
    generator = torch.Generator().manual_seed(0)
    return of_left(generator, 2, terms, o).to(TYPES[dtype]), of_right(generator, 2, terms, n).to(TYPES[dtype])


@pytest.mark.parametrize("name", only(list(GRAMS), *list(GRAMS)[:7]))
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@interpreted
def test_norms_err_by_no_more_than_promised(name, dtype):
    off, bound, off_length, bound_length = _found(*_factors(name, dtype), ROUNDED)
    assert (off <= bound).all(), off / bound
    assert (off_length <= bound_length).all(), off_length / bound_length


@pytest.mark.parametrize("name", only(list(GRAMS), "a tail of a chunk", "cancelling", "swallowed", "swallowed, wide"))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@interpreted
def test_norms_err_by_no_more_than_promised_where_sums_are_cut_off(name, dtype):
    with pytest.MonkeyPatch.context() as patch:
        _as_device(patch)
        off, bound, off_length, bound_length = _found(*_factors(name, dtype), CUT)
    assert (off <= bound).all(), off / bound
    assert (off_length <= bound_length).all(), off_length / bound_length


@pytest.mark.parametrize("name", only(["two tiles and a tail", "swallowed, wide"], "two tiles and a tail"))
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@interpreted
def test_norms_of_all_sizes_err_by_no_more_than_promised(name, dtype):
    candidates = kernels._LONG_GRAMS if dtype == "float32" else kernels._SHORT_GRAMS
    for sizes in candidates:
        # The proof adds at most 64 products in float32 that are not of a chain.
        assert sizes["tile"] <= 64 and kernels.PROMOTED % sizes["chunk"] == 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "quickest", lambda *given, sizes=sizes: sizes)
            off, bound, off_length, bound_length = _found(*_factors(name, dtype), ROUNDED)
        assert (off <= bound).all() and (off_length <= bound_length).all()


def test_the_quickest_sizes_are_measured_once_a_shape(monkeypatch):
    candidates, measured = ({"tile": 1}, {"tile": 2}, {"tile": 3}), []

    def milliseconds(run):
        run()
        return {1: 3.0, 2: 1.0, 3: math.inf}[measured[-1][1]["tile"]]

    monkeypatch.setattr(device_kernels, "_quickest", {})
    monkeypatch.setattr(device_kernels, "_milliseconds", milliseconds)

    def chosen(shape, records=3):
        x = torch.zeros(records, 4, 5)
        return device_kernels.quickest(shape, candidates, x, lambda *given: measured.append(given))["tile"]

    assert chosen("a") == 1 and not measured  # a processor
    monkeypatch.setattr(device_kernels, "_measures", lambda x: True)
    assert [chosen("b"), chosen("b", 1000), chosen("c")] == [2, 2, 2]
    # The number of records is no part of it.
    assert measured == [(64, sizes) for sizes in candidates] * 2


@interpreted
def test_half_of_the_promise_would_be_too_little_and_so_would_longer_chains():
    def units(width):
        left = _swallowed(None, 1, 1, width).half()
        return _found(left, torch.ones(1, 1, 1).half(), CUT)[0] / left.double().square().sum() / CUT

    with pytest.MonkeyPatch.context() as patch:
        _as_device(patch)
        assert _constant(128) / 2 < units(128) <= _constant(128)
        assert units(256) <= _constant(256)
        patch.setattr(kernels, "PROMOTED", 256)
        assert units(256) > _constant(256)


def _strided():
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(3, 20, 37, generator=generator), torch.randn(3, 20, 18, generator=generator)
    channels_first = x.transpose(1, 2).contiguous().transpose(1, 2)
    return {
        "channels first": (x, y, channels_first, y.transpose(1, 2).contiguous().transpose(1, 2)),
        "terms first": (x, y, x.transpose(0, 1).contiguous().transpose(0, 1), y),
        "part of a wider one": (x[:, 2:15, 3:30], y[:, 2:15], x[:, 2:15, 3:30], y[:, 2:15]),
        "one row for all terms": (x[:, :1].expand(-1, 20, -1), y, x[:, :1].expand(-1, 20, -1), y),
    }


@pytest.mark.parametrize("name", _strided())
@interpreted
def test_strides_change_no_bit_of_a_norm(name):
    x, y, strided_x, strided_y = _strided()[name]
    expected, found = kernels.gram_norms(x.contiguous(), y.contiguous()), kernels.gram_norms(strided_x, strided_y)
    assert all(map(torch.equal, expected, found))


@interpreted
def test_factors_may_be_of_two_types():
    x, y, *_ = _strided()["terms first"]
    y = y.half()
    assert all(map(torch.equal, kernels.gram_norms(x, y.float()), kernels.gram_norms(x, y)))


@interpreted
def test_a_record_whose_products_overflow_below_zero_has_no_norm_of_zero():
    """The sum of a row of products is minus infinite, and that of all of them with it."""
    left, right = torch.zeros(1, 64, 192), torch.zeros(1, 64, 192)
    left[0, :, 0], right[0, :, 0] = -(2.0**30), 2.0**30
    left[0, 0, 0] = 2.0**33
    squares, longest, _ = kernels.gram_norms(left, right)
    assert float(squares[0]) == -math.inf and _at_least_zero(squares + longest**2) == math.inf


# ---- Weights


@pytest.mark.parametrize(("dtype", "most", "least"), [("bfloat16", 2.0**-17, 2.0**-133), ("float16", 2.0**-21, 2.0**-24)])
@interpreted
def test_two_parts_add_up_to_the_weighted_numbers(dtype, most, least):
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(5, 3, 1400, generator=generator) * torch.logspace(-6, 3, 1400)).to(TYPES[dtype])
    weights = torch.tensor([0.3, 0.0, 1.0, 1e-3, 0.77])
    x[1, 0, :3] = torch.tensor([NAN, math.inf, -math.inf])
    with pytest.MonkeyPatch.context() as patch:
        _as_device(patch)
        high, low = kernels.split_weighted(x, weights)
    assert high.dtype == low.dtype == x.dtype and high.shape == low.shape == x.shape
    assert not high[1].any() and not low[1].any()
    exact = torch.where(weights[:, None, None] == 0, 0.0, x.double() * weights[:, None, None].double())
    assert ((high.double() + low.double() - exact).abs() <= (most * exact.abs()).clamp_min(least)).all()
    torch.testing.assert_close(high[0], (x[0].float() * 0.3).to(x.dtype), rtol=0, atol=0)


# ---- Gradients of kernels

# Channels of input and output, kernel, stride, padding, dilation, and the sides of a picture.
CONVOLUTIONS = {
    "odd sizes": (3, 5, (3, 2), (2, 1), (1, 2), (1, 3), (9, 8)),
    "one pixel": (4, 3, (1, 1), (1, 1), (0, 0), (1, 1), (1, 1)),
    "several tiles": (70, 66, (1, 2), (1, 2), (0, 1), (1, 1), (3, 5)),
    "several chunks": (2, 3, (2, 2), (1, 1), (0, 0), (2, 1), (12, 9)),
    "more padding than picture": (2, 2, (5, 3), (3, 2), (4, 3), (1, 2), (2, 3)),
    "unused pixels": (2, 2, (2, 2), (3, 4), (0, 0), (1, 1), (7, 9)),
    "a stem": (3, 64, (7, 7), (2, 2), (3, 3), (1, 1), (20, 20)),
}


def _convolution(name, dtype):
    channels, outs, kernel, stride, padding, dilation, sides = CONVOLUTIONS[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, channels, *sides, generator=generator).to(TYPES[dtype])
    weight = torch.zeros(outs, channels, *kernel, dtype=torch.float64, requires_grad=True)
    y = F.conv2d(x.double(), weight, None, stride, padding, dilation)
    gradient = torch.randn(y.shape, generator=generator).to(x.dtype)
    each = [torch.autograd.grad((y[i] * gradient[i]).sum(), weight, retain_graph=True)[0] for i in range(2)]
    return x, gradient, (kernel, stride, padding, dilation), torch.stack(each).permute(3, 4, 0, 1, 2).flatten(0, 1)


@pytest.mark.parametrize("name", only(list(CONVOLUTIONS), *list(CONVOLUTIONS)[:6]))
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@interpreted
def test_gradients_of_kernels_are_those_of_single_pictures(name, dtype):
    x, gradient, options, exact = _convolution(name, dtype)
    found = kernels.conv_gradients(x, gradient, *options)
    torch.testing.assert_close(found, exact.float(), rtol=1e-5, atol=1e-4)
    behind = (t.contiguous(memory_format=torch.channels_last) for t in (x, gradient))
    torch.testing.assert_close(kernels.conv_gradients(*behind, *options, precision="tf32"), found, rtol=0, atol=0)
    rounded = kernels.conv_gradients(x, gradient, *options, dtype=torch.float16)
    torch.testing.assert_close(rounded, found.half(), rtol=0, atol=0)


# ---- Gradients of scales and shifts


# The sizes of two inputs, and the groups of channels that are normalised together; each row is, where they are None.
NORMS = {
    "rows": ((2, 37, 131), None),
    "rows, one": ((2, 1, 5), None),
    "groups": ((2, 48, 130), 3),
    "one group": ((2, 48, 130), 1),
    "each channel": ((2, 48, 130), 48),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@interpreted
def test_gradients_of_scales_and_shifts_are_those_of_single_records(name, dtype):
    shape, groups = NORMS[name]
    generator = torch.Generator().manual_seed(0)
    x, gradient = ((torch.randn(shape, generator=generator) * 3 + 1).to(TYPES[dtype]) for _ in range(2))
    scale, shift = (torch.zeros(shape[1 if groups else 2], dtype=torch.float64, requires_grad=True) for _ in range(2))
    if groups:
        y, together = F.group_norm(x.double(), groups, scale, shift), x.double().reshape(2, 1, groups, -1)
    else:
        y, together = F.layer_norm(x.double(), scale.shape, scale, shift), x.double()[:, :, None]
    statistics = together.mean(-1).float(), (together.var(-1, correction=0) + 1e-5).rsqrt().float()
    each = [torch.autograd.grad((y[i] * gradient[i]).sum(), (scale, shift), retain_graph=True) for i in range(2)]
    x, gradient = (x.mT, gradient.mT) if groups else (x, gradient)
    found = kernels.scale_shift_gradients(x, gradient, *statistics)
    for i, exact in enumerate(zip(*each, strict=True)):
        torch.testing.assert_close(found[i], torch.stack(exact).float(), rtol=1e-5, atol=1e-3)
    contiguous = kernels.scale_shift_gradients(x.contiguous(), gradient.contiguous(), *statistics)
    torch.testing.assert_close(contiguous, found, rtol=1e-5, atol=1e-3)


# ---- Private gradients

# The lengths of texts, and the sides of pictures: more than one tile of rows, and a tail.
NETWORKS = {
    "positions": (lambda: nn.Sequential(nn.Linear(20, 24), nn.LayerNorm(24), nn.Tanh(), nn.Linear(24, 3)), (70, 20)),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Tanh(), nn.Conv2d(8, 5, 3, stride=2)),
        (3, 9, 8),
    ),
    "one vector": (lambda: nn.Sequential(nn.Linear(20, 24), nn.Tanh(), nn.Linear(24, 3)), (20,)),
}


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
@interpreted
def test_private_gradients_by_kernels_are_those_without(name, mixed):
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    network, records = make(), torch.rand(3, *shape)
    records[1] *= 4.0
    term = PerRecord(lambda lot, _: network(lot.records).float().square().flatten(1).sum(dim=1))
    found, weights = [], torch.tensor([0.3, 0.7, 0.2])
    with pytest.MonkeyPatch.context() as patch:
        _as_device(patch)
        assert kernels.serve(records)
        for serve in (kernels.serve, lambda x: False):
            patch.setattr(kernels, "serve", serve)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
                gradients = ENGINES["ghost"](network, term, Lot(records, (0, 3)), torch.empty(3, 0))
            norms, buffer = gradients.norms(), GradientBuffer(network.parameters())
            sums = []
            for i in range(3):
                gradients.weighted_sum(weights[i] * torch.eye(3)[i], buffer.views)
                sums.append(buffer.flat.clone())
                contribution = float(buffer.flat.double().norm() / weights[i].double())
                assert contribution * (1 - 1e-6) <= float(norms[i]) <= contribution * (1 + 5e-3)
            found.append((norms, torch.stack(sums)))
    torch.testing.assert_close(*(norms for norms, _ in found), rtol=5e-3, atol=0.0)
    tolerance = 0.02 if mixed else 1e-4
    torch.testing.assert_close(*(sums for _, sums in found), rtol=0.0, atol=tolerance * float(found[1][1].abs().max()))


# ---- All kernels

# By kernel: the shapes of a record's arguments, the function of lots of them, and the dimension of records in its results.
LAWS = {
    "norms": ([(66, 33), (66, 20)], kernels.gram_norms, 0),
    "norms of few terms": ([(20, 200), (20, 3)], kernels.gram_norms, 0),
    "parts": ([(7, 700), ()], lambda x, w: kernels.split_weighted(x.half(), w), 0),
    "kernels": ([(3, 6, 7), (5, 7, 9)], lambda x, g: kernels.conv_gradients(x, g, (2, 1), padding=(1, 1)), 1),
    "scales of rows": ([(35, 130), (35, 130), (35, 1), (35, 1)], kernels.scale_shift_gradients, 0),
    "scales of groups": (
        [(140, 34), (140, 34), (1, 2), (1, 2)],
        lambda x, g, *s: kernels.scale_shift_gradients(x.mT, g.mT, *s), 0,
    ),
}  # fmt: skip


def _results(function, dim, lot):
    results = function(*lot)
    return [r.movedim(dim, 0) for r in (results if isinstance(results, tuple) else (results,))]


@pytest.mark.parametrize("name", LAWS)
@interpreted
def test_bits_of_a_record_depend_on_no_other_and_on_no_slot(name):
    shapes, function, dim = LAWS[name]
    generator = torch.Generator().manual_seed(0)
    record = [torch.randn(shape, generator=generator) for shape in shapes]
    alone = [r[0] for r in _results(function, dim, [t[None] for t in record])]
    for others, slots, slot in ((1.0, 2, 1), (0.0, 3, 1), (NAN, 5, 3), (HUGE, 4, 0)):
        lot = [others * torch.randn((slots, *shape), generator=generator) for shape in shapes]
        for of_lot, own in zip(lot, record, strict=True):
            of_lot[slot] = own
        for found, expected in zip(_results(function, dim, lot), alone, strict=True):
            assert torch.equal(found[slot], expected), (others, slots, slot)


@pytest.mark.parametrize("name", LAWS)
@interpreted
def test_lots_may_be_empty(name):
    shapes, function, dim = LAWS[name]
    assert all(len(r) == 0 for r in _results(function, dim, [torch.empty(0, *shape) for shape in shapes]))


@pytest.mark.parametrize("name", LAWS)
def test_programs_of_a_record_are_the_same_in_lots_of_all_sizes(name, monkeypatch):
    shapes, function, _ = LAWS[name]

    def launches(records):
        launched = []
        monkeypatch.setattr(
            kernels, "launch", lambda kernel, *given, **options: launched.append((kernel, given[0], options))
        )
        function(*(torch.empty(records, *shape) for shape in shapes))
        return launched

    assert launches(12) == [(kernel, 12 * programs, options) for kernel, programs, options in launches(1)]


def _norms(x):
    return kernels.gram_norms(x, x)


def _kernels(x):
    return (kernels.conv_gradients(x, x, (1, 1)),)


def _scales(x):
    return kernels.scale_shift_gradients(x, x, *torch.ones(2, *x.shape[:2], 1))


# The shape of a tensor, the dimension whose numbers lie far apart in memory, and the function of it.
FAR = 2**30 + 32
OFFSETS = {
    "records of a norm": ((3, 2, 8), 0, _norms),
    "terms of a norm": ((1, 3, 8), 1, _norms),
    "numbers of a norm": ((1, 3, 3), 2, _norms),
    "records of a kernel": ((3, 2, 3, 3), 0, _kernels),
    "channels of a kernel": ((1, 3, 3, 3), 1, _kernels),
    "rows of a kernel": ((1, 3, 3, 3), 2, _kernels),
    "columns of a kernel": ((1, 3, 3, 3), 3, _kernels),
    "places of a kernel": ((1, 3, 1, 3), 3, _kernels),
    "records of a scale": ((3, 2, 8), 0, _scales),
    "terms of a scale": ((1, 3, 8), 1, _scales),
    "channels of a scale": ((1, 3, 3), 2, _scales),
}


@pytest.mark.parametrize("name", OFFSETS)
@interpreted
def test_offsets_may_pass_31_bits(name):
    shape, dim, function = OFFSETS[name]
    near = torch.randn(shape).half()
    strides = [FAR if d == dim else near.stride(d) for d in range(len(shape))]
    # Memory that is not touched takes none.
    far = torch.empty(2 * FAR + 2**10, dtype=torch.float16).as_strided(shape, strides).copy_(near)
    assert all(map(torch.equal, function(far), function(near)))


def _call_all(records, dtype):
    """Call each function with lots of so many records, and draw so many normals."""
    x, y, picture = (torch.empty(records, *shape, dtype=dtype) for shape in ((80, 48), (80, 33), (64, 9, 9)))
    kernels.gram_norms(x, y)
    kernels.gram_norms(x[:, :1], y[:, :1])
    kernels.gram_norms(x.mT, x.mT)
    kernels.scale_shift_gradients(x, x, *torch.empty(2, records, 80, 1))
    kernels.scale_shift_gradients(x.mT, x.mT, *torch.empty(2, records, 1, 8))
    kernels.conv_gradients(picture, picture, (3, 3), padding=(1, 1), dtype=dtype)
    if dtype == torch.float32:
        kernels.conv_gradients(picture, picture, (3, 3), padding=(1, 1), precision="tf32")
    else:
        kernels.split_weighted(x, torch.empty(records))
    for kind in (torch.float32, torch.float64):
        normals = device_normals.DeviceNormals(2**62 + records)
        normals.add_(torch.empty(records, dtype=kind), 0.1)
        normals._draws = 2**40 * records - 1
        normals.add_(torch.empty(records, dtype=kind), 1.0)


# By compute capability, the bytes of shared memory that a program may take.
SHARED = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10}


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="Triton interprets")
@pytest.mark.parametrize("capability", SHARED)
def test_kernels_compile_for_devices_and_once_for_lots_of_all_sizes(capability, monkeypatch):
    from triton.backends.compiler import GPUTarget
    from triton.runtime import jit

    compiled = []

    def compile_only(kernel, programs, *arguments, **options):
        compiled.append(kernel.warmup(*arguments, grid=(programs,), enable_fp_fusion=True, **options))

    for module in (kernels, device_normals):
        monkeypatch.setattr(module, "launch", compile_only)
    device = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
        get_current_device=lambda: capability,
        get_current_stream=lambda device: 0,
    )
    monkeypatch.setattr(jit, "driver", types.SimpleNamespace(active=device))
    for place in range(len(kernels._SHORT_GRAMS)):
        monkeypatch.setattr(kernels, "quickest", lambda shape, sizes, *_, place=place: sizes[place % len(sizes)])
        for dtype in (torch.bfloat16, torch.float32):
            _call_all(3, dtype)
            kinds = set(map(id, compiled))
            for records in (1, 16, 17) if place == 0 else ():
                _call_all(records, dtype)
            assert set(map(id, compiled)) == kinds
    assert max(kernel.metadata.shared for kernel in compiled) <= SHARED[capability]

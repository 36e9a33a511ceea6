"""Kernels of private steps on a GPU, in Triton: norms of sums of outer products, weights, and gradients of single records.

Where Triton is missing, `serve` returns False and torch's own products are taken.

The numbers of a record depend on that record alone: each program writes numbers of one record, nothing is added by
atomics, and no size that a kernel is compiled for or loops over follows from the number of records or from a slot. So a
lot of another size compiles nothing anew. Sizes that change the last bits alone are chosen by their time, once a shape.
Offsets are 64 bits wide, since a lot may hold more than 2^31 numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_dpgen.common.device_kernels import AVAILABLE, kernel, launch, quickest, serves

if AVAILABLE:
    import triton
    import triton.language as tl

# Products that are added on the tensor cores before their sum moves to float32 registers, see `gram_norms`.
PROMOTED = 128


def serve(x: Tensor) -> bool:
    """Return True if the kernels take a tensor: on a device of CUDA for which Triton compiles, or where it interprets."""
    return serves(x, _try_products)


def _try_products(device: torch.device) -> None:
    gram_norms(*torch.ones(2, 1, 1, 16, device=device, dtype=torch.bfloat16))


def _fit(size: int, most: int) -> int:
    """Return the power of two from 16 to `most` that holds `size`, or `most`: tensor cores take no fewer than 16."""
    return min(most, max(16, triton.next_power_of_2(size)))


# ---- Norms of sums of outer products


def gram_norms(left: Tensor, right: Tensor, least: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return squared norms of ``left_i^T right_i`` by inner products of rows, and the sums of the lengths of its terms.

    Both Gram matrices of a record stay in registers, a tile at a time; of two tiles that mirror each other one is computed.

    Let ``c(width) = min(width, 128) + ceil(width / 128)``. For widths up to 2^18, each entry of a Gram matrix errs by at
    most ``c(width) u`` times the sum of the sizes of its products: chains of at most 128 products are added on the tensor
    cores, and the sums of chains in float32 registers. Here u is 2^-24 where each addition rounds, as those of float32 do,
    and 2^-23 on tensor cores that cut off. These are assumed to add 8 products or more at a time, and to keep one bit more
    than float32 meanwhile. A tile takes one product of entries and 63 additions in float32; all else is float64. So

    - ``|square - exact| <= ((c(o) + c(n)) u + 64 * 2^-24) longest^2``, and
    - `longest` errs by at most ``(c(o) + c(n)) u / 2`` of itself.

    Beside that, products below 2^-126 in size may vanish, and a sum beyond float32 is infinite. A record with NaN or
    infinite numbers has a norm that is not finite.

    Args:
        left: (R, T, o) float32, bfloat16 or float16, of any strides. float32 numbers are multiplied as such, not in TF32.
            They are read fastest where rows begin at multiples of 16 bytes.
        right: (R, T, n), likewise.
        least: added to the square of each length, as room for squares that vanished.

    Returns:
        (R,) ``|sum_t left_t right_t^T|_F^2``, which rounding may leave below zero; (R,) ``sum_t |left_t| |right_t|``, the
        `longest` above; and (R,) ``sum_t |left_t| + |right_t|``; float64.
    """
    terms, widths, kinds = left.shape[1], (left.shape[2], right.shape[2]), (left.dtype, right.dtype)

    def on_made_up(records: int, sizes: dict[str, int]) -> None:
        made_up = (left.new_ones((records, terms, width), dtype=kind) for width, kind in zip(widths, kinds, strict=True))
        _grams(*made_up, 0.0, sizes)

    # float32 products are made one by one, and take more registers.
    candidates = _LONG_GRAMS if torch.float32 in kinds else _SHORT_GRAMS
    return _grams(left, right, least, quickest(("grams", terms, *widths, *kinds), candidates, left, on_made_up))


# The first ones are those of a processor. A tile is 64 rows at most, and a chunk divides `PROMOTED`: the proof needs it.
_LONG_GRAMS = (
    {"tile": 64, "chunk": 16, "num_warps": 8, "num_stages": 2}, {"tile": 64, "chunk": 32, "num_warps": 8, "num_stages": 2},
    {"tile": 32, "chunk": 32, "num_warps": 4, "num_stages": 2},
)  # fmt: skip
_SHORT_GRAMS = (
    {"tile": 64, "chunk": 64, "num_warps": 4, "num_stages": 3}, {"tile": 64, "chunk": 64, "num_warps": 8, "num_stages": 3},
    {"tile": 64, "chunk": 128, "num_warps": 4, "num_stages": 2}, {"tile": 64, "chunk": 32, "num_warps": 4, "num_stages": 4},
    {"tile": 32, "chunk": 64, "num_warps": 4, "num_stages": 4}, {"tile": 32, "chunk": 128, "num_warps": 2, "num_stages": 3},
)  # fmt: skip


def _grams(left: Tensor, right: Tensor, least: float, sizes: dict[str, int]) -> tuple[Tensor, Tensor, Tensor]:
    records, terms = left.shape[:2]
    tile = _fit(terms, sizes["tile"])
    tiles = triton.cdiv(terms, tile)
    parts = left.new_zeros((records, 3, tiles * tiles), dtype=torch.float64)
    launch(
        _gram_norms, records * tiles * tiles, left, right, parts, terms, left.shape[2], right.shape[2], *left.stride(),
        *right.stride(), tiles, least, TILE=tile, CHUNK=sizes["chunk"], CHUNKS=PROMOTED // sizes["chunk"],
        num_warps=sizes["num_warps"], num_stages=sizes["num_stages"],
    )  # fmt: skip
    sums = parts.new_empty((records, 3))
    # The order in which torch adds depends on the number of rows, and on where a row begins.
    launch(_sum_rows, records * 3, parts, sums, tiles * tiles, BLOCK=128, num_warps=1)
    squares, longest, lengths = sums.unbind(dim=1)
    return squares, longest, lengths


@kernel()
def _gram(x, first, second, terms, width, of_row, of_number, TILE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    """Return the inner products of the rows `first` and `second` (TILE,) of a record's factor."""
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, width, CHUNK * CHUNKS):
        part = tl.zeros((TILE, TILE), dtype=tl.float32)
        for k in tl.static_range(CHUNKS):
            at = start + k * CHUNK + tl.arange(0, CHUNK).to(tl.int64)
            a = tl.load(x + first[:, None] * of_row + at[None, :] * of_number,
                        mask=(first < terms)[:, None] & (at < width)[None, :], other=0.0)  # fmt: skip
            b = tl.load(x + second[None, :] * of_row + at[:, None] * of_number,
                        mask=(second < terms)[None, :] & (at < width)[:, None], other=0.0)  # fmt: skip
            part = tl.dot(a, b, part, input_precision="ieee")
        # Tensor cores cut off what they add; float32 registers round it.
        total += part
    return total


@kernel("tiles", "least")
def _gram_norms(
    left, right, parts, terms, left_width, right_width, left_record, left_row, left_number, right_record, right_row,
    right_number, tiles, least, TILE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    record, tile = (tl.program_id(0) // (tiles * tiles)).to(tl.int64), tl.program_id(0) % (tiles * tiles)
    i, j = tile // tiles, tile % tiles
    if j <= i:
        first = i * TILE + tl.arange(0, TILE).to(tl.int64)
        second = j * TILE + tl.arange(0, TILE).to(tl.int64)
        lefts = _gram(left + record * left_record, first, second, terms, left_width, left_row, left_number,
                      TILE, CHUNK, CHUNKS)  # fmt: skip
        rights = _gram(right + record * right_record, first, second, terms, right_width, right_row, right_number,
                       TILE, CHUNK, CHUNKS)  # fmt: skip
        square = tl.sum(tl.sum(lefts * rights, axis=1).to(tl.float64), axis=0)
        place = parts + record * 3 * tiles * tiles + tile
        if j < i:
            tl.store(place, 2.0 * square)
        else:
            tl.store(place, square)
            diagonal = tl.arange(0, TILE)[:, None] == tl.arange(0, TILE)[None, :]
            # Rows beyond the last one have no length.
            there = first < terms
            of_left = tl.sqrt(tl.sum(tl.where(diagonal, lefts, 0.0), axis=1).to(tl.float64) + tl.where(there, least, 0.0))
            of_right = tl.sqrt(tl.sum(tl.where(diagonal, rights, 0.0), axis=1).to(tl.float64) + tl.where(there, least, 0.0))
            tl.store(place + tiles * tiles, tl.sum(of_left * of_right, axis=0))
            tl.store(place + 2 * tiles * tiles, tl.sum(of_left + of_right, axis=0))


@kernel("width")
def _sum_rows(x, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * width + at, mask=at < width, other=0.0)
    tl.store(out + row, tl.sum(total, axis=0))


# ---- Weights


def split_weighted(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``weights[i] * x[i]`` as a sum of two tensors of x's type.

    The first is the product, rounded to x's type, and the second what rounding took, rounded as well. Their sum differs
    from the exact product by at most 2^-17 of it for bfloat16, and 2^-21 for float16; or by 2^-133 and 2^-24, if that is
    more.

    Args:
        x: (R, ...) bfloat16 or float16.
        weights: (R,) float32. Where it is 0, both parts are exact zeros, even if x is NaN or infinite.

    Returns:
        The rounded products, and what rounding took from them, both contiguous and of x's shape and type.
    """
    x, weights = x.contiguous(), weights.contiguous()
    high, low = torch.empty_like(x), torch.empty_like(x)
    numbers = math.prod(x.shape[1:])
    blocks = triton.cdiv(numbers, 4096)
    launch(_split_weighted, len(x) * blocks, x, weights, high, low, numbers, blocks, BLOCK=4096, num_warps=8)
    return high, low


@kernel("blocks")
def _split_weighted(x, weights, high, low, numbers, blocks, BLOCK: tl.constexpr):
    record, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place, mask = record * numbers + at, at < numbers
    weight = tl.load(weights + record)
    product = tl.where(weight != 0.0, tl.load(x + place, mask=mask, other=0.0).to(tl.float32) * weight, 0.0)
    rounded = product.to(high.dtype.element_ty)
    tl.store(high + place, rounded, mask=mask)
    tl.store(low + place, (product - rounded.to(tl.float32)).to(low.dtype.element_ty), mask=mask)


# ---- Gradients of kernels


def conv_gradients(
    x: Tensor,
    gradient: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    *,
    dtype: torch.dtype = torch.float32,
    precision: str = "ieee",
) -> Tensor:
    """Return the gradient of each record's kernel in a two-dimensional convolution with one group.

    A program takes one place of one record's kernel: the record's gradient times the pixels that this place meets, read
    where they are. So nothing is unfolded or padded. Sums are float32.

    Args:
        x: (R, C, H, W) float32, bfloat16 or float16, of any strides.
        gradient: (R, O, H', W') of the same type, with respect to the convolution's result. It is copied where its places
            have no common stride; those of torch's two memory formats have one.
        kernel: height and width of the kernel.
        stride: of ``torch.nn.functional.conv2d``, by direction, as are the next two.
        padding: rows and columns of zeros on each side.
        dilation: pixels between neighbours in the kernel.
        dtype: of the result, to which the float32 sums are rounded.
        precision: ``"tf32"`` rounds float32 numbers to TF32 before they are multiplied, ``"ieee"`` does not.

    Returns:
        (kh * kw, R, O, C).
    """
    direction = tuple(kernel), tuple(stride), tuple(padding), tuple(dilation), dtype, precision

    def on_made_up(records: int, sizes: dict[str, int]) -> None:
        _convolve(x.new_ones((records, *x.shape[1:])), gradient.new_ones((records, *gradient.shape[1:])), direction, sizes)

    shape = ("convolution", x.shape[1:], gradient.shape[1:], x.dtype, direction)
    return _convolve(x, gradient, direction, quickest(shape, _CONVOLUTIONS, x, on_made_up))


# The first ones are those of a processor.
_CONVOLUTIONS = (
    {"tile": 64, "num_warps": 4, "num_stages": 3}, {"tile": 64, "num_warps": 8, "num_stages": 3},
    {"tile": 128, "num_warps": 8, "num_stages": 2}, {"tile": 32, "num_warps": 4, "num_stages": 4},
)  # fmt: skip


def _convolve(x: Tensor, gradient: Tensor, direction: tuple, sizes: dict[str, int]) -> Tensor:
    kernel, stride, padding, dilation, dtype, precision = direction
    (records, channels), outs, places = x.shape[:2], gradient.shape[1], math.prod(gradient.shape[2:])
    out = x.new_empty((math.prod(kernel), records, outs, channels), dtype=dtype)
    at = gradient.flatten(2)
    out_tile, in_tile = _fit(outs, sizes["tile"]), _fit(channels, sizes["tile"])
    out_tiles, in_tiles = triton.cdiv(outs, out_tile), triton.cdiv(channels, in_tile)
    launch(
        _conv_gradients, len(out) * records * out_tiles * in_tiles, x, at, out, records, channels, outs, places,
        *x.shape[2:], gradient.shape[3], *x.stride(), *at.stride(), *kernel, *stride, *padding, *dilation,
        out_tiles, in_tiles, OUT_TILE=out_tile, IN_TILE=in_tile, CHUNK=_fit(places, 32 if x.dtype == torch.float32 else 64),
        PRECISION=precision, num_warps=sizes["num_warps"], num_stages=sizes["num_stages"],
    )  # fmt: skip
    return out


@kernel("records", "height", "width", "out_width", "tall", "wide", "stride_y", "stride_x", "padding_y", "padding_x",
         "dilation_y", "dilation_x", "out_tiles", "in_tiles")  # fmt: skip
def _conv_gradients(
    x, gradient, out, records, channels, outs, places, height, width, out_width, x_record, x_channel, x_row, x_column,
    at_record, at_channel, at_place, tall, wide, stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x,
    out_tiles, in_tiles, OUT_TILE: tl.constexpr, IN_TILE: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # Programs of one record are side by side, so that its pixels are read from memory once.
    tile, in_tile = tl.program_id(0) // in_tiles, tl.program_id(0) % in_tiles
    tile, out_tile = tile // out_tiles, tile % out_tiles
    record, place = (tile // (tall * wide)).to(tl.int64), tile % (tall * wide)
    o = out_tile * OUT_TILE + tl.arange(0, OUT_TILE).to(tl.int64)
    c = in_tile * IN_TILE + tl.arange(0, IN_TILE).to(tl.int64)
    down, right = place // wide * dilation_y - padding_y, place % wide * dilation_x - padding_x
    total = tl.zeros((OUT_TILE, IN_TILE), dtype=tl.float32)
    for start in range(0, places, CHUNK):
        t = start + tl.arange(0, CHUNK)
        row, column = t // out_width * stride_y + down, t % out_width * stride_x + right
        met = (t < places) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        pixel = row.to(tl.int64) * x_row + column.to(tl.int64) * x_column
        a = tl.load(gradient + record * at_record + o[:, None] * at_channel + t[None, :].to(tl.int64) * at_place,
                    mask=(o < outs)[:, None] & (t < places)[None, :], other=0.0)  # fmt: skip
        b = tl.load(x + record * x_record + c[None, :] * x_channel + pixel[:, None],
                    mask=(c < channels)[None, :] & met[:, None], other=0.0)  # fmt: skip
        total = tl.dot(a, b, total, input_precision=PRECISION)
    tl.store(out + ((place * records + record) * outs + o[:, None]) * channels + c[None, :],
             total.to(out.dtype.element_ty), mask=(o < outs)[:, None] & (c < channels)[None, :])  # fmt: skip


# ---- Gradients of scales and shifts


def scale_shift_gradients(x: Tensor, gradient: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of each record's scale and shift in a layer norm or a group norm, in one pass over memory.

    Sums are float32, over ``gradient * (x - mean) * rstd`` and over ``gradient``.

    Args:
        x: (R, T, C) float32, bfloat16 or float16, of any strides: what is normalised. Where channels come first, in a
            tensor (R, C, L), hand over ``x.transpose(1, 2)``.
        gradient: (R, T, C), likewise, with respect to the norm's result.
        mean: float32, (R, T, 1) if each row is normalised (layer norm), or (R, 1, groups) if neighbouring channels are
            (group norm). The groups divide C.
        rstd: one over the standard deviation, like `mean`.

    Returns:
        (R, C) and (R, C) float32, of the scale and of the shift.
    """
    records, terms, channels = x.shape
    scale, shift = (x.new_empty((records, channels), dtype=torch.float32) for _ in range(2))
    # The larger side of a block lies along the memory.
    term_tile, channel_tile = (32, 128) if x.stride(2) == 1 else (128, 32)
    blocks = triton.cdiv(channels, channel_tile)
    launch(
        _scale_shift_gradients, records * blocks, x, gradient, mean.contiguous(), rstd.contiguous(), scale, shift, terms,
        channels, channels // mean.shape[2], *x.stride(), *gradient.stride(), blocks, ROWS=mean.shape[1] != 1,
        TERMS=term_tile, CHANNELS=channel_tile, num_warps=8,
    )  # fmt: skip
    return scale, shift


@kernel("channels_a_group", "blocks")
def _scale_shift_gradients(
    x, gradient, mean, rstd, scale, shift, terms, channels, channels_a_group, x_record, x_term, x_channel, at_record,
    at_term, at_channel, blocks, ROWS: tl.constexpr, TERMS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    record = (tl.program_id(0) // blocks).to(tl.int64)
    c = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS).to(tl.int64)
    if not ROWS:
        group = record * (channels // channels_a_group) + c // channels_a_group
        centre = tl.load(mean + group, mask=c < channels, other=0.0)[None, :]
        factor = tl.load(rstd + group, mask=c < channels, other=0.0)[None, :]
    scales = tl.zeros((TERMS, CHANNELS), dtype=tl.float32)
    shifts = tl.zeros((TERMS, CHANNELS), dtype=tl.float32)
    for start in range(0, terms, TERMS):
        t = start + tl.arange(0, TERMS).to(tl.int64)
        mask = (t < terms)[:, None] & (c < channels)[None, :]
        if ROWS:
            centre = tl.load(mean + record * terms + t, mask=t < terms, other=0.0)[:, None]
            factor = tl.load(rstd + record * terms + t, mask=t < terms, other=0.0)[:, None]
        value = tl.load(x + record * x_record + t[:, None] * x_term + c[None, :] * x_channel, mask=mask, other=0.0)
        at = tl.load(gradient + record * at_record + t[:, None] * at_term + c[None, :] * at_channel, mask=mask, other=0.0)
        scales += at.to(tl.float32) * ((value.to(tl.float32) - centre) * factor)
        shifts += at.to(tl.float32)
    tl.store(scale + record * channels + c, tl.sum(scales, axis=0), mask=c < channels)
    tl.store(shift + record * channels + c, tl.sum(shifts, axis=0), mask=c < channels)

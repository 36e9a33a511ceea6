"""Products of factors in the precision that a network is trained in, and the reach of their rounding.

Under mixed precision the factors of a record are bfloat16 numbers: the inputs of a layer, and the gradients of its outputs.
Norms are computed from these very numbers, and these are what is added up, so their own rounding touches no bound. A
product of two bfloat16 numbers is exact in float32, in which tensor cores (on a processor AMX) add products up. Two things
are lost, and each has a bound that is added to a norm before it is clipped (docs/guarantees/mixed_precision.md):

* sums of products, which a processor rounds and tensor cores cut off (`accumulation`);
* weights: a factor times a weight is no bfloat16 number, and becomes the sum of two (`WEIGHTED`).
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from lightning_dpgen.common.precision import HAS_AMX, bfloat16_products
from lightning_dpgen.gradients import kernels

# The relative rounding of one addition in float32.
ROUNDING = 2.0**-24
# A number times its weight, rounded to float32 and then to the sum of two bfloat16 numbers, errs by less than this part of
# its size: by 2^-24, and by half a unit in the last of eight bits of a rest that is 2^-8 of it at most.
WEIGHTED = 2.0**-17 + 2.0**-23
# Products that are added up at a time. Longer sums are sums of such sums, whose rounding grows with the number of these.
_AT_ONCE = {"cpu": 256, "cuda": 128}
# Rows of two factors that a processor multiplies into one sum at a time, and such sums that it adds up at a time. Libraries
# may add the rows one after the other.
_ROWS = 1024
# Units of `ROUNDING` that an addition may take. Tensor cores cut off: they take 4 to 16 products at a time, cut each below
# the last bit of the largest, and cut the sum once more.
_UNITS = {"cpu": 1.0, "cuda": 2.0}
# Without AMX a processor takes longer for bfloat16 numbers than for float32.
_AMX = HAS_AMX
_NOTHING = nullcontext()


def accumulation(width: int, device: torch.device) -> float:
    """Return the greatest error of an entry of `inner_products`, as a part of the product of the lengths of its two rows.

    In float32, n products that are added up in any order err by n units of the sum of their sizes at most.

    Args:
        width: the number of products.
        device: where they are added up.
    """
    at_once = _AT_ONCE.get(device.type, 128)
    return (min(width, at_once) + math.ceil(width / at_once)) * _UNITS.get(device.type, 2.0) * ROUNDING


def summation(products: int, device: torch.device) -> float:
    """Return the greatest error of a sum of outer products by `add_product`, as a part of the sum of their lengths.

    On a processor a product is in at most `_ROWS` additions of rows and as many of sums, and in no more than there are
    products. On other devices libraries are taken to add up rows in blocks, as `inner_products` does.

    Args:
        products: those of one record, group or person, wherever their rows are.
        device: where they are added up.
    """
    return min(products + 1, 2 * _ROWS) * ROUNDING if device.type == "cpu" else accumulation(products, device)


def add_product(a: Tensor, b: Tensor, out: Tensor, *, add: bool) -> None:
    """Write ``a^T b`` into a matrix (o, n), or add it, of rows (R, o) and (R, n) of its type; it errs by `summation`."""
    rows = len(a)
    if rows <= _ROWS or a.device.type != "cpu":
        torch.addmm(out, a.T, b, beta=float(add), out=out)
        return
    size = _ROWS if rows <= _ROWS**2 else _ROWS**2
    for start in range(0, rows, size):
        part = torch.empty_like(out) if add else out
        add_product(a[start : start + size], b[start : start + size], part, add=False)
        if add:
            out.add_(part)
        add = True


def inner_products(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner products (R, r, s) of the rows of two factors (R, r, n) and (R, s, n), in float32 or float64.

    An entry errs by `accumulation` at most; products below the normal numbers may count as zero.
    """
    a, b = _alike(a, b)
    at_once, width = _AT_ONCE.get(a.device.type, 128), a.shape[2]
    if a.dtype == torch.float64 or width <= at_once:
        return multiply(a, b.transpose(1, 2))
    with exact(a):
        total: Tensor | None = None
        for start in range(0, width, at_once):
            x = wide(a[..., start : start + at_once])
            y = x if b is a else wide(b[..., start : start + at_once])
            part = _bmm(x, y.transpose(1, 2))
            total = part if total is None else total.add_(part)
    assert total is not None, "the rows have a number"
    return total


def multiply(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Multiply matrices (R, i, j) by (R, j, k); the products of bfloat16 numbers are added up and returned in float32.

    Args:
        out: where the result is written, if it is given.
    """
    a, b = _alike(a, b)
    with exact(a):
        return _bmm(wide(a), wide(b), out)


def add_weighted(a: Tensor, b: Tensor, weights: Tensor, out: Tensor, *, add: bool) -> None:
    """Write ``sum_i weights[i] a_i^T b_i`` into a matrix, or add it.

    Where both factors are bfloat16, a weighted number errs by `WEIGHTED` at most. Otherwise it is rounded in the type of
    the factors.

    Args:
        a: (R, r, o), finite.
        b: (R, r, n), finite.
        weights: (R,).
        out: (o, n).
        add: add to `out` instead of overwriting it.
    """
    a, b = _alike(a, b)
    # The smaller factor is weighted.
    if a.shape[2] <= b.shape[2]:
        parts = [(x, b) for x in _weighted(a, weights)]
    else:
        parts = [(a, x) for x in _weighted(b, weights)]
    with exact(a):
        for left, right in parts:
            left, right = (wide(x).reshape(-1, x.shape[2]) for x in (left, right))
            if left.dtype == torch.bfloat16:
                product = torch.mm(left.T, right, out_dtype=torch.float32)
                out.add_(product) if add else out.copy_(product)
            else:
                add_product(_as(left, out.dtype), _as(right, out.dtype), out, add=add)
            add = True


def _weighted(x: Tensor, weights: Tensor) -> list[Tensor]:
    """Return rows (R, r, n) times their weights, as tensors that add up to them."""
    if x.dtype != torch.bfloat16:
        return [x * weights.to(x.dtype).view(-1, 1, 1)]
    if kernels.serve(x):
        return [*kernels.split_weighted(x, weights.float())]
    product = x * weights.float().view(-1, 1, 1)
    if x.device.type == "cpu" and not _AMX:
        return [product]
    high = product.to(x.dtype)
    return [high, product.sub_(high).to(x.dtype)]


def _alike(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return two factors in one type; rounded to bfloat16, one of float32 would be another."""
    if a.dtype == b.dtype:
        return a, b
    dtype = torch.promote_types(a.dtype, b.dtype)
    return a.to(dtype), b.to(dtype)


def _bmm(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    if a.dtype != torch.bfloat16:
        return torch.bmm(a, b, out=out)
    product = torch.bmm(a, b, out_dtype=torch.float32)
    return product if out is None else out.copy_(product)


def exact(x: Tensor) -> AbstractContextManager:
    """Return a context in which a processor may multiply float32 numbers as bfloat16, if these are bfloat16 numbers."""
    return bfloat16_products() if _AMX and x.dtype == torch.bfloat16 and x.device.type == "cpu" else _NOTHING


def wide(x: Tensor) -> Tensor:
    """Return bfloat16 numbers in the type in which a device multiplies them into float32."""
    return x.float() if x.dtype == torch.bfloat16 and x.device.type != "cuda" else x


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a tensor; even where there is nothing to convert, ``to`` takes as long as an addition of a few numbers."""
    return x if x.dtype == dtype else x.to(dtype)

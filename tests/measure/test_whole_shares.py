"""Softmax in whole numbers: right, and bit for bit the same for a row wherever it stands."""

import torch
from torch.overrides import TorchFunctionMode

from lightning_dpgen.measure.label_gradients import SHARE_BITS, mixed_shares, whole_shares

LOGITS = 8.0 * torch.randn(300, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
BEFORE = torch.rand(300, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64).clamp(min=1e-4)


def test_shares_are_those_of_softmax():
    for before, logits in ((None, LOGITS), (BEFORE, LOGITS + BEFORE.log())):
        found = whole_shares(LOGITS, before)
        expected = torch.softmax(logits, dim=1)
        assert found.dtype == torch.int64 and (found.double() * 2.0**-SHARE_BITS - expected).abs().max() <= 2.0**-SHARE_BITS
        rows = torch.rand(7, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        torch.testing.assert_close(mixed_shares(found, rows), expected @ rows, rtol=0.0, atol=1e-6)


def test_a_row_is_the_same_wherever_it_stands():
    whole = whole_shares(LOGITS, BEFORE)
    for start, end in ((0, 1), (1, 4), (3, 12), (7, 300)):
        assert torch.equal(whole_shares(LOGITS[start:end], BEFORE[start:end]), whole[start:end])
    turned = whole_shares(LOGITS.T.contiguous().T, BEFORE)
    assert torch.equal(turned, whole)


def test_each_operation_is_one_that_float64_rounds_alike_everywhere():
    """Exponential functions, logarithms and products of matrices are none: their last bits follow from the place."""
    called = set()

    class Noted(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            called.add(function.__name__.strip("_"))
            return function(*args, **(kwargs or {}))

    with Noted():
        whole_shares(LOGITS, BEFORE)
    single = {
        "mul",
        "rmul",
        "truediv",
        "div",
        "sub",
        "rsub",
        "floor",
        "round",
        "clamp",
        "nan_to_num",
        "isnan",
        "eq",
        "invert",
    }
    moving = {"getitem", "where", "to", "double", "any", "amax", "sum"}
    # `sum` adds whole numbers, and `amax` rounds nothing.
    assert called <= single | moving, called - single - moving


def test_what_overflows_counts_as_nothing():
    inf, nan = torch.inf, torch.nan
    rows = torch.tensor([[inf, 0.0], [nan, 0.0], [-inf, -inf], [0.0, -inf], [1e300, -1e300]], dtype=torch.float64)
    assert whole_shares(rows).tolist() == [[0, 0]] * 3 + [[2**SHARE_BITS, 0]] * 2

"""Products of bfloat16 rows on a processor with AMX, in which a row that is not finite stays by itself.

oneDNN takes 32 numbers of a row at a time there. Where a row has another length, the last of these are numbers of the next
row, times zero, and zero times infinity is NaN: a record that is not finite would make the one before it so, too. Rows
that are filled up with zeros end where they should.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_dpgen.common.precision import HAS_AMX

# Numbers of a row that are taken at a time.
_AT_ONCE = 32
_ATEN = torch.ops.aten
# The place of the left factor among the arguments, before that of the right one.
_PRODUCTS = {
    _ATEN.mm.default: 0, _ATEN.addmm.default: 1, _ATEN.bmm.default: 0, _ATEN.baddbmm.default: 1, _ATEN.mv.default: 0,
    _ATEN.addmv.default: 1,
}  # fmt: skip
# Losses that multiply bfloat16 numbers without autocast.
_converting: weakref.WeakKeyDictionary[nn.Module, set[Hashable]] = weakref.WeakKeyDictionary()
_NOTHING = nullcontext()


class PaddedProducts(TorchDispatchMode):
    """A mode that fills the rows of bfloat16 factors on a processor up with zeros.

    Attributes:
        used: whether there was a product of such numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        place = _PRODUCTS.get(function)
        if place is not None and args[place].dtype == torch.bfloat16 and args[place].device.type == "cpu":
            self.used = True
            more = -args[place].shape[-1] % _AT_ONCE
            if more:
                left, right = args[place : place + 2]
                args = (*args[:place], F.pad(left, (0, more)), _padded_below(right, more), *args[place + 2 :])
        return function(*args, **(kwargs or {}))


def _padded_below(x: Tensor, more: int) -> Tensor:
    """Return a vector, or the rows of matrices, with so many zeros behind them."""
    return F.pad(x, (0, more) if x.dim() == 1 else (0, 0, 0, more))


def rows_apart(
    device: torch.device, network: nn.Module | None = None, code: Hashable = None
) -> AbstractContextManager[object]:
    """Return a context in which records are computed together: `PaddedProducts` where that may be needed.

    Args:
        device: where it computes.
        network: the network that a loss is of, if one is computed.
        code: of the loss (`terms.code_of`).
    """
    if device.type != "cpu" or not HAS_AMX:
        return _NOTHING
    needed = torch.is_autocast_enabled("cpu") or (network is not None and code in _converting.get(network, ()))
    return PaddedProducts() if needed else _NOTHING


@contextmanager
def noting_bfloat16(network: nn.Module, code: Hashable) -> Iterator[None]:
    """Note in a trial of a loss whether it multiplies bfloat16 numbers, for `rows_apart`."""
    with PaddedProducts() as mode:
        yield
    if mode.used:
        _converting.setdefault(network, set()).add(code)

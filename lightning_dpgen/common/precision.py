"""Full precision for computations on which a bound on norms rests, whatever is set for the rest of a program."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ContextDecorator, nullcontext

import torch

# True for a processor that multiplies bfloat16 numbers in tiles.
HAS_AMX = torch.cpu._is_amx_tile_supported()


class whole_products(ContextDecorator):
    """A context that multiplies float32 numbers in all of their bits: not in TF32 or bfloat16, whatever is set.

    Autocast stays as it is. On a GPU torch computes convolutions and recurrent networks in TF32, of eleven bits, unless it
    is told otherwise, and matrix products where ``torch.set_float32_matmul_precision`` asks for less.
    """

    def __enter__(self) -> None:
        with _settings.changing:
            if not _settings.entered:
                _settings.asked.clear()
                for backend, kind in _BACKENDS:
                    _settings.asked.append(torch._C._get_fp32_precision_getter(backend, kind))
                    torch._C._set_fp32_precision_setter(backend, kind, "ieee")
            _settings.entered += 1
            _settings.of_thread.entered += 1

    def __exit__(self, *error: object) -> None:
        with _settings.changing:
            _settings.entered -= 1
            _settings.of_thread.entered -= 1
            if not _settings.entered:
                for (backend, kind), asked in zip(_BACKENDS, _settings.asked, strict=True):
                    torch._C._set_fp32_precision_setter(backend, kind, asked)


class full_precision(whole_products):
    """A context without autocast and without what settings of torch ask for instead of float32 (`whole_products`).

    In their eleven or eight bits a clipped sum would be longer than its bound by up to a hundredth, norms would be too
    small by as much, and sums that count as exact would be rounded.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._autocast: AbstractContextManager = _NOTHING

    def _recreate_cm(self) -> full_precision:
        return full_precision(self._device)

    def __enter__(self) -> None:
        super().__enter__()
        self._autocast = without_autocast(self._device)
        self._autocast.__enter__()

    def __exit__(self, *error: object) -> None:
        self._autocast.__exit__(None, None, None)
        super().__exit__(*error)


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Return a context in which torch converts nothing to the type of autocast; products are made as was asked."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else _NOTHING


class bfloat16_products(ContextDecorator):
    """A context that lets a processor multiply float32 numbers as bfloat16 and add up in float32: by AMX, if it has that.

    It is for float32 numbers that are bfloat16 numbers, whose products are the same then. Inside of it, other threads that
    ask for whole products wait. Where another thread computes whole products already, nothing changes.
    """

    def __init__(self) -> None:
        self._asked: str | None = None

    def _recreate_cm(self) -> bfloat16_products:
        return bfloat16_products()

    def __enter__(self) -> None:
        _settings.changing.acquire()
        if _settings.entered == _settings.of_thread.entered:
            self._asked = torch._C._get_fp32_precision_getter(*_ON_PROCESSOR)
            torch._C._set_fp32_precision_setter(*_ON_PROCESSOR, "bf16")
        else:
            _settings.changing.release()

    def __exit__(self, *error: object) -> None:
        if self._asked is not None:
            torch._C._set_fp32_precision_setter(*_ON_PROCESSOR, self._asked)
            self._asked = None
            _settings.changing.release()


def multiplies_bfloat16() -> bool:
    """Return True where a processor multiplies float32 numbers as bfloat16: within `bfloat16_products`, or as was asked."""
    return torch._C._get_fp32_precision_getter(*_ON_PROCESSOR) == "bf16"


class _OfThread(threading.local):
    """The number of contexts of whole products that a thread is in."""

    entered = 0


class _Settings:
    """Settings of torch, of the whole process, from the first of its threads that enters to the last that leaves."""

    def __init__(self) -> None:
        self.changing, self.entered, self.of_thread = threading.RLock(), 0, _OfThread()
        self.asked: list[str] = []


_NOTHING, _settings = nullcontext(), _Settings()
# The settings behind ``torch.backends.*.fp32_precision``: their attributes there take five times as long.
_ON_PROCESSOR = ("mkldnn", "matmul")
_BACKENDS = [(backend, kind) for backend in ("cuda", "mkldnn") for kind in ("matmul", "conv", "rnn")]

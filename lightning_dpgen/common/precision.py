"""Full precision for computations on which a bound on norms rests, whatever is set for the rest of a program."""

from __future__ import annotations

import threading
from contextlib import ContextDecorator

import torch


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

    def __exit__(self, *error: object) -> None:
        with _settings.changing:
            _settings.entered -= 1
            if not _settings.entered:
                for (backend, kind), asked in zip(_BACKENDS, _settings.asked, strict=True):
                    torch._C._set_fp32_precision_setter(backend, kind, asked)


class full_precision(whole_products):
    """A context without autocast and without what settings of torch ask for instead of float32 (`whole_products`).

    In their eleven or eight bits a clipped sum would be longer than its bound by up to a hundredth, norms would be too
    small by as much, and sums that count as exact would be rounded.
    """

    def __init__(self, device: torch.device) -> None:
        self._kind = device.type
        self._autocast: torch.autocast | None = None

    def _recreate_cm(self) -> full_precision:
        return full_precision(torch.device(self._kind))

    def __enter__(self) -> None:
        super().__enter__()
        if torch.is_autocast_enabled(self._kind):
            self._autocast = torch.autocast(self._kind, enabled=False)
            self._autocast.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._autocast is not None:
            self._autocast.__exit__(*error)
            self._autocast = None
        super().__exit__(*error)


class _Settings:
    """Settings of torch, of the whole process, from the first of its threads that enters to the last that leaves."""

    def __init__(self) -> None:
        self.changing, self.entered = threading.Lock(), 0
        self.asked: list[str] = []


_settings = _Settings()
# The settings behind ``torch.backends.*.fp32_precision``: their attributes there take five times as long.
_BACKENDS = [(backend, kind) for backend in ("cuda", "mkldnn") for kind in ("matmul", "conv", "rnn")]

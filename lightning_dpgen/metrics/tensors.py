"""Tensors that metrics and attacks are handed: each mistake gets one line, before anything is computed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def check_records(name: str, records: Any, width: int | None = None, device: torch.device | None = None) -> None:
    """Raise ValueError, naming them, unless records are a tensor (n, width) of finite numbers on a device.

    None takes any width, or any device.

    Example:
        >>> check_records("records", torch.zeros(3), 2)
        Traceback (most recent call last):
        ValueError: records of shape (3,): expected (n, 2)
    """
    _check(name, records, "(n, width)" if width is None else f"(n, {width})")
    if records.ndim != 2 or width not in (None, records.shape[1]):
        expected = "width" if width is None else width
        raise ValueError(f"{name} of shape {tuple(records.shape)}: expected (n, {expected})")
    if device not in (None, records.device):
        raise ValueError(f"{name} on {records.device}: expected {device}, where the others are")
    _check_finite(name, records)


def check_scores(name: str, scores: Any, n: int | None = None) -> None:
    """Raise ValueError, naming them, unless scores are a tensor (n,) of finite numbers, one a record; None takes any n."""
    expected = "(n,)" if n is None else f"({n},)"
    _check(name, scores, f"{expected}, a number for each record")
    if scores.ndim != 1 or n not in (None, len(scores)):
        raise ValueError(f"{name} of shape {tuple(scores.shape)}: expected {expected}, one for each record")
    _check_finite(name, scores)


def check_seconds(seconds: Any) -> None:
    """Raise ValueError unless a limit of time is a positive number, or None."""
    number = isinstance(seconds, int | float) and type(seconds) is not bool
    if seconds is not None and not (number and 0.0 < seconds < math.inf):
        raise ValueError(f"seconds={seconds!r}: expected a positive number, or None for no limit")


def _check(name: str, values: Any, expected: str) -> None:
    if not isinstance(values, Tensor):
        raise ValueError(f"{name}: found {type(values).__name__}, expected a tensor {expected}")
    if values.is_complex():
        raise ValueError(f"{name} of {values.dtype}: expected real numbers")


def _check_finite(name: str, values: Tensor) -> None:
    if not torch.isfinite(values).all():
        raise ValueError(f"{name} hold NaN or infinite numbers: expected finite ones")

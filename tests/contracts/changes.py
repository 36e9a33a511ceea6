"""Faults for pipelines: changes of one line of the shipped code."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable

import pytest

# Lines of `mechanisms.gaussian`, of `mechanisms.rounded_gaussian` and of `privatize.clipped_weights`.
NOISE = "access.stream.add_normal_(part, deviation)"
ROUNDED_NOISE = "access.stream.add_rounded_normal_(access.ranks.part_of(multiples), sigma)"
FACTORS = "factors = clip_weights if math.inf in bounds else functools.partial(cap_factors, rule)"


def change(patch: pytest.MonkeyPatch, function: Callable, lines: dict[str, str]) -> None:
    """Change lines of a function, wherever it was imported; a line that is not there exactly once is an error."""
    function = inspect.unwrap(function)
    source = textwrap.dedent(inspect.getsource(function))
    for line, instead in lines.items():
        assert source.count(line) == 1, f"{function.__qualname__} does not have this line once: {line}"
        source = source.replace(line, instead)
    found: dict[str, Callable] = {}
    # This file's own "annotations" flag goes into the compilation: nothing in a signature is evaluated.
    exec(compile(source, inspect.getfile(function), "exec"), function.__globals__, found)
    changed = found[function.__name__]
    patch.setattr(function, "__code__", inspect.unwrap(getattr(changed, "fget", changed)).__code__)

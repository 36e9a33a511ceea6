"""Cases of the default suite, and those that are an extra."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest


def only(cases: Mapping[str, Any] | Iterable[str], *names: str) -> list:
    """Return the parameters of all cases by name; all but those named are slow.

    Args:
        cases: by name, a tuple for several arguments; or the names themselves, which then are the argument.
        names: the cases of the default suite.
    """
    cases = cases if isinstance(cases, Mapping) else {name: name for name in cases}
    assert set(names) <= set(cases), sorted(set(names) - set(cases))
    parameters = {name: case if isinstance(case, tuple) else (case,) for name, case in cases.items()}
    marks = {name: () if name in names else pytest.mark.slow for name in cases}
    return [pytest.param(*case, id=name, marks=marks[name]) for name, case in parameters.items()]


def but(cases: Mapping[str, Any] | Iterable[str], *names: str) -> list:
    """Return the parameters of all cases as `only` does; those named are slow."""
    cases = cases if isinstance(cases, Mapping) else {name: name for name in cases}
    assert set(names) <= set(cases), sorted(set(names) - set(cases))
    return only(cases, *(name for name in cases if name not in names))

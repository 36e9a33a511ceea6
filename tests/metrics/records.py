"""Layouts and records of them, drawn by hypothesis, what they are as tables of columns, and quick classifiers of them."""

import contextlib
import functools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import strategies as st

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics import classifiers


@st.composite
def layouts(draw):
    units = draw(st.integers(0, 4))
    groups = draw(st.lists(st.integers(1, 4), min_size=0 if units else 1, max_size=4))
    label = draw(st.sampled_from([None, *range(len(groups))]))
    return Layout(units, draw(st.sampled_from([1, 3, 255, None])), tuple(groups), label)


def drawn(layout: Layout, n: int, seed: int, sparse: bool = False) -> Encoded:
    """Draw records whose columns go together."""
    random = np.random.default_rng(seed)
    common = random.random((n, 1))
    units = (common + random.random((n, layout.units))) / 2
    if layout.levels is not None:
        units = np.floor(units * (layout.levels + 1)).astype(np.uint8)
    else:
        units = units.astype(np.float32)
    codes = np.floor((common + random.random((n, len(layout.groups)))) / 2 * np.array(layout.groups)).astype(np.uint8)
    return Encoded(scipy.sparse.csr_array(units) if sparse else units, codes)


def dense(encoded: Encoded) -> np.ndarray:
    return encoded.units.toarray() if scipy.sparse.issparse(encoded.units) else encoded.units


def table(encoded: Encoded, layout: Layout) -> list[list[int]]:
    """Count each column's values, units in ten bins, by plain loops."""
    found = []
    for column in dense(encoded).T:
        if layout.levels == 1:
            found.append([int(value) for value in column])
        else:
            found.append([min(9, int(float(value) / (layout.levels or 1) * 10 + 1e-9)) for value in column])
    return found + [[int(value) for value in column] for column in encoded.codes.T]


@contextlib.contextmanager
def few_trees():
    """Let the classifiers of an evaluation have few trees, for tests that do not ask how much they tell."""
    forest, boosting = classifiers.RandomForestClassifier, classifiers.HistGradientBoostingClassifier
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifiers, "RandomForestClassifier", lambda _, **settings: forest(10, **settings))
        patch.setattr(classifiers, "HistGradientBoostingClassifier", functools.partial(boosting, max_iter=10))
        yield

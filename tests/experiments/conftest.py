"""Figures that experiments write, kept as they were drawn."""

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def figures(monkeypatch):
    """Return the list of figures, which grows as they are saved."""
    found, save = [], Figure.savefig

    def saved(self, path, **given):
        found.append(self)
        save(self, path, **given)

    monkeypatch.setattr(Figure, "savefig", saved)
    return found


@pytest.fixture
def curves():
    """Return a function that gives the curves with error bars in some axes: x, y and half lengths of bars, by label."""

    def of(axes):
        found = {}
        for drawn in axes.containers:
            x, y = drawn.lines[0].get_data()
            ends = [segment[:, 1].tolist() for segment in drawn.lines[2][0].get_segments()]
            found[drawn.get_label()] = (list(x), list(y), ends)
        return found

    return of

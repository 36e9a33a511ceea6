"""Figures that experiments write, kept as they were drawn, and a made-up set of public data."""

import gzip

import numpy as np
import pytest
from matplotlib.figure import Figure

from lightning_dpgen.data.public_sets import public_set


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


def _person(random, income):
    schema = public_set("adult").schema
    choice = {column.name: column for column in schema.modelled}
    values = {"income": income, "age": random.integers(17, 91), "fnlwgt": random.integers(1, 10**6)}
    values |= {"education-num": random.integers(1, 17), "capital-gain": 0, "capital-loss": 0}
    values |= {"hours-per-week": random.integers(1, 100)}
    for name in choice.keys() - values.keys():
        values[name] = random.choice(["?" if value == "missing" else value for value in choice[name].choice_names])
    return ", ".join(str(values[column.name]) for column in schema.columns)


@pytest.fixture
def made_up_adult(tmp_path, monkeypatch):
    """Put made-up people into files such as Adult's, where the public sets are looked for."""
    random = np.random.default_rng(0)
    folder = tmp_path / "data" / "adult"
    folder.mkdir(parents=True)
    for name, head, stop in (("adult.data", "", ""), ("adult.test", "|1x3 Cross validator\n", ".")):
        incomes = random.choice([">50K", "<=50K"], 200, p=[0.25, 0.75])
        text = head + "\n".join(_person(random, income) + stop for income in incomes) + "\n\n"
        with gzip.open(folder / f"{name}.gz", "wt", encoding="utf-8") as file:
            file.write(text)
    monkeypatch.setenv("DPGEN_DATA", str(folder.parent))

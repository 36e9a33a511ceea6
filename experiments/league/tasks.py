"""Tasks of the league table: settings of `dpgen train` for the data, scores of synthetic records, simple rivals."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.dpgm.baselines import Budget, half, independent_by_size
from experiments.dpgm.queries import SETS, Data
from experiments.league import classifiers as tables_classifiers
from experiments.league import mnist_classifiers
from experiments.league.classifiers import tables
from experiments.league.rivals import class_means, naive_bayes
from lightning_dpgen.data.baskets.reading import read_baskets
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.public_sets import find_public_set, load_public_set, public_set
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import schema_text
from lightning_dpgen.metrics.baskets import QUERIES, CountingQueryError
from lightning_dpgen.release.drawing.release import Release


class Task(ABC):
    """One data set and the scores of synthetic records. Nothing is read before it is needed.

    Args:
        folder: the folder for files that are made.

    A task's epsilon is math.inf where nothing is private, and a run's number is a seed.
    """

    title: str
    columns: tuple[str, ...]
    # The column that the picture shows.
    shown: str
    epsilons: tuple[float, ...] = (0.3, 1.0, 3.0)
    delta = 1e-5
    n: int
    baseline: str
    real: str = "real"
    # Further models, of this kind of records alone: names and settings.
    models: tuple[tuple[str, list[str]], ...] = ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def settings(self, run: int) -> list[str]:
        """Return settings of `dpgen train` for the data; the files that they name are there then."""

    @abstractmethod
    def drawn(self, release: Release, epsilon: float, run: int) -> Encoded:
        """Draw as many synthetic records from a release as there are real ones."""

    @abstractmethod
    def simple(self, epsilon: float, run: int) -> Encoded:
        """Draw those of the rival without training, at that epsilon."""

    @abstractmethod
    def kept_real(self, run: int) -> Encoded:
        """Return real records that stand for perfect synthetic ones."""

    @abstractmethod
    def scores(self, made: Encoded, epsilon: float, run: int) -> list[float]:
        """Return the scores that `columns` names."""

    def budget(self, epsilon: float, run: int) -> Budget:
        return Budget(epsilon, self.delta, run)


class Tables(Task):
    """Classifiers of the label, trained on synthetic rows, tested on real ones."""

    baseline = "naive Bayes"
    shown = "RF"
    models = (("measured with clear labels", ["model=measured", "model.label_sharpness=4"]),)
    data: str

    def drawn(self, release: Release, epsilon: float, run: int) -> Encoded:
        # Records are put into the bins of the test, whatever those of the release are.
        return read_table(release.sample(self.n, seed=run), tables(self.data, epsilon, run)[1].schema).encoded

    def simple(self, epsilon: float, run: int) -> Encoded:
        return naive_bayes(tables(self.data, epsilon, run)[0], self.n, self.budget(epsilon, run))

    def kept_real(self, run: int) -> Encoded:
        return tables(self.data, math.inf, run)[0].encoded

    def scores(self, made: Encoded, epsilon: float, run: int) -> list[float]:
        test = tables(self.data, epsilon, run)[1]
        label = test.schema.layout.label
        found = made.codes[:, label]
        if (found == found[0]).all():
            # No classifier can be trained: the only answer is scored.
            return [float((test.encoded.codes[:, label] == found[0]).mean())] * len(self.columns)
        by_name = dict(
            zip(tables_classifiers.LEVELS, tables_classifiers.scores(made, test.encoded, label, run), strict=True)
        )
        return [by_name[column] for column in self.columns]


class Mushroom(Tables):
    title = "Mushroom: accuracy on held-out rows"
    columns = ("RF",)
    data, n = "mushroom", public_set("mushroom").n

    def settings(self, run: int) -> list[str]:
        return ["data=mushroom"]


class AdultBalanced(Tables):
    """The task of Adult with as many people below 50K as above, others in each run."""

    title = "Adult, balanced: accuracy on held-out rows"
    columns = ("RF", "HGB")
    data, n = "adult-balanced", 15_682

    def settings(self, run: int) -> list[str]:
        table, schema = self.files(run)
        # The rows of README.md were measured before bins were paid for.
        return ["data=table", f"data.path={table}", f"data.schema={schema}", f"data.n={self.n}", "data.bins_share=0"]

    def files(self, run: int) -> tuple[Path, Path]:
        """Write the training rows of `tables`, as they are in Adult's file, and their schema."""
        known = public_set("adult").schema
        names = [column.name for column in known.columns]
        (source,) = find_public_set("adult")
        frame = pd.read_csv(source, names=names, skipinitialspace=True, dtype=str, keep_default_na=False)
        few, many = (np.flatnonzero(frame["income"] == income) for income in (">50K", "<=50K"))
        chosen = np.random.default_rng(run).choice(many, len(few), replace=False)
        table, schema = self.folder / f"adult_balanced_{run}.csv", self.folder / "adult_balanced.schema.yaml"
        frame.iloc[np.sort(np.concatenate([few, chosen]))].drop(columns="education").to_csv(table, index=False)
        schema.unlink(missing_ok=True)
        columns = tuple(column for column in known.columns if column.name != "education")
        schema.write_text(schema_text(known.with_values(columns, header=True)), encoding="utf-8")
        return table, schema


class Baskets(Task):
    """Relative error of counting queries, on the baskets that a model was trained on; lower is better."""

    columns = ("ANY set 1", "ANY set 5", "together, ALL")
    shown = "together, ALL"
    baseline = "independent items by size"
    real = "random half"

    @property
    @abstractmethod
    def real_baskets(self) -> Data: ...

    def drawn(self, release: Release, epsilon: float, run: int) -> Encoded:
        if release.schema.items != self.real_baskets.schema.items:
            raise ValueError("a release over other items than those of the real baskets")
        return release.sample_encoded(self.n, seed=run)

    def simple(self, epsilon: float, run: int) -> Encoded:
        data = self.real_baskets
        made = independent_by_size(data.baskets, data.schema.max_items, self.budget(epsilon, run))
        return data.schema.encode(made)

    def kept_real(self, run: int) -> Encoded:
        data = self.real_baskets
        return data.schema.encode(half(data.baskets, data.schema.max_items, self.budget(math.inf, run)))

    def scores(self, made: Encoded, epsilon: float, run: int) -> list[float]:
        metric = copy.deepcopy(_asked(self.real_baskets, run))
        metric.update(made.units, real=False)
        found = {name: values.reshape(SETS + 1, QUERIES).mean(dim=1) for name, values in metric.errors().items()}
        return [float(found["any"][0]), float(found["any"][SETS - 1]), float(found["all"][SETS])]


@lru_cache(maxsize=8)
def _asked(data: Data, run: int) -> CountingQueryError:
    """Return the queries of a run, with the real answers."""
    return data.asked(run).metric


class Transit(Baskets):
    title = "TRANSIT, simulated: relative error of counting queries"
    n, delta = 200_000, 1e-6

    @cached_property
    def real_baskets(self) -> Data:
        return Data.simulated("transit", self.n)

    def settings(self, run: int) -> list[str]:
        return ["data=transit", f"data.n={self.n}"]


class WebView(Baskets):
    """All visits, none held out."""

    title = "BMS-WebView-1: relative error of counting queries"
    n, max_items = 59_602, 267

    @cached_property
    def real_baskets(self) -> Data:
        schema = BasketSchema(public_set("bms_webview1").schema.items, self.max_items)
        (path,) = find_public_set("bms_webview1")
        return Data("bms_webview1", schema, self.n, lambda: read_baskets(path, schema).encoded.units)

    def settings(self, run: int) -> list[str]:
        (path,), items = find_public_set("bms_webview1"), self.folder / "BMS1.items.txt"
        items.write_text("\n".join(map(str, self.real_baskets.schema.items)) + "\n", encoding="utf-8")
        return [
            "data=baskets", f"data.path={path}", f"data.items={items}", f"data.max_items={self.max_items}",
            f"data.n={self.n}",
        ]  # fmt: skip


class Mnist(Task):
    """Classifiers of digits, trained on as many synthetic pictures as there are real ones."""

    title = "MNIST: accuracy on the test pictures"
    columns = ("LR", "MLP", "CNN")
    shown = "CNN"
    epsilons = (0.5, 1.74, 10.0)
    baseline = "class means"
    models = (("measured as handwriting", ["model=measured", "model.symmetries=handwriting"]),)
    n = public_set("mnist").n

    def settings(self, run: int) -> list[str]:
        return ["data=mnist"]

    def drawn(self, release: Release, epsilon: float, run: int) -> Encoded:
        if release.schema.layout != public_set("mnist").schema.layout:
            raise ValueError("a release of other pictures than those of data=mnist")
        return release.sample_encoded(self.n, seed=run)

    def simple(self, epsilon: float, run: int) -> Encoded:
        real = Records(public_set("mnist").schema, self._records(held_out=False))
        return class_means(real, self.n, self.budget(epsilon, run))

    def kept_real(self, run: int) -> Encoded:
        return self._records(held_out=False)

    def scores(self, made: Encoded, epsilon: float, run: int) -> list[float]:
        levels = public_set("mnist").schema.layout.levels
        train, test = (mnist_classifiers.pictures(part, levels) for part in (made, self._records(held_out=True)))
        found = {name: mnist_classifiers.CLASSIFIERS[name](train, test, run) for name in ("LR", "MLP", "CNN")}
        return [found[column] for column in self.columns]

    def _records(self, *, held_out: bool) -> Encoded:
        return load_public_set("mnist", held_out=held_out).encoded


# The cheapest first.
TASKS: dict[str, type[Task]] = {
    "mushroom": Mushroom,
    "bms": WebView,
    "adult": AdultBalanced,
    "transit": Transit,
    "mnist": Mnist,
}

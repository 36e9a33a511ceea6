"""Everyday tables, and how well synthetic rows stand for theirs: customers of a bank, flights, and Adult as it is.

The first two are made of packages of PyPI by `peers/everyday_tables.py`, in an environment of its own. They have what
tables of offices have: pairs of columns that determine each other, long tails, declared rules, values that are missing
together.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from experiments.league.environments import installed, program
from lightning_dpgen.data.public_sets import find_public_set, public_set
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Column
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.relative import Relative
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import parse_schema, schema_text
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.summaries import BINS as COMPARED
from lightning_dpgen.metrics.summaries import QuantileBins, quantile_bins
from lightning_dpgen.metrics.table_pairs import levels

# The value for all that a release does not name, the share of rows below which peers are not told of one, and spellings of
# missing values.
OTHER, RARE, MISSING = "other", 0.005, {"", "-", "NA"}
# Quantiles of the real rows at which the bins of peers begin.
BINS = 20


@dataclass(frozen=True)
class Question:
    """A question that boosting is to answer for held-out rows with yes or no.

    Args:
        column: the column that is asked for.
        answer: the answers (n,) by its values, NaN where a row is not asked.
        hidden: columns that say it, or nearly so, and are not looked at.
    """

    column: str
    answer: Callable[[np.ndarray], np.ndarray]
    hidden: tuple[str, ...] = ()

    def auc(self, train: TableValues, test: TableValues, seed: int) -> float:
        """Return the AUC of gradient boosting that learned from `train`; .5 where there is one answer alone."""
        names = [c.name for c in train.schema.recorded if c.name not in (self.column, *self.hidden)]
        parts = []
        for side in (train, test):
            answers = self.answer(side.column(self.column))
            asked = ~np.isnan(answers)
            parts.append((np.stack([side.column(name) for name in names], axis=1)[asked], answers[asked]))
        (x, y), (z, right) = parts
        if len(np.unique(y)) < 2:
            return 0.5
        return float(
            roc_auc_score(right, HistGradientBoostingClassifier(random_state=seed).fit(x, y).predict_proba(z)[:, 1])
        )


def is_second(codes: np.ndarray) -> np.ndarray:
    """Return 1.0 for the second value of a category of two, and 0.0 for the first."""
    return (codes == 1).astype(float)


def is_late(delay: np.ndarray) -> np.ndarray:
    """Return 1.0 for flights that arrive more than a quarter of an hour late, NaN for those that do not arrive."""
    return np.where(np.isnan(delay), np.nan, delay > 15)


def share_of_savers(real: TableValues, made: TableValues) -> float:
    """Return the share with an individual retirement account among rows in the top eighth of real `net_assets`."""
    rich = made.column("net_assets") >= np.quantile(real.column("net_assets"), 7 / 8)
    return float(is_second(made.column("has_ira"))[rich].mean()) if rich.any() else 0.0


def wrong_hours(_: TableValues, made: TableValues) -> float:
    """Return the share of rows whose `hour` is not that of `sched_dep_time`, which is written as 1730."""
    return float((made.column("hour") != made.column("sched_dep_time") // 100).mean())


def pair_distances(real: TableValues, made: TableValues) -> dict[tuple[str, str], float]:
    """Return the total variation of each pair of columns, each joined to 10 levels of the real rows, or a few more."""
    bins, codes, sizes = quantile_bins(real), {}, {}
    for column in real.schema.recorded:
        sides = [side.column(column.name) for side in (real, made)]
        if isinstance(column, Category) and column.other is not None:
            codes[column.name], sizes[column.name] = joined(column, sides)
        else:
            codes[column.name], names = levels(column, sides, bins.get(column.name))
            sizes[column.name] = len(names)
    found = {}
    for one, other in itertools.combinations(codes, 2):
        cells = (a.astype(np.int64) * sizes[other] + b for a, b in zip(codes[one], codes[other], strict=True))
        shares = [np.bincount(part, minlength=sizes[one] * sizes[other]) / len(part) for part in cells]
        found[one, other] = 0.5 * float(np.abs(shares[0] - shares[1]).sum())
    return found


def joined(column: Category, sides: list[np.ndarray]) -> tuple[list[np.ndarray], int]:
    """Return the level (n,) of each value of a category, as `levels` does, and their number: `other` is never frequent.

    It stands for other values in each release, which are counted together with all that are not among the most frequent.
    """
    counts = np.bincount(sides[0], minlength=column.present + 1)[: column.present]
    counts[column.values.index(column.other)] = 0
    most = np.argsort(-counts, kind="stable")[: COMPARED - 1]
    places = np.full(column.present + 1, COMPARED - 1)
    places[most], places[column.present] = np.arange(len(most)), COMPARED
    return [places[side] for side in sides], COMPARED + 1


@dataclass(frozen=True)
class EverydayTable:
    """One table.

    Args:
        name: of the files.
        n: the number of rows that are learned from; all others are held out.
        described: the text of the schema that a person would write. Values that it declares private, and bins, are found
            and paid for.
        question: that for boosting.
        starts: those of bins that anybody knows to be good ones; peers are given them, too.
    """

    name: str
    n: int
    described: str
    question: Question
    starts: dict[str, list[int]]

    def files(self, folder: Path) -> tuple[Path, Path]:
        """Return the files of the rows that are learned from, and of held-out ones, made where they are not there."""
        place = folder / "everyday"
        found = place / f"{self.name}.csv", place / f"{self.name}_held.csv"
        if not all(path.is_file() for path in found):
            place.mkdir(parents=True, exist_ok=True)
            python = installed("everyday_tables", folder / "environments")
            subprocess.run([python, program("everyday_tables"), place], check=True)
        return found

    def tables(self, folder: Path) -> tuple[Records, Records]:
        """Return rows that are learned from, and held-out ones, in the bins that peers are given.

        Values that are private are listed here where they are frequent, and bins begin at quantiles of the real rows:
        nothing pays for that, and no release could do it.
        """
        frames = [pd.read_csv(path, dtype=str, keep_default_na=False) for path in self.files(folder)]
        schema = listed_values(self.described, frames[0])
        learned = read_table(frames[0], schema.with_bins(BINS), outside="clamp", values=True).values
        schema = schema.with_values([self._cut(column, learned) for column in schema.columns])
        parts = (read_table(frame, schema, outside="clamp", values=True) for frame in frames)
        train, test = (Records(schema, read.encoded, values=read.values) for read in parts)
        return train, test

    def _cut(self, column: Column, learned: TableValues) -> Column:
        if isinstance(column, Relative):
            numbers = learned.column(column.name) - learned.column(column.relative_to)
            return column.with_apart(cut(column.apart, numbers))
        if not isinstance(column, Numeric):
            return column
        return cut(column, learned.column(column.name), self.starts.get(column.name, ()))


class PublicAdult(EverydayTable):
    """Adult, all of its columns, with as few people above 50K as there are."""

    def files(self, folder: Path) -> tuple[Path, Path]:
        place, names = folder / "everyday", [column.name for column in public_set("adult").schema.columns]
        place.mkdir(parents=True, exist_ok=True)
        found = place / "adult.csv", place / "adult_held.csv"
        for path, held_out in zip(found, (False, True), strict=True):
            (source,) = find_public_set("adult", held_out=held_out)
            # The held-out file has a line of its own before the others, and a stop after each.
            frame = pd.read_csv(
                source, names=names, skipinitialspace=True, dtype=str, keep_default_na=False, skiprows=int(held_out)
            )
            frame["income"] = frame["income"].str.rstrip(".")
            frame.to_csv(path, index=False)
        return found


def listed_values(described: str, frame: pd.DataFrame) -> TableSchema:
    """Return a schema whose private values are listed, those of fewer rows than `RARE` together; columns without any go.

    Authors of mechanisms that measure pairs as they are advise against columns of very many values.
    """
    private = r"^  (\w+): \{type: category, values: private(, missing: true(, missing_values: .*?)?)?\}$"

    def listed(found: re.Match) -> str:
        name, rest = found[1], found[2] or ""
        shares = frame[name].value_counts(normalize=True)
        values = sorted(set(shares.index[shares >= RARE]) - MISSING)
        kind = f"type: category, values: {[*values, OTHER]}, other: {OTHER}{rest}" if values else "type: drop"
        return f"  {name}: {{{kind}}}"

    return parse_schema(re.sub(private, listed, described, flags=re.MULTILINE))


def cut(column: Numeric, numbers: np.ndarray, starts: Iterable[int] = ()) -> Numeric:
    """Return a column of numbers whose bins begin at these starts, and at quantiles of such values (n,).

    All bins that rows are compared in begin where one of these does.
    """
    present = numbers[~np.isnan(numbers)]
    compared = QuantileBins.of(numbers)
    quantiles = np.quantile(present, np.arange(1, BINS) / BINS, method="inverted_cdf")
    found = np.concatenate([quantiles, compared.single, compared.single + 1, compared.starts, np.array([*starts], float)])
    low, high = (column.scale.tick(value) for value in (column.low, column.high))
    edges = tuple(column.scale.declared(int(start)) for start in np.unique(found) if low < start <= high)
    return column.with_values(edges=edges, bins=None, transform="linear")


def half_hours() -> list[int]:
    """Return the starts of half hours, written as 1730."""
    return [100 * hour + minute for hour in range(24) for minute in (0, 30)][1:]


CUSTOMERS = EverydayTable("customers", 7_416, """label: risk
constraints:
  - opened <= closed
  - fee_total = fee_account + fee_card + fee_loan
  - closed is missing if and only if churned = no
columns:
  customer_id: {type: fake, fake: row_number}
  currency: {type: category, values: [USD]}
  sex: {type: category, values: [F, M]}
  married: {type: boolean, words: [N, Y]}
  age: {type: integer, low: 18, high: 100}
  household: {type: integer, low: 1, high: 15, missing: true, missing_values: [NA]}
  income: {type: number, low: 0, high: 250000, decimals: 2, thousands: ",", missing: true, missing_values: [NA]}
  net_assets: {type: integer, low: -1000000, high: 3000000}
  eligible_401k: {type: boolean, words: ['0', '1']}
  in_401k: {type: boolean, words: ['0', '1']}
  has_ira: {type: boolean, words: ['0', '1']}
  region: {type: category, values: [North, South, East, West, Overseas], missing: true, ignore_case: true}
  zip: {type: category, values: private, missing: true, missing_values: ["-"]}
  loan_rate: {type: number, low: 0, high: 20, decimals: 2, unit: "1%", missing: true, missing_values: ["-"]}
  opened: {type: date, low: 2008-01-01, high: 2025-06-30, format: '%d/%m/%Y'}
  closed: {type: date, low: 2008-01-01, high: 2025-06-30, format: '%d/%m/%Y', relative_to: opened, missing: true}
  fee_account: {type: number, low: 0, high: 500, decimals: 2}
  fee_card: {type: number, low: 0, high: 500, decimals: 2, special: [0]}
  fee_loan: {type: number, low: 0, high: 1000, decimals: 2}
  fee_total: {type: number, low: 0, high: 2000, decimals: 2}
  notes: {type: drop}
  churned: {type: boolean, words: [no, yes]}
  risk: {type: category, values: [low, medium, high]}
""", Question("has_ira", is_second), {})  # fmt: skip
FLIGHTS = EverydayTable("flights", 60_000, """label: carrier
constraints:
  - dep_time is missing if and only if dep_delay is missing
  - air_time is missing if and only if arr_delay is missing
  - arr_time is missing if dep_time is missing
  - arr_delay is missing if dep_time is missing
  - arr_delay is missing if arr_time is missing
columns:
  year: {type: category, values: [2013]}
  month: {type: integer, low: 1, high: 12}
  day: {type: integer, low: 1, high: 31}
  dep_time: {type: number, low: 1, high: 2400, decimals: 0, missing: true}
  sched_dep_time: {type: integer, low: 1, high: 2400}
  dep_delay: {type: number, low: -60, high: 1440, decimals: 0, missing: true}
  arr_time: {type: number, low: 1, high: 2400, decimals: 0, missing: true}
  sched_arr_time: {type: integer, low: 1, high: 2400}
  arr_delay: {type: number, low: -120, high: 1440, decimals: 0, missing: true}
  carrier: {type: category, values: [9E, AA, AS, B6, DL, EV, F9, FL, HA, MQ, OO, UA, US, VX, WN, YV]}
  flight: {type: integer, low: 1, high: 9999}
  tailnum: {type: category, values: private, missing: true}
  origin: {type: category, values: [EWR, JFK, LGA]}
  dest: {type: category, values: private}
  air_time: {type: number, low: 10, high: 800, decimals: 0, missing: true}
  distance: {type: integer, low: 10, high: 5000}
  hour: {type: integer, low: 0, high: 24}
  minute: {type: integer, low: 0, high: 59}
  time_hour: {type: drop}
""", Question("arr_delay", is_late, ("arr_time",)), {
    "month": list(range(2, 13)), "day": list(range(2, 32)), "hour": list(range(1, 24)), "minute": list(range(5, 60, 5)),
    **dict.fromkeys(("dep_time", "sched_dep_time", "arr_time", "sched_arr_time"), half_hours()),
})  # fmt: skip
ADULT = PublicAdult(
    "adult", public_set("adult").n, schema_text(public_set("adult").schema.with_values(header=True)),
    Question("income", is_second), {},
)  # fmt: skip

"""Simulated tables of different kinds, by which the models that `model=auto` may take are tried.

Each is described as a person would who knows columns, bounds and values, and nothing else. Two were made for another
experiment (`made_up_tables.py`); the choice is judged by them, and nothing was chosen by what models make of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from experiments.league.made_up_tables import TABLES as MADE_UP
from experiments.league.made_up_tables import MadeUp
from lightning_dpgen.data.public_sets import find_public_set, public_set
from lightning_dpgen.data.tables.schema_file import schema_text


@dataclass(frozen=True)
class TriedTable:
    """A table of a trial.

    Args:
        table: how it is drawn and described.
        n: the number of rows that models learn from; as many others are for scores.
        label: whether the label of the table is declared to be one.
        held_out: whether the choice is judged by it alone, so that it is not in the table that ships.
    """

    table: MadeUp
    n: int = 10_000
    label: bool = True
    held_out: bool = False

    @property
    def schema(self) -> str:
        """The text of its schema."""
        return self.table.schema if self.label else self.table.schema.replace(f"label: {self.table.label}\n", "")


def _logistic(random: np.random.Generator, score: np.ndarray) -> np.ndarray:
    return random.random(len(score)) < 1.0 / (1.0 + np.exp(-score))


def _values(names: list[str] | range) -> str:
    return f"{{type: category, values: [{', '.join(map(str, names))}]}}"


def draw_hidden_kinds(n: int, seed: int) -> pd.DataFrame:
    """Draw twelve columns of 2 to 10 categories that depend on eight hidden kinds; a label by a nonlinear score."""
    random, kinds = np.random.default_rng(seed), 8
    kind, columns = random.integers(0, kinds, n), []
    for size in SIZES:
        shares = random.dirichlet(np.full(size, 0.4), kinds)
        columns.append((shares[kind].cumsum(axis=1) < random.random((n, 1))).sum(axis=1).clip(max=size - 1))
    weights, pairs = [random.normal(size=size) for size in SIZES], random.normal(size=(4, 10, 10))
    score = sum(weight[column] for weight, column in zip(weights, columns, strict=True))
    score = score + sum(2.0 * pair[columns[i], columns[11 - i]] for i, pair in enumerate(pairs))
    y = _logistic(random, 1.5 * (score - np.median(score)))
    return pd.DataFrame({f"a{i}": np.char.add("v", column.astype(str)) for i, column in enumerate(columns)} | {"y": y})


def draw_towns(n: int, seed: int) -> pd.DataFrame:
    """Draw households: a postcode has one town, a town one region, and parts add up to a total."""
    random = np.random.default_rng(seed)
    shares = 1.0 / np.arange(1, 181) ** 0.7
    postcode = random.choice(random.permutation(180), n, p=shares / shares.sum())
    town = postcode // 3
    region, persons = town // 10, 1 + random.binomial(5, 0.3, n)
    rooms = np.clip(persons + random.integers(-1, 3, n), 1, 9)
    rent = (rooms * random.gamma(20, 9 + (town % 10), n)).round().clip(0, 5000)
    heating = (rooms * random.gamma(8, 3, n)).round().clip(0, 1000)
    return pd.DataFrame({
        "region": np.char.add("r", region.astype(str)), "town": np.char.add("t", town.astype(str)),
        "postcode": np.char.add("p", postcode.astype(str)), "persons": persons, "rooms": rooms,
        "rent": rent.astype(int), "heating": heating.astype(int), "total": (rent + heating).astype(int),
    })  # fmt: skip


def draw_symptoms(n: int, seed: int) -> pd.DataFrame:
    """Draw sixty rare symptoms of six diseases of which a patient may have several; two diseases admit."""
    random = np.random.default_rng(seed)
    ill = random.random((n, 6)) < 0.15
    cause = np.where(random.random((6, 60)) < 0.15, random.uniform(0.2, 0.8, (6, 60)), 0.0)
    none = np.prod(1.0 - ill[:, :, None] * cause, axis=1) * (1.0 - random.uniform(0.002, 0.05, 60))
    has = random.random((n, 60)) > none
    admitted = _logistic(random, 4.0 * (ill[:, 0] | ill[:, 1]) - 2.0)
    return pd.DataFrame({f"s{i}": has[:, i] for i in range(60)} | {"admitted": admitted})


def draw_assays(n: int, seed: int) -> pd.DataFrame:
    """Draw 150 numbers of a person that depend on six hidden ones."""
    random = np.random.default_rng(seed)
    loads = random.normal(size=(6, 150)) * (random.random((6, 150)) < 0.4)
    values = random.normal(size=(n, 6)) @ loads + random.normal(size=(n, 150))
    return pd.DataFrame({f"x{i}": values[:, i].round(2).clip(-9, 9) for i in range(150)})


def draw_sales(n: int, seed: int) -> pd.DataFrame:
    """Draw sales of 2,000 products, each of one department of twenty, with a price of its own."""
    random = np.random.default_rng(seed)
    shares = 1.0 / np.arange(10, 2010)
    product = random.choice(random.permutation(2000), n, p=shares / shares.sum())
    department, usual = product % 20, np.exp(random.normal(3.0, 0.4, 2000) + 0.05 * (np.arange(2000) % 20))
    price = (usual[product] * random.choice([1.0, 1.0, 0.9, 0.7], n)).round(2).clip(0, 500)
    pieces = random.geometric(1.0 / (1.0 + department % 4), n).clip(max=30)
    returned = _logistic(random, random.normal(0.0, 1.5, 20)[department] - 0.02 * (price - 25.0))
    return pd.DataFrame({
        "product": np.char.add("q", product.astype(str)), "department": np.char.add("d", department.astype(str)),
        "price": price, "pieces": pieces, "returned": returned,
    })  # fmt: skip


def draw_parity(n: int, seed: int) -> pd.DataFrame:
    """Draw eleven fair coins, and a column that says the parity of three of them, wrong in one row of twenty."""
    random = np.random.default_rng(seed)
    coins = random.random((n, 11)) < 0.5
    odd = (coins[:, [1, 4, 8]].sum(axis=1) % 2 == 1) ^ (random.random(n) < 0.05)
    return pd.DataFrame({f"c{i}": coins[:, i] for i in range(11)} | {"odd": odd})


def draw_customers(n: int, seed: int) -> pd.DataFrame:
    """Draw customers: heavy tails, values that are missing together, and one in six who left."""
    random = np.random.default_rng(seed)
    age = np.clip(18 + random.gamma(4, 8, n), 18, 99).astype(int)
    region = random.choice(["north", "south", "east", "west"], n, p=[0.4, 0.3, 0.2, 0.1])
    income = (np.exp(random.normal(10.2, 0.5, n) + 0.01 * (age - 45)) * (1.0 + random.pareto(4.0, n).clip(0, 20))).round()
    income = np.where(random.random(n) < 0.15, np.nan, income.clip(0, 1_000_000))
    assets = np.where(np.isnan(income), np.nan, (income * random.standard_t(2.5, n)).round().clip(-1_000_000, 5_000_000))
    plan = np.where(income > 45_000, "gold", np.where(random.random(n) < 0.6, "basic", "plus"))
    calls = random.negative_binomial(1, 0.3, n).clip(max=60)
    months = random.integers(1, 121, n)
    fees = np.where(plan == "basic", 0.0, random.gamma(3, 8, n)).round(2).clip(0, 400)
    left = _logistic(random, 0.35 * calls - 0.03 * months - 1.0 + 0.8 * (plan == "basic"))
    return pd.DataFrame({
        "age": age, "region": region, "income": income, "assets": assets, "plan": plan, "calls": calls, "months": months,
        "fees": fees, "left": left,
    })  # fmt: skip


def draw_patients(n: int, seed: int) -> pd.DataFrame:
    """Draw patients of a study: readings that go together, and stages in their order."""
    random = np.random.default_rng(seed)
    age = np.clip(random.normal(58, 14, n), 18, 95).round().astype(int)
    sex = random.choice(["f", "m"], n)
    weight = np.clip(random.normal(27, 5, n) + 0.02 * (age - 58), 15, 55).round(1)
    upper = np.clip(random.normal(128, 14, n) + 0.5 * (age - 58) + 0.8 * (weight - 27), 80, 230).round().astype(int)
    lower = np.clip(0.5 * upper + random.normal(17, 6, n), 40, 140).round().astype(int)
    sugar = np.where(random.random(n) < 0.2, np.nan, np.clip(random.normal(95, 12, n) + 2 * (weight - 27), 50, 300).round())
    smoker = random.choice(["never", "before", "now"], n, p=[0.5, 0.3, 0.2])
    risk = 0.05 * (age - 58) + 0.03 * (upper - 128) + 0.9 * (smoker == "now")
    stage = np.select([risk + random.normal(0, 0.7, n) > bound for bound in (1.5, 0.6, -0.5)], ["IV", "III", "II"], "I")
    relapse = _logistic(random, 1.2 * risk + 0.8 * np.isin(stage, ["III", "IV"]) - 0.4)
    return pd.DataFrame({
        "age": age, "sex": sex, "bmi": weight, "upper": upper, "lower": lower, "sugar": sugar, "smoker": smoker,
        "stage": stage, "relapse": relapse,
    })  # fmt: skip


def draw_donors(n: int, seed: int) -> pd.DataFrame:
    """Draw donors: most numbers are round ones, zeros, or a code for never."""
    random = np.random.default_rng(seed)
    active = random.random(n) < 0.35
    usual = random.choice([5, 10, 20, 25, 50, 100, 500], n, p=[0.15, 0.25, 0.2, 0.1, 0.17, 0.1, 0.03])
    amount = np.where(active, np.where(random.random(n) < 0.85, usual, random.gamma(1.5, 30, n).round()), 0).clip(0, 1000)
    gifts = np.where(active, random.geometric(0.3, n), 0).clip(max=50)
    since = np.where(active, random.integers(0, 24, n), 999)
    hours = np.where(random.random(n) < 0.5, 40, random.choice([0, 10, 20, 35, 38, 45, 50, 60], n))
    born = np.where(random.random(n) < 0.1, 1900, random.normal(1968, 16, n).round()).clip(1900, 2010)
    return pd.DataFrame({
        "amount": amount.astype(int), "gifts": gifts, "since": since, "hours": hours, "born": born.astype(int),
        "all": (amount * gifts).clip(0, 10_000).astype(int), "letter": random.random(n) < np.where(active, 0.8, 0.3),
    })  # fmt: skip


def draw_answers(n: int, seed: int) -> pd.DataFrame:
    """Draw answers from 1 to 5 to 24 questions about three traits, some of them the other way round, some missing."""
    random = np.random.default_rng(seed)
    traits = random.normal(size=(n, 3))
    found: dict[str, np.ndarray] = {"group": random.choice(["young", "middle", "old"], n)}
    for i in range(24):
        value = (1.0 if i % 4 else -1.0) * traits[:, i % 3] + random.normal(0, 0.8, n) + 0.4 * (found["group"] == "old")
        answer = 1 + np.searchsorted([-1.4, -0.5, 0.4, 1.3], value)
        found[f"q{i}"] = np.where(random.random(n) < 0.03, np.nan, answer)
    return pd.DataFrame(found)


def draw_trips(n: int, seed: int) -> pd.DataFrame:
    """Draw trips: dates and their weekday, hours with two peaks, an arrival that is a departure and a duration."""
    random = np.random.default_rng(seed)
    date = np.datetime64("2024-01-01") + random.integers(0, 366, n)
    weekday = (date.astype("datetime64[D]").astype(int) + 3) % 7
    peaks = np.choose(
        random.integers(0, 3, n), [random.normal(480, 50, n), random.normal(1050, 70, n), random.uniform(300, 1380, n)]
    )
    departs = np.where(weekday < 5, peaks, random.normal(840, 200, n)).clip(0, 1439).astype(int)
    line = random.integers(0, 12, n)
    minutes = (random.gamma(12, 0.5 + 0.4 * line, n)).clip(1, 240).astype(int)
    rush = (weekday < 5) & (np.abs(departs - 480) < 60)
    late = _logistic(random, 1.5 * rush + 0.02 * (minutes - 30) + 0.6 * (line % 3 == 0) - 1.0)
    days = np.array(["mon", "tue", "wed", "thu", "fri", "sat", "sun"])
    return pd.DataFrame({
        "date": date.astype(str), "weekday": days[weekday], "departs": departs, "hour": departs // 60,
        "minutes": minutes, "arrives": departs + minutes, "line": np.char.add("l", line.astype(str)), "late": late,
    })  # fmt: skip


def draw_sensors(n: int, seed: int) -> pd.DataFrame:
    """Draw readings of a machine: a point of a spiral, its angle, and a temperature in three regimes; none is linear."""
    random = np.random.default_rng(seed)
    turn = random.uniform(0.0, 4.0 * np.pi, n)
    radius = 1.0 + turn / 2.0
    heat = 20.0 + 25.0 * random.integers(0, 3, n) + random.normal(0, 3, n)
    return pd.DataFrame({
        "x": (radius * np.cos(turn) + random.normal(0, 0.2, n)).round(2).clip(-10, 10),
        "y": (radius * np.sin(turn) + random.normal(0, 0.2, n)).round(2).clip(-10, 10),
        "angle": np.degrees(turn % (2.0 * np.pi)).round(1), "heat": heat.round(1).clip(0, 100),
        "power": (np.square(heat - 45.0) / 10.0 + random.normal(0, 4, n)).round(1).clip(-50, 400),
    })  # fmt: skip


def draw_adult(n: int, seed: int) -> pd.DataFrame:
    """Choose people of Adult, from both of its files."""
    names, frames = [column.name for column in public_set("adult").schema.columns], []
    for held_out in (False, True):
        # The second file begins with a remark, and its labels end in a full stop.
        (path,) = find_public_set("adult", held_out=held_out)
        frame = pd.read_csv(path, names=names, skipinitialspace=True, comment="|", dtype=str, keep_default_na=False)
        frames.append(frame.assign(income=frame["income"].str.rstrip(".")))
    return pd.concat(frames).sample(n, random_state=seed)


def draw_mushroom(n: int, seed: int) -> pd.DataFrame:
    """Choose mushrooms."""
    (path,) = find_public_set("mushroom", held_out=False)
    names = [column.name for column in public_set("mushroom").schema.columns]
    return pd.read_csv(path, names=names, dtype=str, keep_default_na=False).sample(n, random_state=seed)


def _public(draw: Callable[[int, int], pd.DataFrame], name: str) -> MadeUp:
    schema = public_set(name).schema
    return MadeUp(draw, schema.label, schema_text(schema.with_values(header=True)))


SIZES = (2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10)
_HIDDEN = MadeUp(draw_hidden_kinds, "y", "\n".join([
    "label: y", "columns:", *(f"  a{i}: {_values([f'v{v}' for v in range(size)])}" for i, size in enumerate(SIZES)),
    "  y: {type: boolean}", "",
]))  # fmt: skip
_PARITY = MadeUp(draw_parity, "odd", "\n".join([
    "label: odd", "columns:", *(f"  c{i}: {{type: boolean}}" for i in range(11)), "  odd: {type: boolean}", "",
]))  # fmt: skip
TABLES = {
    "hidden kinds": TriedTable(_HIDDEN),
    "hidden kinds without a label": TriedTable(_HIDDEN, label=False),
    "parity": TriedTable(_PARITY),
    "parity without a label": TriedTable(_PARITY, label=False),
    "towns": TriedTable(MadeUp(draw_towns, None, f"""columns:
  region: {_values([f"r{i}" for i in range(6)])}
  town: {_values([f"t{i}" for i in range(60)])}
  postcode: {_values([f"p{i}" for i in range(180)])}
  persons: {{type: integer, low: 1, high: 10}}
  rooms: {{type: integer, low: 1, high: 15}}
  rent: {{type: integer, low: 0, high: 5000}}
  heating: {{type: integer, low: 0, high: 1000}}
  total: {{type: integer, low: 0, high: 6000}}
""")),
    "symptoms": TriedTable(MadeUp(draw_symptoms, "admitted", "\n".join([
        "label: admitted", "columns:", *(f"  s{i}: {{type: boolean}}" for i in range(60)), "  admitted: {type: boolean}",
        "",
    ]))),
    "assays": TriedTable(MadeUp(draw_assays, None, "\n".join([
        "columns:", *(f"  x{i}: {{type: number, low: -9, high: 9, decimals: 2}}" for i in range(150)), "",
    ])), n=2_000),
    "sales": TriedTable(MadeUp(draw_sales, "returned", f"""label: returned
columns:
  product: {_values([f"q{i}" for i in range(2000)])}
  department: {_values([f"d{i}" for i in range(20)])}
  price: {{type: number, low: 0, high: 500, decimals: 2}}
  pieces: {{type: integer, low: 1, high: 30}}
  returned: {{type: boolean}}
""")),
    "customers": TriedTable(MadeUp(draw_customers, "left", """label: left
columns:
  age: {type: integer, low: 18, high: 99}
  region: {type: category, values: [north, south, east, west]}
  income: {type: number, low: 0, high: 1000000, decimals: 0, missing: true}
  assets: {type: number, low: -1000000, high: 5000000, decimals: 0, missing: true}
  plan: {type: category, values: [basic, plus, gold]}
  calls: {type: integer, low: 0, high: 60}
  months: {type: integer, low: 0, high: 120}
  fees: {type: number, low: 0, high: 400, decimals: 2}
  left: {type: boolean}
""")),
    "patients": TriedTable(MadeUp(draw_patients, "relapse", """label: relapse
columns:
  age: {type: integer, low: 18, high: 100}
  sex: {type: category, values: [f, m]}
  bmi: {type: number, low: 10, high: 60, decimals: 1}
  upper: {type: integer, low: 60, high: 250}
  lower: {type: integer, low: 30, high: 150}
  sugar: {type: number, low: 40, high: 400, decimals: 0, missing: true}
  smoker: {type: category, values: [never, before, now]}
  stage: {type: category, values: [I, II, III, IV]}
  relapse: {type: boolean}
"""), n=2_000),
    "donors": TriedTable(MadeUp(draw_donors, None, """columns:
  amount: {type: integer, low: 0, high: 1000}
  gifts: {type: integer, low: 0, high: 50}
  since: {type: integer, low: 0, high: 999}
  hours: {type: integer, low: 0, high: 80}
  born: {type: integer, low: 1900, high: 2010}
  all: {type: integer, low: 0, high: 10000}
  letter: {type: boolean}
""")),
    "answers": TriedTable(MadeUp(draw_answers, None, "\n".join([
        "columns:", "  group: {type: category, values: [young, middle, old]}",
        *(f"  q{i}: {{type: number, low: 1, high: 5, decimals: 0, missing: true}}" for i in range(24)), "",
    ]))),
    "trips": TriedTable(MadeUp(draw_trips, "late", f"""label: late
columns:
  date: {{type: date, low: 2024-01-01, high: 2024-12-31}}
  weekday: {_values(["mon", "tue", "wed", "thu", "fri", "sat", "sun"])}
  departs: {{type: integer, low: 0, high: 1439}}
  hour: {{type: integer, low: 0, high: 23}}
  minutes: {{type: integer, low: 1, high: 240}}
  arrives: {{type: integer, low: 0, high: 1700}}
  line: {_values([f"l{i}" for i in range(12)])}
  late: {{type: boolean}}
""")),
    "sensors": TriedTable(MadeUp(draw_sensors, None, """columns:
  x: {type: number, low: -10, high: 10, decimals: 2}
  y: {type: number, low: -10, high: 10, decimals: 2}
  angle: {type: number, low: 0, high: 360, decimals: 1}
  heat: {type: number, low: 0, high: 100, decimals: 1}
  power: {type: number, low: -50, high: 400, decimals: 1}
""")),
    "hospital": TriedTable(MADE_UP["hospital"], held_out=True),
    "orders without a label": TriedTable(MADE_UP["orders"], label=False, held_out=True),
    "Mushroom": TriedTable(_public(draw_mushroom, "mushroom"), n=4_000, held_out=True),
    "Adult": TriedTable(_public(draw_adult, "adult"), held_out=True),
}  # fmt: skip

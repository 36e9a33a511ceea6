"""Made-up tables that are as ugly as those of offices: spikes, long tails, codes for missing, and rules between columns.

Each has a public schema with bounds alone, and the rules that all of its rows keep, which no schema says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

Rule = Callable[[pd.DataFrame], pd.Series]


@dataclass(frozen=True)
class MadeUp:
    """A made-up table.

    Args:
        draw: the function that draws so many rows by a seed.
        label: the column that classifiers learn; None without one.
        schema: the public schema, with bounds and nothing else of numbers.
        rules: what all rows keep, by a name: each marks the rows that do.
        constraints: the same as a schema may declare it.
        relative: columns that are then learned by their distance from another one, and what a schema says of it.
    """

    draw: Callable[[int, int], pd.DataFrame]
    label: str | None
    schema: str
    rules: Mapping[str, Rule] = field(default_factory=dict)
    constraints: str = ""
    relative: Mapping[str, str] = field(default_factory=dict)

    @property
    def declared(self) -> str:
        """The schema with the constraints, and with columns that are relative to others."""
        text = self.schema
        for name, words in self.relative.items():
            text = re.sub(rf"(?m)^(  {name}: {{.*)}}$", rf"\1, {words}}}", text)
        return text + self.constraints


def _choose(random: np.random.Generator, n: int, shares: Mapping[str, float]) -> np.ndarray:
    weights = np.array(list(shares.values()))
    return random.choice(list(shares), n, p=weights / weights.sum())


def bank(n: int, seed: int) -> pd.DataFrame:
    """Draw calls of a bank: -1 where a client was never called before, balances with long tails."""
    random = np.random.default_rng(seed)
    age = np.clip(random.gamma(9, 4.5, n) + 18, 18, 95).astype(int)
    previous = np.where(random.random(n) < 0.82, 0, random.geometric(0.35, n).clip(max=300))
    pdays = np.where(previous == 0, -1, random.integers(1, 870, n))
    outcome = np.where(previous == 0, "unknown", _choose(random, n, {"failure": 60, "success": 20, "other": 20}))
    balance = (random.standard_t(2.2, n) * 900 + 700).round().clip(-8000, 100_000).astype(int)
    duration = random.gamma(1.1, 230, n).astype(int).clip(0, 5000)
    job = _choose(random, n, {"admin.": 30, "blue-collar": 35, "retired": 10, "student": 5, "services": 20})
    score = duration / 300 - 1.8 + 1.2 * (outcome == "success") - 0.5 * (job == "blue-collar") + 0.6 * (age > 60)
    y = np.where(random.random(n) < 1 / (1 + np.exp(-score)), "yes", "no")
    return pd.DataFrame({
        "age": age, "job": job, "balance": balance, "duration": duration, "pdays": pdays, "previous": previous,
        "outcome": outcome, "y": y,
    })  # fmt: skip


def hospital(n: int, seed: int) -> pd.DataFrame:
    """Draw stays in a hospital: dates in order, codes by chapter, values that go missing together."""
    random = np.random.default_rng(seed)
    age = np.where(random.random(n) < 0.12, 0, np.clip(random.normal(61, 19, n), 0, 104)).astype(int)
    sex = _choose(random, n, {"F": 54, "M": 46})
    chapters = {"I": ("I10", "I21", "I50"), "J": ("J18", "J44"), "O": ("O80", "O82"), "S": ("S06", "S72"), "P": ("P07",)}
    chapter = np.where(age == 0, "P", _choose(random, n, {"I": 45, "J": 25, "S": 22, "O": 8}))
    chapter = np.where((chapter == "O") & ((sex == "M") | (age > 48) | (age < 15)), "I", chapter)
    code = np.array([random.choice(chapters[one]) for one in chapter])
    stay = np.where(random.random(n) < 0.3, 0, random.gamma(1.3, 4.5, n).astype(int).clip(0, 180))
    admitted = random.integers(0, 730, n)
    emergency = random.random(n) < np.where(chapter == "S", 0.9, 0.45)
    icu = np.where(emergency & (random.random(n) < 0.25), random.geometric(0.3, n).clip(max=60), 0)
    stay = np.maximum(stay, icu)
    score = 0.04 * (age - 60) + 0.12 * icu + 0.5 * (chapter == "J") - 3.2
    died = random.random(n) < 1 / (1 + np.exp(-score))
    lactate = np.where(icu > 0, random.gamma(2.5, 0.9, n) + died, np.nan).round(1)
    readmitted = np.where(died, "died", np.where(random.random(n) < 0.12 + 0.1 * (chapter == "I"), "yes", "no"))
    day = np.datetime64("2023-01-01")
    return pd.DataFrame({
        "age": age, "sex": sex, "chapter": chapter, "code": code,
        "admitted": (day + admitted).astype(str), "discharged": (day + admitted + stay).astype(str),
        "emergency": np.where(emergency, "yes", "no"), "icu_days": icu, "lactate": lactate, "readmitted": readmitted,
    })  # fmt: skip


def orders(n: int, seed: int) -> pd.DataFrame:
    """Draw orders of a shop: net and tax add up to the total, countries have one currency, most refunds are 0."""
    random = np.random.default_rng(seed)
    country = _choose(random, n, {"DE": 40, "FR": 20, "CH": 15, "SE": 15, "US": 10})
    currency = pd.Series(country).map({"DE": "EUR", "FR": "EUR", "CH": "CHF", "SE": "SEK", "US": "USD"}).to_numpy()
    items = random.geometric(0.4, n).clip(max=40)
    price = np.array([4.99, 9.99, 19.99, 49.0, 199.0])[random.choice(5, n, p=[0.3, 0.3, 0.2, 0.15, 0.05])]
    net = (items * price * np.where(random.random(n) < 0.2, 0.9, 1.0)).round(2).clip(max=5000)
    rate = pd.Series(country).map({"DE": 0.19, "FR": 0.2, "CH": 0.077, "SE": 0.25, "US": 0.0}).to_numpy()
    tax = (net * rate).round(2)
    status = _choose(random, n, {"paid": 78, "open": 9, "returned": 8, "cancelled": 5})
    shipped = np.where(status == "cancelled", np.nan, random.gamma(2, 1.5, n).round())
    refund = np.where(status == "returned", net, 0.0).round(2)
    score = 0.15 * items - 0.004 * net + 0.5 * (country == "SE") - 0.4
    loyal = np.where(random.random(n) < 1 / (1 + np.exp(-score)), "yes", "no")
    return pd.DataFrame({
        "country": country, "currency": currency, "items": items, "net": net, "tax": tax, "total": (net + tax).round(2),
        "status": status, "days_to_ship": shipped, "refund": refund, "loyal": loyal,
    })  # fmt: skip


def loans(n: int, seed: int) -> pd.DataFrame:
    """Draw loans: incomes with heavy ends and round numbers, 999 for never late, a grade that follows from the score."""
    random = np.random.default_rng(seed)
    income = np.exp(random.normal(10.6, 0.7, n))
    income = np.where(random.random(n) < 0.6, (income / 5000).round() * 5000, income.round()).clip(0, 2_000_000).astype(int)
    score = np.clip(random.normal(680, 70, n), 300, 850).round().astype(int)
    grade = np.select([score >= 760, score >= 700, score >= 640, score >= 560], ["A", "B", "C", "D"], "E")
    late = random.poisson(np.exp((640 - score) / 60)).clip(max=40)
    months = np.where(late == 0, 999, random.integers(0, 120, n))
    purpose = _choose(random, n, {"car": 30, "house": 20, "debt": 40, "other": 10})
    amount = (np.minimum(income * random.gamma(2, 0.2, n), 500_000) / 100).round() * 100
    collateral = np.where(purpose == "debt", 0, amount * random.uniform(0.5, 1.5, n)).round()
    risk = (680 - score) / 60 + 0.8 * (amount > 0.6 * income) + 0.3 * (late > 2) - 1.0
    default = np.where(random.random(n) < 1 / (1 + np.exp(-risk)), "yes", "no")
    return pd.DataFrame({
        "income": income, "score": score, "grade": grade, "late": late, "months_since_late": months, "purpose": purpose,
        "amount": amount.astype(int), "collateral": collateral.astype(int), "default": default,
    })  # fmt: skip


TABLES = {
    "bank": MadeUp(bank, "y", """label: y
columns:
  age: {type: integer, low: 18, high: 95}
  job: {type: category, values: [admin., blue-collar, retired, student, services]}
  balance: {type: integer, low: -8000, high: 100000}
  duration: {type: integer, low: 0, high: 5000}
  pdays: {type: integer, low: -1, high: 900}
  previous: {type: integer, low: 0, high: 300}
  outcome: {type: category, values: [unknown, failure, success, other]}
  y: {type: category, values: ["yes", "no"]}
""", {
        "pdays = -1 iff previous = 0": lambda t: (t["pdays"] == -1) == (t["previous"] == 0),
        "outcome unknown iff previous = 0": lambda t: (t["outcome"] == "unknown") == (t["previous"] == 0),
    }, """constraints:
  - pdays = -1 if and only if previous = 0
  - outcome = unknown if and only if previous = 0
"""),
    "hospital": MadeUp(hospital, "readmitted", """label: readmitted
columns:
  age: {type: integer, low: 0, high: 110}
  sex: {type: category, values: [F, M]}
  chapter: {type: category, values: [I, J, O, S, P]}
  code: {type: category, values: [I10, I21, I50, J18, J44, O80, O82, S06, S72, P07]}
  admitted: {type: date, low: 2023-01-01, high: 2024-12-31}
  discharged: {type: date, low: 2023-01-01, high: 2025-12-31}
  emergency: {type: category, values: ["yes", "no"]}
  icu_days: {type: integer, low: 0, high: 90}
  lactate: {type: number, low: 0, high: 30, decimals: 1, missing: true}
  readmitted: {type: category, values: ["yes", "no", died]}
""", {
        "admitted <= discharged": lambda t: pd.to_datetime(t["admitted"]) <= pd.to_datetime(t["discharged"]),
        "code begins with its chapter": lambda t: t["code"].str[0] == t["chapter"],
        "no man gives birth": lambda t: ~((t["chapter"] == "O") & (t["sex"] == "M")),
        "no icu, no lactate": lambda t: t["lactate"].isna() == (t["icu_days"] == 0),
        "newborns have chapter P": lambda t: (t["chapter"] == "P") == (t["age"] == 0),
        "icu after emergencies": lambda t: (t["icu_days"] == 0) | (t["emergency"] == "yes"),
    }, """constraints:
  - admitted <= discharged
  - lactate is missing if and only if icu_days = 0
  - chapter = P if and only if age = 0
  - sex = F if chapter = O
  - emergency = yes if icu_days > 0
  - column: chapter
    of: code
    mapping: {I10: I, I21: I, I50: I, J18: J, J44: J, O80: O, O82: O, S06: S, S72: S, P07: P}
""", {"discharged": "relative_to: admitted, distance: [0, 365]"}),
    "orders": MadeUp(orders, "loyal", """label: loyal
columns:
  country: {type: category, values: [DE, FR, CH, SE, US]}
  currency: {type: category, values: [EUR, CHF, SEK, USD]}
  items: {type: integer, low: 1, high: 50}
  net: {type: number, low: 0, high: 6000, decimals: 2}
  tax: {type: number, low: 0, high: 1500, decimals: 2}
  total: {type: number, low: 0, high: 7500, decimals: 2}
  status: {type: category, values: [paid, open, returned, cancelled]}
  days_to_ship: {type: integer, low: 0, high: 60, missing: true}
  refund: {type: number, low: 0, high: 6000, decimals: 2}
  loyal: {type: category, values: ["yes", "no"]}
""", {
        "total = net + tax": lambda t: (t["total"] - t["net"] - t["tax"]).abs() < 0.006,
        "one currency a country": lambda t: t["country"].map(
            {"DE": "EUR", "FR": "EUR", "CH": "CHF", "SE": "SEK", "US": "USD"}) == t["currency"],
        "no tax in US": lambda t: (t["tax"] == 0) | (t["country"] != "US"),
        "cancelled are not shipped": lambda t: t["days_to_ship"].isna() == (t["status"] == "cancelled"),
        "refunds of returns": lambda t: (t["refund"] > 0) == (t["status"] == "returned"),
    }, """constraints:
  - total = net + tax
  - {column: currency, of: country, mapping: {DE: EUR, FR: EUR, CH: CHF, SE: SEK, US: USD}}
  - tax = 0 if country = US
  - days_to_ship is missing if and only if status = cancelled
  - refund > 0 if and only if status = returned
  - refund <= net
"""),
    "loans": MadeUp(loans, "default", """label: default
columns:
  income: {type: integer, low: 0, high: 2000000}
  score: {type: integer, low: 300, high: 850}
  grade: {type: category, values: [A, B, C, D, E]}
  late: {type: integer, low: 0, high: 50}
  months_since_late: {type: integer, low: 0, high: 999}
  purpose: {type: category, values: [car, house, debt, other]}
  amount: {type: integer, low: 0, high: 500000}
  collateral: {type: integer, low: 0, high: 1000000}
  default: {type: category, values: ["yes", "no"]}
""", {
        "999 iff never late": lambda t: (t["months_since_late"] == 999) == (t["late"] == 0),
        "grade follows from score": lambda t: pd.Series(np.select(
            [t["score"] >= 760, t["score"] >= 700, t["score"] >= 640, t["score"] >= 560], ["A", "B", "C", "D"], "E"
        ), index=t.index) == t["grade"],
        "no collateral of debts": lambda t: (t["collateral"] == 0) | (t["purpose"] != "debt"),
    }, """constraints:
  - months_since_late = 999 if and only if late = 0
  - grade = A if and only if score >= 760
  - grade = B if and only if score = 700..759
  - grade = C if and only if score = 640..699
  - grade = D if and only if score = 560..639
  - collateral = 0 if purpose = debt
"""),
}  # fmt: skip

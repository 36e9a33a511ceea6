"""Learn a table with a Gaussian copula and draw rows, without privacy: `python tables_copula.py FOLDER`.

It runs in an environment that has SciPy. FOLDER/asked.json names the columns and the number of rows; FOLDER/table.csv has
the records in bins, as whole numbers from 0. Each column becomes normal by the ranks of its values, those of equal values
in random order. The shares of single columns and the correlations of the normal ones are all that is kept of the records.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm, rankdata


def main(folder: Path) -> None:
    asked = json.loads((folder / "asked.json").read_text(encoding="utf-8"))
    table, random = pd.read_csv(folder / "table.csv"), np.random.default_rng(0)
    normal = [norm.ppf(rankdata(column + random.random(len(table))) / (len(table) + 1)) for column in table.to_numpy().T]
    drawn = norm.cdf(random.multivariate_normal(np.zeros(len(normal)), np.corrcoef(normal), asked["n"]))
    made = {
        name: np.quantile(table[name], places, method="inverted_cdf").astype(int)
        for name, places in zip(table, drawn.T, strict=True)
    }
    pd.DataFrame(made).to_csv(folder / "made.csv", index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Answer for the label of test rows with diffprivlib's naive Bayes: `python tables_diffprivlib.py FOLDER`.

It runs in an environment that has diffprivlib. FOLDER/asked.json names the budget and the columns with their bounds;
FOLDER/table.csv has the records and FOLDER/test.csv rows to answer for, by their values. Categories are given to it as
0 and 1, one column a value. Its guarantee has no delta.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from diffprivlib.models import GaussianNB


def main(folder: Path) -> None:
    asked = json.loads((folder / "asked.json").read_text(encoding="utf-8"))
    columns = {name: column for name, column in asked["columns"].items() if name != asked["label"]}
    kinds = {name: str for name, column in asked["columns"].items() if "values" in column}

    def features(path: Path) -> tuple[np.ndarray, np.ndarray]:
        frame = pd.read_csv(path, dtype=kinds, keep_default_na=False)
        parts = []
        for name, column in columns.items():
            if "values" in column:
                parts += [(frame[name] == value).to_numpy(float) for value in column["values"]]
            else:
                parts.append((frame[name].to_numpy(float) - column["low"]) / (column["high"] - column["low"]))
        return np.stack(parts, axis=1), frame[asked["label"]].to_numpy()

    x, y = features(folder / "table.csv")
    model = GaussianNB(epsilon=asked["epsilon"], bounds=(0.0, 1.0)).fit(x, y)
    pd.DataFrame({asked["label"]: model.predict(features(folder / "test.csv")[0])}).to_csv(folder / "made.csv", index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

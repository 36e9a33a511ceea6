"""Learn a table with a pipeline of dpmm and draw rows: `python tables_dpmm.py FOLDER`, in an environment that has dpmm.

FOLDER/asked.json names the mechanism, the budget, the columns and the number of rows; FOLDER/table.csv has the records.
A table in public bins has whole numbers from 0, and no budget is spent on bins. Else a tenth of epsilon 1, dpmm's own
default, pays for the bins of columns with bounds, and the mechanism has the rest.
"""

import json
import sys
from pathlib import Path

import pandas as pd
from dpmm.pipelines import AIMPipeline, MSTPipeline, PrivBayesPipeline

PIPELINES = {"AIM": AIMPipeline, "MST": MSTPipeline, "PrivBayes": PrivBayesPipeline}
FOR_BINS = 0.1


def main(folder: Path) -> None:
    asked = json.loads((folder / "asked.json").read_text(encoding="utf-8"))
    columns, binned = asked["columns"], asked["binned"]
    # One process: seconds of processor are to be those of the mechanism.
    settings = {"delta": asked["delta"], "n_jobs": 1} | asked["settings"]
    if binned:
        pipeline = PIPELINES[asked["mechanism"]](asked["epsilon"], disable_processing=True, **settings)
        domain = {name: len(column["values"]) for name, column in columns.items()}
        table = pd.read_csv(folder / "table.csv")
    else:
        pipeline = PIPELINES[asked["mechanism"]](asked["epsilon"] - FOR_BINS, proc_epsilon=FOR_BINS, **settings)
        domain = {
            name: {"categories": column["values"]}
            if "values" in column
            else {"lower": column["low"], "upper": column["high"]}
            for name, column in columns.items()
        }
        kinds = {name: str for name, column in columns.items() if "values" in column}
        table = pd.read_csv(folder / "table.csv", dtype=kinds, keep_default_na=False)
    pipeline.fit(table, domain)
    made = pipeline.generate(n_records=asked["n"])
    made[list(columns)].to_csv(folder / "made.csv", index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

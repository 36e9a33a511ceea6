"""Print the overall score of SDMetrics' quality report: `python quality_sdmetrics.py FOLDER`, where sdmetrics is installed.

FOLDER/columns.json says which columns are numbers; FOLDER/real.csv and FOLDER/synthetic.csv have rows by their values.
"""

import json
import sys
import warnings
from pathlib import Path

import pandas as pd
from sdmetrics.reports.single_table import QualityReport


def main(folder: Path) -> None:
    kinds = json.loads((folder / "columns.json").read_text(encoding="utf-8"))
    texts = {name: str for name, kind in kinds.items() if kind == "categorical"}
    sides = [pd.read_csv(folder / f"{side}.csv", dtype=texts, keep_default_na=False) for side in ("real", "synthetic")]
    report = QualityReport()
    # It warns of columns in which there is nothing to compare.
    warnings.simplefilter("ignore")
    report.generate(*sides, {"columns": {name: {"sdtype": kind} for name, kind in kinds.items()}}, verbose=False)
    print(report.get_score())


if __name__ == "__main__":
    main(Path(sys.argv[1]))

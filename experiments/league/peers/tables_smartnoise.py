"""Learn a table with a synthesizer of smartnoise-synth and draw rows: `python tables_smartnoise.py FOLDER`.

It runs in an environment that has smartnoise-synth. FOLDER/asked.json names the mechanism, the budget, the columns and the
number of rows; FOLDER/table.csv has the records in public bins, as whole numbers from 0, since its mechanisms take
categories alone. Rows are sampled from the model: by default mbi (1.1.0, and 2.0.0 alike) gives rows with equal values of
one column increasing values of the next, in the order of the rows, so that columns depend on each other which do not in the
model.
"""

import json
import sys
from functools import partialmethod
from pathlib import Path

import pandas as pd
from mbi import MarkovRandomField
from snsynth import Synthesizer
from snsynth.transform import LabelTransformer, TableTransformer


def main(folder: Path) -> None:
    MarkovRandomField.synthetic_data = partialmethod(MarkovRandomField.synthetic_data, method="sample")
    asked = json.loads((folder / "asked.json").read_text(encoding="utf-8"))
    table = pd.read_csv(folder / "table.csv")
    coders = []
    for column in asked["columns"].values():
        coder = LabelTransformer(nullable=False)
        # The values are public; those of the records alone would tell which of them occur.
        coder.fit(list(range(len(column["values"]))))
        coders.append(coder)
    synthesizer = Synthesizer.create(
        asked["mechanism"].lower(), epsilon=asked["epsilon"], delta=asked["delta"], **asked["settings"]
    )
    synthesizer.fit(table, transformer=TableTransformer(coders))
    made = pd.DataFrame(synthesizer.sample(asked["n"]), columns=list(table))
    made.to_csv(folder / "made.csv", index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

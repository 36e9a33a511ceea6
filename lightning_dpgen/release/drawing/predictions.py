"""Labels of records by the classifier of a release: private where the records are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from lightning_dpgen.data.files.database import DatabaseQuery
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.schema_difference import first_difference
from lightning_dpgen.data.series.reading import read_series
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.unlabelled import unlabelled, with_any_label
from lightning_dpgen.models.labelled import LabelledNetwork
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.release.drawing.description import check_classifier

# Records that are classified at a time.
_CHUNK = 4096
# A table in memory, in a file or in a database; pictures or series as an array; or records that are read already.
Unlabelled = Records | DatabaseQuery | pd.DataFrame | pa.Table | pa.RecordBatch | np.ndarray | str | Path


def predict_labels(mixture: Mixture, records: Unlabelled) -> pd.DataFrame:
    """Return the most probable label of each record, and the probability of every label; see `Release.predict`."""
    schema = mixture.network.schema
    check_classifier(isinstance(mixture.network, LabelledNetwork))
    shares = label_shares(mixture, _encoded(records, schema)).numpy()
    name, labels = label_words(schema)
    table = pd.DataFrame(shares, columns=[f"p_{label}" for label in labels])
    table.insert(0, name, pd.Series(np.array(labels, object)[shares.argmax(axis=1)] if len(shares) else [], dtype=object))
    return table.infer_objects()


def label_shares(mixture: Mixture, encoded: Encoded) -> Tensor:
    """Return the probabilities (N, labels) that the classifier of a mixture gives to the labels of records, in float64."""
    labels = mixture.network.schema.layout.groups[mixture.network.schema.layout.label]
    parts = [torch.zeros(0, labels, dtype=torch.float64)]
    for start in range(0, len(encoded), _CHUNK):
        rows = slice(start, min(start + _CHUNK, len(encoded)))
        parts.append(mixture.network.label_shares(encoded[rows], mixture.weights))
    return torch.cat(parts)


def label_words(schema: Schema) -> tuple[str, list]:
    """Return the name of the label, and its values in their order: numbers where they are numbers."""
    if isinstance(schema, ImageSchema):
        return "label", list(schema.class_names)
    if isinstance(schema, SeriesSchema):
        return "label", list(schema.classes)
    return schema.label, list(schema.choices[schema.label])


def _encoded(records: Unlabelled, schema: Schema) -> Encoded:
    if isinstance(records, Records):
        for own in (schema, unlabelled(schema)):
            if own is not None and first_difference(records.schema, own) is None:
                return records.encoded if own is schema else with_any_label(records.encoded, schema.layout)
        raise ValueError(
            f"records: are of another description than those of the release ({first_difference(records.schema, schema)})"
        )
    own = unlabelled(schema) or schema
    if isinstance(schema, ImageSchema):
        if not isinstance(records, np.ndarray):
            raise ValueError(
                f"records: a {type(records).__name__}: expected an array (N, {', '.join(map(str, schema.shape))}) of "
                "pictures, or Records, as encode_images returns them"
            )
        encoded = own.encode(records)
    elif isinstance(schema, SeriesSchema):
        encoded = read_series(records, own).encoded
    else:
        encoded = read_table(records, own).encoded
    return encoded if own is schema else with_any_label(encoded, schema.layout)

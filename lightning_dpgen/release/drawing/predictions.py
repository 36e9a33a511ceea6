"""Labels and codes of records, by the classifier or the encoder of a release: private where the records are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from lightning_dpgen.data.files.database import DatabaseQuery
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema, first_difference, kind_of
from lightning_dpgen.models.labelled import LabelledNetwork, without_label
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.release.drawing.description import check_classifier, check_encoder

# Records that are encoded or classified at a time.
_CHUNK = 4096


def encode_records(mixture: Mixture, records: Records) -> pd.DataFrame:
    """Return the codes of records by the encoder of a mixture; see `Release.encode`."""
    network = without_label(mixture.network)
    if not isinstance(network, StackedVAE):
        check_encoder(network.kind)
        raise ValueError(
            f"release: a model with code of its own ({network.kind}), which has no encoder: expected one of model=vae"
        )
    if not isinstance(records, Records):
        raise ValueError(
            f"records: a {type(records).__name__}: expected Records, as encode_table or encode_images return them"
        )
    if (difference := first_difference(records.schema, network.schema)) is not None:
        raise ValueError(f"records: are of another description than those of the release ({difference})")
    components, means = [], []
    for start in range(0, len(records), _CHUNK):
        rows = records.take(np.arange(start, min(start + _CHUNK, len(records))))
        best, mean, _ = network.nearest_components(rows, mixture.weights)
        components.append(best)
        means.append(mean)
    found = torch.cat(means) if means else torch.zeros(0, network.latent)
    names = [f"z_{i}" for i in range(network.latent)]
    table = pd.DataFrame(found.numpy(), columns=names)
    table.insert(0, "component", torch.cat(components).numpy() if components else np.zeros(0, np.int64))
    return table


# A table in memory, in a file or in a database; pictures or series as an array; or records that are read already.
Unlabelled = Records | DatabaseQuery | pd.DataFrame | pa.Table | pa.RecordBatch | np.ndarray | str | Path


def predict_labels(mixture: Mixture, records: Unlabelled) -> pd.DataFrame:
    """Return the most probable label of each record, and the probability of every label; see `Release.predict`."""
    schema = mixture.network.schema
    check_classifier(isinstance(mixture.network, LabelledNetwork))
    shares = label_shares(mixture, _encoded(records, schema)).numpy()
    name, labels = schema.label_values
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


def _encoded(records: Unlabelled, schema: Schema) -> Encoded:
    if isinstance(records, Records):
        for expected in (schema, schema.unlabelled()):
            if expected is not None and first_difference(records.schema, expected) is None:
                return records.encoded if expected is schema else with_any_label(records.encoded, schema.layout)
        raise ValueError(
            f"records: are of another description than those of the release ({first_difference(records.schema, schema)})"
        )
    plain = schema.unlabelled() or schema
    encoded = kind_of(schema).encode(records, plain)
    return encoded if plain is schema else with_any_label(encoded, schema.layout)


def with_any_label(encoded: Encoded, layout: Layout) -> Encoded:
    """Return records without a label as records of a layout with one: the first, which says nothing.

    Example:
        >>> with_any_label(Encoded(np.zeros((1, 0)), np.array([[1, 2]])), Layout(0, groups=(2, 5, 3), label=1)).codes
        array([[1, 0, 2]])
    """
    return Encoded(encoded.units, np.insert(encoded.codes, layout.label, 0, axis=1))

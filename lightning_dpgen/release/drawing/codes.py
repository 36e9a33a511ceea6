"""Codes of new records, by the encoder of a release: private where the records are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema_difference import first_difference
from lightning_dpgen.models.labelled import without_label
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.release.drawing.description import check_encoder

# Records that are encoded at a time.
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

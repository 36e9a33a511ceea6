"""Codes of new records, by the encoder of a release: private where the records are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema_difference import first_difference
from lightning_dpgen.models.labelled import without_label
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.release.sampler import Release

# Records that are encoded at a time.
_CHUNK = 4096


def encode(release: Release, records: Records) -> pd.DataFrame:
    """Return the component that most probably made each record, and the mean of its code there.

    The encoder is a part of the release and has seen the records of the training through noise alone, so using it costs
    nothing beyond the certificate. A code is a function of its record: codes of private records are private.

    Args:
        release: of autoencoders (``model=vae``).
        records: with the description of the release's own, also others than it was learned from.

    Returns:
        One row a record: ``component``, and ``z_0`` to ``z_<d-1>``.

    Raises:
        ValueError: for a release without an encoder, or records of another description.

    Example:
        >>> codes = encode(load_release(folder), records)                       # doctest: +SKIP
        >>> codes[["z_0", "z_1"]].mean()                                        # doctest: +SKIP
    """
    network = without_label(release.mixture.network)
    if not isinstance(network, StackedVAE):
        raise ValueError(f"release: a {type(network).__name__}, which has no encoder: expected autoencoders, of model=vae")
    if not isinstance(records, Records):
        raise ValueError(
            f"records: a {type(records).__name__}: expected Records, as encode_table or encode_images return them"
        )
    if (difference := first_difference(records.schema, network.schema)) is not None:
        raise ValueError(f"records: are of another description than those of the release ({difference})")
    components, means = [], []
    for start in range(0, len(records), _CHUNK):
        rows = records.take(np.arange(start, min(start + _CHUNK, len(records))))
        best, mean, _ = network.nearest_components(rows, release.mixture.weights)
        components.append(best)
        means.append(mean)
    found = torch.cat(means) if means else torch.zeros(0, network.latent)
    names = [f"z_{i}" for i in range(network.latent)]
    table = pd.DataFrame(found.numpy(), columns=names)
    table.insert(0, "component", torch.cat(components).numpy() if components else np.zeros(0, np.int64))
    return table

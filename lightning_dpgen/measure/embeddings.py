"""Mean embeddings: the average of each component's records in the feature space of a kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_dpgen.clustering.features import FEATURE_NORM, Features
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.models.networks import check_sizes


class MeanEmbeddings(Statistic):
    """Sums of random features of records, by component; over counts they are the kernel mean embeddings (Rahimi and Recht
    2007; DP-MERF, Harder et al. 2021, measures them of each class).

    No feature vector is longer than `FEATURE_NORM`, which is the bound. Sums are of whole numbers, and so exact.

    Args:
        schema: the records' schema.
        features: random features of all numbers of a record, choices as one-hot.
        k: number of components.

    Example:
        >>> from lightning_dpgen.clustering.features import FourierFeatures
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> import numpy as np
        >>> schema, public = ImageSchema(2, 2, levels=1), torch.Generator().manual_seed(0)
        >>> embeddings = MeanEmbeddings(schema, FourierFeatures(torch.ones(4), d=6, gamma=0.5, generator=public), k=2)
        >>> black = Encoded(np.zeros((3, 4), np.uint8), np.zeros((3, 0), np.uint8))
        >>> embeddings.sums(black, torch.tensor([1, 1, 1])).norm(dim=1).round(decimals=2)
        tensor([0., 3.], dtype=torch.float64)
    """

    bound = FEATURE_NORM

    def __init__(self, schema: Schema, features: Features, k: int) -> None:
        check_sizes(k=k)
        self._schema, self._features, self.k, self.shape = schema, features, k, (k, features.d)
        self.layout = schema.layout

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        total = torch.zeros(self.shape, dtype=torch.float64)
        for rows, multiples in self._features.multiples(Records(self._schema, records)):
            total.index_add_(0, component[rows], multiples.double())
        return total * self._features.unit

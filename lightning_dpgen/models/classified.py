"""A classifier of pictures or series that stands beside the network that draws them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.models.crossings import Crossing
from lightning_dpgen.models.labelled import LabelledNetwork, takes_label
from lightning_dpgen.models.mixture import GenerativeNetwork
from lightning_dpgen.models.scattering import Scattering


class ClassifiedNetwork(LabelledNetwork):
    """A network of pictures or series, and a classifier of their label by its own softmax regression.

    Records are drawn as the wrapped network draws them. The label of a record that is given is told by ``softmax(features @
    weights + level)``, with features by `Scattering`.

    Args:
        network: a stack of generative networks of pictures or series with a label.

    Raises:
        ValueError: for other records.

    Example:
        >>> import numpy as np
        >>> from lightning_dpgen.models.products import StackedProducts
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> network = ClassifiedNetwork(StackedProducts(ImageSchema(4, 4, levels=1, classes=2), k=3))
        >>> pictures = Encoded(np.zeros((2, 16), np.uint8), np.zeros((2, 1), np.uint8))
        >>> network.label_shares(pictures, torch.ones(3)).tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """

    @classmethod
    def _features_of(cls, schema: Schema) -> int:
        if not is_classified(schema):
            raise ValueError(f"records of kind {schema.kind}: expected pictures or series with a label")
        return Scattering(schema.layout, schema.axes).count

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate means of units and shares of choices, as the wrapped network does."""
        return self.network.generate(offsets, generator)

    @torch.no_grad()
    def label_shares(self, records: Encoded, weights: Tensor) -> Tensor:
        """Return the probabilities (B, labels) of the labels of records; of each record by itself, in float64."""
        return torch.softmax(self._scattering(records) @ self.label_weights.double() + self.label_level.double(), dim=1)

    @cached_property
    def _scattering(self) -> Scattering:
        return Scattering(self.schema.layout, self.schema.axes)


def is_classified(schema: Schema) -> bool:
    """Return whether records are pictures or series with a label, which a classifier tells."""
    return schema.dimensions > 0 and schema.layout.label is not None


def can_label(schema: Schema) -> bool:
    """Return whether the label of records can be learned given all their other numbers."""
    return is_classified(schema) or (schema.label_given_rest and takes_label(schema.layout))


def with_label(network: GenerativeNetwork, crossings: Sequence[Crossing] = ()) -> LabelledNetwork:
    """Return the network with a label given all other numbers: drawn last in tables, told beside it of pictures and series.

    Args:
        crossings: of a table, whose cells are features, too.

    Raises:
        ValueError: for records that take no label, or not these crossings.
    """
    if not is_classified(network.schema):
        return LabelledNetwork(network, crossings)
    if crossings:
        raise ValueError(f"crossings: expected none for records of kind {network.schema.kind}")
    return ClassifiedNetwork(network)

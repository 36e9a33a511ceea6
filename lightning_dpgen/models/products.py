"""Mixtures of product distributions, as measured tables of counts describe them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.segments import components
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.models.outputs import draw


class StackedProducts(nn.Module):
    """k components, in each of which all numbers of a record are independent.

    With a classifier, all numbers but the label are drawn from the component, and then the label from
    ``softmax(sum of the weights of the record's choices + offsets of the component)``.

    Args:
        schema: the public description of a record.
        classifier: whether a classifier draws the label; only for records of choices with a label.

    Raises:
        ValueError: for k below 1, or a classifier of records without a label or with units.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> network = StackedProducts(ImageSchema(1, 2, levels=1), k=3)
        >>> network.generate((0, 2, 2, 5), torch.Generator()).shape
        torch.Size([5, 2])
    """

    kind = "product_mixture"

    def __init__(self, schema: Schema, k: int, *, classifier: bool = False) -> None:
        check_sizes(k=k)
        super().__init__()
        layout = schema.layout
        if classifier and (layout.label is None or layout.units):
            raise ValueError(f"classifier={classifier}: expected none, or records that are choices alone, with a label")
        self.schema, self.k, self.classifier = schema, k, classifier
        self.register_buffer("means", torch.zeros(k, layout.width))
        if classifier:
            labels = layout.groups[layout.label]
            self.register_buffer("label_weights", torch.zeros(layout.width, labels))
            self.register_buffer("label_offsets", torch.zeros(k, labels))

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `__init__`, without schema and k."""
        return {"classifier": True} if self.classifier else {}

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate means of units and shares of choices (n, width), for records sorted by component.

        With a classifier, choices are drawn here, and their shares are 0 and 1.
        """
        component = components(offsets, self.means.device)
        made = self.means[component]
        if not self.classifier:
            return made
        layout = self.schema.layout
        logits = self.label_offsets[component]
        codes = torch.from_numpy(draw(made, layout, generator).codes.astype(np.int64))
        for group, span in enumerate(layout.spans):
            if group != layout.label:
                made[:, span] = nn.functional.one_hot(codes[:, group], layout.groups[group]).to(made.dtype)
                logits = logits + self.label_weights[span.start + codes[:, group]]
        made[:, layout.labels] = torch.softmax(logits, dim=1)
        return made

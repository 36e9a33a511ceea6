"""Private records in memory, encoded by their public schema and checked before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.image_schema import ImageSchema


class BadRecords(ValueError):
    """The records are not what the schema declares, or not kept in what lots can be drawn from."""


@dataclass(frozen=True)
class Records:
    """Records as one matrix.

    Args:
        schema: what they are, publicly.
        encoded: (N, schema.encoded_width) float32 in [0, 1].

    Raises:
        BadRecords: if they are not. The message names no record, so it may be shown.
    """

    schema: ImageSchema
    encoded: Tensor

    def __post_init__(self) -> None:
        x = self.encoded
        if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != self.schema.encoded_width:
            raise BadRecords(
                f"encoded records are {x.dtype} of shape {tuple(x.shape)}: expected float32 of shape "
                f"(N, {self.schema.encoded_width})"
            )
        # NaN fails the comparison too. Without the bounds one record could make features overflow for all.
        if not ((x >= 0.0) & (x <= 1.0)).all():
            raise BadRecords("the records hold NaN, or values outside [0, 1]: replace or drop those records first")

    def __len__(self) -> int:
        return self.encoded.shape[0]

    @property
    def pixels(self) -> Tensor:
        return self.encoded[:, : self.schema.pixels]

    @property
    def labels(self) -> Tensor:
        """(N,) class of each record.

        Raises:
            ValueError: if the schema declares no label.
        """
        if not self.schema.classes:
            raise ValueError("these records have no label: the schema declares classes=0")
        return self.encoded[:, self.schema.pixels :].argmax(dim=1)


def encode_images(images: np.ndarray, labels: np.ndarray | None, schema: ImageSchema) -> Records:
    """Pictures and labels as `Records`.

    Args:
        images: (N, height, width) or (N, height * width), values 0 to ``schema.levels``.
        labels: (N,) whole numbers below ``schema.classes``; None without labels.
        schema: the public description.

    Raises:
        BadRecords: for another shape, values that are not finite or out of the declared range, or labels that do not
            fit. The message names no record, so it may be shown; nothing has been spent.

    Example:
        >>> schema = ImageSchema(1, 2, levels=4, classes=2)
        >>> encode_images(np.array([[0, 4]]), np.array([1]), schema).encoded
        tensor([[0., 1., 0., 1.]])
    """
    images = np.asarray(images)
    if images.ndim not in (2, 3) or images.shape[1:] not in (
        (schema.height, schema.width),
        (schema.pixels,),
    ):
        raise BadRecords(
            f"images have shape {images.shape}: expected (N, {schema.height}, {schema.width}) "
            f"or (N, {schema.pixels})"
        )
    if images.dtype.kind not in "uifb":
        raise BadRecords(f"images have dtype {images.dtype}: expected numbers")
    if not np.isfinite(images).all():
        raise BadRecords("images hold NaN or infinite values: replace or drop those records first")
    if images.size and (images.min() < 0 or images.max() > schema.levels):
        raise BadRecords(f"images hold values outside the declared range 0 to {schema.levels} (data.levels)")
    flat = images.reshape(len(images), schema.pixels)
    if schema.threshold is not None:
        values = torch.from_numpy((flat > schema.threshold).astype(np.float32))
    else:
        values = torch.from_numpy(flat.astype(np.float32) / np.float32(schema.levels))
    if not schema.classes:
        return Records(schema, values)
    if labels is None:
        raise BadRecords(f"the schema declares {schema.classes} classes, but there are no labels")
    labels = np.asarray(labels)
    if labels.shape != (len(images),):
        raise BadRecords(f"labels have shape {labels.shape}: expected ({len(images)},), one a picture")
    if labels.dtype.kind not in "ui" or (labels.size and (labels.min() < 0 or labels.max() >= schema.classes)):
        raise BadRecords(f"labels must be whole numbers from 0 to {schema.classes - 1} (data.classes)")
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(labels.astype(np.int64)), schema.classes)
    return Records(schema, torch.cat([values, one_hot.to(torch.float32)], dim=1))

"""Pictures: what is publicly known of them before one is read, and how they are written as numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from dataclasses import fields as fields_of
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.data.schema import LabelledSchema
from lightning_dpgen.sampling.errors import BadRecords

# Sizes beyond them are a slip of the pen, or an attempt to exhaust a machine.
_RANGES = (
    ("height", 1, 4096), ("width", 1, 4096), ("levels", 1, 2**24), ("classes", 0, 10_000), ("channels", 1, 4),
)  # fmt: skip


@dataclass(frozen=True)
class ImageSchema(LabelledSchema):
    """Grey, binary or colour pictures with an optional class label; everything here is declared, nothing read off the data.

    A record is ``height * width * channels`` numbers in [0, 1] in row order, the channels of a pixel side by side, and the
    label as one-hot.

    Args:
        height, width: rows and columns of a picture.
        levels: the largest pixel value; pixels are whole numbers from 0 to this.
        classes: number of labels 0, 1, ...; 0 for pictures without a label.
        threshold: if set, a pixel above this value is 1 and any other 0 (the pictures become binary).
        channels: 1 for grey, 3 for colour.
        names: what the labels are called, one for each; none where they are numbers.

    Example:
        >>> ImageSchema(8, 8, levels=16, classes=10).layout.width
        74
    """

    kind: ClassVar[str] = "images"

    height: int
    width: int
    levels: int
    classes: int = 0
    threshold: int | None = None
    channels: int = 1
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name}={value!r}: expected a whole number from {least} to {most}")
        if self.classes == 1:
            raise ValueError(f"classes={self.classes}: expected 0 (no label) or 2 and more")
        if self.threshold is not None and not (type(self.threshold) is int and 0 <= self.threshold < self.levels):
            raise ValueError(f"threshold={self.threshold}: expected 0 to {self.levels - 1}")
        names = tuple(self.names)
        if names and (len(set(names)) != self.classes or not all(type(name) is str for name in names)):
            raise ValueError(f"names={names[:5]}: expected one of each of the {self.classes} classes, or none")
        object.__setattr__(self, "names", names)

    @property
    def axes(self) -> tuple[int, ...]:
        """The height, the width and the number of channels, as units fill them."""
        return (self.height, self.width, self.channels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a picture: (height, width), and the channels of a colour one."""
        return (self.height, self.width) if self.channels == 1 else (self.height, self.width, self.channels)

    @cached_property
    def layout(self) -> Layout:
        groups = (self.classes,) if self.classes else ()
        levels = 1 if self.threshold is not None else self.levels
        return Layout(self.height * self.width * self.channels, levels, groups, 0 if groups else None)

    @cached_property
    def arrow(self) -> pa.Schema:
        """``pixel_0`` and so on, in the order of a record, then ``label``."""
        kind = pa.from_numpy_dtype(smallest_integer(max(self.layout.levels, self.classes)))
        columns = [(f"pixel_{i}", kind) for i in range(self.layout.units)]
        return pa.schema(columns + [("label", pa.string() if self.names else kind)] * bool(self.classes))

    def encode(self, images: np.ndarray, labels: np.ndarray | None = None) -> Encoded:
        """Encode pictures and labels as records.

        Args:
            images: (N, height, width), (N, height, width, channels) or (N, units), values 0 to `levels`.
            labels: (N,) whole numbers below `classes`; None without labels.

        Raises:
            BadRecords: for another shape, values that are not finite or out of the declared range, or labels that do not
                fit. The message names no record, so it may be shown.
        """
        images, units = np.asarray(images), self.layout.units
        whole = (self.height, self.width, self.channels)
        if images.ndim < 2 or images.shape[1:] not in ((units,), self.shape, whole):
            shape = ", ".join(map(str, self.shape))
            raise BadRecords(f"images have shape {images.shape}: expected (N, {shape}) or (N, {units})")
        if images.dtype.kind not in "uifb":
            raise BadRecords(f"images have dtype {images.dtype}: expected numbers")
        if images.dtype.kind == "f" and not np.isfinite(images).all():
            raise BadRecords("images hold NaN or infinite values: replace or drop those records first")
        if images.size and (images.min() < 0 or images.max() > self.levels):
            raise BadRecords(f"images hold values outside the declared range 0 to {self.levels}")
        flat = images.reshape(len(images), units)
        if self.threshold is not None:
            flat = flat > self.threshold
        elif flat.dtype.kind == "f":
            flat = np.round(flat)
        flat = flat.astype(smallest_integer(self.layout.levels), copy=False)
        if not self.classes:
            return Encoded(flat, np.zeros((len(images), 0), np.uint8))
        if labels is None:
            raise BadRecords(f"the schema declares {self.classes} classes, but there are no labels")
        labels = np.asarray(labels)
        if labels.shape != (len(images),):
            raise BadRecords(f"labels have shape {labels.shape}: expected ({len(images)},), one for each picture")
        if labels.dtype.kind not in "ui" or (labels.size and (labels.min() < 0 or labels.max() >= self.classes)):
            raise BadRecords(f"labels must be whole numbers from 0 to {self.classes - 1}")
        return Encoded(flat, labels.astype(smallest_integer(self.classes))[:, None])

    def decode(self, encoded: Encoded, random: np.random.Generator, before: int = 0) -> pa.RecordBatch:
        # Each column is contiguous, so that Arrow takes it as it is.
        pixels = np.asfortranarray(encoded.units.astype(self.arrow.types[0].to_pandas_dtype(), copy=False))
        columns = [pa.array(pixels[:, i]) for i in range(pixels.shape[1])]
        if self.classes:
            label = pa.array(encoded.codes[:, 0])
            columns.append(pa.array(self.names).take(label) if self.names else label.cast(self.arrow.types[-1]))
        return pa.record_batch(columns, schema=self.arrow)

    def pictures(self, encoded: Encoded) -> np.ndarray:
        """Return (N, height, width) or (N, height, width, channels) whole numbers from 0 to ``layout.levels``."""
        return encoded.units.reshape(-1, *self.shape)

    @property
    def class_names(self) -> tuple[str, ...] | tuple[int, ...]:
        """The labels as they are called: by their names, or else 0, 1, ..."""
        return self.names or tuple(range(self.classes))

    @property
    def record_bytes(self) -> int:
        """The bytes that a synthetic picture takes in a file at most.

        Example:
            >>> ImageSchema(28, 28, levels=255, classes=10).record_bytes
            792
        """
        pixel = smallest_integer(self.layout.levels).itemsize
        return pixel * self.layout.units + 8 * len(self.layout.groups)

    def unlabelled(self) -> ImageSchema:
        """Return the schema of the same pictures without their label.

        Example:
            >>> ImageSchema(2, 2, levels=1, classes=2).unlabelled().layout.groups
            ()
        """
        return replace(self, classes=0, names=())

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self), "names": list(self.names)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ImageSchema:
        """Return the schema that `as_json` described; raise ValueError for foreign or missing fields."""
        try:
            return cls(**{name: value for name, value in fields.items() if name != "kind"})
        except TypeError:
            known = ", ".join(own.name for own in fields_of(cls))
            raise ValueError(
                f"the schema has missing or foreign fields, or values of another type: expected {known}"
            ) from None

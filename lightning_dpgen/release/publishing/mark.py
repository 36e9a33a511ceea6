"""Marks in the metadata of files, and in pictures: of a release that is not private, and of rows that were given."""

from __future__ import annotations

import pyarrow as pa
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

NOT_PRIVATE = "not private"
# Metadata of Parquet schemas, and of PNG text chunks.
METADATA = {
    "private": "false",
    "Comment": "not private: made without differential privacy, or with noise that a known seed repeats; it may show "
    "records that it was made from",
}
# Metadata of given rows that a model has completed.
_COMPLETED = {
    "covered": "false",
    "Comment": "rows that were handed over, and completed by a released model: the certificate covers the model, and none "
    "of these rows, which are as private as those that were handed over",
}
_PAPER, _INK, _HEIGHT = (176, 0, 32), (255, 255, 255), 26


def marked_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a file that carries the mark.

    Example:
        >>> marked_schema(pa.schema([("age", pa.int64())])).metadata[b"private"]
        b'false'
    """
    return schema.with_metadata({**(schema.metadata or {}), **METADATA})


def completed_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a file of given rows that are completed.

    Example:
        >>> completed_schema(pa.schema([("age", pa.int64())])).metadata[b"covered"]
        b'false'
    """
    return schema.with_metadata({**(schema.metadata or {}), **_COMPLETED})


def text_chunks() -> PngInfo:
    """Return the mark as text chunks of a PNG."""
    chunks = PngInfo()
    for name, text in METADATA.items():
        chunks.add_text(name, text)
    return chunks


def marked_picture(picture: Image.Image) -> Image.Image:
    """Draw the picture below a band with the mark, at least as wide as its words."""
    font = ImageFont.load_default(_HEIGHT * 0.6)
    width = max(picture.width, round(font.getlength(NOT_PRIVATE)) + _HEIGHT)
    whole = Image.new("RGB", (width, picture.height + _HEIGHT), _PAPER)
    ImageDraw.Draw(whole).text((_HEIGHT / 2, _HEIGHT / 2), NOT_PRIVATE, fill=_INK, font=font, anchor="lm")
    whole.paste(picture, (0, _HEIGHT))
    return whole

"""Synthetic pictures as PNG files in a folder, in sub-folders by label, as real ones are read."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.release.publishing.mark import text_chunks

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def write_pictures(folder: Path, schema: ImageSchema, drawn: Encoded, *, private: bool = True) -> None:
    """Write pictures to a new folder, which appears complete or not at all.

    Args:
        folder: does not exist.
        drawn: the pictures.
        private: whether the release is private; pictures of one that is not carry the mark.

    Raises:
        ValueError: for pictures that no PNG holds, or a label that is no name of a folder.
        OSError: from the disk.
    """
    if schema.channels not in _MODES:
        raise ValueError(f"pictures of {schema.channels} channels: expected 1, 3 or 4, which a PNG has")
    names = [str(name) for name in schema.class_names]
    for name in names:
        if name in (".", "..") or any(sign in name for sign in "/\\\0"):
            raise ValueError(f"the label {name!r} cannot be the name of a folder")
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    part.mkdir()
    try:
        for name in names:
            (part / name).mkdir()
        pictures = np.rint(schema.pictures(drawn) * (255 / schema.layout.levels)).astype(np.uint8)
        digits = len(str(max(1, len(pictures))))
        chunks = None if private else text_chunks()
        for number, picture in enumerate(pictures, 1):
            place = part / names[int(drawn.codes[number - 1, 0])] if names else part
            Image.fromarray(picture, _MODES[schema.channels]).save(place / f"{number:0{digits}}.png", pnginfo=chunks)
        os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)

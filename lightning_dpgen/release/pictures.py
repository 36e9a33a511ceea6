"""A sheet of sampled pictures, one row a component."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from lightning_dpgen.release.mark import marked_picture, text_chunks
from lightning_dpgen.release.sampler import Release

_PIXELS = 2_000_000


def sheet(release: Release, columns: int | None = None, seed: int = 0) -> np.ndarray:
    """Draw samples of each component side by side, a pixel between: (rows, columns) in grey or (rows, columns, 3).

    Grey pictures are shown dark on white.

    Args:
        columns: samples of each component; None for 12, or fewer where the page would become too large.
        seed: seed that repeats the sheet; each component's number is added to it.
    """
    schema, rows = release.schema, []
    if columns is None:
        columns = max(1, min(12, _PIXELS // (release.components * schema.height * schema.width)))
    for component in range(release.components):
        pictures = schema.pictures(release.sample_component(component, columns, seed + component)) / schema.layout.levels
        edges = ((1, 1), (1, 1), (0, 0))[: pictures[0].ndim]
        rows.append(np.concatenate([np.pad(p, edges, constant_values=float(p.ndim == 3)) for p in pictures], axis=1))
    whole = np.concatenate(rows, axis=0)
    return (255 * (whole if whole.ndim == 3 else 1.0 - whole)).astype(np.uint8)


def write_sheet(path: Path, release: Release) -> None:
    """Write `sheet` as a PNG, enlarged to at least 60 pixels a picture without smoothing; marked if not private."""
    schema, picture = release.schema, Image.fromarray(sheet(release))
    picture = enlarged(picture, -(-60 // max(schema.height, schema.width)))
    if release.private:
        picture.save(path)
    else:
        marked_picture(picture).save(path, pnginfo=text_chunks())


def enlarged(picture: Image.Image, scale: int) -> Image.Image:
    """Return a picture of so many times its size, without smoothing."""
    return picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)

"""A sheet of sampled pictures, one row a component where these are few."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from lightning_dpgen.release.drawing.release import Release
from lightning_dpgen.release.publishing.mark import marked_picture, text_chunks

# The most numbers of a sheet, and the most rows.
_PIXELS, MOST_ROWS = 2_000_000, 20


def sheet(release: Release, columns: int | None = None, seed: int = 0) -> np.ndarray:
    """Draw samples of each component side by side, a pixel between: (rows, columns) in grey or (rows, columns, 3).

    Grey pictures are shown dark on white. Of more than `MOST_ROWS` components, as many rows show samples of all, by their
    weights, sorted by component.

    Args:
        columns: samples of each row; None for 12, or fewer where the page would become too large.
        seed: seed that repeats the sheet; each row's number is added to it.
    """
    schema, down, rows = release.schema, min(release.components, MOST_ROWS), []
    if columns is None:
        columns = max(1, min(12, _PIXELS // (down * schema.height * schema.width)))
    if down == release.components:
        components = torch.arange(down)[:, None].expand(down, columns)
    else:
        parts = (torch.arange(down * columns) + 0.5) / (down * columns)
        weights = release.mixture.weights.cumsum(0)
        components = torch.searchsorted(weights, parts).clamp(max=release.components - 1).view(down, columns)
    for row, own in enumerate(components):
        drawn = release.mixture.sample_components(own, torch.Generator().manual_seed(seed + row))
        pictures = schema.pictures(drawn) / schema.layout.levels
        edges = ((0, 0), (1, 1), (1, 1), (0, 0))[: pictures.ndim]
        rows.append(np.concatenate(np.pad(pictures, edges, constant_values=float(pictures.ndim == 4)), axis=1))
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

"""Pictures of experiments, small enough for a repository."""

from __future__ import annotations

from pathlib import Path

from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image


def save_picture(figure: Figure, path: Path, colours: int = 64) -> None:
    """Write a figure as a PNG of a few colours, which takes a third of the space, and close it."""
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(colours).save(path, optimize=True)

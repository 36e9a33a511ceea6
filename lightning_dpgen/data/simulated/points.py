"""Points: the six Gaussians of dp-GAN's Figure 1, the pinwheel of PriVAE's Figure 2, and two clusters for projections."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lightning_dpgen.data.public_sets import PublicSet
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import schema_of

MODES, DEVIATION, SQUARE = 6, 0.1, 1.5
ARMS, PINWHEEL_SQUARE = 4, 2.0


def blobs(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw two clusters of unit variance whose centres are 4 apart in a random direction: rows (n, d) and labels (n,).

    Example:
        >>> blobs(6, 2, seed=0)[0].shape
        (6, 2)
    """
    random = np.random.default_rng(seed)
    direction = random.normal(size=d)
    direction /= np.linalg.norm(direction)
    labels = random.integers(0, 2, n)
    return random.normal(size=(n, d)) + np.outer(4.0 * labels - 2.0, direction), labels


def centres_of_six() -> np.ndarray:
    """Return the centres (6, 2) of the six Gaussians, evenly spaced on a circle of radius 1."""
    angles = 2.0 * np.pi * np.arange(MODES) / MODES
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def draw_six_gaussians(n: int, draw: int = 0) -> np.ndarray:
    """Draw points (n, 2) from a mixture of equal parts: six Gaussians of deviation 0.1 in each direction, on a circle.

    The set is that of Frigerio et al. (2019), section 6.1, which states neither places nor size nor deviation.

    Example:
        >>> draw_six_gaussians(3).shape, bool((draw_six_gaussians(3) == draw_six_gaussians(3, draw=1)).any())
        ((3, 2), False)
    """
    random = np.random.default_rng(draw)
    points = centres_of_six()[random.integers(MODES, size=n)] + DEVIATION * random.standard_normal((n, 2))
    return points.clip(-SQUARE, SQUARE)


def draw_pinwheel(n: int, draw: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw points (n, 2) of four spirals, and the arm of each (n,), as many of each arm as of any other.

    The spirals are those of Johnson et al. (2016): radial deviation 0.3, tangential 0.1, rate 0.25.

    Example:
        >>> draw_pinwheel(8)[1].tolist()
        [0, 0, 1, 1, 2, 2, 3, 3]
    """
    random = np.random.default_rng(draw)
    arms = np.arange(n) * ARMS // n
    points = random.standard_normal((n, 2)) * np.array([0.3, 0.1]) + np.array([1.0, 0.0])
    angles = 2.0 * np.pi * arms / ARMS + 0.25 * np.exp(points[:, 0])
    cosines, sines = np.cos(angles), np.sin(angles)
    turned = np.stack(
        [cosines * points[:, 0] + sines * points[:, 1], cosines * points[:, 1] - sines * points[:, 0]], axis=1
    )
    return turned.clip(-PINWHEEL_SQUARE, PINWHEEL_SQUARE), arms


def make_six_gaussians() -> PublicSet:
    return _plane(SQUARE, 10_000, draw_six_gaussians)


def make_pinwheel() -> PublicSet:
    return _plane(PINWHEEL_SQUARE, 400, lambda n, draw: draw_pinwheel(n, draw)[0])


def _plane(square: float, n: int, points) -> PublicSet:
    """Return a table of points in a square of the plane about zero, to four decimals."""

    def draw(n: int, number: int) -> pd.DataFrame:
        return pd.DataFrame(points(n, number).round(4), columns=["x", "y"])

    column = {"type": "number", "low": -square, "high": square, "decimals": 4, "encoding": "scaled"}
    schema = schema_of({"columns": {"x": column, "y": column}})
    return PublicSet(schema, n, lambda frame, schema, _: read_table(frame, schema, values=True), draw=draw)

"""Files of the format in which MNIST was published."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from lightning_dpgen.sampling.errors import BadRecords


def read_idx(path: Path) -> np.ndarray:
    """Load the array of a gzipped idx file: a magic number whose last byte counts the dimensions, their sizes, then bytes.

    Raises:
        BadRecords: if it is none.
    """
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise BadRecords(f"{path} is not a whole gzip file: {error}") from None
    dimensions = raw[3] if len(raw) > 3 else 0
    start = 4 + 4 * dimensions
    whole = len(raw) >= start and raw[:3] == b"\x00\x00\x08"
    sizes = np.frombuffer(raw[4:start], dtype=">u4").astype(int) if whole else []
    if not whole or len(raw) - start != math.prod(int(size) for size in sizes):
        raise BadRecords(f"{path} is not an idx file of unsigned bytes")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(sizes)

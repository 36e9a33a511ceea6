"""Where records come from: bundled, under $DPGEN_DATA, or a file of pictures."""

from __future__ import annotations

import gzip
import math
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np

from lightning_dpgen.data.errors import BadRecords, MissingData
from lightning_dpgen.data.image_schema import ImageSchema, encode_images
from lightning_dpgen.data.records import Records

# The bundled digits come in the order of their writers; the last of them are held out of every training.
_DIGITS_TRAIN = 1500


def find(source: str, *, held_out: bool = False, path: str | None = None) -> list[Path]:
    """The files of a source, none of them read; arguments as for `load`.

    Raises:
        MissingData: if a file is not there; says where it was looked for.
        ValueError: for an unknown source.
    """
    if source == "digits":
        return []
    if source == "images":
        if not path:
            raise MissingData("data=images needs data.path=FILE.npz (with arrays images and, for labels, labels)")
        if not Path(path).is_file():
            raise MissingData(f"no file {path} (data.path)")
        return [Path(path)]
    if source not in ("mnist", "fashion_mnist"):
        raise ValueError(f"data.source={source}: expected digits, mnist, fashion_mnist or images")
    root = os.environ.get("DPGEN_DATA")
    if not root:
        raise MissingData(
            f"data={source} needs its files: set the environment variable DPGEN_DATA to the folder that holds {source}/"
        )
    prefix = "t10k" if held_out else "train"
    files = [Path(root) / source / f"{prefix}-{part}-ubyte.gz" for part in ("images-idx3", "labels-idx1")]
    for file in files:
        if not file.is_file():
            raise MissingData(f"no file {file} (looked for under DPGEN_DATA={root})")
    return files


def load(source: str, schema: ImageSchema, *, held_out: bool = False, path: str | None = None) -> Records:
    """Records of a source, encoded by `schema` and checked.

    Args:
        source: ``digits`` (comes with scikit-learn), ``mnist`` or ``fashion_mnist`` (gzipped idx files under
            ``$DPGEN_DATA``), or ``images`` (an ``.npz`` with ``images`` and, if the schema has classes, ``labels``).
        schema: the public description.
        held_out: the records that no training sees, for evaluation (all sources but ``images``).
        path: the file, for ``images``.

    Raises:
        MissingData: if a file is not there; says where it was looked for.
        BadRecords: if the records do not fit the schema.
    """
    files = find(source, held_out=held_out, path=path)
    if source == "digits":
        return _digits(schema, held_out)
    if source == "images":
        return _npz(files[0], schema)
    images, labels = (_read_idx(file) for file in files)
    return encode_images(images, labels if schema.classes else None, schema)


def _digits(schema: ImageSchema, held_out: bool) -> Records:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    part = slice(_DIGITS_TRAIN, None) if held_out else slice(_DIGITS_TRAIN)
    return encode_images(bunch.images[part], bunch.target[part], schema)


def _read_idx(path: Path) -> np.ndarray:
    """An idx file: a magic number whose last byte counts the dimensions, their sizes (big-endian), then bytes."""
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


def _npz(path: Path, schema: ImageSchema) -> Records:
    try:
        with zipfile.ZipFile(path):
            pass  # numpy would read a single array, or try to unpickle, without saying that this is no .npz
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise BadRecords(f"{path} is not an .npz file of plain arrays: {error}") from None
    if "images" not in found:
        raise BadRecords(f"{path} holds {sorted(found)}: expected an array named images")
    return encode_images(found["images"], found.get("labels") if schema.classes else None, schema)

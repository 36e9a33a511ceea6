"""Bounds of the lists of a certificate and of the files of a release, checked before any is looked at closely.

No release of this program exceeds them: each bound says where it is kept when a release is made.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_dpgen.common.strict_json import MOST_BYTES, MOST_VALUES, parse_json
from lightning_dpgen.privacy.plan import MOST_STAGES
from lightning_dpgen.release.drawing.opened import MOST_BYTES_IN_ALL, open_ordinary

if TYPE_CHECKING:
    from torch import nn

# Files: `release_from` refuses more. Stages: a plan of more is refused (`Plan`).
MOST_FILES = 1000
_LONGEST_NAME = 128
# Numbers in the tensors: `check_numbers` refuses more.
MOST_NUMBERS = 1 << 29
# Columns of a table of synthetic records, in which each number of a picture has a column.
MOST_COLUMNS = 1 << 20
# Synthetic records of a release where none is said: more take minutes, and `dpgen sample` draws them at any time.
_MOST_BY_DEFAULT = 5_000_000
# Settings among which a selection chooses, each of which names a run that is trained; and packages with a version.
_MOST_CHOICES, _MOST_VERSIONS = 10_000, 1000
# Different noises: those of 1000 stages or segments of stages, with a few different ones each.
_MOST_NOISES = 10_000
# Bytes of the header for an entry beyond its name, and for other metadata.
_EACH, _BESIDES = 1024, 1 << 16
# Bytes that are looked at in one go.
_BLOCK = 1 << 24


def too_long(certificate: dict[str, Any]) -> str | None:
    """Name the part of a certificate that is longer than in any release, in words; None if there is none."""
    bounds = {"stages": MOST_STAGES, "files": MOST_FILES, "released": MOST_FILES, "versions": _MOST_VERSIONS}
    for name, most in bounds.items():
        value = certificate.get(name)
        if isinstance(value, dict | list) and len(value) > most:
            return f"{name}: {len(value):,} entries, expected at most {most:,}"
    noise = certificate.get("noise")
    for name in ("sums", "others") if isinstance(noise, dict) else ():
        value = noise.get(name)
        if isinstance(value, list) and len(value) > _MOST_NOISES:
            return f"noise.{name}: {len(value):,} entries, expected at most {_MOST_NOISES:,}"
    released = certificate.get("released")
    # Checked before they are compared with each other: large values that are no text take long to compare.
    for name in released if isinstance(released, list) else ():
        if not isinstance(name, str) or len(name) > _LONGEST_NAME:
            return f"released: {str(name)[:40]!r}: expected names of at most {_LONGEST_NAME} characters"
    selection = certificate.get("selection")
    if isinstance(selection, dict):
        space = selection.get("space")
        lists = list(space.values()) if isinstance(space, dict) else []
        chosen = selection.get("chosen")
        count = len(selection) + len(lists) + sum(len(values) for values in lists if isinstance(values, dict | list))
        if count + (len(chosen) if isinstance(chosen, dict | list) else 0) > _MOST_CHOICES:
            return f"selection: expected at most {_MOST_CHOICES:,} choices"
    return None


def check_declared(declared: dict[str, Any]) -> None:
    """Raise ValueError for a description that a reader of the release would not read, before anything is spent on it.

    It may have half of what a reader takes, since schema and settings stand in two files beside other things.
    """
    text = json.dumps(declared, allow_nan=False)
    values = text.count(",") + text.count("[") + text.count("{")
    if 2 * len(text) > MOST_BYTES or 2 * values > MOST_VALUES:
        raise ValueError(
            f"the declarations take {len(text):,} characters and {values:,} values: expected at most {MOST_BYTES // 2:,} "
            f"and {MOST_VALUES // 2:,}, for a release that others can read; declare fewer or shorter names"
        )


def check_written(folder: Path) -> None:
    """Raise ValueError, naming the largest, if the files of a release are together more than a reader of it would open."""
    sizes = {path.name: path.lstat().st_size for path in sorted(folder.iterdir())}
    if sum(sizes.values()) > MOST_BYTES_IN_ALL:
        raise ValueError(
            f"{folder} holds {sum(sizes.values()):,} bytes, most of them in {max(sizes, key=sizes.get)}: expected at most "
            f"{MOST_BYTES_IN_ALL:,}, for a release that others can read"
        )


def check_numbers(network: nn.Module) -> None:
    """Raise ValueError for a network of more numbers than a reader of its release takes."""
    numbers = sum(tensor.numel() for tensor in network.state_dict().values())
    if numbers > MOST_NUMBERS:
        raise ValueError(f"a model of {numbers:,} numbers: expected at most {MOST_NUMBERS:,}, so that others can read it")


def check_columns(columns: int) -> None:
    """Raise ValueError for a table that is wider than one is made, before a column of it is."""
    if columns > MOST_COLUMNS:
        raise ValueError(
            f"a record of {columns:,} numbers: expected at most {MOST_COLUMNS:,} columns in a table; take smaller "
            "pictures, or fewer channels"
        )


def check_rows(rows: int, size: int) -> None:
    """Raise ValueError for more synthetic records, of `size` bytes unpacked, than fit a release that others can read.

    Example:
        >>> check_rows(10**9, 100)
        Traceback (most recent call last):
        ValueError: rows=1000000000: expected at most 26,843,545 records of 100 bytes, for a release that others can read
    """
    if rows * size > MOST_BYTES_IN_ALL:
        raise ValueError(
            f"rows={rows}: expected at most {MOST_BYTES_IN_ALL // size:,} records of {size:,} bytes, for a release that "
            "others can read"
        )


def default_rows(n: int, size: int) -> int:
    """Return the number of synthetic records of a release of n records, of `size` bytes unpacked, where none is said.

    Example:
        >>> default_rows(10**6, 100), default_rows(10**9, 100), default_rows(10**9, 10_000)
        (1000000, 5000000, 268435)
    """
    return min(n, _MOST_BY_DEFAULT, MOST_BYTES_IN_ALL // max(1, size))


def check_tensors(path: Path, shapes: Mapping[str, Sequence[int]], dtype: str) -> None:
    """Refuse a file of other tensors than these, by its header alone.

    The length of the header is bounded by what these tensors need, so the cost does not follow from what the file says.

    Args:
        path: a safetensors file.
        shapes: the shapes of the tensors that it must hold, by name.
        dtype: type of all of them, as safetensors writes it: ``F32``, ``F64``.

    Raises:
        ValueError: naming a tensor that is missing, too many, or of another shape or type.

    Example:
        >>> import tempfile, torch, safetensors.torch
        >>> path = Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> safetensors.torch.save_file({"weight": torch.zeros(2, 3)}, path)
        >>> check_tensors(path, {"weight": (2, 3)}, "F32")
        >>> check_tensors(path, {"weight": (3, 3)}, "F32")
        Traceback (most recent call last):
        ValueError: model.safetensors: 'weight' is [2, 3] of F32: expected [3, 3] of F32
    """
    numbers = sum(math.prod(shape) for shape in shapes.values())
    if numbers > MOST_NUMBERS:
        raise ValueError(f"{path.name}: {numbers:,} numbers in all tensors: expected at most {MOST_NUMBERS:,}")
    most = _BESIDES + sum(_EACH + 6 * len(name) for name in shapes)
    with open_ordinary(path, links=True) as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= most:
            raise ValueError(f"{path.name}: a header of {length} bytes: expected at most {most}, for {len(shapes)} tensors")
        text = file.read(length)
    try:
        header = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path.name}: the header {error}") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path.name}: the header is not a JSON object")
    header.pop("__metadata__", None)
    for name in sorted(set(header) ^ set(shapes))[:1]:
        raise ValueError(f"{path.name}: {name[:80]!r} is {'missing' if name in shapes else 'a tensor too many'}")
    for name, shape in shapes.items():
        about, expected = header[name], list(shape)
        found = (about.get("shape"), about.get("dtype")) if isinstance(about, dict) else (None, None)
        if found != (expected, dtype):
            raise ValueError(f"{path.name}: {name!r} is {str(found[0])[:80]} of {found[1]}: expected {expected} of {dtype}")


def check_finite(path: Path) -> None:
    """Raise ValueError for a file of float32 tensors (`check_tensors`) with numbers that are not finite.

    It is read a block at a time, so that tensors mapped afterwards take no memory before they are used.
    """
    with open_ordinary(path, links=True) as file:
        file.seek(8 + struct.unpack("<Q", file.read(8))[0])
        while block := file.read(_BLOCK):
            if not np.isfinite(np.frombuffer(block, "<f4")).all():
                raise ValueError(f"{path.name} holds NaN or infinity: expected finite float32 numbers")

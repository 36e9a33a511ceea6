"""The tensors of a release: read only if the file holds just what its description says, checked before one is made."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lightning_dpgen.common.strict_json import parse_json
from lightning_dpgen.release.bounds import MOST_NUMBERS
from lightning_dpgen.release.drawing.opened import open_ordinary

# Bytes of the header for an entry beyond its name, and for other metadata.
_EACH, _BESIDES = 1024, 1 << 16
# Bytes that are looked at in one go.
_BLOCK = 1 << 24


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

"""JSON of which every reader gets the same: no key twice, no number that JSON does not have, no text that is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LARGEST_FILE = 16 * 2**20


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file.

    Raises:
        ValueError: saying what is wrong, if it is too large, is no JSON object, or says two things.
        OSError: if it cannot be read.
    """
    if path.stat().st_size > _LARGEST_FILE:
        raise ValueError(f"{path.name} is larger than {_LARGEST_FILE} bytes")
    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
        # Numbers too large for a float, and text that cannot be written, are found here.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name}: expected a JSON object")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers differ in which of two equal keys they take, so a text that has them says two things."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice")
        found[key] = value
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


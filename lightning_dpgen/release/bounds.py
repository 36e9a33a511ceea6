"""Bounds of the lists of a certificate and of the files of a release, checked before any is looked at closely.

No release of this program exceeds them: each bound says where it is kept when a release is made.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_dpgen.common.strict_json import MOST_BYTES, MOST_VALUES
from lightning_dpgen.privacy.plan import MOST_STAGES
from lightning_dpgen.release.drawing.opened import MOST_BYTES_IN_ALL

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


def check_rows(rows: int, each: int) -> None:
    """Raise ValueError for more synthetic records, of `each` bytes unpacked, than fit a release that others can read.

    Example:
        >>> check_rows(10**9, 100)
        Traceback (most recent call last):
        ValueError: rows=1000000000: expected at most 26,843,545 records of 100 bytes, for a release that others can read
    """
    if rows * each > MOST_BYTES_IN_ALL:
        raise ValueError(
            f"rows={rows}: expected at most {MOST_BYTES_IN_ALL // each:,} records of {each:,} bytes, for a release that "
            "others can read"
        )


def default_rows(n: int, each: int) -> int:
    """Return the number of synthetic records of a release of n records, of `each` bytes unpacked, where none is said.

    Example:
        >>> default_rows(10**6, 100), default_rows(10**9, 100), default_rows(10**9, 10_000)
        (1000000, 5000000, 268435)
    """
    return min(n, _MOST_BY_DEFAULT, MOST_BYTES_IN_ALL // max(1, each))

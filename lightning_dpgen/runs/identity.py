"""The identity of a run: the settings and the records by which a command is known to ask for the run it found."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.common.strict_json import Shape, check_shape, shape
from lightning_dpgen.data.names import quote
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.specs.usage_error import UsageError

# The shape of what a ledger says of its run, as it is relied on here.
_RECORDS = shape(
    key={"type": "string", "pattern": "^([0-9a-f]{2}){1,64}$"}, records={"type": "string"}, read_as={"type": "object"}
)
_PIECE = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
_PARTS = {
    "anyOf": [
        {"type": "array", "items": {"type": ["string", "number"]}},
        shape(pieces={"type": "array", "items": _PIECE}, noise={"type": "number", "minimum": 0}).schema,
    ]
}
SETTINGS = shape(
    settings={"type": "object"},
    n={"type": ["integer", "null"], "minimum": 1, "maximum": 10**9},
    found={"type": ["object", "null"], "additionalProperties": _PARTS},
)


def check_about(about: Mapping[str, Any], expected: Shape, folder: RunFolder) -> None:
    """Refuse what a ledger says of its run if it is not what a run has written.

    Raises:
        LedgerError: naming what is wrong.
    """
    try:
        check_shape(about, expected)
    except ValueError as error:
        raise LedgerError(f"{folder.ledger}: does not say what its run is about as a run does ({error})") from None


def about_records(records: Iterable[np.ndarray], read_as: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a ledger says about the records of its run: a fingerprint, its key, and how they are read.

    Args:
        records: as bytes. Private.
        read_as: all settings that decide what a record is and what is bought first.
    """
    key = secrets.token_hex(16)
    return {"key": key, "records": fingerprint(records, key), "read_as": _flat(read_as)}


def about_settings(asked: Mapping[str, Any], n: int, found: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a ledger says about the settings of its run, nested once at most, and what its first pass found."""
    return {"settings": _flat(asked), "n": n, "found": found}


def check_records(
    about: Mapping[str, Any], records: Iterable[np.ndarray], read_as: Mapping[str, Any], folder: RunFolder
) -> None:
    """Refuse to go on with other records, or with the same read in another way; see `about_records`."""
    check_about(about, _RECORDS, folder)
    _refuse_others(about["read_as"], _flat(read_as), folder)
    if about["records"] != fingerprint(records, about["key"]):
        raise UsageError(
            f"run_dir={folder.root}: holds an unfinished run on other records: what it has spent is about those; give the "
            "same data to go on, or choose another run_dir"
        )


def check_settings(about: Mapping[str, Any], asked: Mapping[str, Any], folder: RunFolder) -> None:
    """Refuse to go on with other settings; see `about_settings`."""
    check_about(about, SETTINGS, folder)
    _refuse_others(about["settings"], _flat(asked), folder)


def check_rank(about: Mapping[str, Any], records: Iterable[np.ndarray], read_as: Mapping[str, Any], rank: int) -> None:
    """Refuse to take part in a run of rank 0 on other records, or on the same read in another way."""
    if _different(about["read_as"], _flat(read_as)) or about["records"] != fingerprint(records, about["key"]):
        raise UsageError(
            f"rank {rank}: reads other records than rank 0, or reads them otherwise: give all nodes the same files and the "
            "same command"
        )


def check_rank_settings(about: Mapping[str, Any], asked: Mapping[str, Any], rank: int) -> None:
    """Refuse to take part with other settings; see `about_settings`."""
    if different := _different(about["settings"], _flat(asked)):
        raise UsageError(
            f"rank {rank}: has other settings than rank 0 ({listed(different, 3)}): give all nodes the same command"
        )


def _different(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def _refuse_others(before: Mapping[str, Any], now: Mapping[str, Any], folder: RunFolder) -> None:
    if different := _different(before, now):
        changes = "; ".join(f"{name} was {quote(before.get(name))} and is {quote(now.get(name))}" for name in different[:3])
        raise UsageError(
            f"run_dir={folder.root}: holds an unfinished run with other settings ({changes}): give the same ones to go on, "
            "or choose another run_dir"
        )


def _flat(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted name, as JSON would give them back."""
    flat: dict[str, Any] = {}
    for name, value in json.loads(json.dumps(asked)).items():
        flat |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def is_about(about: Mapping[str, Any], records: Iterable[np.ndarray]) -> bool:
    """Return whether a ledger of any run is about these records; False where it does not say of which it is."""
    try:
        check_shape(about, _RECORDS)
    except ValueError:
        return False
    return about["records"] == fingerprint(records, about["key"])


def fingerprint(records: Iterable[np.ndarray], key: str) -> str:
    """Return what tells records from others to those who have the key, and nothing to others."""
    digest = hashlib.blake2b(key=bytes.fromhex(key), digest_size=16)
    for array in records:
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()

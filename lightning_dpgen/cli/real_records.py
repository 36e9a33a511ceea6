"""Real records that a command reads beside a release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_dpgen.data.public_sets import NAMES, is_simulated
from lightning_dpgen.specs.data import DataSpec
from lightning_dpgen.specs.run import load_data_settings
from lightning_dpgen.specs.source import Source, source_of
from lightning_dpgen.specs.spec import parse
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.specs.words import name_of

# Those by which a comparison reads the records; the last two are how simulated ones are drawn.
_AS_TRAINED = ("person", "max_rows", "outside", "n", "draw")
# The types of their values in a certificate.
_PLAIN = (str, int, float, bool, list)


def real_source(
    words: Sequence[str], certificate: dict[str, Any], of: str, as_trained: Sequence[str] = _AS_TRAINED
) -> Source:
    """Return where the real data are, and how they are read.

    Args:
        of: the kind of the release's schema.
        as_trained: the settings by which the training has read the records, where the words do not say otherwise.
    """
    declared = certificate.get("declared")
    if not any(word.startswith("data=") for word in words):
        name = declared.get("data") if isinstance(declared, dict) else None
        public = isinstance(name, str) and name in NAMES
        raise UsageError(f"data: must be given, as in data={name if public else f'{of} data.path=FILE'}")
    spec = load_data_settings(words)
    if spec.kind not in (None, of):
        raise UsageError(
            f"data={spec.source}: the release is of kind {of}, and these are of kind {spec.kind}: expected the data "
            f"that it was made from, as in data={of} data.path=FILE"
        )
    # About another kind of data, what the training has done says nothing.
    if isinstance(declared, dict) and declared.get("data") == spec.source:
        values, said = spec.model_dump(by_alias=True, exclude_none=True, exclude_unset=True), set(map(name_of, words))
        for name in as_trained:
            if name in type(spec).model_fields and f"data.{name}" not in said and type(declared.get(name)) in _PLAIN:
                values[name] = declared[name]
        spec = parse(type(spec), values, within="data")
    source = source_of(spec)
    source.files()
    return source


def other_draw(spec: DataSpec, certificate: dict[str, Any]) -> str | None:
    """Return the warning that simulated records are not those of the training; None for those, and for any other set.

    Example:
        >>> spec = load_data_settings(["data=pinwheel", "data.draw=1"])
        >>> certificate = {"declared": {"data": "pinwheel", "n": 400, "draw": 0}}
        >>> other_draw(spec, certificate)[:66]
        'data.draw=1: the certificate has data.draw=0, so no record was lea'
    """
    declared = certificate.get("declared")
    if not is_simulated(spec.source) or not isinstance(declared, dict) or declared.get("data") != spec.source:
        return None
    for name in ("draw", "n"):
        here, there = getattr(spec, name), declared.get(name)
        if type(there) is int and here != there:
            return (
                f"data.{name}={here}: the certificate has data.{name}={there}, so no record was learned from of those that "
                f"are compared; leave data.{name} out to compare with the records of the training"
            )
    return None


def check_source(spec: DataSpec) -> Source:
    """Return the source of a training's records, once its files are there and what is declared of them can be read.

    Raises:
        UsageError, BadSchema, MissingData: as the run would, but before what it needs is imported.
    """
    source = source_of(spec)
    source.check()
    source.files()
    source.check_records()
    return source

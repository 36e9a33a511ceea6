"""The noises of a run as a certificate states them: for each sum of whole numbers its unit, its bound and the noise on it.

They are made from plan and ledger, and so are functions of settings, schema and what the run has released before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.drawn_noise import MECHANISMS, DrawnNoise, read_unit
from lightning_dpgen.privacy.noise.units import GRID_POWERS

# The most different sums of one noise of an access that are listed, the largest among them: an adaptive one could have
# another bound in each step.
MOST_ALIKE = 8
NOT_DRAWN = "none"
# The grid of noisy sums of real numbers, beside the standard deviation of their noise.
RELATIVE_GRID = "a power of two, above 2^{} and up to 2^{} of the noise's standard deviation".format(*GRID_POWERS)
# Multipliers that were found by the same rule differ in their last digits at most.
_ROUNDING = 1e-9


def state_noises(
    accesses: Iterable[tuple[Access, int]], drawn: Iterable[DrawnNoise], relation: str
) -> dict[str, list[dict[str, Any]]]:
    """Return the fields ``sums`` and ``others`` of a certificate: every noise of every access, equal ones together.

    The accesses of a stage that differ are counted from 0 (``access``). Noises of one access that are alike in all but
    their names stand in one entry. Of a noise with many bounds a few are listed, and the largest, which tells how many more
    there were (``unlisted``). A noise whose access was planned and never made has the mechanism ``none``. A selection,
    whose trials keep ledgers of their own, has no entry.

    Args:
        accesses: those whose event is certified; see `Account.certify`.
        drawn: the noises of the ledger.
        relation: the relation between neighbours.
    """
    ledger: dict[tuple[str, str], list[DrawnNoise]] = {}
    for noise in drawn:
        ledger.setdefault((noise.stage, noise.name), []).append(noise)
    numbers: dict[str, dict[tuple, int]] = {}
    entries: dict[tuple, dict[str, Any]] = {}
    for access, _ in accesses:
        if not access.private or access.trials:
            continue
        of_stage = numbers.setdefault(access.stage, {})
        place = (tuple(sorted(access.multipliers.items())), tuple(sorted(access.kinds.items())))
        if place in of_stage:
            continue
        number = of_stage[place] = len(of_stage)
        for name, multiplier in access.multipliers.items():
            before = {"stage": access.stage, "access": number, "names": [name], "law": access.kind(name)}
            before["multiplier"] = multiplier
            for fields in _drawn_as(ledger.get((access.stage, name), ()), multiplier, relation):
                entry = before | fields
                key = tuple(value for field, value in entry.items() if field != "names")
                if key in entries:
                    entries[key]["names"].append(name)
                else:
                    entries[key] = entry
    return {
        "sums": [entry for entry in entries.values() if "unit" in entry],
        "others": [entry for entry in entries.values() if "unit" not in entry],
    }


def _drawn_as(drawn: Iterable[DrawnNoise], multiplier: float, relation: str) -> list[dict[str, Any]]:
    """Return the ways in which a noise with this multiplier was drawn, or that it was not."""
    listed = [_fields(noise, relation) for noise in drawn if math.isclose(noise.multiplier, multiplier, rel_tol=_ROUNDING)]
    if len(listed) > MOST_ALIKE:
        largest = max(listed, key=lambda fields: fields.get("scale", 0.0))
        others = [fields for fields in listed if fields is not largest][: MOST_ALIKE - 1]
        listed = [*others, largest | {"unlisted": len(listed) - MOST_ALIKE}]
    return listed or [{"mechanism": NOT_DRAWN}]


def _fields(noise: DrawnNoise, relation: str) -> dict[str, Any]:
    mechanism = MECHANISMS[noise.mechanism]
    if noise.unit is None:
        return {"mechanism": noise.mechanism} | ({"grid": RELATIVE_GRID} if mechanism.is_real else {})
    scale = noise.scale_in_units(relation)
    return {
        "mechanism": noise.mechanism,
        "unit": noise.unit,
        "bound_in_units": noise.bound_in_units,
        "norm": mechanism.norm,
        "records": noise.records,
        "scale_in_units": scale,
        "scale": scale * float(read_unit(noise.unit)),
    }


def sums_of(certificate: Mapping[str, Any], stage: str) -> list[dict[str, Any]]:
    """Return the sums of a stage in a certificate."""
    return [entry for entry in certificate["noise"]["sums"] if entry["stage"] == stage]

"""`model=auto`: the model that was best on records of the same kind, of about that size and budget."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_dpgen.data.schema import Schema

# Models that may be chosen.
CANDIDATES = ("measured", "vae", "wgan", "rbm")
# Made by `experiments/choice.py` from simulated and public records.
TABLE = Path(__file__).with_suffix(".json")
_KINDS = {"images": "pictures", "table": "tables", "baskets": "baskets", "series": "series"}


@dataclass(frozen=True)
class ModelChoice:
    """A model, and why it.

    Args:
        name: among `CANDIDATES`.
        why: in words; goes into certificate and report.
    """

    name: str
    why: str


def ranked(schema: Schema, strength: float, table: list[Mapping[str, Any]] | None = None) -> list[ModelChoice]:
    """Return the candidates, best first.

    The rule is handed what is public: the kind of the schema, whether it has a label, how many numbers a record is, and the
    declared number of records in units of the noise that the budget buys. Of the trials with records of that kind, the
    nearest decides: first by strength, then by width, each by how many times the one is the other.

    Args:
        strength: ``n mu``, as `defaults.strength_of` has it.
        table: of trials; None for the one that ships.

    Example:
        >>> trials = [{"kind": "images", "label": False, "width": 784, "strength": s, "scores": {"measured": m, "vae": 0.5}}
        ...           for s, m in ((1000, 0.8), (100_000, 0.4))]
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> [ranked(ImageSchema(8, 8, levels=1), s, trials)[0].name for s in (500.0, 20_000.0)]
        ['measured', 'vae']
    """
    label = schema.layout.label is not None
    if table is None:
        table = json.loads(TABLE.read_text(encoding="utf-8"))
    alike = [trial for trial in table if trial["kind"] == schema.kind and trial["label"] == label]

    def far(trial: Mapping[str, Any]) -> tuple[float, float]:
        own = schema.layout.width
        return round(abs(math.log(trial["strength"] / strength)), 6), abs(math.log(trial["width"] / own))

    nearest = min(alike, key=far)
    scores = dict(sorted(nearest["scores"].items(), key=lambda item: -item[1]))
    said = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
    where = (
        f"in the nearest trial ({_KINDS[schema.kind]} {'with' if label else 'without'} a label, {nearest['strength']:,} "
        f"records over their noise; here {strength:,.0f}) scores from 0 to 1 were {said}"
    )
    return [ModelChoice(name, f"model=auto took {name}: {where}") for name in scores]

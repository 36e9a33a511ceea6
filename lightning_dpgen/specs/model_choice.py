"""`model=auto`: the model that was best on records of the same kind, of about that size and budget."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_dpgen.data.schema import Schema

# Models that may be chosen.
CANDIDATES = ("measured", "vae", "wgan", "rbm")
# Made by `experiments/choice.py` from simulated and public records.
TABLE = Path(__file__).with_suffix(".json")
# Scores below it are of records of which little was learned.
_POOR = 0.5


@dataclass(frozen=True)
class ModelChoice:
    """A model, and why it.

    Args:
        name: among `CANDIDATES`.
        why: in words; goes into certificate and report.
    """

    name: str
    why: str


def ranked(schema: Schema, strength: float, table: Sequence[Mapping[str, Any]] | None = None) -> list[ModelChoice]:
    """Return the candidates, best first, and why: what they scored in the nearest trial.

    The rule is handed what is public: the kind of the schema, whether it has a label, how many numbers a record is, and the
    declared number of records in units of the noise that the budget buys.

    Args:
        strength: ``n mu``, as `defaults.strength_of` has it.
        table: of trials; None for the one that ships.

    Example:
        >>> about = {"name": "clothes", "kind": "images", "label": False, "width": 784}
        >>> scores = {1_000: {"measured": 0.8, "vae": 0.4}, 90_000: {"measured": 0.3, "vae": 0.4}}
        >>> trials = [{**about, "strength": strength, "scores": own} for strength, own in scores.items()]
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> few, many = (ranked(ImageSchema(8, 8, levels=1), s, trials) for s in (500.0, 80_000.0))
        >>> few[0].name, [choice.name for choice in many]
        ('measured', ['vae', 'measured'])
        >>> many[0].why.split("noise; ")[1]
        'here 80,000) scores from 0 to 1 were vae 0.40, measured 0.30; none did well there'
    """
    trials = json.loads(TABLE.read_text(encoding="utf-8")) if table is None else table
    layout = schema.layout
    about = {"kind": schema.kind, "label": layout.label is not None, "width": layout.width, "strength": strength}
    alike = [trial for trial in trials if all(trial[name] == about[name] for name in ("kind", "label"))]
    means, nearest = judged_by(about, alike)
    names = list(means)
    scores = sorted(nearest["scores"].items(), key=lambda item: -item[1])
    said = ", ".join(f"{name} {score:.2f}" for name, score in scores)
    poor = "; none did well there" if scores[0][1] < _POOR else ""
    # The nearest alone does not decide.
    other = scores[0][0]
    mean = f" by a weighted mean ({names[0]} {means[names[0]]:.3f}, {other} {means[other]:.3f})" * (other != names[0])
    where = (
        f"best over {len(alike)} trials{mean}; in the nearest ({nearest['name']}, {nearest['strength']:,} records over "
        f"their noise; here {strength:,.0f}) scores from 0 to 1 were {said}{poor}"
    )
    return [ModelChoice(name, f"model=auto took {name}: {'next ' * (name != names[0])}{where}") for name in names]


def judged_by(about: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], Mapping[str, Any]]:
    """Return the mean score of each candidate, the best first, and the nearest trial.

    The best candidate has the largest mean score, where a trial weighs as much as the smaller strength is of the larger.
    One trial alone, though it is the nearest, decides worse. The nearest is so by strength and width, by how many times
    the one is the other.

    Args:
        about: width and strength, as a trial has them.
        trials: of the same kind, with a label or without one; at least one.
    """

    def far(trial: Mapping[str, Any], *names: str) -> float:
        return sum(abs(math.log(trial[name] / about[name])) for name in names)

    nearest = min(trials, key=lambda trial: far(trial, "strength", "width"))
    weights = [math.exp(-far(trial, "strength")) for trial in trials]
    means = {
        name: sum(weight * trial["scores"][name] for weight, trial in zip(weights, trials, strict=True)) / sum(weights)
        for name in nearest["scores"]
    }
    return dict(sorted(means.items(), key=lambda item: -item[1])), nearest

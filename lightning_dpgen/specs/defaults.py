"""Defaults: public functions of the declared number of records, the budget and the schema (docs/reference/defaults.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning_dpgen.data.layout import Layout
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_mu

# Numbers that a lot holds when it is written out.
_NUMBERS = 5e7
# Steps that a default has.
MOST_STEPS = 2000
# The least default number of bins of a column.
FEWEST_BINS = 5
# The strength from which on nodes of a tree of values stand out of the noise that a share of the budget buys.
FEWEST_FOR_BINS = 400.0


@dataclass(frozen=True)
class Defaults:
    """The defaults of settings that are left open, for records of a layout at a budget.

    All scale with the strength ``s = n mu``, the size of the data in units of the noise that the budget buys: means have
    error 1/s, so little data spends more of its budget on them and less on networks that it cannot train.

    Args:
        n: the declared number of records.
        layout: of the records.
        epsilon, delta: the budget; an epsilon of None is none at all.
        max_rows: how many records a person has at most.
        clusters: the number of clusters, where it is given.

    Example:
        >>> Defaults(60_000, Layout(units=784, levels=255, groups=(10,)), 1.74, 1e-5).hidden
        64
    """

    n: int
    layout: Layout
    epsilon: float | None
    delta: float
    max_rows: int = 1
    clusters: int | None = None

    @cached_property
    def strength(self) -> float:
        """Return the declared number of records in units of the noise that the budget buys."""
        return strength_of(self.n, self.epsilon, self.delta, self.max_rows)

    @cached_property
    def strength_of_means(self) -> float:
        """The strength for means: their noise in all, beside what a record holds, is measured against that of pictures."""
        reach = self.layout.default_radius / (0.45 * math.sqrt(self.layout.width))
        return self.strength * min(1.0, reach)

    @property
    def _rare(self) -> bool:
        """True for baskets: means of many rare items carry nearly all, and each of a network's parameters learns little."""
        return self.layout.most is not None

    @property
    def k(self) -> int:
        """s / 75, 1 to 10; for baskets 1."""
        if self.clusters is not None:
            return self.clusters
        # The means of k clusters have as much noise each as those of all records have together.
        return 1 if self._rare else round(_between(self.strength / 75, 1, 10))

    @property
    def hidden(self) -> int:
        """A power of two that grows with the root of the strength."""
        # A component learns from its own records alone; sizes were chosen with ten.
        return default_hidden(10 * self.strength / max(self.k, 1), self.layout)

    @property
    def latent(self) -> int:
        """4 below s = 5000, else 8."""
        return 4 if self.strength < 5000 else 8

    @property
    def lr(self) -> float:
        """0.003."""
        return 3e-3

    @property
    def rate(self) -> float:
        """3000 / n, at most 0.5; less for wide records."""
        return min(0.5, _between(_NUMBERS / self.layout.width, 500, 3000) / self.n)

    @property
    def steps(self) -> int:
        """60 sqrt(s / 1400), 40 to 2000."""
        strength = self.strength_of_means if self._rare else self.strength
        return round(_between(60 * math.sqrt(strength / 1400), 40, MOST_STEPS))

    @property
    def features(self) -> int:
        """s / 12, even, 64 to 400."""
        return 2 * round(_between(self.strength / 12, 64, 400) / 2)

    @property
    def iterations(self) -> int:
        """log2(s) - 5, 3 to 10."""
        return round(_between(math.log2(self.strength) - 5, 3, 10))

    @property
    def _share(self) -> float:
        return _between(0.3 * math.sqrt(1400 / self.strength), 0.05, 0.3) + 0.02

    @property
    def moments_share(self) -> float:
        """35 % of 0.02 + 0.3 sqrt(1400 / s), the latter within 0.05 to 0.3."""
        return 0.35 * self._share

    @property
    def lloyd_share(self) -> float:
        """65 % of 0.02 + 0.3 sqrt(1400 / s), the latter within 0.05 to 0.3."""
        return 0.65 * self._share

    @property
    def means_share(self) -> float:
        """0.3 sqrt(1400 / s'), within 0.05 to 0.3; for baskets 0.6 sqrt(1400 / s'), to 0.5."""
        most, root = (0.5, 0.6) if self._rare else (0.3, 0.3)
        return _between(root * math.sqrt(1400 / self.strength_of_means), 0.05, most)

    @property
    def c_max(self) -> float:
        """2 sqrt(units + 2 groups); for records of a known norm, 2 sqrt 2 times it."""
        # The gradient of a record's loss in its logits is about so long at most: a choice moves by at most sqrt 2.
        layout = self.layout
        norm = math.sqrt(layout.units + 2 * len(layout.groups)) if layout.norm is None else math.sqrt(2.0) * layout.norm
        return 2.0 * norm

    @property
    def waves(self) -> int:
        """3 sqrt(s / labels), 16 to 140, at most the numbers of a record."""
        # Second moments of d waves are found where they are above sqrt(d) / strength of a label.
        waves = round(_between(3.0 * math.sqrt(self.strength / labels_of(self.layout)), 16, 140))
        return min(max(self.layout.units, 1), waves)

    @property
    def poses(self) -> str:
        """Measured; never if s / labels is below 600."""
        # There the noise of what poses gain is a third of what they have to gain.
        return "measured" if self.strength >= 600 * labels_of(self.layout) else "never"

    @property
    def cells(self) -> int:
        """20; 1 if s / labels is below 1500."""
        # The accesses that cells are found from are lost for the cells themselves.
        return 20 if self.strength >= 1500 * labels_of(self.layout) else 1

    @property
    def cells_share(self) -> float:
        """0.8; 0.9 if s / labels is at least 5000."""
        return 0.9 if self.strength >= 5000 * labels_of(self.layout) else 0.8

    @property
    def waves_of_series(self) -> int:
        """s^2 / 7000, 8 to 200, at most the numbers of a record."""
        # Histograms of d waves have noise in proportion to sqrt(d), each.
        return min(self.layout.units, round(_between(self.strength**2 / 7000, 8, 200)))

    @property
    def components(self) -> int:
        """s / 25, 10 to 60; at most 40,000 / all choices, or 20, where that is more; for baskets 10 to 100."""
        # Tables with more noise tell fewer apart; trees of columns say much of what else takes many components.
        most = 100 if self._rare else min(60, max(20, 40_000 // max(self.layout.width, 1)))
        return round(_between(self.strength / 25, 10, most))

    @property
    def label_share(self) -> float:
        """0.3 if s is at least 200 and at least the number of all choices, else 0."""
        # A gradient of more numbers than that is nothing but noise.
        return 0.3 if self.strength >= max(200, self.layout.width) else 0.0


def strength_of(n: int, epsilon: float | None, delta: float, max_rows: int = 1) -> float:
    """Return the declared number of records in units of the noise that the budget buys, ``n mu``.

    Example:
        >>> round(strength_of(60_000, 1.74, 1e-5) / 1000)
        27
    """
    # Noise is that of all records of a person; without noise, the strength is that of the most generous budget.
    return n * gaussian_mu(100.0 if epsilon is None else epsilon, delta) / max_rows


def default_hidden(strength: float, layout: Layout) -> int:
    """Return the units of a hidden layer: noise grows with the number of parameters, two for each number of a record.

    The second bound is for wide records: a component's weights at most so many times the strength.

    Example:
        >>> default_hidden(30_000, Layout(units=784)), default_hidden(67_000, Layout(units=16_470))
        (64, 8)
    """
    narrow = _between(math.sqrt(strength) / 2.6, 16, 256)
    return 2 ** round(math.log2(max(4.0, min(narrow, 1.7 * strength / layout.width))))


def default_bins(n: int, epsilon: float | None, delta: float) -> int:
    """Return how many bins a column of numbers is cut into, where its schema does not say.

    About the cube root of the strength: with b bins the shares of a column have error sqrt(b) / strength together from
    noise and b / n from chance, and 1 / b from the width of a bin; the last is what a reader of the table sees.

    Example:
        >>> default_bins(1_000, 1.0, 1e-5), default_bins(32_561, 4.0, 1e-6), default_bins(10**6, 4.0, 1e-7)
        (6, 30, 50)
    """
    return round(_between(strength_of(n, epsilon, delta) ** (1 / 3), FEWEST_BINS, 50))


def default_bins_share(n: int | None, epsilon: float | None, delta: float, max_rows: int = 1) -> float:
    """Return the share of the budget for how columns of numbers are distributed; 0 where it would buy nothing but noise.

    Noisy counts of a tree are worth as much of the budget as their noise is large beside the records: 6 over the root of
    the strength, a twentieth to an eighth. Below a strength of 400 no node of a tree stands out.

    Args:
        n: the declared number of records; None where it is still to be bought.

    Example:
        >>> [default_bins_share(n, 3.0, 1e-6) for n in (300, 5_000, 45_000)]
        [0.0, 0.1054, 0.05]
    """
    if n is None:
        return 0.08
    strength = strength_of(n, epsilon, delta, max_rows)
    return round(_between(6.0 / math.sqrt(strength), 0.05, 0.12), 4) if strength >= FEWEST_FOR_BINS else 0.0


def labels_of(layout: Layout) -> int:
    """Return the number of values of the label; 1 where there is none."""
    return 1 if layout.label is None else layout.groups[layout.label]


def _between(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))


# Models that may be chosen.
CANDIDATES = ("measured", "vae", "wgan", "rbm")
# Made by `experiments/league/choice.py` from simulated and public records.
TABLE = Path(__file__).with_name("model_choice.json")
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


def rank_models(schema: Schema, strength: float, table: Sequence[Mapping[str, Any]] | None = None) -> list[ModelChoice]:
    """Return the candidates, best first, and why: what they scored in the nearest trial.

    The rule is handed what is public: the kind of the schema, whether it has a label, how many numbers a record is, and the
    declared number of records in units of the noise that the budget buys.

    Args:
        strength: ``n mu``, as `defaults.strength_of` has it.
        table: of trials; None for the one that ships.

    Example:
        >>> about = {"name": "clothes", "kind": "images", "label": False, "width": 784}
        >>> scores = {1_000: {"measured": 0.8, "vae": 0.4}, 90_000: {"measured": 0.3, "vae": 0.4}}
        >>> trials = [{**about, "strength": strength, "scores": by_model} for strength, by_model in scores.items()]
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> few, many = (rank_models(ImageSchema(8, 8, levels=1), s, trials) for s in (500.0, 80_000.0))
        >>> few[0].name, [choice.name for choice in many]
        ('measured', ['vae', 'measured'])
        >>> many[0].why.split("noise; ")[1]
        'here 80,000) scores from 0 to 1 were vae 0.40, measured 0.30; none did well there'
    """
    trials = json.loads(TABLE.read_text(encoding="utf-8")) if table is None else table
    layout = schema.layout
    about = {"kind": schema.kind, "label": layout.label is not None, "width": layout.width, "strength": strength}
    alike = [trial for trial in trials if all(trial[name] == about[name] for name in ("kind", "label"))]
    if not alike:
        return [ModelChoice("measured", f"model=auto took measured: there are no trials of records of kind {schema.kind}")]
    means, nearest = judged_by(about, alike)
    names = list(means)
    scores = sorted(nearest["scores"].items(), key=lambda item: -item[1])
    scores_text = ", ".join(f"{name} {score:.2f}" for name, score in scores)
    poor = "; none did well there" if scores[0][1] < _POOR else ""
    # The nearest alone does not decide.
    other = scores[0][0]
    mean = f" by a weighted mean ({names[0]} {means[names[0]]:.3f}, {other} {means[other]:.3f})" * (other != names[0])
    where = (
        f"best over {len(alike)} trials{mean}; in the nearest ({nearest['name']}, {nearest['strength']:,} records over "
        f"their noise; here {strength:,.0f}) scores from 0 to 1 were {scores_text}{poor}"
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

"""A measure of an evaluation is one object: what it says, what it needs, how it is computed, which way is better.

The module of a measure registers it, and every module of `metrics` is imported before measures are looked for: a new one
is one file. Results are private.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np

# Sections of measures in several files.
COLUMNS, ROWS_OF_TABLES = "columns", "rows"
# The kind of tables, and the word for all kinds of records that are compared as they are encoded.
TABLE, ENCODED = "table", "encoded"
_BETTER = {"lower": "Lower is better.", "higher": "Higher is better.", "target": ""}
# The best and the worst value of a score, where nothing else is said.
_ENDS = {"lower": (0.0, 1.0), "higher": (1.0, 0.0)}
# The parts of the way from real records to the worst value up to which a score is good, and beyond which it is poor. A
# twentieth hides in tables of rounded percentages; where a fifth is lost, much of what goes together is.
LEVELS, LIMITS = ("good", "fair", "poor"), (0.05, 0.2)
# The same of what a classifier knows beyond guessing: draws of one run differ by a fifth of it (how_to/judge_a_release.md).
SKILL = (0.2, 0.5)


@dataclass(frozen=True)
class Need:
    """A condition without which a measure is not computed.

    Args:
        met: whether the sides have what is needed.
        reason: said in place of a result; empty where a measure that was not asked for is left out in silence.
    """

    met: Callable[[Any], bool]
    reason: str = ""


A_COLUMN = Need(lambda sides: sides.layout.units + len(sides.layout.groups) > 0, "the records have no columns")
A_LABEL = Need(lambda sides: sides.layout.label is not None, "the records have no label to be learned")
A_TEST = Need(lambda sides: sides.test is not None, "there are too few real records to put some aside for the test")
UNSEEN = Need(
    lambda sides: sides.held_out is not None,
    "left out, as it needs records that nothing was learned from (--held-out FILE, or held_out= in Python)",
)


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a score, and the number of records that were tested for it. Private."""

    low: float
    high: float
    tested: int


@dataclass(frozen=True)
class Listing:
    """A small table of what differs most, by names, the worst first. Private.

    Args:
        title: its subject.
        note: a sentence on what its rows are, and on their order.
        head: the names of its columns.
        rows: texts, counts and shares, one for each of `head`.
    """

    title: str
    note: str
    head: tuple[str, ...]
    rows: list[tuple[str | int | float, ...]]

    def as_json(self) -> list[dict[str, str | int | float]]:
        """Return each row by the names of the columns."""
        return [dict(zip(self.head, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, eq=False)
class Plot:
    """A picture of the private report.

    Args:
        heading: of the part of the page in which it stands.
        caption: its title.
        draw: the name of a function of `release.pages.private_plots`, or of `release.pages.charts`.
        content: the arguments of that function.
        notes: sentences beside it.
    """

    heading: str
    caption: str
    draw: str
    content: dict[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Glance:
    """A score at the head of the private report.

    Args:
        value: the score.
        words: its meaning.
        name: a name from the records, said after the words.
        below: what it is compared with.
        lost: the part of the way from real records to the worst value; None where it cannot be said.
        limits: see `LIMITS`.
    """

    value: float
    words: str
    name: str = ""
    below: str = ""
    lost: float | None = None
    limits: tuple[float, float] = LIMITS

    @property
    def level(self) -> str | None:
        """One of `LEVELS`; None where it cannot be said."""
        return None if self.lost is None else LEVELS[sum(self.lost > limit for limit in self.limits)]


def rate(value: float, reference: float | None, words: str, ends: Any = _ENDS["lower"], **fields: Any) -> Glance:
    """Rate a score beside that of real records; without these, beside the best value.

    Args:
        ends: the best value and the worst, None of a score that is neither good nor poor; `fields` are others of `Glance`.

    Example:
        >>> rate(0.75, 0.5, "AUC").lost, rate(0.9, 0.8, "accuracy", (1.0, 0.0)).level
        (0.5, 'good')
    """
    lost = None
    if ends is not None:
        best, worst = (ends[0] if reference is None else reference), ends[1]
        lost = max(0.0, (best - value) / (best - worst)) if best != worst else 0.0
    return Glance(value, words, below=beside_real(reference), lost=lost, **fields)


@dataclass(frozen=True, eq=False)
class Result:
    """Scores by their names, and what else is told of them. Private.

    Args:
        scores: of the synthetic records.
        reference: the same with real records in the place of synthetic ones: as good as can be expected.
        figures: the data of single columns and their pairs.
        note: said where scores are of fewer records than there should be, or of others.
        intervals: those of scores that have one.
        listings: what differs most, by name.
        plots: pictures.
        remarks: sentences that are told before all scores, by their subject.
    """

    scores: dict[str, float] = field(default_factory=dict)
    reference: dict[str, float] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    note: str | None = None
    intervals: dict[str, Interval] = field(default_factory=dict)
    listings: list[Listing] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    remarks: dict[str, list[str]] = field(default_factory=dict)


Compute = Callable[[Any], Result | str]


@dataclass(frozen=True)
class Measure:
    """One comparison of synthetic with real records, which gives one score or several.

    Args:
        kinds: the kinds of records that it compares, as schemas name them; `ENCODED` for all kinds but
            tables, and but those that have a measure of their own in its section.
        section: the results among which its scores stand. Measures of one section share its heading.
        place: its place among all measures of a kind, from the first.
        says: its meaning in words, without which way is better.
        better: ``lower``, ``higher``, or ``target`` where `says` names the best value.
        compute: returns a `Result` of the sides (`sides.Sides`), or the reason in words why there is none.
        needs: what the sides must have.
        glance: the scores to look at first, each with its words; or a function that picks `Glance`s of an `Evaluation`.
        ends: the best value of its scores and the worst; None for 0 and 1.
        limits: see `LIMITS`.
        of_results: whether `compute` is told the results of all other sections (by their names) in place of the sides.

    Example:
        >>> count = Measure(("numbers",), "sizes", 1, "target", lambda sides: Result({"records": len(sides)}))
        >>> count.compute([1.0, 2.5]).scores
        {'records': 2}
    """

    kinds: tuple[str, ...]
    section: str
    place: int
    better: Literal["lower", "higher", "target"]
    compute: Compute
    says: str = ""
    needs: tuple[Need, ...] = ()
    glance: Mapping[str, str] | Callable[[Any], list[Glance]] = field(default_factory=dict)
    ends: tuple[float, float] | None = None
    limits: tuple[float, float] = LIMITS
    of_results: bool = False

    def applies_to(self, sides: Any) -> bool:
        """Return False for a measure that is left out in silence: a need without a reason is not met."""
        return all(need.met(sides) for need in self.needs if not need.reason)

    def glances(self, evaluation: Any) -> list[Glance]:
        """Return the scores of an `Evaluation` to look at first."""
        if callable(self.glance):
            return self.glance(evaluation)
        scores, reference = (of.get(self.section, {}) for of in (evaluation.scores, evaluation.reference))
        ends = self.ends or _ENDS.get(self.better)
        return [
            rate(scores[score], reference.get(score), words, ends, limits=self.limits)
            for score, words in self.glance.items()
            if score in scores
        ]


def average_and_worst(title: str, numbers: Sequence[float]) -> dict[str, float]:
    """Name the mean and the largest of some numbers, at least one."""
    return {f"{title}, mean": float(np.mean(numbers)), f"{title}, worst": float(np.max(numbers))}


def beside_real(value: float | None) -> str:
    """Return the words for the score of real records in the place of synthetic ones."""
    return "" if value is None else f"{format_score(value)} for real ones"


def format_score(value: float | None) -> str:
    """Write three significant digits of a score, or fewer.

    Example:
        >>> [format_score(value) for value in (0.8571, 0.00123, 0.0, 1234.5, None, -0.25)]
        ['0.857', '0.0012', '0', '1,234', '', '-0.250']
    """
    if value is None:
        return ""
    if not value or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.4f}"


_REGISTERED: list[Measure] = []


def register(*kinds: str, **fields: Any) -> Callable[[Compute], Compute]:
    """Return a decorator that adds the measure a function computes to all evaluations of these kinds.

    Args:
        fields: those of `Measure`.
    """

    def add(compute: Compute) -> Compute:
        _REGISTERED.append(Measure(kinds, compute=compute, **fields))
        return compute

    return add


@cache
def _import_all() -> None:
    package = importlib.import_module("lightning_dpgen.metrics")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def measures_of(kind: str) -> dict[str, list[Measure]]:
    """Return the measures of a kind of records by their sections, all in their order."""
    _import_all()
    sections: dict[str, list[Measure]] = {}
    own = {measure.section for measure in _REGISTERED if kind in measure.kinds}
    for measure in sorted(_REGISTERED, key=lambda measure: measure.place):
        general = kind != TABLE and ENCODED in measure.kinds and measure.section not in own
        if kind in measure.kinds or general:
            sections.setdefault(measure.section, []).append(measure)
    return sections


def has_measures(kind: str) -> bool:
    """Return whether a measure names this kind of records."""
    return any(kind in measure.kinds for of in measures_of(kind).values() for measure in of)


def meaning(measures: list[Measure]) -> str:
    """Return what the measures of a section say, and which way is better."""
    words = [measure.says for measure in measures] + [_BETTER[measure.better] for measure in measures]
    return " ".join(dict.fromkeys(filter(None, words)))

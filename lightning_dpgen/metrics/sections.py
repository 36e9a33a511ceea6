"""The sections of an evaluation of encoded records, each a few scores and the data of their pictures."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torchmetrics import Metric

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics.attacks import density_ratio, nearness
from lightning_dpgen.metrics.baskets import BasketDistance
from lightning_dpgen.metrics.correlation import AssociationDistance
from lightning_dpgen.metrics.counting_queries import CountingQueryError, queries_together, uniform_queries
from lightning_dpgen.metrics.detection import FOLDS, detection
from lightning_dpgen.metrics.features import subsample, varying_units, written_out
from lightning_dpgen.metrics.labels import LabelDistance
from lightning_dpgen.metrics.marginals import MarginalDistance
from lightning_dpgen.metrics.membership import MembershipInference
from lightning_dpgen.metrics.moments import MomentDistance
from lightning_dpgen.metrics.nearest_series import NearestSeries
from lightning_dpgen.metrics.series import SeriesDistance
from lightning_dpgen.metrics.train_on_synthetic import CLASSIFIERS, train_on_synthetic
from lightning_dpgen.metrics.twins import told_twins
from lightning_dpgen.metrics.wasserstein import WassersteinDistance

# Items whose associations are compared: too few baskets hold two of the others.
COMMON_ITEMS = 200
# Sets of queries whose lengths go up to a fifth, two fifths, ... of the largest basket, as in the DPGM paper.
QUERY_SETS = 5
# Series whose nearest real one is searched for, for so many seconds at most; and those of them that are drawn.
NEAREST, NEAREST_SECONDS, NEAREST_DRAWN = 200, 10.0, 6
# Records whose moments are summed at a time.
_AT_ONCE = 10_000
# The most records of a side between which a Wasserstein distance is computed; the most numbers of records written out.
_MOVED, _NUMBERS = 10_000, 1 << 24
# The most records of each kind that are attacked, and the units by which an attacker knows them.
ATTACKED, _KNOWN_UNITS = 4_000, 1_000
# Records of each kind that an attack needs, and the chance that an interval of any of them misses.
_FEW_ATTACKED, _MISSED = 4, 0.05


@dataclass(frozen=True, eq=False)
class Sides:
    """The records that are compared. Private.

    Args:
        names: names of the groups.
        real, synthetic: at least one record each.
        held_out: real records in the place of synthetic ones; None without any.
        unseen: whether nothing was learned from the held-out records.
        channels: of series: how many readings there are at each time, side by side.
        seconds: the time that is left; None without a limit.
        learned: all records that were learned from, of which `real` are some; None where these are all.
        seen: the way in which records are compared, in words.
    """

    kind: str
    layout: Layout
    names: tuple[str, ...]
    real: Encoded
    synthetic: Encoded
    held_out: Encoded | None
    unseen: bool
    seed: int
    channels: int = 1
    seconds: float | None = None
    learned: Encoded | None = None
    seen: str = "as the model sees records"


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a score, and the number of records that were tested for it. Private."""

    low: float
    high: float
    tested: int

    def as_json(self) -> dict[str, float]:
        """Return its fields."""
        return {"low": self.low, "high": self.high, "tested": self.tested}


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
class Section:
    """Scores by their names, of the synthetic records and of the held-out real ones in their place; private.

    Args:
        reference: the same with real records in the place of synthetic ones: as good as can be expected.
        figures: the data of pictures, by their names.
        note: said where scores are of fewer records than there should be, or of others.
        intervals: those of scores that have one.
        listings: what differs most, by name.
    """

    scores: dict[str, float]
    reference: dict[str, float]
    figures: dict[str, Any]
    note: str | None = None
    intervals: dict[str, Interval] = field(default_factory=dict)
    listings: list[Listing] = field(default_factory=list)


def columns_section(sides: Sides) -> Section | str:
    """Compare one-way and two-way marginals."""
    if not sides.layout.units + len(sides.layout.groups):
        return "the records have no columns"
    metrics = _compared(MarginalDistance(sides.layout, seed=sides.seed), sides)
    distances = metrics[0].distances()
    units, groups = sides.layout.units, len(sides.layout.groups)
    # Pixels, readings and items have pictures of their own.
    worst = sorted(range(units, units + groups), key=lambda column: -float(distances["one_way"][column]))
    shares = metrics[0].shares()
    figures = {
        "columns": [
            {"name": sides.names[column - units], "column": column, "group": column - units,
             "distance": float(distances["one_way"][column]),
             "synthetic": shares[column][0].numpy(), "real": shares[column][1].numpy()}
            for column in worst
        ],
        "pairs": [
            {"columns": (int(a), int(b)), "distance": float(value)}
            for (a, b), value in zip(metrics[0].pairs, distances["two_way"], strict=True)
            if min(a, b) >= units
        ],
    }  # fmt: skip
    words = {"one_way_mean": "one column, mean", "one_way_worst": "one column, worst",
             "two_way_mean": "two columns, mean", "two_way_worst": "two columns, worst"}  # fmt: skip
    return _section(_renamed(metrics, words), figures)


def associations_section(sides: Sides) -> Section | str:
    """Compare Cramer's V between groups, and correlations between units."""
    layout, narrowed = sides.layout, sides
    if layout.units < 2 and len(layout.groups) < 2:
        return "the records have no two columns to be associated"
    if sides.kind == "baskets":
        both = [sides.real, sides.synthetic]
        narrowed = _of_units(sides, varying_units(both, COMMON_ITEMS))
        layout = narrowed.layout
    metrics = _compared(AssociationDistance(layout, seed=sides.seed), narrowed)
    words = {"groups_mean": "Cramer's V, mean difference", "groups_worst": "Cramer's V, worst difference",
             "units_mean": "correlation, mean difference", "units_worst": "correlation, worst difference"}  # fmt: skip
    return _section(_renamed(metrics, words), {})


def pixels_section(sides: Sides) -> Section | str:
    """Compare means and covariances of units, and the shares of labels."""
    scale = sides.layout.levels or 1
    metrics = _compared(
        MomentDistance(sides.layout.units),
        sides,
        lambda encoded: torch.from_numpy(np.asarray(encoded.units, dtype=np.float64) / scale),
        at_once=_AT_ONCE,
    )
    words = {"means": "pixel means, rms difference", "covariances": "pixel covariances, rms difference"}
    found = _renamed(metrics, words)
    label = sides.layout.label
    if label is not None:
        labels = _compared(
            LabelDistance(sides.layout.groups[label]),
            sides,
            lambda encoded: torch.from_numpy(encoded.codes[:, label].astype(np.int64)),
        )
        for scores, metric in zip(found, labels, strict=True):
            scores["labels, total variation"] = float(metric.compute())
    means = {
        name: np.asarray(part.units.mean(axis=0)) / scale
        for name, part in (("synthetic", sides.synthetic), ("real", sides.real))
    }
    return _section(found, {"mean_units": means, "samples": sides.synthetic.units[:60] / scale})


def items_section(sides: Sides) -> Section:
    """Compare how often items are bought, and how many at a time."""
    metrics = _compared(BasketDistance(sides.layout.units), sides, _units)
    words = {"items": "items bought, total variation", "sizes": "basket sizes, total variation"}
    return _section(_renamed(metrics, words), _of_both(metrics[0].shares()))


def queries_section(sides: Sides) -> Section | str:
    """Ask counting queries: five sets of random items, and items that were taken together."""
    baskets = sides.real.units
    largest = int(np.asarray((baskets != 0).sum(axis=1)).max(initial=0))
    if not largest:
        return "all real baskets are empty: no item to ask for"
    random = np.random.default_rng(sides.seed)
    found = [{} for other in (sides.synthetic, sides.held_out) if other is not None]
    for number in range(1, QUERY_SETS + 1):
        longest = max(1, number * largest // QUERY_SETS)
        metrics = _compared(CountingQueryError(uniform_queries(sides.layout.units, longest, random)), sides, _units)
        for scores, metric in zip(found, metrics, strict=True):
            for reading, value in metric.compute().items():
                scores[f"{reading}, set {number}: of up to {longest} items"] = float(value)
    if largest > 1:
        metrics = _compared(CountingQueryError(queries_together(baskets, random)), sides, _units)
        for scores, metric in zip(found, metrics, strict=True):
            scores["all of 2 to 4 items taken together"] = float(metric.compute()["all"])
    # All queries that ask for ALL before those that ask for ANY.
    return _section([dict(sorted(scores.items(), key=lambda score: score[0].startswith("any"))) for scores in found], {})


def curves_section(sides: Sides) -> Section | str:
    """Mean curve, spread, autocorrelation and shape of series."""
    if not sides.layout.units:
        return "the records have no readings"
    scale = sides.layout.levels or 1
    metrics = _compared(
        SeriesDistance(sides.layout.units), sides, lambda encoded: np.asarray(encoded.units, dtype=np.float64) / scale
    )
    figures = {"curves": _of_both(metrics[0].curves()), "samples": sides.synthetic.units[:60] / scale}
    words = {"mean": "mean curve, rms difference", "spread": "spread, rms difference",
             "autocorrelation": "autocorrelation, rms difference", "shape": "shape, total variation"}  # fmt: skip
    return _section(_renamed(metrics, words), figures)


def nearest_section(sides: Sides) -> Section | str:
    """Find the nearest real series of some synthetic ones, and of held-out ones, by dynamic time warping.

    Distances are of readings in [0, 1], whatever their levels. Each side has half of the time that is left, at most
    `NEAREST_SECONDS`.
    """
    scale = sides.layout.levels or 1
    readings = sides.layout.units // sides.channels
    limit = NEAREST_SECONDS if sides.seconds is None else min(NEAREST_SECONDS, sides.seconds / 2)
    real = np.asarray(sides.real.units, dtype=np.float64) / scale
    found, figures, notes = [], {}, []
    for name, other in (("synthetic", sides.synthetic), ("held-out", sides.held_out)):
        if other is None:
            continue
        some = np.asarray(subsample(other, NEAREST, sides.seed).units, dtype=np.float64) / scale
        metric = NearestSeries(readings, channels=sides.channels, seconds=limit)
        metric.update(torch.from_numpy(real), real=True)
        metric.update(torch.from_numpy(some), real=False)
        distances, places = metric.nearest()
        if len(distances) < len(some):
            compared = f"the first {len(distances)}" if len(distances) else "none"
            notes.append(f"{name} series: {compared} of {len(some)}, as {limit:.3g} seconds were over")
        if not len(distances):
            if other is sides.synthetic:
                return notes[0]
            continue
        if other is sides.synthetic:
            drawn = [some[: len(places)], real[places.numpy()]]
            curves = [side[:NEAREST_DRAWN].reshape(-1, readings, sides.channels) for side in drawn]
            figures = {"nearest": dict(zip(("synthetic", "real"), curves, strict=True))}
        found.append({"distance, mean": float(distances.mean()), "distance, median": float(np.median(distances))})
    return replace(_section(found, figures), note="; ".join(notes) or None)


def training_section(sides: Sides) -> Section | str:
    """Train on synthetic, test on held-out real records; the same trained on real ones beside it."""
    if sides.layout.label is None:
        return "the records have no label to be learned"
    if sides.held_out is None:
        return "there are too few real records to put some aside for the test"
    # Boosting of many classes on pixels takes minutes.
    classifiers = CLASSIFIERS if sides.layout.units <= 100 else CLASSIFIERS[:2]
    found = [
        train_on_synthetic(side, sides.held_out, sides.layout, classifiers=classifiers, seed=sides.seed)
        for side in (sides.synthetic, sides.real)
    ]
    return _section(found, {})


def detection_section(sides: Sides) -> Section | str:
    """Ask a classifier to tell real from synthetic records."""
    if min(len(sides.real), len(sides.synthetic)) < FOLDS:
        return f"there are fewer than {FOLDS} records on one side"
    found = [detection(sides.real, sides.synthetic, sides.layout, seed=sides.seed)]
    if sides.held_out is not None and len(sides.held_out) >= FOLDS:
        found.append(detection(sides.real, sides.held_out, sides.layout, seed=sides.seed))
    return _section([{"AUC": each["AUC"], "detected, 2 AUC - 1": each["detected"]} for each in found], {})


def transport_section(sides: Sides) -> Section | str:
    """Wasserstein distance of whole records, over random directions, and of single units."""
    layout = sides.layout
    if not layout.width:
        return "the records have no columns"
    others = [other for other in (sides.synthetic, sides.held_out) if other is not None]
    # Distances of few records are larger by chance, so there are as many on each side.
    most = min(_MOVED, max(1, _NUMBERS // layout.width), *map(len, (sides.real, *others)))
    real, found = written_out(subsample(sides.real, most, sides.seed), layout), []
    for other in others:
        made = written_out(subsample(other, most, sides.seed + 1), layout)
        scores = {"whole records, sliced": _wasserstein(real, made, sides.seed)["sliced"]}
        if layout.units:
            units = _wasserstein(real[:, : layout.units], made[:, : layout.units], sides.seed)
            scores |= {"one unit, mean": units["columns_mean"], "one unit, worst": units["columns_worst"]}
        found.append(scores)
    return _section(found, {})


def membership_section(sides: Sides) -> Section | str:
    """Attack the release: guess which records were learned from, by the nearest synthetic one and by a ratio of densities.

    Each attack is tested on as many members as others, all held-out records that it does not need itself: the attacker of
    the ratio has half of them for comparison. Intervals hold for all attacks together, so the strongest may be picked. The
    note says how many held-out records are identical to others.
    """
    if not sides.unseen:
        return "left out, as it needs records that nothing was learned from (--held-out FILE, or held_out= in Python)"
    held_out = sides.held_out
    if held_out is None or min(len(sides.real), len(held_out)) < _FEW_ATTACKED or not sides.layout.width:
        return f"it needs {_FEW_ATTACKED} records that were learned from, and as many held-out ones"
    twins = told_twins(held_out, sides.real if sides.learned is None else sides.learned, sides.synthetic, sides.seen)
    note = f"{twins}; held-out records of another time or place than those learned from are told apart by that, too"
    if sides.layout.units > _KNOWN_UNITS:
        # Those of the real records could be told by which units vary.
        sides = _of_units(sides, varying_units([sides.synthetic], _KNOWN_UNITS))
    most = max(_FEW_ATTACKED, _NUMBERS // sides.layout.width)
    attacked, random = min(ATTACKED, most), np.random.default_rng(sides.seed)
    # In random order the first ones are a fair choice.
    members, others = (part[random.permutation(len(part))] for part in (sides.real, sides.held_out))
    half = len(others) // 2
    parts = (members[:attacked], others[:attacked], others[:half][:attacked], others[half:][:attacked])
    members, others, asked, known = (written_out(part, sides.layout) for part in parts)
    synthetic = written_out(subsample(sides.synthetic, most, sides.seed), sides.layout)
    attacks = {"nearest record": (others, lambda records: nearness(records, synthetic))}
    if half >= _FEW_ATTACKED:
        attacks["densities"] = (asked, lambda records: density_ratio(records, synthetic, known))
    scores, intervals, curves = {}, {}, {}
    for name, (tested, attack) in attacks.items():
        metric = MembershipInference(1.0 - _MISSED / len(attacks))
        metric.update(attack(members[: len(tested)]), member=True)
        metric.update(attack(tested[: len(members)]), member=False)
        found = {part: float(value) for part, value in metric.compute().items()}
        scores |= {f"{name}: accuracy": found["accuracy"], f"{name}: AUC": found["auc"]}
        intervals[f"{name}: accuracy"] = Interval(found["low"], found["high"], int(found["tested"]))
        curves[name] = metric.roc()
    return Section(scores, {}, {"membership": curves}, note, intervals)


def _of_units(sides: Sides, kept: np.ndarray) -> Sides:
    """Return the same with some of the units alone."""
    layout = Layout(units=len(kept), levels=sides.layout.levels, groups=sides.layout.groups)
    parts = {
        name: None if part is None else Encoded(part.units[:, kept], part.codes)
        for name, part in (("real", sides.real), ("synthetic", sides.synthetic), ("held_out", sides.held_out))
    }
    return replace(sides, layout=layout, **parts)


def _wasserstein(real: torch.Tensor, made: torch.Tensor, seed: int) -> dict[str, float]:
    metric = WassersteinDistance(real.shape[1], seed=seed)
    metric.update(real, real=True)
    metric.update(made, real=False)
    return {name: float(value) for name, value in metric.compute().items()}


def _units(encoded: Encoded) -> Any:
    return encoded.units


def _compared(
    metric: Metric, sides: Sides, of: Callable[[Encoded], Any] = lambda encoded: encoded, at_once: int | None = None
) -> list[Metric]:
    """Compare real with synthetic records, and with held-out ones if there are any, by the numbers `of` some at a time."""

    def update(metric: Metric, encoded: Encoded, real: bool) -> None:
        step = at_once or max(1, len(encoded))
        for start in range(0, len(encoded), step):
            metric.update(of(encoded[start : start + step]), real=real)

    update(metric, sides.real, True)
    others = [sides.synthetic] + ([] if sides.held_out is None else [sides.held_out])
    metrics = [metric, copy.deepcopy(metric)][: len(others)]
    for each, other in zip(metrics, others, strict=True):
        update(each, other, False)
    return metrics


def _of_both(pairs: dict[str, torch.Tensor]) -> dict[str, dict[str, np.ndarray]]:
    return {name: {"synthetic": pair[0].numpy(), "real": pair[1].numpy()} for name, pair in pairs.items()}


def _section(found: list[dict[str, float]], figures: dict[str, Any]) -> Section:
    """Make a section of the scores of synthetic records, and of held-out ones if there are any."""
    return Section(found[0], found[1] if len(found) > 1 else {}, figures)


def _renamed(metrics: list[Metric], words: dict[str, str]) -> list[dict[str, float]]:
    return [{words[name]: float(value) for name, value in metric.compute().items()} for metric in metrics]

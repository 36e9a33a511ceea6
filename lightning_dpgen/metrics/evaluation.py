"""The evaluation of synthetic records: the measures of their kind, section by section, within a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from lightning_dpgen.common import pace
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.schema import kinds
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.columns import check_fit, subsample
from lightning_dpgen.metrics.judgement import Cause, judge
from lightning_dpgen.metrics.measure import TABLE, Interval, Listing, Measure, Plot, Result, has_measures, measures_of
from lightning_dpgen.metrics.sides import ROWS, Answers, EncodedSides, Sides, TableSides, check_seconds
from lightning_dpgen.metrics.summaries import Summary


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of an evaluation. Private: they are computed from real records.

    Args:
        scores: the values of synthetic records, by section and score.
        reference: the same for real records in the place of synthetic ones, if it could be computed: as good as can be
            expected.
        notes: the reason for each section that was not computed, or not from all records that it asks for; of membership
            inference, how many held-out records are identical to others.
        rows: the number of records of each side, and how many of them were looked at.
        held_out: the origin of the held-out records, in words.
        figures: ``columns``, those that differ most first, and distances of ``pairs``.
        intervals: the interval of each score that has one, by section and score; those of a section hold together with
            95 %.
        listings: what differs most, by name.
        plots: pictures of the private report.
        remarks: sentences that are told before all scores, by their subject.
        causes: what is known to move a column, or two together, by a tuple of their names.
        private: whether the release is a private one.
    """

    kind: str
    scores: dict[str, dict[str, float]]
    reference: dict[str, dict[str, float]]
    notes: dict[str, str]
    rows: dict[str, tuple[int, int]]
    held_out: str
    figures: dict[str, Any]
    intervals: dict[str, dict[str, Interval]] = field(default_factory=dict)
    listings: list[Listing] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    remarks: dict[str, list[str]] = field(default_factory=dict)
    causes: Mapping[Any, list[Cause]] = field(default_factory=dict)
    private: bool = True

    @property
    def worst_column(self) -> tuple[str, float] | None:
        """The column of a table that differs most, and its distance; None where no columns were compared."""
        columns = self.figures.get("columns")
        # Pixels and readings are no columns with a picture of their own.
        if self.kind != TABLE or not columns:
            return None
        worst = max(columns, key=lambda column: column["distance"])
        return worst["name"], worst["distance"]

    @property
    def summaries(self) -> list[Summary]:
        """The columns of numbers of a table in a few figures, those that differ most first; empty of other records."""
        summaries = (column.get("summary") for column in self.figures.get("columns", ()))
        return [summary for summary in summaries if summary is not None]

    def as_json(self) -> dict[str, Any]:
        """Return all but what pictures are drawn of."""
        names = ("kind", "scores", "reference", "notes", "rows", "held_out")
        intervals = {
            section: {score: asdict(interval) for score, interval in scores.items()}
            for section, scores in self.intervals.items()
        }
        return {name: getattr(self, name) for name in names} | {
            "judgement": judge(self).lines,
            "intervals": intervals,
            "listings": {listing.title: listing.as_json() for listing in self.listings},
            "numbers": {summary.name: summary.as_json() for summary in self.summaries},
            **self.remarks,
        }


def evaluate_encoded(
    real: Encoded,
    synthetic: Encoded,
    layout: Layout,
    names: Sequence[str] | None = None,
    *,
    kind: str,
    held_out: Encoded | None = None,
    channels: int = 1,
    bounds: tuple[np.ndarray, np.ndarray] | None = None,
    shape: tuple[int, int] | None = None,
    choices: Sequence[Sequence[str]] | None = None,
    answers: Answers = None,
    seed: int = 0,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Evaluation:
    """Compare synthetic with real records that are compared as they are encoded: pictures, baskets, series.

    Args:
        real: the records that the generator has learned from; at most `ROWS` of each side are used, chosen by the seed.
        synthetic: synthetic records; about as many as real ones make distances comparable.
        layout: layout of all of them.
        names: names of the groups, in their order; None for numbers.
        kind: ``images``, ``baskets``, ``series``, or another kind that is compared as it is encoded.
        held_out: real records that the generator has not learned from; None to put aside a third of the real ones, from
            which it has learned. Without any, nothing is said of membership inference.
        channels, bounds, shape, choices, answers: as of `EncodedSides`.
        seed: seed of all draws: rows, pairs, queries, classifiers.
        seconds: a section that would start later than this is skipped, and noted; one that can stop early has the time that
            is left. None without a limit.
        progress: told the name of each section before it starts.

    Raises:
        ValueError: for an unknown kind, no records on one side, a wrong number of names or channels, or a limit that is not
            positive.
        BadRecords: for records that are not of the layout.

    Example:
        >>> units = np.arange(40, dtype=np.uint8).reshape(20, 2) % 3
        >>> records = Encoded(units, np.zeros((20, 0), np.uint8))
        >>> found = evaluate_encoded(records, records, Layout(units=2, levels=2), kind="images", held_out=records)
        >>> found.scores["columns"]["one column, worst"], found.notes["train on synthetic, test on real"]
        (0.0, 'the records have no label to be learned')
        >>> round(found.scores["membership inference"]["nearest record: AUC"], 1)
        0.5
    """
    check_seconds(seconds)
    _check_layout(layout, kind, channels)
    if names is not None and len(names) != len(layout.groups):
        raise ValueError(f"{len(names)} names: expected {len(layout.groups)}, one for each group of the layout")
    given = {"real": real, "synthetic": synthetic} | ({} if held_out is None else {"held out": held_out})
    for name, encoded in given.items():
        if not len(encoded):
            raise ValueError(f"there is no {name} record: expected at least one to compare")
        check_fit(encoded, layout)
    origin = "given, and not learned from"
    if held_out is None:
        origin = "a third of the real records, which the generator has learned from"
        given["real"], given["held out"] = _put_aside(real, seed)
    looked_at = {name: subsample(encoded, ROWS, seed) for name, encoded in given.items()}
    beside = looked_at["held out"]
    sides = EncodedSides(
        kind=kind, layout=layout, names=tuple(names or (f"column {i + 1}" for i in range(len(layout.groups)))),
        real=looked_at["real"], synthetic=looked_at["synthetic"], other=beside if len(beside) else None,
        learned=given["real"], held_out=None if held_out is None else beside, channels=channels, bounds=bounds,
        shape=shape, choices=choices, answers=answers, seed=seed,
    )  # fmt: skip
    rows = {name: (len(given[name]), len(looked_at[name])) for name in given}
    return evaluate_sides(sides, rows, origin, seconds, progress)


def evaluate_table(
    real: TableValues,
    synthetic: TableValues,
    *,
    held_out: TableValues | None = None,
    by: str | None = None,
    sdmetrics: bool = False,
    answers: Answers = None,
    seed: int = 0,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Evaluation:
    """Compare a synthetic table with real records, by values as a file holds them.

    The real records are halved at random. The synthetic ones are compared with one half, and so are as many of the other
    half in their place, which are as good as can be expected: perfect data would score like them. All sides of a
    comparison have as many records, since distances of few are larger by chance. Numbers are cut, where they must be, at
    quantiles of real records, and never at a model's own bins. A column of numbers counts with the larger of its
    Kolmogorov-Smirnov distance and its Wasserstein distance, the latter in units of the range of 98 % of the real values:
    declared bounds play no part, however wide they are.

    The section ``quality`` has one number: 1 less the mean of four distances in [0, 1] (the mean column, the worst column,
    the mean pair of columns, and 2 AUC - 1 of a classifier that tells real from synthetic records). 1 would be equal in
    all four. It means something beside that of the real half alone.

    Args:
        real: the records that the generator has learned from, at least one.
        synthetic: synthetic records, at least one; half as many as the real ones are compared, `ROWS` at most.
        held_out: real records that the generator has not learned from; classifiers are tested on them, and they are what
            membership inference and the closest records need.
        by: the column whose groups are compared; None for the label, if there is one.
        sdmetrics: whether SDMetrics' quality report is computed, too.
        seed: seed of all draws: halves, pairs, classifiers.
        answers, seconds, progress: as of `evaluate_encoded`.

    Raises:
        ValueError: for no record on one side, another schema, an unknown column, or a limit that is not positive.
        MissingLibrary: for sdmetrics, where it is not installed.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> schema = parse_schema("columns: {age: {type: integer, low: 0, high: 99, bins: 1}}")
        >>> ages = np.random.default_rng(0).integers(0, 99, (400, 1)).astype(float)
        >>> real, poor = (TableValues(schema, part, np.zeros((len(part), 0), int)) for part in (ages, ages[:200] // 4))
        >>> found, quality = evaluate_table(real, poor), "quality, 1 less the mean of its parts"
        >>> found.scores["quality"][quality] < 0.5 < found.reference["quality"][quality]
        True
    """
    check_seconds(seconds)
    given = {"real": real, "synthetic": synthetic} | ({} if held_out is None else {"held out": held_out})
    for name, values in given.items():
        if not len(values):
            raise ValueError(f"there is no {name} record: expected at least one to compare")
        if values.schema != real.schema:
            raise ValueError(f"the {name} records are of another schema than the real ones")
    modelled = [column.name for column in real.schema.recorded]
    if by is not None and by not in modelled:
        raise ValueError(f"by={by!r}: expected a column of the table: {listed(modelled)}")
    sides = halve_table(given, by or real.schema.label, seed)
    sides.sdmetrics, sides.answers = sdmetrics, answers
    rows = {
        "real": (len(real), len(sides.real) + (0 if sides.other is None else len(sides.other))),
        "synthetic": (len(synthetic), len(sides.synthetic)),
    }
    origin = "half of the records that were given as learned from, compared with the other half"
    if held_out is None:
        origin += "; no record was given as not learned from"
    else:
        rows["held out"] = (len(held_out), len(sides.held_out))
        origin += "; classifiers are tested on held-out records, given as not learned from, and so are attacks and copies"
    return evaluate_sides(sides, rows, origin, seconds, progress)


def halve_table(given: Mapping[str, TableValues], by: str | None, seed: int) -> TableSides:
    """Choose the records of each side of a table, as many of each.

    Args:
        given: ``real`` and ``synthetic`` ones, and perhaps those ``held out``.
        by: the column whose groups are compared.
    """
    random = np.random.default_rng(seed)
    real, synthetic = (part[random.permutation(len(part))] for part in (given["real"], given["synthetic"]))
    half = max(1, len(real) // 2)
    size = min(half, len(synthetic), ROWS)
    other = real[half : half + size]
    held_out = given.get("held out")
    if held_out is not None:
        held_out = held_out[random.permutation(len(held_out))][:ROWS]
    of_synthetic, of_real = (dict(part.schema.rules.broken(part.rows())) for part in (synthetic, real))
    broken = {text: (share, of_real[text]) for text, share in of_synthetic.items()}
    return TableSides(
        real=real[:size], synthetic=synthetic[:size], other=other if len(other) == size else None, learned=real,
        first_synthetic=synthetic[:ROWS], held_out=held_out, by=by, broken=broken, seed=seed,
    )  # fmt: skip


def compute_section(measures: Sequence[Measure], sides: Sides) -> Result | str:
    """Compute measures that stand in one section; a text is the reason why none of them could be.

    Example:
        >>> compute_section([Measure(("numbers",), "sizes", 1, "target", lambda sides: "there is nothing")], None)
        'there is nothing'
    """
    parts, reasons = [], {}
    for measure in measures:
        unmet = next((need.reason for need in measure.needs if not need.met(sides)), None)
        result = measure.compute(sides) if unmet is None else unmet
        if isinstance(result, str):
            reasons[result] = None
        else:
            parts.append(result)
    if not parts:
        return ", and ".join(reasons)
    result = _joined(parts)
    return result if result.scores or result.note else replace(result, note=", and ".join(reasons) or None)


def _joined(parts: Collection[Result]) -> Result:
    joined: dict[str, Any] = {"note": "; ".join(part.note for part in parts if part.note) or None}
    for name in ("scores", "reference", "figures", "intervals", "remarks"):
        joined[name] = {key: value for part in parts for key, value in getattr(part, name).items()}
    for name in ("listings", "plots"):
        joined[name] = [item for part in parts for item in getattr(part, name)]
    return Result(**joined)


def evaluate_sides(
    sides: Sides,
    rows: dict[str, tuple[int, int]],
    origin: str,
    seconds: float | None,
    progress: Callable[[str], None] | None,
) -> Evaluation:
    """Compute all measures of a kind of records.

    Args:
        rows: the number of records of each side, and how many of them are looked at.
        origin: of the real records in the place of synthetic ones, in words.
        seconds, progress: as of `evaluate_encoded`.
    """
    # Measures are imported when they are first asked for, which is no part of their time.
    all_measures = measures_of(sides.kind)
    results, notes, start = {}, {}, time.monotonic()
    sections = {section: [one for one in measures if one.applies_to(sides)] for section, measures in all_measures.items()}
    sections = {section: measures for section, measures in sections.items() if measures}
    timed = [section for section, measures in sections.items() if not measures[0].of_results]
    with pace.stage("evaluating", len(timed)) as shown:
        for place, section in enumerate(timed):
            shown.done, shown.note = place, section
            sides.seconds = None if seconds is None else seconds - (time.monotonic() - start)
            if sides.seconds is not None and sides.seconds <= 0.0:
                results[section], notes[section] = None, f"skipped: {seconds:g} seconds were over"
                continue
            if progress is not None:
                progress(section)
            results[section] = compute_section(sections[section], sides)
    for section in sections:
        if section not in results:
            results[section] = sections[section][0].compute(results)
    computed = {section: results[section] for section in sections if isinstance(results[section], Result)}
    notes |= {section: getattr(result, "note", result) for section, result in results.items() if result is not None}
    whole = _joined(computed.values())
    scores, reference, intervals = (
        {section: getattr(result, name) for section, result in computed.items() if getattr(result, name)}
        for name in ("scores", "reference", "intervals")
    )
    notes = {section: notes[section] for section in results if notes[section] is not None}
    return Evaluation(
        sides.kind, scores, reference, notes, rows, origin, whole.figures, intervals, whole.listings, whole.plots,
        dict(sorted(whole.remarks.items())),
    )  # fmt: skip


def _check_layout(layout: Layout, kind: str, channels: int) -> None:
    encoded = sorted(name for name, known in kinds().items() if not known.by_values)
    if (kind in kinds() and kind not in encoded) or not (kind in encoded or has_measures(kind)):
        raise ValueError(f"kind={kind!r}: expected one of {', '.join(encoded)}")
    if not layout.width:
        raise ValueError(f"kind={kind!r} with a layout of no numbers: expected units, such as pixels, or groups")
    if type(channels) is not int or channels < 1 or layout.units % channels or (channels > 1 and kind != "series"):
        raise ValueError(
            f"channels={channels!r} with kind={kind!r} and {layout.units} units: expected 1, or the channels of series, of "
            "whose units they are a divisor"
        )
    if kind == "baskets" and layout.levels != 1:
        raise ValueError(f"kind={kind!r} with levels={layout.levels}: expected items as units of levels=1, bought or not")


def _put_aside(real: Encoded, seed: int) -> tuple[Encoded, Encoded]:
    """Split off a third that stands for held-out records: two thirds first; fewer than three records give none."""
    order = np.random.default_rng(seed).permutation(len(real))
    third = len(real) // 3
    return real[np.sort(order[third:])], real[np.sort(order[:third])]

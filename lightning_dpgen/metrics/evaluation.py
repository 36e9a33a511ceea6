"""The evaluation of synthetic pictures, baskets and series, and the sections of any evaluation within a time.

That of a table, by its values, is `metrics.table_evaluation`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics import sections
from lightning_dpgen.metrics.columns import check_fit
from lightning_dpgen.metrics.features import subsample
from lightning_dpgen.metrics.numeric_summaries import Summary
from lightning_dpgen.metrics.tensors import check_seconds
from lightning_dpgen.privacy import pace

# The most records of each side that are compared.
ROWS = 50_000
COLUMNS, ASSOCIATIONS, PIXELS = "columns", "associations", "pictures"
ITEMS, QUERIES, CURVES = "items and baskets", "counting queries", "curves"
NEAREST, TRAINING, DETECTION = "nearest real series", "train on synthetic, test on real", "telling them apart"
TRANSPORT, MEMBERSHIP = "Wasserstein distance", "membership inference"
# The section of a release that holds one (`release.against_real`).
CLASSIFIER = "the released classifier"
_COMPUTED = {
    COLUMNS: sections.columns_section, ASSOCIATIONS: sections.associations_section, PIXELS: sections.pixels_section,
    ITEMS: sections.items_section, QUERIES: sections.queries_section, CURVES: sections.curves_section,
    NEAREST: sections.nearest_section, TRAINING: sections.training_section, DETECTION: sections.detection_section,
    TRANSPORT: sections.transport_section, MEMBERSHIP: sections.membership_section,
}  # fmt: skip
_SECTIONS = {
    "images": (PIXELS, COLUMNS, TRAINING, DETECTION, MEMBERSHIP),
    "baskets": (ITEMS, ASSOCIATIONS, QUERIES, TRAINING, DETECTION, MEMBERSHIP),
    "series": (CURVES, COLUMNS, ASSOCIATIONS, NEAREST, TRANSPORT, TRAINING, DETECTION, MEMBERSHIP),
}
KINDS = tuple(_SECTIONS)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of an evaluation. Private: they are computed from real records.

    Args:
        scores: the values of synthetic records, by section and score.
        reference: the same for held-out real records in the place of synthetic ones, if it could be computed: as good as
            can be expected.
        notes: the reason for each section that was not computed, or not from all records that it asks for; of membership
            inference, how many held-out records are identical to others.
        rows: the number of records of each side, and how many of them were looked at.
        held_out: the origin of the held-out records, in words.
        figures: the data of the pictures of the private report.
        intervals: the interval of each score that has one, by section and score; those of a section hold together with
            95 %.
        listings: what differs most, by name.
    """

    kind: str
    scores: dict[str, dict[str, float]]
    reference: dict[str, dict[str, float]]
    notes: dict[str, str]
    rows: dict[str, tuple[int, int]]
    held_out: str
    figures: dict[str, Any]
    intervals: dict[str, dict[str, sections.Interval]] = field(default_factory=dict)
    listings: list[sections.Listing] = field(default_factory=list)

    @property
    def worst_column(self) -> tuple[str, float] | None:
        """The column of a table that differs most, and its distance; None where no columns were compared."""
        columns = self.figures.get("columns")
        # Pixels and readings are no columns with a picture of their own.
        if self.kind != "table" or not columns:
            return None
        worst = max(columns, key=lambda column: column["distance"])
        return worst["name"], worst["distance"]

    @property
    def summaries(self) -> list[Summary]:
        """The columns of numbers of a table in a few figures, those that differ most first; empty of other records."""
        found = (column.get("summary") for column in self.figures.get("columns", ()))
        return [summary for summary in found if summary is not None]

    @property
    def out_of_order(self) -> list[str]:
        """Pairs of dates of a table whose order differs much from that of real rows, each in words."""
        return self.figures.get("out_of_order", [])

    @property
    def rules(self) -> list[str]:
        """The constraints of a table that synthetic rows break, in words, or one line that none is; none without any."""
        return self.figures.get("rules", [])

    def as_json(self) -> dict[str, Any]:
        """Return all but what pictures are drawn of."""
        names = ("kind", "scores", "reference", "notes", "rows", "held_out")
        intervals = {
            section: {score: interval.as_json() for score, interval in of.items()} for section, of in self.intervals.items()
        }
        return {name: getattr(self, name) for name in names} | {
            "intervals": intervals,
            "listings": {listing.title: listing.as_json() for listing in self.listings},
            "numbers": {summary.name: summary.as_json() for summary in self.summaries},
            "rules": self.rules,
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
    seed: int = 0,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Evaluation:
    """Compare synthetic with real pictures, baskets or series.

    Args:
        real: the records that the generator has learned from; at most `ROWS` of each side are used, chosen by the seed.
        synthetic: synthetic records; about as many as real ones make distances comparable.
        layout: layout of all of them.
        names: names of the groups, in their order; None for numbers.
        kind: ``images``, ``baskets`` or ``series``.
        held_out: real records that the generator has not learned from; None to put aside a third of the real ones, from
            which it has learned. Without any, nothing is said of membership inference.
        channels: of series: how many readings there are at each time, side by side.
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
    _check_arguments(layout, names, kind, channels, seconds)
    given = {"real": real, "synthetic": synthetic} | ({} if held_out is None else {"held out": held_out})
    for name, encoded in given.items():
        if not len(encoded):
            raise ValueError(f"there is no {name} record: expected at least one to compare")
        check_fit(encoded, layout)
    said = "given, and not learned from"
    if held_out is None:
        said = "a third of the real records, which the generator has learned from"
        given["real"], given["held out"] = _put_aside(real, seed)
    looked_at = {name: subsample(encoded, ROWS, seed) for name, encoded in given.items()}
    sides = sections.Sides(
        kind,
        layout,
        tuple(names or (f"column {number + 1}" for number in range(len(layout.groups)))),
        looked_at["real"],
        looked_at["synthetic"],
        looked_at["held out"] if len(looked_at["held out"]) else None,
        held_out is not None,
        seed,
        channels,
        learned=given["real"],
    )
    named = {name: partial(_on_sides, _COMPUTED[name], sides) for name in _SECTIONS[kind]}
    rows = {name: (len(given[name]), len(looked_at[name])) for name in given}
    return Evaluation(kind, rows=rows, held_out=said, **run_sections(named, seconds, progress))


def _on_sides(
    section: Callable[[sections.Sides], sections.Section | str], sides: sections.Sides, left: float | None
) -> sections.Section | str:
    return section(replace(sides, seconds=left))


def run_sections(
    named: Mapping[str, Callable[[float | None], sections.Section | str]],
    seconds: float | None,
    progress: Callable[[str], None] | None,
) -> dict[str, Any]:
    """Compute sections in a row, each told the seconds that are left, and return the fields of an `Evaluation`.

    Args:
        named: what computes each; a text in place of a section is the reason why there is none.
        seconds: a section that would start later than this is skipped, and noted; None without a limit.
        progress: told the name of each section before it starts.
    """
    scores, reference, notes, figures, intervals, listings = {}, {}, {}, {}, {}, []
    start = time.monotonic()
    with pace.stage("evaluating", len(named)) as shown:
        for place, (section, compute) in enumerate(named.items()):
            shown.done, shown.note = place, section
            left = None if seconds is None else seconds - (time.monotonic() - start)
            if left is not None and left <= 0.0:
                notes[section] = f"skipped: {seconds:g} seconds were over"
                continue
            if progress is not None:
                progress(section)
            found = compute(left)
            if isinstance(found, str):
                notes[section] = found
                continue
            scores[section] = found.scores
            if found.reference:
                reference[section] = found.reference
            if found.note is not None:
                notes[section] = found.note
            if found.intervals:
                intervals[section] = found.intervals
            figures |= found.figures
            listings += found.listings
    found = {"scores": scores, "reference": reference, "notes": notes, "figures": figures, "intervals": intervals}
    return found | {"listings": listings}


def _check_arguments(
    layout: Layout,
    names: Sequence[str] | None,
    kind: str,
    channels: int,
    seconds: float | None,
) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: expected one of {', '.join(KINDS)}")
    if names is not None and len(names) != len(layout.groups):
        raise ValueError(f"{len(names)} names: expected {len(layout.groups)}, one for each group of the layout")
    check_seconds(seconds)
    if not layout.units:
        raise ValueError(f"kind={kind!r} with a layout without units: expected pixels, items or readings as units")
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

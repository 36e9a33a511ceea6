"""The first paragraph of an evaluation: whether to publish, what is good, what is lost, what would help. Private."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_dpgen.data.conditions import quoted_name
from lightning_dpgen.metrics.measure import LEVELS, LIMITS, TABLE, Glance, beside_real, format_score, measures_of
from lightning_dpgen.metrics.table_pairs import WORST_PAIRS

if TYPE_CHECKING:
    from lightning_dpgen.metrics.evaluation import Evaluation

# A column, or a pair, is named where it is so much farther off than real records: two in a hundred have another value; so
# many are, and a cause that explains this part of it.
TOLD, NAMED, _EXPLAINS = 0.02, 3, 0.5
GOOD, FAIR, POOR = LEVELS
_VERDICTS = {
    GOOD: "yes, if the records are meant for what was compared here: all that was judged is nearly as close to the real "
    "records as other real records are",
    FAIR: "with care: tell readers what is off or partly lost, or change a setting first",
    POOR: "not as they are, if readers need what is lost",
    None: "nothing could be judged: too little was compared",
}
_NO_PRIVACY = "no: the release was made without privacy, and nothing bounds what it reveals"
_ATTACKED = "not before you know why attacks, or a test of copies, find more than guessing, which is 0.5"
_MIND = (
    "this says how useful the records are, and nothing of privacy, which epsilon bounds whatever is said here. It is "
    "computed from real records: a choice among several releases by it is not covered by epsilon; a run can make and pay "
    "for such a choice (selection, with a fidelity_share)"
)


@dataclass(frozen=True)
class Cause:
    """A cause that a column, or two together, are off: the distance that it alone makes, the reason, and its cure."""

    part: float
    because: str
    cure: str


@dataclass(frozen=True)
class Judgement:
    """A level, ``good``, ``fair`` or ``poor`` (None where nothing could be judged), and sentences by their subjects."""

    level: str | None
    lines: dict[str, str]


def all_glances(evaluation: Evaluation) -> list[Glance]:
    """Return the scores to look at first, of all measures."""
    sections = measures_of(evaluation.kind).values()
    return [own for measures in sections for measure in measures for own in measure.glances(evaluation)]


def find_worst(evaluation: Evaluation) -> list[list[tuple]]:
    """Return the columns, and the pairs of them, that differ most from real records, as of `_apart`, the worst first."""
    columns, listings = evaluation.figures.get("columns", ()), evaluation.listings
    rows = [row for listing in listings if listing.title == WORST_PAIRS for row in listing.as_json()]
    found = [
        [_apart((own["name"],), own["distance"], own.get("expected"), _of_form(own)) for own in columns],
        [_apart((row["column"], row["other column"]), row["distance"], row.get("distance of real ones")) for row in rows],
    ]
    return [sorted(apart, key=lambda own: -own[0])[:NAMED] for apart in found]


def judge(evaluation: Evaluation) -> Judgement:
    """Judge how useful synthetic records are, by the scores to look at first and by single columns and pairs.

    A score is held against that of real records in the place of synthetic ones, or against the best value where there are
    none. It is good if a twentieth of the way to the worst value is lost at most, and poor beyond a fifth; of classifiers,
    a fifth and a half (`measure.LIMITS`, `measure.SKILL`). The worst score decides. None says that records are private.

    Example:
        >>> from lightning_dpgen.metrics.evaluation import Evaluation
        >>> scores, real = ({"columns": {"one column, mean": far}} for far in (0.3, 0.01))
        >>> found = judge(Evaluation("table", scores, real, {}, {}, "", {}))
        >>> found.level, found.lines["publish?"][:15]
        ('poor', 'not as they are')
    """
    judged = sorted((own for own in all_glances(evaluation) if own.level is not None), key=lambda own: -own.lost)
    level = max((own.level for own in judged), key=LEVELS.index, default=None)
    told, cures = {name: [] for name in ("lost", "partly lost", "good", "attacks", "columns", "pairs")}, []
    for own in judged:
        text = f"{own.words.partition(':')[0]}{own.name and f' ({own.name})'} {format_score(own.value)}"
        told[{POOR: "lost", FAIR: "partly lost"}.get(own.level, own.level)].append(text + (own.below and f" ({own.below})"))
    found = [pair for section in evaluation.intervals.values() for pair in section.items() if pair[1].low > 0.5]
    found = ", ".join(f"{name} {format_score(own.low)} to {format_score(own.high)}" for name, own in found)
    told["attacks"] = [f"{found}: either they tell who is in the data, or held-out records are of another kind"] * bool(
        found
    )
    columns, pairs = find_worst(evaluation)
    for subject, apart in (("columns", columns), ("pairs", pairs)):
        for beyond, names, text, causes in [own for own in apart if own[0] > TOLD]:
            cause = max([*causes, *evaluation.causes.get(names, ())], key=lambda own: own.part, default=None)
            if cause is not None and cause.part >= _EXPLAINS * beyond:
                text += f", probably because {cause.because}"
                cures.append(cause.cure)
            told[subject].append(text)
        if apart and not told[subject]:
            told[subject].append(f"none is off by more than {TOLD:g} beyond real ones")
    if level == GOOD and (told["attacks"] or any(beyond > LIMITS[0] for beyond, *_ in columns)):
        level = FAIR
    if level in (FAIR, POOR):
        if any(own.words.startswith("accuracy") and own.level != GOOD for own in judged):
            cures.append("a larger share of the budget for the label (label_share)")
        fewer = "fewer columns (type: drop), " * (evaluation.kind in (TABLE, "histories"))
        cures.append(f"more records, {fewer}or a larger epsilon, which protects less")
    told["what would help"] = [*dict.fromkeys(cures)]
    lines = {name: "; ".join(texts) for name, texts in told.items() if texts}
    verdict = (_ATTACKED if found else _VERDICTS[level]) if evaluation.private else _NO_PRIVACY
    return Judgement(level, {"publish?": verdict, **lines, "mind": _MIND})


def _apart(names: tuple[str, ...], far: float, expected: float | None, causes: Sequence[Cause] = ()) -> tuple:
    """Return by how much a distance exceeds that of real records, the names, a sentence, and causes."""
    beside = "" if expected is None else f" ({beside_real(expected)})"
    verb = "is" if len(names) == 1 else "together are"
    text = f"{' and '.join(map(quoted_name, names))} {verb} off by {format_score(far)}{beside}"
    return far - (expected or 0.0), names, text, causes


def _of_form(figure: dict[str, Any]) -> list[Cause]:
    """Return the bins or groups of a column as a cause."""
    if "of_form" not in figure:
        return []
    numeric, name = figure["summary"] is not None, quoted_name(figure["name"])
    because = "its values are drawn within the bins that" if numeric else "its rare values are drawn within the groups that"
    because += f" it is learned in, which alone puts it off by {format_score(figure['of_form'])}"
    cure = "edges where its values lie, more bins" if numeric else "fewer values (other)"
    return [Cause(figure["of_form"], because, f"for {name}: {cure}, or a larger share for their distribution (bins_share)")]

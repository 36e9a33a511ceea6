"""The first paragraph of an evaluation: whether to publish, what is good, what is lost, what would help. Private."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.conditions import quoted_name
from lightning_dpgen.metrics.classifiers import TRAINING
from lightning_dpgen.metrics.measure import LEVELS, LIMITS, Glance, format_score, measures_of
from lightning_dpgen.metrics.membership import MEMBERSHIP
from lightning_dpgen.metrics.table_pairs import WORST_PAIRS

if TYPE_CHECKING:
    from lightning_dpgen.metrics.evaluation import Evaluation

# A column, or a pair, is named where its distance exceeds that of real records by so much: two records in a hundred have
# another value. Columns and pairs that are named at most.
TOLD, NAMED = 0.02, 3
# A cause is named where it explains this part of a distance.
_EXPLAINS = 0.5
GOOD, FAIR, POOR = LEVELS
_VERDICTS = {
    GOOD: "yes, if the records are meant for what was compared here: all that was judged is nearly as close to the real "
    "records as other real records are",
    FAIR: "with care: tell readers what is partly lost, or change a setting first",
    POOR: "not as they are, if readers need what is lost",
    None: "nothing could be judged: too little was compared",
}
_MIND = (
    "this says how useful the records are, and nothing of privacy, which epsilon bounds whatever is said here. It is "
    "computed from real records: a choice among several releases by it is not covered by epsilon. privacy.selection with "
    "privacy.fidelity_share makes and pays for such a choice"
)
_NO_PRIVACY = "no: the release was made without privacy, and nothing bounds what it reveals"


@dataclass(frozen=True)
class Cause:
    """What moves a column, or the pair of two, by itself.

    Args:
        part: the distance that it alone makes.
        because: what follows the word "because".
        cure: the settings that would help.
    """

    part: float
    because: str
    cure: str


@dataclass(frozen=True)
class Judgement:
    """An evaluation in plain words.

    Args:
        level: ``good``, ``fair`` or ``poor``; None where nothing could be judged.
        lines: sentences by what they are about, in their order.
    """

    level: str | None
    lines: dict[str, str]


def all_glances(evaluation: Evaluation) -> list[Glance]:
    """Return the scores to look at first, of all measures."""
    sections = measures_of(evaluation.kind).values()
    return [own for measures in sections for measure in measures for own in measure.glances(evaluation)]


def judge(evaluation: Evaluation) -> Judgement:
    """Judge how useful synthetic records are, by the scores to look at first and by single columns and pairs.

    A score is held against that of real records in the place of synthetic ones, or against the best value where there are
    none. It is good if a twentieth of the way to the worst value is lost at most, and poor beyond a fifth; of classifiers,
    a fifth and a half (`measure.LIMITS`, `measure.LIMITS_OF_SKILL`). The worst score decides. No score says that records
    are private.

    Example:
        >>> from lightning_dpgen.metrics.evaluation import Evaluation
        >>> scores, real = ({"columns": {"one column, mean": far}} for far in (0.3, 0.01))
        >>> found = judge(Evaluation("table", scores, real, {}, {}, "", {}))
        >>> found.level, found.lines["publish?"][:15]
        ('poor', 'not as they are')
    """
    judged = sorted((own for own in all_glances(evaluation) if own.level is not None), key=lambda own: -own.lost)
    of = {level: [_in_words(own) for own in judged if own.level == level] for level in LEVELS}
    attacks = [
        f"{name} {format_score(interval.low)} to {format_score(interval.high)}, where 0.5 is guessing: an attack tells "
        "who is in the data, or held-out records are of another kind; find out which before anything is published"
        for name, interval in evaluation.intervals.get(MEMBERSHIP, {}).items()
        if interval.low > 0.5
    ]
    columns, cures = _columns(evaluation)
    pairs, more = _pairs(evaluation)
    far = [figure for figure in evaluation.figures.get("columns", ()) if _beyond(figure) > LIMITS[0]]
    level = next((level for level in reversed(LEVELS) if of[level]), None)
    if level == GOOD and (attacks or far):
        level = FAIR
    lines = {"publish?": _VERDICTS[level] if evaluation.private else _NO_PRIVACY}
    told = {"lost": of[POOR], "partly lost": of[FAIR], "good": of[GOOD], "attacks": attacks}
    told |= {"columns": columns, "pairs": pairs}
    lines |= {name: "; ".join(texts) for name, texts in told.items() if texts}
    helps = [*dict.fromkeys([*cures, *more])][: 2 * NAMED]
    if level in (FAIR, POOR):
        if evaluation.scores.get(TRAINING) and any(
            own.words.startswith("accuracy") and own.level != GOOD for own in judged
        ):
            helps.append("a larger share of the budget for the label (model.label_share)")
        helps.append("more records, fewer columns (type: drop), or a larger privacy.epsilon, which protects less")
    if helps:
        lines["what would help"] = "; ".join(helps)
    return Judgement(level, lines | {"mind": _MIND})


def _in_words(own: Glance) -> str:
    name = f" ({own.name})" if own.name else ""
    beside = f" ({own.below})" if own.below else ""
    return f"{own.words.partition(':')[0]}{name} {format_score(own.value)}{beside}"


def _beyond(figure: dict[str, Any]) -> float:
    """Return the distance of a column less that of real records in the place of synthetic ones."""
    return figure["distance"] - figure.get("expected", 0.0)


def _columns(evaluation: Evaluation) -> tuple[list[str], list[str]]:
    """Return sentences on the columns that differ most, and what would help."""
    figures = sorted(evaluation.figures.get("columns", ()), key=_beyond, reverse=True)
    texts, cures = [], []
    for figure in [figure for figure in figures if _beyond(figure) > TOLD][:NAMED]:
        text = f"{quoted_name(figure['name'])} is off by {format_score(figure['distance'])}"
        if "expected" in figure:
            text += f" ({format_score(figure['expected'])} for real records)"
        causes = [*evaluation.causes.get(figure["name"], ()), *_of_form(figure)]
        texts.append(text + _why(causes, _beyond(figure), cures))
    if figures and not texts:
        texts.append(f"none is off by more than {TOLD:g} beyond what real records are")
    return texts, cures


def _of_form(figure: dict[str, Any]) -> list[Cause]:
    """Return the bins or groups of a column as a cause."""
    if "of_form" not in figure:
        return []
    far, name = format_score(figure["of_form"]), quoted_name(figure["name"])
    if figure["summary"] is None:
        because = f"its rare values are learned in groups and told apart at random, which alone puts it off by {far}"
        cure = f"for {name}: fewer values (other), or a larger data.bins_share"
    else:
        because = f"its values are drawn within the bins that it is learned in, which alone puts it off by {far}"
        cure = f"for {name}: edges where its values lie, more bins, or a larger data.bins_share"
    return [Cause(figure["of_form"], because, cure)]


def _why(causes: Sequence[Cause], far: float, cures: list[str]) -> str:
    """Return the cause of a distance in words, and add its cure to others."""
    cause = max(causes, key=lambda own: own.part, default=None)
    if cause is None or cause.part < _EXPLAINS * far:
        return ""
    cures.append(cause.cure)
    return f", because {cause.because}"


def _pairs(evaluation: Evaluation) -> tuple[list[str], list[str]]:
    """Return sentences on the pairs of columns that differ most, and what would help."""
    texts, cures = [], []
    for listing in evaluation.listings:
        for row in listing.as_json() if listing.title == WORST_PAIRS else ():
            names, far, real = (row["column"], row["other column"]), row["distance"], row.get("distance of real ones", 0.0)
            if far - real > TOLD and len(texts) < NAMED:
                text = f"{' and '.join(listed([name]) for name in names)} together are off by {format_score(far)}"
                text += f" ({format_score(real)} for real records)"
                texts.append(text + _why(evaluation.causes.get(names, ()), far - real, cures))
    return texts, cures

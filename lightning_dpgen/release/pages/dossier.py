"""The dossier of a release for a data-protection impact assessment: its certificate in words for an officer.

Everything in it is a function of the certificate and of its verification. It judges nothing: the questions that are left
to the officer are listed as such.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from lightning_dpgen.privacy.accounting.epsilon_range import CAUTIOUS_EPSILON, round_up
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.release.certificate import INIT, TRUNCATED_LOTS, found_privately, paragraphs, selected
from lightning_dpgen.release.files import CERTIFICATE, SYNTHETIC
from lightning_dpgen.release.pages.hazards import RELATIONS, exact, generators_that_are_not_ciphers, hazards_of
from lightning_dpgen.release.pages.report import describe_purchase, describe_stage, environment
from lightning_dpgen.release.pages.text import listed, markdown, printable, value_text
from lightning_dpgen.release.verdict import Verdict

# Guesses of an attacker before the release, as probabilities.
PRIORS = (0.01, 0.1, 0.5, 0.9)
# Parts of the description of a record, by its kind.
_FORMS = {
    "table": "its columns, their bounds and their categories",
    "images": "its height and width, the values of a pixel, and its labels",
    "baskets": "the items, the largest number of them in a basket, and its labels",
    "series": "its length, the bounds of its values, and its labels",
}
# Levels of what is declared that have rows of their own.
_DEEPEST = 3


def make_dossier(certificate: dict[str, Any], verdict: Verdict) -> str:
    """Write the dossier of a release as a page of Markdown.

    Args:
        certificate: that of a private release, as `read_certificate` gives it.
        verdict: that of `verify`, which must be good.

    Raises:
        ValueError: if the release is not private, or its certificate is not consistent.
    """
    if not verdict.good or not certificate["private"] or certificate["noise"]["seeded"]:
        raise ValueError(f"no dossier of such a release: {(verdict.problems or ['it is not private'])[0]}")
    hazards = hazards_of(certificate)
    page = environment(autoescape=False).get_template("dossier.md.jinja")
    text = page.render(
        digest=certificate["digest"],
        software=certificate["versions"].get("lightning_dpgen", ""),
        checks=[_cell(line) for line in verdict.checks],
        notes=[_cell(line) for line in verdict.notes],
        unit=_cell(certificate["unit"]),
        relation=certificate["relation"],
        whose=[_cell(line) for line in _whose(certificate)],
        attacker=[_cell(line) for line in _attacker(certificate)],
        epsilon=exact(certificate["epsilon"]),
        odds=_odds(certificate["epsilon"]),
        large=certificate["epsilon"] > CAUTIOUS_EPSILON,
        files=_cell(_all_of(sorted(certificate["files"]))),
        itself=_cell(CERTIFICATE),
        released=_cell(_all_of(certificate["released"])),
        worlds=RELATIONS[certificate["relation"]],
        replaced=_replaced(certificate),
        replaced_odds=_odds(certificate["also"]["replace_one_epsilon"] or 0.0),
        guesses=list(_guesses(certificate)),
        delta=_delta(certificate),
        assumed=[_cell(line) for line in _assumed(certificate)],
        declared=list(_rows("declared", certificate["declared"])),
        stages=list(_stages(certificate)),
        study=[_cell(line) for line in _other_releases(certificate)],
        chosen=_cell(selected(certificate["selection"])) if isinstance(certificate["selection"], dict) else "",
        noise=[_cell(line) for line in _noise(certificate)],
        source=_cell(certificate["noise"]["source"]),
        hazards=[
            {
                "part": hazard.part,
                "section": hazard.section or "none",
                "name": hazard.name,
                "answer": _cell(hazard.answer or "Not answered by a certificate."),
                "fields": ", ".join(f"`{field}`" for field in hazard.fields) or "none",
                "ask": _cell(hazard.ask) or "nothing",
            }
            for hazard in hazards
        ],
        statement=[_cell(paragraph) for paragraph in paragraphs(certificate)],
    )
    return f"{text.rstrip()}\n"


def posterior(prior: float, epsilon: float) -> tuple[float, float]:
    """Return the least and the largest probability that a guess of this probability can become, by epsilon at delta 0.

    Example:
        >>> [round(p, 4) for p in posterior(0.5, 1.0)]
        [0.2689, 0.7311]
    """
    before = math.log(prior) - math.log1p(-prior)
    return tuple(1.0 / (1.0 + math.exp(min(-(before + change), 700.0))) for change in (-epsilon, epsilon))


def _cell(text: str) -> str:
    """Escape a text as one line that may stand in a cell of a table, whatever it holds."""
    return markdown("".join(letter if letter.isprintable() else " " for letter in text))


def _percent(least: float, most: float) -> str:
    """Write a range in hundredths of a percent, outwards, so that it is never too narrow."""
    return f"{math.floor(least * 1e4 + 1e-9) / 100:g} % to {math.ceil(most * 1e4 - 1e-9) / 100:g} %"


def _odds(epsilon: float) -> str:
    """Write the factor of the odds, rounded up."""
    return "a number too large to mean protection" if epsilon > CAUTIOUS_EPSILON else f"{round_up(math.exp(epsilon), 3):g}"


def _whose(certificate: dict[str, Any]) -> list[str]:
    declared, relation = certificate["declared"], certificate["relation"]
    most = declared.get("max_rows")
    if type(most) is int:
        return [
            f"A person is protected with all records that took part: at most {most:,}. Further records of a person took no "
            "part."
        ]
    if relation == REPLACE_ONE:
        return [
            "The release has a row for each record, and their number is public: that someone is among the records is not "
            "protected. Protected is the value of the record, within what the unit says.",
            "A person with several records is protected less.",
        ]
    return [
        "The unit is one record. A person with several records is protected less: with two of them epsilon counts twice, "
        "and delta 1 + e^epsilon times."
    ]


def _attacker(certificate: dict[str, Any]) -> list[str]:
    drawn = ", and draws as many records from it as they like" if SYNTHETIC in certificate["released"] else ""
    secret = ["the original records", "the run's private folder", "the random words of the noise"]
    if isinstance(certificate["selection"], dict):
        secret.append("the number of trials, the time that they took, and everything about the trials that were not chosen")
    return [
        f"The attacker has every file of the release{drawn}, knows the software and all that is declared below, and will "
        "read all that is published later.",
        "The attacker has any amount of computing power, but none that breaks the cipher of the noise.",
        "The attacker may know every other record, and everything about the person but the one thing that is asked.",
        f"The attacker does not have: {'; '.join(secret)}.",
    ]


def _replaced(certificate: dict[str, Any]) -> str:
    """Write epsilon for a unit replaced; empty where that is the relation itself, or no such epsilon is stated."""
    replaced = certificate["also"]["replace_one_epsilon"]
    return "" if replaced is None or certificate["relation"] == REPLACE_ONE else exact(replaced)


def _guesses(certificate: dict[str, Any]) -> Iterator[dict[str, str]]:
    replaced = certificate["also"]["replace_one_epsilon"]
    for prior in PRIORS:
        yield {
            "before": f"{100 * prior:g} %",
            "after": _percent(*posterior(prior, certificate["epsilon"])),
            "replaced": "" if replaced is None else _percent(*posterior(prior, replaced)),
        }


def _delta(certificate: dict[str, Any]) -> list[str]:
    delta, n = certificate["delta"], certificate["declared"]["n"]
    if not delta:
        return ["Delta is 0: the bound by epsilon holds for every outcome, without an exception."]
    # Rounded down, so that the probability is never said to be smaller than it is.
    one_in = math.floor(1 / Fraction(repr(delta)))
    times = math.floor(1 / (Fraction(repr(delta)) * n))
    lines = [
        f"Delta is {exact(delta)}: of the probability of any outcome, a part of at most one in {one_in:,} is outside of "
        "the bound by epsilon. In the worst case that part would name a person outright; nothing says that it does.",
        f"A mechanism that publishes one record in n whole would have a delta of 1/n. The declared n is {n:,}, so delta is "
        + (f"at least {times:,} times smaller than that." if times > 1 else "hardly smaller than that."),
    ]
    if delta > 0.1 / n:
        lines.append("It is the custom to stay below a tenth of 1/n, and this delta does not.")
    return lines


def _assumed(certificate: dict[str, Any]) -> Iterator[str]:
    declared = certificate["declared"]
    if certificate["relation"] == REPLACE_ONE or not declared.get("n_share"):
        yield f"The number of records, {declared['n']:,}, is taken to be public."
    else:
        yield f"The number of records was not declared: a noisy count, {declared['n']:,}, was bought."
    yield f"The description of a record is taken to be public{_form(declared.get('schema'))}."
    selection = certificate["selection"]
    chosen = [printable(name, 80) for name in (selection["chosen"] or ())] if isinstance(selection, dict) else []
    yield f"All settings that are declared are taken to be public, too{f', but for {listed(chosen)}' if chosen else ''}."
    if found := found_privately(declared):
        yield f"Bought with a share of the budget, and so not assumed: {listed(found, most=20, letters=80)}."
    if isinstance(init := declared.get(INIT), dict):
        yield (
            f"The training started from a network that was learned from data declared to be public: "
            f"'{printable(init.get('public'), 200)}'. The people in those data are not covered."
        )
    cut = declared.get(TRUNCATED_LOTS)
    if isinstance(cut, dict):
        most = min(own["at_most"] for own in cut.values())
        units = "persons" if type(declared.get("max_rows")) is int else "records"
        yield f"It is declared that such data never hold more than {most:,} {units}. The guarantee rests on it."
    if "seed" in declared:
        yield "The declared seed is of public choices, such as first weights or a projection's matrix, not of the noise."
    if declared.get("rows_independent") is True:
        yield "It is declared that a record changes no row of the query but its own; the guarantee rests on that."


def _form(schema: Any) -> str:
    """Name the parts of the description of a record; empty where the certificate does not show its kind."""
    kind = schema.get("kind") if isinstance(schema, dict) else None
    return f": {_FORMS[kind]}" if kind in _FORMS else ""


def _rows(path: str, value: Any, depth: int = 0) -> Iterator[dict[str, str]]:
    """Yield the field and the value of each thing that is declared, down to a few levels."""
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        inner = [(str(name), own) for name, own in value.items()]
    elif isinstance(value, list) and value and all(isinstance(own, dict) for own in value):
        inner = [(str(at), own) for at, own in enumerate(value)]
    if inner and depth < _DEEPEST and all(name.isidentifier() or name.isdecimal() for name, _ in inner):
        for name, own in inner:
            yield from _rows(f"{path}.{name}", own, depth + 1)
    elif value is not None:
        yield {"field": path, "value": _cell(_all_of(value))}


def _all_of(value: Any) -> str:
    """Write a declared value whole, however long it is: an officer has to see all that was taken to be public."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_all_of(own)}" for name, own in value.items() if own is not None)
    if isinstance(value, list):
        parts = [f"({_all_of(own)})" if isinstance(own, dict | list) else _all_of(own) for own in value]
        return ", ".join(parts) or "(empty)"
    return exact(value) if isinstance(value, float) else value_text(value, len(str(value)) + 1)


def _stages(certificate: dict[str, Any]) -> Iterator[dict[str, str]]:
    for stage in certificate["stages"]:
        yield {
            "name": _cell(printable(stage["name"], 80)),
            "bought": describe_purchase(stage["name"]) or "not described",
            "how": _cell(describe_stage(certificate, stage)),
            "epsilon": "none stated" if stage["epsilon"] is None else exact(stage["epsilon"]),
        }


def _other_releases(certificate: dict[str, Any]) -> list[str]:
    study = certificate["study"]
    if not isinstance(study, dict):
        return ["The study is unknown: other releases about the same people, if there are any, add to this one."]
    how = "replaced" if study["relation"] == REPLACE_ONE else "added or removed"
    return [
        f"This was run {study['runs']} of the study '{printable(study['name'], 80)}'. All of its runs so far together cost "
        f"epsilon {exact(study['epsilon'])} at delta {exact(study['delta'])}, for one unit {how}. The total "
        f"that was declared first is {exact(study['total_epsilon'])}.",
        _study_delta(study["delta"], certificate["declared"]["n"]),
        "Releases outside of the study add to it.",
    ]


def _study_delta(delta: float, n: int) -> str:
    """Say how the delta of a study compares with one in the number of records of this run."""
    line = f"The declared n of this run is {n:,}, so the study's delta is "
    if delta >= 1.0 / n:
        return f"{line}not smaller than 1/n: the study's epsilon says little of these records."
    times = math.floor(1 / (Fraction(repr(delta)) * n))
    line += f"at least {times:,} times smaller than 1/n." if times > 1 else "hardly smaller than 1/n."
    return line + (" It is the custom to stay below a tenth of 1/n, and it does not." if delta > 0.1 / n else "")


def _noise(certificate: dict[str, Any]) -> list[str]:
    lines = [
        "No seed of the noise is known, so it cannot be taken out again.",
        "Noise on sums of whole numbers is exact. Other noisy sums are rounded to a public grid, which hides last digits.",
    ]
    weak = generators_that_are_not_ciphers(certificate)
    return [*lines, weak] if weak else lines

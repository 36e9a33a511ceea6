"""The dossier of a release, for an impact assessment, and its draft entry for a registry: a certificate in words.

Everything is a function of the certificate and of its verification. It judges nothing: the questions that are left to the
officer are listed as such. The texts are in `templates/`: dossier.md.jinja, hazards.yaml, registry_entry.yaml. Each hazard
of NIST SP 800-226 has at least one entry, with the sections of the initial public draft of December 2023, with whose text
they were compared. Entries without a section are additions of this software.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jinja2
import yaml

from lightning_dpgen.privacy.accounting.epsilon_range import CAUTIOUS_EPSILON, round_up
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE
from lightning_dpgen.privacy.drawn_noise import MECHANISMS
from lightning_dpgen.privacy.noise.stream import SECURE
from lightning_dpgen.release.certificate import (
    INIT,
    TRUNCATED_LOTS,
    found_privately,
    paragraphs,
    selected,
    whole_epsilon,
)
from lightning_dpgen.release.files import CERTIFICATE, PROJECTED, SYNTHETIC
from lightning_dpgen.release.pages.report import TEMPLATES, describe_purchase, describe_stage, environment
from lightning_dpgen.release.pages.text import join_values, markdown, printable, value_text
from lightning_dpgen.release.unit_check import counts_persons, protects_persons
from lightning_dpgen.release.verdict import Verdict

# Guesses of an attacker before the release, as probabilities.
PRIORS = (0.01, 0.1, 0.5, 0.9)
# The relation between neighbours, in words for a reader who knows no other.
_RELATIONS = {
    ADD_OR_REMOVE_ONE: "the unit is in the data, or it is not",
    REPLACE_ONE: "the unit has one value in the data, or another; that it is there is public",
}
# The events of noise on all records, and those that put several together: none of them samples.
_WITHOUT_SAMPLING = {"ComposedDpEvent", "SelfComposedDpEvent", "GaussianDpEvent", "LaplaceDpEvent"}
# The stages that measure statistics, or find what is not declared; all others may train a network. They are written out,
# since what draws them takes seconds to import.
MEASURING = frozenset({
    "first pass", "feature moments", "clustering", "final pass", "tables", "margins", "scores", "items", "pairs", "poses",
    "means", "squares", "cell means", "cell squares", "values", "scales", "moments", "shapes", "spreads", "crossings",
    "evidence", "labels", "fidelity", "rows", "clipped",
})  # fmt: skip
# Levels of what is declared that have rows of their own.
_DEEPEST = 3


@dataclass(frozen=True)
class Hazard:
    """One hazard of a claim of differential privacy, and what a certificate says of it.

    Attributes:
        part: the part of the publication that it belongs to.
        section: the sections of the publication's draft that describe it; empty where none does.
        name: the hazard in words of our own.
        answer: what the certificate says; empty where it says nothing.
        fields: paths of the fields that say it, such as ``also.replace_one_epsilon``; all are in the certificate.
        ask: the question that is left, and whom to ask; empty where none is.
    """

    part: str
    section: str
    name: str
    answer: str
    fields: tuple[str, ...]
    ask: str


def make_dossier(certificate: dict[str, Any], verdict: Verdict) -> str:
    """Write the dossier of a release as a page of Markdown.

    Args:
        certificate: that of a private release, as `read_certificate` gives it.
        verdict: that of `verify`, which must be good.

    Raises:
        ValueError: if the release is not private, or its certificate is not consistent.
    """
    if not verdict.good or not certificate["private"] or certificate["noise"]["seeded"]:
        raise ValueError(f"no dossier of such a release: {verdict.reason or 'it is not private'}")
    page = _templates().get_template("dossier.md.jinja")
    text = page.render(
        _facts(certificate),
        checks=verdict.checks,
        notes=verdict.notes,
        certificate_file=CERTIFICATE,
        rows=list(_rows("declared", certificate["declared"])),
        hazards=hazards_of(certificate),
        paragraphs=paragraphs(certificate),
        guesses=PRIORS,
    )
    return f"{text.rstrip()}\n"


def hazards_of(certificate: dict[str, Any]) -> list[Hazard]:
    """Return the hazards with what a verified certificate of a private release says of each, in the publication's order."""
    hazards = _rendered("hazards.yaml", certificate)
    return [
        Hazard(
            one["part"],
            one["section"] or "",
            one["name"],
            one.get("answer") or "",
            tuple((one.get("fields") or "").split()),
            one.get("ask") or "",
        )
        for one in hazards
    ]


def make_entry(certificate: dict[str, Any]) -> dict[str, Any]:
    """Make a draft entry for the registry of a private release; fields that the certificate does not fill are None."""
    entry = _rendered("registry_entry.yaml", certificate)
    entry["deployment"]["privacy_loss"]["privacy_parameters"] |= {
        "epsilon": whole_epsilon(certificate),
        "delta": certificate["delta"],
    }
    return entry


def names_of_null(entry: dict[str, Any]) -> Iterator[str]:
    """Yield the path of each field that is None.

    Example:
        >>> list(names_of_null({"a": None, "b": {"c": None, "d": 1}}))
        ['a', 'b.c']
    """
    for name, value in entry.items():
        if value is None:
            yield name
        elif isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in names_of_null(value))


def posterior(prior: float, epsilon: float) -> tuple[float, float]:
    """Return the least and the largest probability that a guess of this probability can become, by epsilon at delta 0.

    Example:
        >>> [round(p, 4) for p in posterior(0.5, 1.0)]
        [0.2689, 0.7311]
    """
    before = math.log(prior) - math.log1p(-prior)
    return tuple(1.0 / (1.0 + math.exp(min(-(before + change), 700.0))) for change in (-epsilon, epsilon))


@functools.cache
def _templates() -> jinja2.Environment:
    # The report has other filters of these names.
    templates = environment(autoescape=False).overlay()
    templates.filters = templates.filters | {
        "cell": _cell,
        "count": lambda number: f"{number:,}",
        "exact": _exact,
        "join_values": join_values,
        "markdown": markdown,
        "odds": _odds,
        "percent": lambda prior, epsilon: _percent(*posterior(prior, epsilon)),
        "printable": printable,
        "whole": _whole,
    }
    return templates


def _rendered(name: str, certificate: dict[str, Any]) -> Any:
    """Return a file of templates with each text rendered on one line; None for an empty one."""
    facts = _facts(certificate)

    def render(text: str) -> str | None:
        return " ".join(_template(text).render(facts).split()) or None

    return _map_texts(render, _texts(name))


@functools.cache
def _texts(name: str) -> Any:
    # The file alone is read as YAML: nothing in a certificate can change its form.
    return yaml.safe_load((TEMPLATES / name).read_text(encoding="utf-8"))


@functools.cache
def _template(text: str) -> jinja2.Template:
    return _templates().from_string(text)


def _map_texts(change: Callable[[str], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _map_texts(change, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_map_texts(change, inner) for inner in value]
    return value and change(value)


def _facts(certificate: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a certificate that the templates name."""
    declared, released, relation = (certificate[name] for name in ("declared", "released", "relation"))
    selection, study, schema = certificate["selection"], certificate["study"], declared.get("schema")
    init, cut, model = declared.get(INIT), declared.get(TRUNCATED_LOTS), declared.get("model")
    most = declared.get("max_rows")
    delta, n = certificate["delta"], declared["n"]
    return {
        **{name: certificate[name] for name in ("epsilon", "target_epsilon", "unit", "digest", "statement", "accountant")},
        "delta": delta,
        "relation": relation,
        "released": released,
        "files": sorted(certificate["files"]),
        "versions": list(certificate["versions"].items()),
        "software": certificate["versions"].get("lightning_dpgen", ""),
        "source": certificate["noise"]["source"],
        "large": certificate["epsilon"] > CAUTIOUS_EPSILON,
        "worlds": _RELATIONS[relation],
        "replaced": certificate["also"]["replace_one_epsilon"],
        "n": n,
        "n_bought": relation != REPLACE_ONE and bool(declared.get("n_share")),
        "most": most if type(most) is int else None,
        "of_person": protects_persons(certificate),
        "counted": "persons" if counts_persons(certificate) else "records",
        "study": study if isinstance(study, dict) else None,
        "selected": selected(selection) if isinstance(selection, dict) else None,
        "chosen": [printable(name, 80) for name in selection["chosen"] or ()] if isinstance(selection, dict) else [],
        "found": found_privately(declared),
        "init": str(init.get("public")) if isinstance(init, dict) else None,
        "has_cut_lots": TRUNCATED_LOTS in declared,
        "at_most": min(lots["at_most"] for lots in cut.values()) if isinstance(cut, dict) else None,
        "rows_independent": declared.get("rows_independent") is True,
        "seed": "seed" in declared,
        "kind": (kind := schema.get("kind") if isinstance(schema, dict) else None),
        "parts": _parts_of(kind),
        "model": model.get("name") if isinstance(model, dict) else None,
        "has_synthetic": SYNTHETIC in released,
        "has_projected": PROJECTED in released,
        "may_train": not {stage["name"] for stage in certificate["stages"]} <= MEASURING,
        "weak": _weak_generators(certificate),
        "inexact": _is_inexact(certificate),
        "stages": [
            {
                "name": stage["name"],
                "bought": describe_purchase(stage["name"]) or "not described",
                "how": describe_stage(certificate, stage),
                "epsilon": stage["epsilon"],
            }
            for stage in certificate["stages"]
        ],
        # Rounded down, so that a probability is never said to be smaller than it is.
        "one_in": math.floor(1 / Fraction(repr(delta))) if delta else None,
        "times": _times_below(delta, n),
        "study_times": _times_below(study["delta"], n) if isinstance(study, dict) else None,
    }


def _times_below(delta: float, n: int) -> int | None:
    """Return how many times smaller than 1/n a delta is at least; None for 0."""
    return math.floor(1 / (Fraction(repr(delta)) * n)) if delta else None


def _exact(value: float) -> str:
    """Write a number of a certificate with all its digits.

    Example:
        >>> _exact(1e-05), _exact(4.0), _exact(90)
        ('1e-05', '4', '90')
    """
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _weak_generators(certificate: dict[str, Any]) -> str:
    """Say which generators of a release are not cryptographic; empty where the cipher alone has made it.

    Noise on sums of whole numbers is drawn by the cipher on the CPU, whatever the source is.
    """
    if certificate["noise"]["source"] == SECURE:
        return ""
    events = [certificate["event"], *(stage["event"] for stage in certificate["stages"])]
    sentences = []
    if not all(_types(event) <= _WITHOUT_SAMPLING for event in events):
        sentences.append("The generator that samples records is statistically sound and not cryptographic.")
    if _is_inexact(certificate):
        sentences.append("Noise on a GPU is made by torch's generator.")
    return " ".join(sentences)


def _is_inexact(certificate: dict[str, Any]) -> bool:
    """Return whether some noise is drawn in floating point."""
    others = certificate["noise"]["others"]
    return any(entry["mechanism"] in MECHANISMS and MECHANISMS[entry["mechanism"]].is_real for entry in others)


def _types(event: dict[str, Any]) -> set[str]:
    """Return the types of all events in a tree."""
    parts = [*event.get("events", ()), *([event["event"]] if "event" in event else ())]
    return {event["type"]}.union(*map(_types, parts))


def _cell(text: str) -> str:
    """Escape a text as one line that may stand in a cell of a table, whatever it holds."""
    return markdown("".join(letter if letter.isprintable() else " " for letter in text))


def _percent(least: float, most: float) -> str:
    """Write a range in hundredths of a percent, outwards, so that it is never too narrow."""
    return f"{math.floor(least * 1e4 + 1e-9) / 100:g} % to {math.ceil(most * 1e4 - 1e-9) / 100:g} %"


def _odds(epsilon: float) -> str:
    """Write the factor of the odds, rounded up."""
    return "a number too large to mean protection" if epsilon > CAUTIOUS_EPSILON else f"{round_up(math.exp(epsilon), 3):g}"


def _rows(path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the field and the value of each thing that is declared, down to a few levels."""
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        inner = [(str(name), part) for name, part in value.items()]
    elif isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        inner = [(str(place), part) for place, part in enumerate(value)]
    if inner and depth < _DEEPEST and all(name.isidentifier() or name.isdecimal() for name, _ in inner):
        for name, part in inner:
            yield from _rows(f"{path}.{name}", part, depth + 1)
    elif value is not None:
        yield path, _whole(value)


def _whole(value: Any) -> str:
    """Write a declared value whole, however long it is: an officer has to see all that was taken to be public."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_whole(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, list):
        parts = [f"({_whole(part)})" if isinstance(part, dict | list) else _whole(part) for part in value]
        return ", ".join(parts) or "(empty)"
    return _exact(value) if isinstance(value, float) else value_text(value, len(str(value)) + 1)


def _parts_of(kind: Any) -> str:
    """Return the words for what records of a kind are made of; empty for a release without a kind of records."""
    if not isinstance(kind, str):
        return ""
    from lightning_dpgen.data.schema import kinds

    return kinds()[kind].parts if kind in kinds() else ""

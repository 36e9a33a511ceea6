"""The hazards of a claim of differential privacy, one by one, with the fields of a certificate that answer each.

Each hazard of NIST SP 800-226 has at least one entry, in the order of its three parts: the guarantee, algorithms,
deployment. Names are words of our own. Sections are those of the initial public draft of December 2023, whose text this
module was compared with. Entries without a section are additions of this software.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightning_dpgen.privacy.accounting.epsilon_range import CAUTIOUS_EPSILON
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE
from lightning_dpgen.privacy.drawn_noise import MECHANISMS
from lightning_dpgen.privacy.noise.stream import SECURE
from lightning_dpgen.release.certificate import INIT, TRUNCATED_LOTS, found_privately, selected
from lightning_dpgen.release.files import PROJECTED, SYNTHETIC
from lightning_dpgen.release.pages.text import listed, printable

GUARANTEE, ALGORITHM, DEPLOYMENT = "The guarantee", "Algorithms", "Deployment"
# The relation between neighbours, in words for a reader who knows no other.
RELATIONS = {
    ADD_OR_REMOVE_ONE: "the unit is in the data, or it is not",
    REPLACE_ONE: "the unit has one value in the data, or another; that it is there is public",
}
_LONGEST_NAME = 80
# The events of noise on all records, and those that put several together: none of them samples.
_WITHOUT_SAMPLING = {"ComposedDpEvent", "SelfComposedDpEvent", "GaussianDpEvent", "LaplaceDpEvent"}
# The stages that measure statistics, or find what is not declared; all others may train a network. They are written out,
# since what draws them takes seconds to import.
MEASURING = frozenset({
    "first pass", "feature moments", "clustering", "final pass", "tables", "margins", "scores", "items", "pairs", "poses",
    "means", "squares", "cell means", "cell squares", "values", "scales", "moments", "shapes", "spreads", "crossings",
    "evidence", "labels", "fidelity", "rows", "clipped",
})  # fmt: skip


@dataclass(frozen=True)
class Hazard:
    """One hazard, and what a certificate says of it.

    Attributes:
        part: the part of the publication that it belongs to.
        section: the sections of the publication's draft that describe it; empty where none does.
        name: the hazard in words.
        answer: what the certificate says; empty where it says nothing.
        fields: paths of the fields that say it, such as ``also.replace_one_epsilon``; all are in the certificate.
        ask: the question that is left, and whom to ask; empty where none is.
    """

    part: str
    section: str
    name: str
    answer: str = ""
    fields: tuple[str, ...] = ()
    ask: str = ""


def exact(value: float) -> str:
    """Write a number of a certificate with all its digits.

    Example:
        >>> exact(1e-05), exact(4.0), exact(90)
        ('1e-05', '4', '90')
    """
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def hazards_of(certificate: dict[str, Any]) -> list[Hazard]:
    """Return the hazards with what a verified certificate of a private release says of each, in the publication's order."""
    return [*_of_guarantee(certificate), *_of_algorithms(certificate), *_of_deployment(certificate)]


def generators_that_are_not_ciphers(certificate: dict[str, Any]) -> str:
    """Say which generators of a release are not cryptographic; empty where the cipher alone has made it.

    Noise on sums of whole numbers is drawn by the cipher on the CPU, whatever the source is.
    """
    if certificate["noise"]["source"] == SECURE:
        return ""
    events = [certificate["event"], *(stage["event"] for stage in certificate["stages"])]
    said = []
    if not all(_types(event) <= _WITHOUT_SAMPLING for event in events):
        said.append("The generator that samples records is statistically sound and not cryptographic.")
    if _is_inexact(certificate):
        said.append("Noise on a GPU is made by torch's generator.")
    return " ".join(said)


def _is_inexact(certificate: dict[str, Any]) -> bool:
    """Return whether some noise is drawn in floating point."""
    others = certificate["noise"]["others"]
    return any(entry["mechanism"] in MECHANISMS and MECHANISMS[entry["mechanism"]].is_real for entry in others)


def _types(event: dict[str, Any]) -> set[str]:
    """Return the types of all events in a tree."""
    parts = [*event.get("events", ()), *([event["event"]] if "event" in event else ())]
    return {event["type"]}.union(*map(_types, parts))


def _of_guarantee(certificate: dict[str, Any]) -> list[Hazard]:
    epsilon, delta, declared = (certificate[name] for name in ("epsilon", "delta", "declared"))
    n, most = declared["n"], declared.get("max_rows")
    large = "It is so large that the guarantee says next to nothing." if epsilon > CAUTIOUS_EPSILON else ""
    of_delta = f"Delta is {exact(delta)}, for {n:,} records." if delta else "Delta is 0."
    unit = f"The unit is {printable(certificate['unit'], 200)}."
    whole = "Does any person have more than one such unit in the data? Ask the curator: such a person is protected less."
    of_unit = ("unit",)
    if type(most) is int:
        whole = "Does one number or name stand for exactly one person in the data? Ask the curator."
        unit += f" Of a person with more than {most:,} records, those beyond that number took no part."
        of_unit = ("unit", "declared.max_rows")
    replaced = certificate["also"]["replace_one_epsilon"]
    also = "no epsilon is stated for the unit replaced by another"
    if replaced is not None:
        also = f"epsilon for the unit replaced by another is {exact(replaced)}"
    return [
        Hazard(
            GUARANTEE,
            "2.2",
            "Epsilon is so large that it protects little",
            f"Epsilon is {exact(epsilon)}; the largest that was allowed is {exact(certificate['target_epsilon'])}. {large}",
            ("epsilon", "target_epsilon"),
            "Who chose this epsilon, and in view of which harm? Ask the curator.",
        ),
        _of_other_releases(certificate),
        Hazard(
            GUARANTEE,
            "2.3",
            "Delta is so large that some people may be exposed outright",
            of_delta,
            ("delta", "declared.n"),
        ),
        Hazard(
            GUARANTEE,
            "2.4",
            "A question that would do harm is larger than the unit, so the guarantee does not cover it",
            f"The promise compares two worlds: {RELATIONS[certificate['relation']]}.",
            ("relation",),
            "Which two answers about a person must not be told apart, and does one unit make the whole difference between "
            "them? Ask the curator.",
        ),
        Hazard(GUARANTEE, "2.4", "The unit is an event or a row, and not a person", unit, of_unit, whole),
        Hazard(
            GUARANTEE,
            "2.5",
            "Guarantees with different delta are compared by epsilon alone",
            f"Delta is {exact(delta)}. Another epsilon compares with this one only at the same delta.",
            ("delta",),
        ),
        Hazard(
            GUARANTEE,
            "2.5",
            "Guarantees with different units, or relations, are compared by epsilon alone",
            f"Epsilon is for two worlds: {RELATIONS[certificate['relation']]}. At the same delta, {also}.",
            ("relation", "also.replace_one_epsilon", "accountant.name"),
        ),
        Hazard(
            GUARANTEE,
            "2.5",
            "A large delta was chosen for a conversion, so that epsilon looks small",
            "The mechanisms are in the event tree, so that epsilon can be computed for any other delta.",
            ("event",),
        ),
        Hazard(
            GUARANTEE,
            "2.6",
            "Figures of the same people are published without differential privacy",
            ask="Were figures of the same data published without noise, or is that planned? Ask the curator.",
        ),
    ]


def _of_other_releases(certificate: dict[str, Any]) -> Hazard:
    study = certificate["study"]
    said = "The certificate knows of no other release, and does not say that there is none."
    ask = "Which other releases about the same people are there, and what did each cost? Ask the curator."
    if isinstance(study, dict):
        said = (
            f"In the study '{printable(study['name'], _LONGEST_NAME)}' this was run {study['runs']}; its runs so far "
            f"together cost epsilon {exact(study['epsilon'])}, of {exact(study['total_epsilon'])} that were declared first."
        )
        ask = "Are there releases about the same people outside of the study? Ask the curator."
    return Hazard(GUARANTEE, "", "Several releases about the same people add up", said, ("study",), ask)


def _of_algorithms(certificate: dict[str, Any]) -> list[Hazard]:
    declared, selection = certificate["declared"], certificate["selection"]
    found, most, schema = found_privately(declared), declared.get("max_rows"), declared.get("schema")
    of_table = isinstance(schema, dict) and schema.get("kind") == "table"
    by_groups = " ('dpgen evaluate --by COLUMN')" if of_table else ""
    bounds = "The description of a record was declared"
    bounds += f", but for what was bought: {listed(found)}." if found else ". The certificate does not say where from."
    sampled, fields = (
        "Sampling, noise and the number of steps are in the event tree, and epsilon was recomputed.",
        ["event"],
    )
    if TRUNCATED_LOTS in declared:
        sampled += " Lots were cut to a largest size; the part of delta for that rests on a declared bound."
        fields.append(f"declared.{TRUNCATED_LOTS}")
    if declared.get("rows_independent") is True:
        sampled += " That a record changes no row but its own is declared, and was not checked."
        fields.append("declared.rows_independent")
    bounded = ("No person's number of records was bounded, and no noise was added for that.", ("unit",))
    if type(most) is int:
        bounded = (
            f"At most {most:,} records of a person took part, and epsilon was computed for all of them together.",
            ("declared.max_rows", "event"),
        )
    return [
        Hazard(
            ALGORITHM,
            "3",
            "Custom code takes the place of tested libraries, or the software has a fault",
            "The versions are named, so that faults that become known can be looked up.",
            ("versions",),
            "Was this software reviewed, tested or audited by others? Ask the curator.",
        ),
        Hazard(
            ALGORITHM,
            "",
            "Accounting supposes another sampling or noise than the one that ran",
            sampled,
            tuple(fields),
            "Did the run take place as described? Ask those who ran it, or an auditor: no certificate can show it.",
        ),
        Hazard(
            ALGORITHM,
            "3.3.1",
            "Noise makes results wrong for small groups most of all, and so creates or magnifies bias",
            ask="How close is it to the real data, and for each group that decisions are made about? Ask the curator for "
            f"the private evaluation{by_groups}.",
        ),
        Hazard(
            ALGORITHM,
            "3.3.2",
            "Results are changed so that people trust them, and the change does harm of its own",
            ask="Do readers learn that the results are noisy, and was anything changed so that they look as people expect? "
            "Ask the curator.",
        ),
        Hazard(
            ALGORITHM,
            "3.3.3",
            "Results are off in one direction, on average",
            ask="Which figures of the release are too high or too low, and by how much? Ask the curator for the private "
            "evaluation.",
        ),
        Hazard(ALGORITHM, "3.4.1", "Bounding what a person contributes asks for more noise", *bounded),
        Hazard(
            ALGORITHM,
            "3.4.1",
            "Bins, bounds, categories or keys are read off the private data",
            bounds,
            ("declared", *(("declared.discovered",) if found else ())),
            "Did anyone look at the records for what is declared? Ask the curator.",
        ),
        Hazard(
            ALGORITHM,
            "",
            "Settings are tuned, or the best of several runs is chosen, at no charge",
            f"Released is {printable(selected(selection), 400)}. Epsilon covers this choice."
            if isinstance(selection, dict)
            else "This was one run, and this software chose nothing among several with the records.",
            ("selection",),
            "Were there earlier runs on these records, and what was done with their results? Ask the curator.",
        ),
        Hazard(
            ALGORITHM,
            "",
            "Steps before the mechanisms are left out of the account",
            ask="How were the records cleaned, joined and filtered, and did a person's records change those of others? Ask "
            "the curator.",
        ),
        *_of_models(certificate),
    ]


def _of_models(certificate: dict[str, Any]) -> list[Hazard]:
    declared, released = certificate["declared"], certificate["released"]
    init, schema = declared.get(INIT), declared.get("schema")
    public = (
        "The certificate names no network that it started from.",
        ("declared",),
        "Did anything else that was learned from people enter, such as pretrained weights or embeddings? Ask the curator.",
    )
    if isinstance(init, dict):
        public = (
            f"Training started from a network that was learned from '{printable(init.get('public'), 200)}'.",
            (f"declared.{INIT}.public", f"declared.{INIT}.weights"),
            "Are those data public, and are the same people in them? Ask the curator: the guarantee does not cover them.",
        )
    kinds = {SYNTHETIC: "a model and synthetic records", PROJECTED: "projected rows, one for each record"}
    kind = next((words for name, words in kinds.items() if name in released), "the weights of a model")
    named, compared = _of_network(certificate)
    described: tuple[str, tuple[str, ...]] = ("", ())
    whose = "May one record show several people, or several records the same person? Ask the curator."
    if isinstance(schema, dict) and "kind" in schema:
        described = (
            f"The records are of the kind '{printable(schema['kind'], _LONGEST_NAME)}'.",
            ("declared.schema.kind",),
        )
        # The hazard of the unit asks already about persons of several rows.
        whose = "May one row be about several people? Ask the curator." if schema["kind"] == "table" else whose
    return [
        Hazard(
            ALGORITHM,
            "3.5, 3.6",
            "A model or synthetic data are taken for safe by themselves",
            f"The release holds {kind}. The protection is epsilon and delta, and nothing besides.",
            ("released", "epsilon", "delta"),
        ),
        Hazard(ALGORITHM, "", "Training starts from data that were taken for public", *public),
        Hazard(
            ALGORITHM,
            "3.6",
            "Synthetic data of deep networks are worse than those of noisy tables",
            *named,
            compared,
        ),
        Hazard(
            ALGORITHM,
            "3.7",
            "Pictures, texts and recordings do not show whose they are, so no unit fits them",
            *described,
            whose,
        ),
    ]


def _of_network(certificate: dict[str, Any]) -> tuple[tuple[str, tuple[str, ...]], str]:
    """Return what the certificate says of a network behind synthetic records, with its fields, and what is left to ask."""
    if SYNTHETIC not in certificate["released"]:
        return ("The release holds no synthetic records.", ("released",)), ""
    model, named = certificate["declared"].get("model"), ""
    fields = ["stages"]
    if isinstance(model, dict) and "name" in model:
        named = f" The model is '{printable(model['name'], _LONGEST_NAME)}'."
        fields.append("declared.model.name")
    if {stage["name"] for stage in certificate["stages"]} <= MEASURING:
        return (f"No network was trained: synthetic records were drawn from noisy statistics.{named}", tuple(fields)), ""
    ask = "Was the release compared with one of noisy tables (model=measured), in the private evaluation? Ask the curator."
    return (named.strip(), tuple(fields[1:])), ask


def _of_deployment(certificate: dict[str, Any]) -> list[Hazard]:
    weak, inexact = generators_that_are_not_ciphers(certificate), _is_inexact(certificate)
    words, guess = "Every random word of the noise comes from a cipher that the operating system has keyed.", ""
    if weak:
        words = f"Noise on a CPU comes from a cipher. {weak}"
        guess = "May an attacker predict such generators? Ask the curator for a run that uses the cipher alone."
    timing: tuple[str, tuple[str, ...]] = ("", ())
    if isinstance(certificate["selection"], dict):
        timing = ("The guarantee needs the number of trials, and the time that they took, to stay secret.", ("selection",))
    return [
        Hazard(
            DEPLOYMENT,
            "4.1",
            "Questions that others may ask spend the budget, or attack the system",
            "The release is a set of files: no one queries the records through it, and drawing from it costs nothing more.",
            ("files",),
        ),
        Hazard(
            DEPLOYMENT,
            "4.2",
            "The people concerned do not trust those whom the guarantee supposes to be trusted",
            "One party held the records as they are, and added the noise: the central model.",
            ("stages",),
            "Who is that party, and did the people agree to its holding their records? Ask the curator.",
        ),
        Hazard(
            DEPLOYMENT, "", "Noise can be predicted", f"{words} No seed is known.", ("noise.source", "noise.seeded"), guess
        ),
        Hazard(
            DEPLOYMENT,
            "4.3",
            "The last digits of floating-point numbers give the noise away",
            "Noise on sums of whole numbers is exact; other noisy sums are rounded to a public grid."
            + (" Their noise is computed in floating point, whose law no proof covers." if inexact else ""),
            ("noise.source", "noise.others"),
            "Who has judged the noise that is computed in floating point? Ask those who ran it." if inexact else "",
        ),
        Hazard(
            DEPLOYMENT,
            "4.3",
            "Running time, memory, errors or logs give records away",
            *timing,
            ask="Who could watch the run, or read its logs and its private folder? Ask those who ran it.",
        ),
        Hazard(
            DEPLOYMENT,
            "4.4",
            "The original records leak, which makes the guarantee meaningless",
            ask="How are the original records and the private folder kept, and when are they deleted? Ask the curator.",
        ),
        Hazard(
            DEPLOYMENT,
            "4.4",
            "More people may read the original records than need to",
            ask="Who may read the original records and the run's private folder? Ask the curator.",
        ),
        Hazard(
            DEPLOYMENT,
            "4.5",
            "More data about people are collected than are needed",
            ask="Is all that was collected needed, and who saw it on its way to the curator? Ask the curator.",
        ),
    ]

"""The hazards of a claim of differential privacy, one by one, with the fields of a certificate that answer each.

They follow the layers by which NIST SP 800-226 evaluates a guarantee, from epsilon down to how data were collected, and
are named in words of our own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightning_dpgen.privacy.epsilon_range import CAUTIOUS_EPSILON
from lightning_dpgen.privacy.noise import SECURE
from lightning_dpgen.privacy.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE, ZERO_OUT
from lightning_dpgen.release.certificate import INIT, TRUNCATED_LOTS, found_privately, selected
from lightning_dpgen.release.files import PROJECTED, SYNTHETIC
from lightning_dpgen.release.text import listed, printable

GUARANTEE, ALGORITHM, IMPLEMENTATION, SURROUNDINGS = (
    "The guarantee",
    "What was computed",
    "How it was computed",
    "What surrounds it",
)
# The relation between neighbours, in words for a reader who knows no other.
RELATIONS = {
    ADD_OR_REMOVE_ONE: "the unit is in the data, or it is not",
    REPLACE_ONE: "the unit has one value in the data, or another; that it is there is public",
    ZERO_OUT: "the unit is in its place in the data, or that place is empty; the number of places is public",
}
_LONGEST_NAME = 80


@dataclass(frozen=True)
class Hazard:
    """One hazard, and what a certificate says of it.

    Attributes:
        layer: the layer of the evaluation that it belongs to.
        name: the hazard in words.
        answer: what the certificate says; empty where it says nothing.
        fields: paths of the fields that say it, such as ``also.replace_one_epsilon``; all are in the certificate.
        ask: the question that is left, and whom to ask; empty where none is.
    """

    layer: str
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
    """Return the hazards with what a verified certificate of a private release says of each, by layer."""
    return [*_of_guarantee(certificate), *_of_algorithm(certificate), *_of_implementation(certificate), *_SURROUNDINGS]


def _of_guarantee(certificate: dict[str, Any]) -> list[Hazard]:
    epsilon, delta, declared, study = (certificate[name] for name in ("epsilon", "delta", "declared", "study"))
    n, most = declared["n"], declared.get("max_rows")
    large = "It is so large that the guarantee says next to nothing." if epsilon > CAUTIOUS_EPSILON else ""
    of_delta = f"Delta is {exact(delta)}, for {n:,} records." if delta else "Delta is 0."
    unit = f"The unit is {printable(certificate['unit'], 200)}."
    whole = "Does any person have more than one such unit in the data? Ask the curator: such a person is protected less."
    if type(most) is int:
        whole = "Does one number or name stand for exactly one person in the data? Ask the curator."
        unit += f" Of a person with more than {most:,} records, those beyond that number took no part."
    replaced = certificate["also"]["replace_one_epsilon"]
    also = "no epsilon is stated for the unit replaced by another"
    if replaced is not None:
        also = f"epsilon for the unit replaced by another is {exact(replaced)}"
    if isinstance(study, dict):
        spent = (
            f"In the study '{printable(study['name'], _LONGEST_NAME)}' this was run {study['runs']}; its runs so far "
            f"together cost epsilon {exact(study['epsilon'])}, of {exact(study['total_epsilon'])} that were declared first."
        )
        others = Hazard(
            GUARANTEE,
            "Several releases about the same people add up",
            spent,
            ("study",),
            "Are there releases about the same people outside of the study? Ask the curator.",
        )
    else:
        others = Hazard(
            GUARANTEE,
            "Several releases about the same people add up",
            "The certificate knows of no other release, and does not say that there is none.",
            ("study",),
            "Which other releases about the same people are there, and what did each cost? Ask the curator.",
        )
    return [
        Hazard(
            GUARANTEE,
            "Epsilon is so large that it protects little",
            f"Epsilon is {exact(epsilon)}; the budget set first is {exact(certificate['target_epsilon'])}. {large}",
            ("epsilon", "target_epsilon"),
            "Who chose this budget, and for what harm? Ask the curator.",
        ),
        Hazard(GUARANTEE, "Delta is so large that some people may be exposed outright", of_delta, ("delta", "declared.n")),
        Hazard(
            GUARANTEE,
            "The unit is smaller than a person",
            unit,
            ("unit", *(("declared.max_rows",) if type(most) is int else ())),
            whole,
        ),
        Hazard(
            GUARANTEE,
            "Epsilons of different definitions are compared as if they were one",
            f"Epsilon is for two worlds: {RELATIONS[certificate['relation']]}. At the same delta, {also}.",
            ("relation", "also.replace_one_epsilon", "accountant.name"),
        ),
        others,
        Hazard(
            GUARANTEE,
            "Exact figures of the same people are published beside it",
            ask="Were figures of the same data published without noise, or is that planned? Ask the curator.",
        ),
    ]


def _of_algorithm(certificate: dict[str, Any]) -> list[Hazard]:
    declared, selection, released = (certificate[name] for name in ("declared", "selection", "released"))
    found, init = found_privately(declared), declared.get(INIT)
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
    public = Hazard(
        ALGORITHM,
        "Training starts from data that were taken for public",
        "The certificate names no network that it started from.",
        ("declared",),
        "Did anything else that was learned from people enter, such as pretrained weights or embeddings? Ask the curator.",
    )
    if isinstance(init, dict):
        public = Hazard(
            ALGORITHM,
            public.name,
            f"Training started from a network that was learned from '{printable(init.get('public'), 200)}'.",
            (f"declared.{INIT}.public", f"declared.{INIT}.weights"),
            "Are those data public, and are the same people in them? Ask the curator: the guarantee does not cover them.",
        )
    kinds = {SYNTHETIC: "a model and synthetic records", PROJECTED: "projected rows, one for each record"}
    kind = next((words for name, words in kinds.items() if name in released), "the weights of a model")
    return [
        Hazard(
            ALGORITHM,
            "Bounds, categories or keys are read off the private data",
            bounds,
            ("declared", *(("declared.discovered",) if found else ())),
            "Did anyone look at the records for what is declared? Ask the curator.",
        ),
        Hazard(
            ALGORITHM,
            "Settings are tuned, or the best of several runs is chosen, at no charge",
            f"Released is {printable(selected(selection), 400)}. Epsilon covers this choice."
            if isinstance(selection, dict)
            else "This was one run, and this software chose nothing among several with the records.",
            ("selection",),
            "Were there earlier runs on these records, and what was done with their results? Ask the curator.",
        ),
        Hazard(
            ALGORITHM,
            "Accounting supposes another sampling or noise than the one that ran",
            sampled,
            tuple(fields),
            "Did the run take place as described? Ask those who ran it, or an auditor: no certificate can show it.",
        ),
        Hazard(
            ALGORITHM,
            "Steps before the mechanisms are left out of the account",
            ask="How were the records cleaned, joined and filtered, and did a person's records change those of others? Ask "
            "the curator.",
        ),
        public,
        Hazard(
            ALGORITHM,
            "Synthetic data or a model are taken for safe by themselves",
            f"The release holds {kind}. The protection is epsilon and delta, and nothing besides.",
            ("released", "epsilon", "delta"),
        ),
        Hazard(
            ALGORITHM,
            "Noise makes results wrong, and most of all for small groups",
            ask="How close is it to the real data, and for each group that decisions are made about? Ask the curator for "
            "the private evaluation ('dpgen evaluate --by COLUMN').",
        ),
    ]


def _of_implementation(certificate: dict[str, Any]) -> list[Hazard]:
    secure = certificate["noise"]["source"] == SECURE
    words = "All random words come from a cipher that the operating system has keyed."
    guess = ""
    if not secure:
        guess = "May an attacker predict such generators? Ask the curator for a run that samples by the cipher, too."
        words = (
            "Noise comes from a cipher (on a GPU, from torch's generator); the generator that samples records is "
            "statistically sound, and not cryptographic."
        )
    timing: tuple[str, tuple[str, ...]] = ("", ())
    if isinstance(certificate["selection"], dict):
        timing = ("The guarantee needs the number of trials, and the time that they took, to stay secret.", ("selection",))
    return [
        Hazard(
            IMPLEMENTATION,
            "Noise can be predicted",
            f"{words} No seed is known.",
            ("noise.source", "noise.seeded"),
            guess,
        ),
        Hazard(
            IMPLEMENTATION,
            "The last digits of floating-point numbers give the noise away",
            "Noise on sums of whole numbers is exact; other noisy sums are rounded to a public grid.",
            ("noise.source",),
        ),
        Hazard(
            IMPLEMENTATION,
            "Running time, memory or logs give records away",
            *timing,
            ask="Who could watch the run, or read its logs and its private folder? Ask those who ran it.",
        ),
        Hazard(
            IMPLEMENTATION,
            "The software has a fault",
            "The versions are named, so that faults that become known can be looked up.",
            ("versions",),
            "Was this software reviewed, tested or audited by others? Ask the curator.",
        ),
    ]


_SURROUNDINGS = (
    Hazard(
        SURROUNDINGS,
        "The trust model is not that of the people concerned",
        "One party held the records as they are, and added the noise: the central model.",
        ("stages",),
        "Who is that party, and did the people agree to its holding their records? Ask the curator.",
    ),
    Hazard(
        SURROUNDINGS,
        "The way of asking lets others spend the budget",
        "The release is a set of files: no one queries the records through it, and drawing from it costs nothing more.",
        ("files",),
    ),
    Hazard(
        SURROUNDINGS,
        "The original records are not secure",
        ask="Who may read the original records and the run's private folder, and when are they deleted? Ask the curator.",
    ),
    Hazard(
        SURROUNDINGS,
        "Collecting the data exposes people already",
        ask="How were the data collected and sent, and who saw them on the way? Ask the curator.",
    ),
)

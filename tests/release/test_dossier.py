"""A dossier and a registry entry say what the certificate says, for every kind of certificate, and nothing of their own."""

import copy
import json
import math
import re
from fractions import Fraction
from pathlib import Path

import pytest

from lightning_dpgen.privacy.noise.stream import SECURE
from lightning_dpgen.release.certificate import digest, statement
from lightning_dpgen.release.pages.dossier import PRIORS, hazards_of, make_dossier, make_entry, names_of_null, posterior
from lightning_dpgen.release.pages.report import describe_stage
from lightning_dpgen.release.verdict import Verdict

KEPT = Path(__file__).parents[1] / "fuzz" / "corpus" / "verify"
STUDY = {
    "name": "census",
    "runs": 71,
    "epsilon": 3.125,
    "delta": 2e-6,
    "relation": "add_or_remove_one",
    "total_epsilon": 6.5,
}
SELECTION = {"law": "geometric", "mean": 57.5, "score": "fidelity", "space": {"model.lr": ["0.1", "0.2"]}, "chosen": None}
CUT = {"training": {"largest_lot": 36, "at_most": 7011}}
COLUMNS = {"kind": "table", "columns": [{"name": "age", "low": 0, "high": 99}, {"name": "sex", "values": ["F", "M"]}]}
STRANGE = "a|b `c` <script> # [x](y)\n| d"
KINDS = {
    "records": {"target_epsilon": 2.0625},
    "persons": {"unit": "one person with the records that took part", "declared": {"max_rows": 31}},
    "projected rows": {
        "unit": "one row replaced by any other row", "relation": "replace_one", "released": ["projected.parquet"],
        "also": {"replace_one_epsilon": 1.998},
    },
    "delta 0": {"delta": 0.0, "also": {"replace_one_epsilon": 4.5, "gaussian_mu": None, "curve": []}},
    "none replaced": {"also": {"replace_one_epsilon": None}},
    "a selection": {"selection": SELECTION},
    "a chosen one": {"selection": SELECTION | {"chosen": {"model.lr": "0.2"}}},
    "a study": {"study": STUDY},
    "public weights": {"declared": {"init": {"public": "pictures of 1 million cats", "weights": "ab" * 32}}},
    "cut lots": {"declared": {"truncated_lots": CUT}},
    "found": {"declared": {"discovery_share": 0.05, "discovered": ["bounds of age"], "n_share": 0.01}},
    "a query": {"declared": {"rows_independent": True, "schema": COLUMNS, "seed": 3}},
    "a network": {"declared": {"model": {"name": "wgan"}, "schema": {"kind": "image"}}},
    "a large epsilon": {"epsilon": 5e5, "target_epsilon": 5e5},
    "strange names": {"unit": STRANGE, "study": STUDY | {"name": STRANGE}, "declared": {"data": STRANGE, STRANGE: STRANGE}},
}  # fmt: skip
NUMBER = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")


def _certificate(kind="records", kept="run"):
    certificate = json.loads((KEPT / f"certificate_{kept}.json").read_text())
    for field, change in KINDS[kind].items():
        merged = isinstance(change, dict) and isinstance(certificate[field], dict)
        certificate[field] = certificate[field] | change if merged else change
    return _sealed(certificate)


def _sealed(certificate):
    certificate["statement"] = statement(certificate)
    certificate["digest"] = digest(certificate)
    return certificate


def _at(value, path):
    for name in path.split("."):
        value = value[int(name) if isinstance(value, list) else name]
    return value


def _numbers(text):
    return {float(found.replace(",", "")) for found in NUMBER.findall(text)}


def _leaves(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    yield from (leaf for own in inner for leaf in _leaves(own))
    if not isinstance(value, dict | list):
        yield value


def _wrong_numbers(text, certificate):
    """Find the numbers of a dossier that neither stand in the certificate nor follow from it, but for guesses."""
    words = [json.dumps(certificate), *(describe_stage(certificate, stage) for stage in certificate["stages"])]
    known = set().union(*map(_numbers, words)) | {float(f"{x:.6g}") for x in _leaves(certificate) if isinstance(x, float)}
    delta, n = certificate["delta"], certificate["declared"]["n"]
    if delta:
        known |= {float(1 / Fraction(repr(delta)) // 1), float(1 / (Fraction(repr(delta)) * n) // 1)}
    if isinstance(certificate["study"], dict):
        known.add(float(1 / (Fraction(repr(certificate["study"]["delta"])) * n) // 1))
    # Factors of the odds are rounded up.
    odds = [math.exp(min(e, 700.0)) for e in (certificate["epsilon"], certificate["also"]["replace_one_epsilon"] or 0.0)]
    # NIST's publication with its sections and date, the numbered questions, and 1 + e^epsilon and 1/n in words.
    known |= {
        800.0,
        226.0,
        2023.0,
        *range(10),
        *set().union(*(_numbers(hazard.section) for hazard in hazards_of(certificate))),
    }
    rest = "\n".join(line for line in text.splitlines() if not re.match(r"\| [\d.]+ % \|", line))
    return {x for x in _numbers(rest) - known if not any(factor <= x <= 1.01 * factor for factor in odds)}


@pytest.mark.parametrize("kept", ["one", "run"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_field_is_one_of_the_certificate_and_each_number_its_own(kind, kept):
    certificate = _certificate(kind, kept)
    text = make_dossier(certificate, Verdict())
    named = re.findall(r"(?<!\\)`([^`]*)(?<!\\)`", text)
    assert len(named) > 30
    for field in named:
        _at(certificate, field)
    assert _wrong_numbers(text, certificate) == set()
    hazards = hazards_of(certificate)
    assert all(hazard.fields or hazard.ask for hazard in hazards), "each is answered, or says whom to ask"
    assert all(bool(hazard.fields) == bool(hazard.answer) for hazard in hazards)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        *((path, "records") for path in ("epsilon", "delta", "also.replace_one_epsilon", "target_epsilon", "declared.n")),
        *((path, "records") for path in ("stages.0.epsilon", "stages.1.epsilon")),
        *((f"study.{name}", "a study") for name in ("runs", "epsilon", "delta", "total_epsilon")),
        ("declared.max_rows", "persons"),
        ("declared.truncated_lots.training.at_most", "cut lots"),
        ("selection.mean", "a selection"),
    ],
)
def test_a_number_that_differs_is_found_and_the_dossier_follows_it(path, kind):
    certificate = _certificate(kind)
    changed = copy.deepcopy(certificate)
    *before, last = path.split(".")
    owner = _at(changed, ".".join(before)) if before else changed
    place = int(last) if isinstance(owner, list) else last
    owner[place] = owner[place] * 3 + 1 if isinstance(owner[place], int) else owner[place] * 1.625
    text = make_dossier(_sealed(changed), Verdict())
    assert _wrong_numbers(text, changed) == set() and owner[place] in _numbers(text)
    assert _wrong_numbers(make_dossier(certificate, Verdict()), changed), "what another certificate says is found out"


def test_all_that_is_declared_is_listed_and_each_file():
    """Values of 300 categories, of pairs, and of names that no path can hold stand in the dossier, as do all files."""
    values = [f"place {number}" for number in range(300)]
    columns = [{"name": "place", "values": values, "density": [[number, number / 7] for number in range(40)]}]
    certificate = _certificate()
    certificate["declared"] |= {"schema": {"kind": "table", "columns": columns}, "a name": {"b c": [["deep", "er"], {}]}}
    certificate["files"] |= {f"file{number}.bin": "0" * 64 for number in range(30)}
    text = make_dossier(_sealed(certificate), Verdict()).replace("\\_", "_")
    rows = text[text.index("## Everything that is declared") :]
    for leaf in _leaves(certificate["declared"]):
        assert (f"{leaf:g}" if isinstance(leaf, float) and leaf == int(leaf) else str(leaf)) in rows, leaf
    assert " more" not in rows[: rows.index("## The certificate's own")] and "…" not in rows
    assert all(name in text[: text.index("## Who is protected")] for name in [*certificate["files"], "privacy.json"])


@pytest.mark.parametrize(
    ("released", "stages", "asked"),
    [
        (["synthetic.parquet"], ["first pass", "tables", "labels"], False),
        (["synthetic.parquet"], ["clustering", "final pass", "training"], True),
        (["synthetic.parquet"], ["a stage of one's own"], True),
        (["synthetic.parquet"], ["selection"], True),
        (["projected.parquet"], ["rows"], False),
        (["model.safetensors"], ["training"], False),
    ],
)
def test_a_comparison_with_noisy_tables_is_asked_for_where_a_network_may_have_made_records(released, stages, asked):
    certificate = _certificate() | {"released": released}
    certificate["stages"] = [certificate["stages"][0] | {"name": name} for name in stages]
    text = make_dossier(_sealed(certificate), Verdict())
    assert ("model=measured" in text) == asked and ("No network was trained" in text) == ("tables" in stages)


@pytest.mark.parametrize(("kind", "asked"), [("table", True), ("image", False), ("baskets", False)])
def test_groups_of_a_column_are_asked_for_where_there_are_columns(kind, asked):
    certificate = _certificate()
    certificate["declared"]["schema"] = {"kind": kind}
    assert ("--by COLUMN" in make_dossier(_sealed(certificate), Verdict())) == asked


@pytest.mark.parametrize(
    ("kept", "secure", "weak"),
    [("one", False, True), ("run", False, True), ("whole", False, False), ("run", True, False)],
)
def test_a_generator_is_named_where_it_made_something(kept, secure, weak):
    """Sums of whole numbers over all records, as of measured statistics, take words of the cipher alone."""
    certificate = _certificate(kept="run" if kept == "whole" else kept)
    if kept == "whole":
        gaussian = {"type": "GaussianDpEvent", "noise_multiplier": 5.0}
        certificate["stages"] = [{"name": "tables", "event": gaussian, "epsilon": 1.0}]
        certificate |= {"event": gaussian, "noise": certificate["noise"] | {"others": []}}
    if secure:
        certificate["noise"]["source"] = SECURE
    text = make_dossier(_sealed(certificate), Verdict())
    text = text[: text.index("## The certificate's own statement")]
    assert ("not cryptographic" in text) == ("uses the cipher alone" in text) == ("torch's generator" in text) == weak


@pytest.mark.parametrize(
    ("kind", "words"),
    [("table", "its columns"), ("images", "of a pixel"), ("baskets", "items"), ("series", "length")],
)
def test_what_is_taken_to_be_public_fits_the_records_and_names_the_settings(kind, words):
    certificate = _certificate()
    certificate["declared"]["schema"] = {"kind": kind}
    text = make_dossier(_sealed(certificate), Verdict())
    part = text[text.index("## What is assumed to be public") : text.index("## What was bought")]
    assert words in part and ("columns" in part) == (kind == "table") and "All settings that are declared" in part


@pytest.mark.parametrize(("delta", "said"), [(2e-6, "5,555 times"), (0.005, "does not"), (0.02, "not smaller than 1/n")])
def test_the_delta_of_a_study_is_held_against_the_number_of_records(delta, said):
    certificate = _certificate() | {"study": STUDY | {"delta": delta}}
    text = make_dossier(_sealed(certificate), Verdict())
    assert said in text[text.index("## Other releases") : text.index("## Noise")]


# The sections of NIST SP 800-226 (initial public draft, December 2023) that name a hazard, and how many each names.
NAMED_BY_NIST = {
    "2.2": 1, "2.3": 1, "2.4": 2, "2.5": 3, "2.6": 1, "3": 1, "3.3.1": 1, "3.3.2": 1, "3.3.3": 1, "3.4.1": 2, "3.5": 1,
    "3.6": 2, "3.7": 1, "4.1": 1, "4.2": 1, "4.3": 1, "4.4": 2, "4.5": 1,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_hazard_of_nist_has_an_entry_in_the_order_of_its_sections(kind):
    hazards = hazards_of(_certificate(kind))
    sections = [section for hazard in hazards if hazard.section for section in hazard.section.split(", ")]
    assert sections == sorted(sections) and len({hazard.name for hazard in hazards}) == len(hazards)
    assert all(sections.count(section) >= named for section, named in NAMED_BY_NIST.items())
    assert set(sections) == set(NAMED_BY_NIST)
    of_parts = {"2": "The guarantee", "3": "Algorithms", "4": "Deployment"}
    assert all(of_parts[hazard.section[0]] == hazard.part for hazard in hazards if hazard.section)


@pytest.mark.parametrize("kind", KINDS)
def test_the_word_is_never_said(kind):
    certificate = _certificate(kind)
    assert "anonym" not in (make_dossier(certificate, Verdict()) + json.dumps(make_entry(certificate))).lower()


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 4.0, 18.0, 900.0])
def test_guesses_are_bayes_rule_at_the_worst_outcome(epsilon):
    """Randomised response at this epsilon is the worst there is, and its posteriors are exactly the bounds."""
    odds = Fraction(math.exp(min(epsilon, 700.0)))
    for prior in PRIORS:
        p = Fraction(prior)
        most, least = p * odds / (p * odds + 1 - p), p / (p + (1 - p) * odds)
        assert posterior(prior, epsilon) == pytest.approx((float(least), float(most)), rel=1e-9, abs=1e-300)
    text = make_dossier(_certificate() | {"epsilon": epsilon}, Verdict())
    rows = re.findall(r"^\| ([\d.]+) % \| ([\d.]+) % to ([\d.]+) % \|", text, re.M)
    assert [float(row[0]) / 100 for row in rows] == list(PRIORS)
    for prior, (_, least, most) in zip(PRIORS, rows, strict=True):
        low, high = (100 * bound for bound in posterior(prior, epsilon))
        assert low - 0.01 <= float(least) <= low + 1e-6 and high - 1e-6 <= float(most) <= high + 0.01


def test_strange_names_stay_in_their_cells():
    text = make_dossier(_certificate("strange names"), Verdict(notes=[STRANGE]))
    assert "<script>" not in text and "\n| d" not in text
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.M)
    for block in blocks:
        cells = {len(re.split(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(cells) == 1, block
    assert len(blocks) == 6


@pytest.mark.parametrize(
    ("change", "verdict"),
    [({"private": False}, Verdict()), ({"noise": {"source": "x", "seeded": True}}, Verdict()), ({}, Verdict(["forged"]))],
    ids=["a twin", "a seed", "a problem"],
)
def test_what_is_not_private_or_not_consistent_has_no_dossier(change, verdict):
    with pytest.raises(ValueError, match="no dossier"):
        make_dossier(_certificate() | change, verdict)


# Fields of the registry's schema, as of July 2026, and the words that those of a fixed choice may have.
CHOICES = {
    "status": {"Draft", "Pending"},
    "deployment.basic.data_product_type": {"Machine learning model", "Dataset", "Synthetic data"},
    "deployment.dp_variant.variant_name": {"Pure DP", "Approximate DP"},
    "deployment.deployment_model.model_name": {"Central"},
    "deployment.deployment_model.access_type": {"Interactive", "Non-interactive"},
}
FIELDS = {
    "basic": "name data_curators intended_use data_product_type data_product_region description publication_date "
    "data_product_sector",
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "privacy_loss": "privacy_unit privacy_unit_details privacy_parameters privacy_parameters_details",
    "deployment_model": "model_name model_name_details actors release_type release_type_details data_source_type "
    "data_source_type_details access_type access_type_details",
    "accounting": "post_processing composition",
    "implementation": "preprocessing_and_hyperparameter_tuning mechanisms justification",
    "administrative": "sources notes registry_authors",
}
UNKNOWN = [
    "url_slug",
    "tier",
    "deployment.basic.name",
    "deployment.basic.data_curators",
    "deployment.basic.intended_use",
    "deployment.basic.data_product_region",
    "deployment.basic.publication_date",
    "deployment.basic.data_product_sector",
    "deployment.privacy_loss.privacy_parameters.rho",
    "deployment.deployment_model.actors",
    "deployment.deployment_model.release_type",
    "deployment.deployment_model.release_type_details",
    "deployment.deployment_model.data_source_type",
    "deployment.deployment_model.data_source_type_details",
    "deployment.implementation.justification",
    "deployment.administrative.sources",
    "deployment.administrative.registry_authors",
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_has_the_fields_of_the_registry_and_null_where_a_certificate_is_silent(kind):
    certificate = _certificate(kind)
    entry = make_entry(certificate)
    assert {part: " ".join(fields) for part, fields in entry["deployment"].items()} == FIELDS
    for path, words in CHOICES.items():
        assert _at(entry, path) in words
    known = {"deployment.deployment_model.release_type_details"} if isinstance(certificate["study"], dict) else set()
    assert {*names_of_null(entry)} == {*UNKNOWN} - known
    stated = _at(entry, "deployment.privacy_loss.privacy_parameters")
    assert stated == {"epsilon": certificate["epsilon"], "delta": certificate["delta"], "rho": None}
    assert (_at(entry, "deployment.dp_variant.variant_name") == "Pure DP") == (certificate["delta"] == 0.0)
    assert certificate["digest"] in _at(entry, "deployment.administrative.notes")

"""A draft entry for the registry of deployments of differential privacy, from a certificate.

The names and the fixed words are those of ``schemas/deployments-schema.yaml`` in the repository
``opendp/deployments-registry-data`` on GitHub, as of July 2026 (commit 3e9c812). The registry is young, and its schema
changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.release.certificate import TRUNCATED_LOTS, found_privately, selected
from lightning_dpgen.release.files import PROJECTED, SYNTHETIC
from lightning_dpgen.release.pages.hazards import RELATIONS, exact
from lightning_dpgen.release.pages.report import describe_stage
from lightning_dpgen.release.pages.text import listed, markdown, printable


def make_entry(certificate: dict[str, Any]) -> dict[str, Any]:
    """Make the entry of a private release, with None for each field that the certificate does not fill.

    Nothing is guessed: names, places, purposes and dates are the publisher's to fill in. The registry shows text as
    Markdown, so text of the certificate is escaped.
    """
    released, delta = certificate["released"], certificate["delta"]
    kind, product = "Machine learning model", "The weights of a model"
    if SYNTHETIC in released:
        kind, product = "Synthetic data", "A generative model and synthetic records"
    elif PROJECTED in released:
        kind, product = "Dataset", "Projected rows, one for each record"
    return {
        "url_slug": None,
        "status": "Draft",
        "tier": None,
        "deployment": {
            "basic": {
                "name": None,
                "data_curators": None,
                "intended_use": None,
                "data_product_type": kind,
                "data_product_region": None,
                "description": f"{product}, released with a certificate from which epsilon can be recomputed.",
                "publication_date": None,
                "data_product_sector": None,
            },
            "dp_variant": {
                "variant_name": "Approximate DP" if delta else "Pure DP",
                "data_domain": _domain(certificate),
                "unprotected_quantities": _unprotected(certificate),
            },
            "privacy_loss": {
                "privacy_unit": markdown(certificate["unit"]),
                "privacy_unit_details": f"Adjacent data sets are two worlds: {RELATIONS[certificate['relation']]}.",
                "privacy_parameters": {"epsilon": certificate["epsilon"], "delta": delta, "rho": None},
                "privacy_parameters_details": _parameters(certificate),
            },
            "deployment_model": {
                "model_name": "Central",
                "model_name_details": "One party held the records as they are, and added the noise.",
                "actors": None,
                "release_type": None,
                "release_type_details": _releases(certificate),
                "data_source_type": None,
                "data_source_type_details": None,
                "access_type": "Non-interactive",
                "access_type_details": "The release is a set of files.",
            },
            "accounting": {
                "post_processing": "Whatever is drawn or computed from the released files costs nothing more.",
                "composition": _composition(certificate),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": _tuning(certificate),
                "mechanisms": _mechanisms(certificate),
                "justification": None,
            },
            "administrative": {
                "sources": None,
                "notes": f"Certificate with digest {certificate['digest']}. {markdown(certificate['statement'])}",
                "registry_authors": None,
            },
        },
    }


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


def _domain(certificate: dict[str, Any]) -> str:
    declared = certificate["declared"]
    text = "All data sets whose records fit the description that the certificate declares"
    if certificate["relation"] == REPLACE_ONE:
        return f"{text}, with {declared['n']:,} places."
    cut = declared.get(TRUNCATED_LOTS)
    most = (
        f", of at most {min(own['at_most'] for own in cut.values()):,} records or persons" if isinstance(cut, dict) else ""
    )
    return f"{text}{most}."


def _unprotected(certificate: dict[str, Any]) -> str:
    declared, found = certificate["declared"], found_privately(certificate["declared"])
    parts = ["the description of a record" + (f" but for {markdown(listed(found))}" if found else "")]
    if certificate["relation"] == REPLACE_ONE or not declared.get("n_share"):
        parts.insert(0, f"the number of records ({declared['n']:,})")
    return f"Declared to be public: {', '.join(parts)}, and the settings of the run."


def _parameters(certificate: dict[str, Any]) -> str:
    replaced = certificate["also"]["replace_one_epsilon"]
    text = f"The budget that was set first is epsilon {exact(certificate['target_epsilon'])}."
    if replaced is None:
        return f"{text} No epsilon is stated for one unit replaced by another."
    return f"{text} For one unit replaced by another, epsilon is {exact(replaced)} at the same delta."


def _releases(certificate: dict[str, Any]) -> str | None:
    """Say what the study has spent; None where no study is known."""
    study = certificate["study"]
    if not isinstance(study, dict):
        return None
    return (
        f"Run {study['runs']} of the study '{markdown(printable(study['name'], 80))}'; its runs so far cost epsilon "
        f"{exact(study['epsilon'])} at delta {exact(study['delta'])}, of a total of {exact(study['total_epsilon'])}."
    )


def _composition(certificate: dict[str, Any]) -> str:
    accountant = certificate["accountant"]
    name, version = markdown(accountant["name"]), markdown(accountant["version"])
    return f"All stages together, by the accountant named {name}, with dp-accounting {version}."


def _tuning(certificate: dict[str, Any]) -> str:
    found = found_privately(certificate["declared"])
    text = "One run; this software chose nothing among several with the records."
    if isinstance(certificate["selection"], dict):
        text = f"Released is {markdown(selected(certificate['selection']))}. Epsilon covers this choice."
    return text + (f" Found with a share of the budget: {markdown(listed(found))}." if found else "")


def _mechanisms(certificate: dict[str, Any]) -> str:
    stages = "; ".join(f"{printable(own['name'], 80)}: {describe_stage(certificate, own)}" for own in certificate["stages"])
    versions = ", ".join(f"{name} {version}" for name, version in certificate["versions"].items())
    return markdown(f"{stages}. Random words: {certificate['noise']['source']}. Software: {versions}.")

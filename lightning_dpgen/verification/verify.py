"""Verification of a release: its files, its epsilon, its noises and its words are checked against each other."""

from __future__ import annotations

import functools
import html
import itertools
import json
import os
from pathlib import Path
from typing import Any

import markupsafe
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from lightning_dpgen.common.folders import place_of
from lightning_dpgen.common.plain_text import is_legible
from lightning_dpgen.common.strict_json import Shape
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE
from lightning_dpgen.privacy.errors import NotInstalled
from lightning_dpgen.privacy.extras import needing
from lightning_dpgen.privacy.plan import LABELS
from lightning_dpgen.release import certificate as certificates
from lightning_dpgen.release.bounds import MOST_FILES, check_written, too_long
from lightning_dpgen.release.certificate import ABOUT, FORMAT_VERSION, INIT, SELECTION, digest, statement
from lightning_dpgen.release.drawing.description import LABELLED, PLAIN_WEIGHTS, PROJECTION, is_plain_weights
from lightning_dpgen.release.drawing.opened import file_hash, open_ordinary, read_json_file
from lightning_dpgen.release.files import CERTIFICATE, MODEL, PROJECTED, SIGNATURE, read_certificate
from lightning_dpgen.release.publishing.signature import fingerprint, is_signed_by, read_public, read_signature
from lightning_dpgen.release.stated_noises import NOT_DRAWN
from lightning_dpgen.release.unit_check import check_unit
from lightning_dpgen.release.verdict import Verdict
from lightning_dpgen.verification.epsilon_check import check_epsilon
from lightning_dpgen.verification.noise_check import check_noises

_LARGEST_FILE = 16 * 2**20
_MOST_SAID = 10
# The names of files of records begin so.
_SYNTHETIC = "synthetic"


def verify(folder: str | Path, signer: str | Path | None = None) -> Verdict:
    """Check a release: its files against their hashes, its epsilon against its event tree, its words against its fields.

    This shows that the certificate is consistent, not that the run happened as described.

    Args:
        folder: the release.
        signer: the file of a public key (Ed25519; PEM, or a line of OpenSSH) that the release must be signed by; None
            where it does not matter whose it is, and a signature is only mentioned.

    Raises:
        NotARelease: if there is no certificate to check.
        BadKey: if the file holds no such key.
    """
    folder, key = place_of(folder), None if signer is None else read_public(place_of(signer))
    certificate = read_certificate(folder)
    verdict = Verdict()
    # Types count, too: true and 1.0 are equal to 1.
    if json.dumps(certificate.get("format_version")) != json.dumps(FORMAT_VERSION):
        verdict.problems.append(
            f"format_version={certificate.get('format_version')!r}: this software reads version {FORMAT_VERSION}"
        )
        return verdict
    if long := too_long(certificate):
        verdict.problems.append(long)
        return verdict
    # A few errors are enough: each of them is a reason.
    errors = itertools.islice(_schema().validator.iter_errors(certificate), _MOST_SAID)
    for error in sorted(errors, key=lambda error: str(list(error.absolute_path))):
        where = ".".join(str(part) for part in error.absolute_path) or "certificate"
        verdict.problems.append(f"{where}: {error.message[:200]}")
    numbers = {name: certificate.get(name) for name in ("epsilon", "delta", "target_epsilon", "also")}
    if certificate.get("private") is True and None in numbers.values():
        lacking = ", ".join(name for name, value in numbers.items() if value is None)
        verdict.problems.append(f"a private release has numbers for {lacking}")
    if verdict.problems:
        return verdict
    _check_signature(folder, key, verdict)
    _check_digest(certificate, verdict)
    _check_files(folder, certificate, verdict)
    model = _read_model(folder, certificate, verdict)
    # The weights of a network are all that the engine releases, and what checks other models is not installed with it.
    of_weights = is_plain_weights(model or {}, certificate["released"]) and "schema" not in (model or {})
    try:
        checks = None if of_weights else _checks_of_models()
    except NotInstalled as error:
        verdict.missing = str(error)
        return verdict
    by_settings = checks is not None and checks.follows_from_settings(certificate, model or {})
    if model is not None:
        unit = checks.declared_unit(certificate["declared"]) if checks is not None and by_settings else None
        _check_kind(certificate, model, verdict, by_settings, unit)
    check_epsilon(certificate, verdict)
    if verdict.good:
        _add(verdict, check_noises(certificate))
    if verdict.good and checks is not None:
        verdict.missing = checks.missing_kind(model)
    if verdict.good and model is not None:
        verdict.problems += _nothing_drawn(certificate, model)
        if checks is not None:
            checks.check_loads(folder, model, verdict)
        if checks is not None and by_settings:
            _add(verdict, checks.check_plan(certificate, model))
            if verdict.good:
                checks.check_answers(folder, certificate, verdict)
        elif PROJECTED not in certificate["released"]:
            verdict.has_plan = False
            verdict.notes.append(
                "no settings are declared, so stages and noises are as the program states them that made it"
            )
    if checks is not None and PROJECTED in certificate["released"] and verdict.good:
        checks.check_projection(folder, certificate, verdict)
    return verdict


def _checks_of_models() -> Any:
    """Return the module of the checks of models that make records."""
    with needing("the check of a release of anything but the weights of a network"):
        from lightning_dpgen.verification import model_check
    return model_check


def _add(verdict: Verdict, lines: tuple[list[str], list[str], list[str]]) -> None:
    """Add the problems, checks and notes of one check."""
    for target, new_lines in zip((verdict.problems, verdict.checks, verdict.notes), lines, strict=True):
        target += new_lines


def _nothing_drawn(certificate: dict, model: dict) -> list[str]:
    """Return what is wrong with records without a model that makes them, or a release that no noise was drawn for."""
    if model.get("model") in (None, PLAIN_WEIGHTS) and any(name.startswith(_SYNTHETIC) for name in certificate["released"]):
        return [f"{MODEL} describes no model of records: it says which one this is, and so which stages have made it"]
    entries = certificate["noise"]["sums"] + certificate["noise"]["others"]
    if model and isinstance(certificate["selection"], str) and all(entry["mechanism"] == NOT_DRAWN for entry in entries):
        return ["noise: all of it is stated to have been planned and never drawn, and a model is released"]
    return []


def _check_signature(folder: Path, signer: Ed25519PublicKey | None, verdict: Verdict) -> None:
    """Check that the release is signed by this key; without one, only that a signature that is there has its form."""
    is_signed = os.path.lexists(folder / SIGNATURE)
    if signer is None and not is_signed:
        verdict.notes.append("it is not signed, so it may be anybody's")
        return
    whose = None if signer is None else f"the key with fingerprint {fingerprint(signer)}"
    if not is_signed:
        verdict.problems.append(f"it is not signed, and should be by {whose}: there is no {SIGNATURE}")
        return
    try:
        if signer is None:
            read_signature(folder)
            verdict.notes.append(f"{SIGNATURE} is there, and was not checked against anyone: --signer PUBLIC_KEY does")
        elif is_signed_by(folder, signer):
            verdict.checks.append(f"the certificate, and so each file, is signed by {whose}")
        else:
            verdict.problems.append(f"the signature is not one of this certificate by {whose}")
    except (ValueError, OSError) as error:
        verdict.problems.append(str(error))


@functools.cache
def _schema() -> Shape:
    text = (Path(certificates.__file__).parent / "privacy.schema.json").read_text(encoding="utf-8")
    return Shape(json.loads(text))


def _check_digest(certificate: dict, verdict: Verdict) -> None:
    before = len(verdict.problems)
    if digest(certificate) != certificate["digest"]:
        verdict.problems.append("the certificate was changed after it was written (its digest does not match)")
    init = certificate["declared"].get(INIT)
    if init is not None and not is_legible(init["public"]):
        verdict.problems.append("declared.init.public is no name that people can read: it has unseen characters")
    if statement(certificate) != certificate["statement"]:
        verdict.problems.append("the statement does not say what the fields say")
    if isinstance(certificate["selection"], str) and certificate["selection"] != SELECTION:
        verdict.problems.append(f"selection: this format knows {SELECTION!r}, or a law, a score and a space")
    if len(verdict.problems) == before:
        verdict.checks.append("the certificate agrees with its own digest, and its statement follows from its fields")


def _check_files(folder: Path, certificate: dict, verdict: Verdict) -> None:
    files = certificate["files"]
    present = {path.name for path in itertools.islice(folder.iterdir(), 2 * MOST_FILES)} - {CERTIFICATE, SIGNATURE}
    before = len(verdict.problems)
    if len(present) > MOST_FILES:
        verdict.problems.append(f"{folder} holds more than {MOST_FILES:,} files")
        return
    for name in sorted(set(certificate["released"]) - set(files)):
        verdict.problems.append(f"{name} is said to be released, and has no hash")
    for name in sorted(set(files) - set(certificate["released"]) - set(ABOUT)):
        verdict.problems.append(f"{name} is a part of the release, and is not said to be released")
    for name in sorted(set(files) - present):
        verdict.problems.append(f"file missing: {name}")
    for name in sorted(present - set(files)):
        verdict.problems.append(f"file too many: {name} is not in the certificate")
    # Links are not followed, here as elsewhere.
    try:
        check_written(folder)
    except (ValueError, OSError) as error:
        verdict.problems.append(str(error))
        return
    for name in sorted(present & set(files)):
        try:
            if file_hash(folder / name) != files[name]:
                verdict.problems.append(f"file changed: {name} does not have the hash in the certificate")
        except (ValueError, OSError) as error:
            verdict.problems.append(str(error))
    words = certificate["statement"]
    for name in sorted(set(ABOUT) & present & set(files)):
        try:
            with open_ordinary(folder / name) as file:
                text = file.read(_LARGEST_FILE).decode("utf-8", errors="replace")
        except (ValueError, OSError):
            # The hash check has reported it.
            continue
        # As a page, a card and a file of JSON hold it; the first two in paragraphs.
        text = text.replace("</p>\n<p>", " ").replace("\n\n", " ")
        forms = (markupsafe.escape(words), html.escape(words, quote=False), json.dumps(words, ensure_ascii=False), words)
        if not any(str(form) in text for form in forms):
            verdict.problems.append(f"{name} does not hold the certificate's statement")
    if len(verdict.problems) == before:
        verdict.checks.append(f"all {len(files)} files have the hashes in the certificate, and there are no others")


def _read_model(folder: Path, certificate: dict, verdict: Verdict) -> dict[str, Any] | None:
    """Return the description of the model, empty where there is none; None for one that cannot be read, which is told."""
    try:
        return read_json_file(folder / MODEL) if MODEL in certificate["files"] else {}
    except (ValueError, OSError) as error:
        verdict.problems.append(f"{MODEL} cannot be read: {error}")
        return None


def _check_kind(certificate: dict, model: dict, verdict: Verdict, by_settings: bool, unit: str | None) -> None:
    """Check that relation, model and files agree: a pure event tree does not show the relation, which doubles the cost.

    Args:
        by_settings, unit: whether it is held against the plan of settings, and the unit of a run with these.
    """
    relation, projected = certificate["relation"], PROJECTED in certificate["released"]
    if not (relation == REPLACE_ONE) == projected == (model.get("model") == PROJECTION):
        verdict.problems.append(
            f"relation={relation!r}: projected rows, one for each record, are stated under {REPLACE_ONE!r}, and everything "
            f"else under {ADD_OR_REMOVE_ONE!r}; {MODEL} and the released files must agree on what this is"
        )
    if certificate["private"]:
        verdict.problems += check_unit(certificate, by_settings, unit)
    bought, drawn = LABELS in {stage["name"] for stage in certificate["stages"]}, model.get(LABELLED) is True
    # The stages of a selection are its trials.
    if certificate["private"] and bought != drawn and isinstance(certificate["selection"], str):
        verdict.problems.append(
            f"stage {LABELS!r} is there, but {MODEL} lacks what it buys"
            if bought
            else f"stage {LABELS!r} is missing, but {MODEL} has what it buys"
        )
    if certificate["private"] and model.get("private", True) is not True:
        verdict.problems.append(f"{MODEL} says that this is not private, and the certificate that it is")

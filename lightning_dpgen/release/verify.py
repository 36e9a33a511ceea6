"""Verification: recompute epsilon from the event tree alone, and check every file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lightning_dpgen.privacy.accountant import ADD_OR_REMOVE_ONE, round_up, spent
from lightning_dpgen.privacy.events import UnknownEvent, composed, decode, encode
from lightning_dpgen.release.certificate import CERTIFICATE, FORMAT_VERSION, digest, file_hash, statement

# The same version of the accountant gives the same number; another one may differ by its discretisation.
_SAME_VERSION, _OTHER_VERSION = 1e-6, 2e-3

_FIELDS = {
    "format_version", "private", "epsilon", "delta", "relation", "unit", "target_epsilon", "accountant", "event",
    "stages", "noise", "declared", "selection", "study", "released", "files", "versions", "statement", "digest",
}  # fmt: skip


@dataclass
class Verdict:
    """What verification found.

    Attributes:
        problems: reasons for which the release must not be trusted; empty if there are none.
        checks: what was confirmed, a line each.
        epsilon: recomputed from the event tree; None if that was not possible.
    """

    problems: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    epsilon: float | None = None

    @property
    def good(self) -> bool:
        return not self.problems


class NotARelease(ValueError):
    """The folder holds no certificate that can be read."""


def read_certificate(folder: Path) -> dict[str, Any]:
    """The certificate of a release, as it stands.

    Raises:
        NotARelease: if it is missing or is not a JSON object.
    """
    path = folder / CERTIFICATE
    if not folder.is_dir():
        raise NotARelease(f"{folder} is not a folder: expected a release")
    if not path.is_file():
        raise NotARelease(f"{folder} is not a release: it holds no {CERTIFICATE}")
    try:
        certificate = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise NotARelease(f"{path} is not JSON: {error}") from None
    if not isinstance(certificate, dict):
        raise NotARelease(f"{path} is not a certificate: expected a JSON object")
    return certificate


def verify(folder: str | Path) -> Verdict:
    """Check a release: its files against their hashes, its epsilon against its event tree, its words against its fields.

    Shows that the certificate is consistent, not that the run happened as described.

    Args:
        folder: the release.

    Raises:
        NotARelease: if there is no certificate to check.
    """
    folder = Path(folder)
    certificate = read_certificate(folder)
    verdict = Verdict()
    missing = sorted(_FIELDS - set(certificate))
    if missing:
        verdict.problems.append(f"the certificate lacks the fields {', '.join(missing)}")
        return verdict
    if certificate["format_version"] != FORMAT_VERSION:
        verdict.problems.append(
            f"format_version={certificate['format_version']!r}: this software reads version {FORMAT_VERSION}"
        )
        return verdict
    foreign = sorted(set(certificate) - _FIELDS)
    if foreign:
        verdict.problems.append(f"the certificate has foreign fields: {', '.join(foreign)}")
    _check_digest(certificate, verdict)
    _check_files(folder, certificate["files"], verdict)
    _check_privacy(certificate, verdict)
    return verdict


def _check_digest(certificate: dict, verdict: Verdict) -> None:
    try:
        intact = digest(certificate) == certificate["digest"]
        words = statement(certificate) == certificate["statement"]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        verdict.problems.append("the certificate's fields are not of the right kind")
        return
    if not intact:
        verdict.problems.append("the certificate was changed after it was written (its digest does not match)")
    if not words:
        verdict.problems.append("the statement does not say what the fields say")
    if intact and words:
        verdict.checks.append("the certificate is as it was written, and its statement follows from its fields")


def _check_files(folder: Path, files: Any, verdict: Verdict) -> None:
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files):
        verdict.problems.append("'files' must map names to sha256 hashes")
        return
    present = {path.name for path in folder.iterdir()} - {CERTIFICATE}
    before = len(verdict.problems)
    for name in sorted(set(files) - present):
        verdict.problems.append(f"file missing: {name}")
    for name in sorted(present - set(files)):
        verdict.problems.append(f"file too many: {name} is not in the certificate")
    for name in sorted(present & set(files)):
        path = folder / name
        if path.is_symlink() or not path.is_file():
            verdict.problems.append(f"{name} is not an ordinary file")
        elif file_hash(path) != files[name]:
            verdict.problems.append(f"file changed: {name} does not have the hash in the certificate")
    if len(verdict.problems) == before:
        verdict.checks.append(f"all {len(files)} files have the hashes in the certificate, and there are no others")


def _check_privacy(certificate: dict, verdict: Verdict) -> None:
    try:
        seeded = bool(certificate["noise"]["seeded"])
        event = decode(certificate["event"])
        stages = [(stage["name"], decode(stage["event"]), stage["epsilon"]) for stage in certificate["stages"]]
    except UnknownEvent as error:
        verdict.problems.append(f"the event tree cannot be accounted for: {error}")
        return
    except (TypeError, KeyError):
        verdict.problems.append("'noise' or 'stages' does not have the expected fields")
        return
    if certificate["private"] is not True:
        reason = "its noise came from a debugging seed" if seeded else "it was made without privacy"
        verdict.problems.append(f"the certificate itself says that this is not a private release: {reason}")
        return
    if seeded:
        verdict.problems.append("the noise came from a known seed, so it can be removed")
    if certificate["relation"] != ADD_OR_REMOVE_ONE:
        verdict.problems.append(f"relation={certificate['relation']!r}: expected {ADD_OR_REMOVE_ONE!r}")
        return
    delta, epsilon = certificate["delta"], certificate["epsilon"]
    if not (_number(delta) and 0 < delta < 1 and _number(epsilon) and epsilon > 0):
        verdict.problems.append(f"epsilon={epsilon!r}, delta={delta!r}: expected positive numbers, delta below 1")
        return
    n = certificate["declared"].get("n") if isinstance(certificate["declared"], dict) else None
    if not _number(n) or n < 1:
        verdict.problems.append("'declared' does not state the number of records n")
    elif delta >= 1.0 / n:
        verdict.problems.append(f"delta={delta:g} is 1/n or more: publishing one record in n would satisfy it")
    if not stages or encode(composed([stage for _, stage, _ in stages])) != certificate["event"]:
        verdict.problems.append("the event is not the composition of the stages")
    before = len(verdict.problems)
    accountant = certificate["accountant"]
    same = isinstance(accountant, dict) and accountant.get("version") == version("dp-accounting")
    tolerance = _SAME_VERSION if same else _OTHER_VERSION
    verdict.epsilon = spent(event, delta).epsilon
    _compare("epsilon", epsilon, verdict.epsilon, tolerance, verdict)
    for name, stage, stated in stages:
        _compare(f"epsilon of stage {name!r}", stated, spent(stage, delta).epsilon, tolerance, verdict)
    if len(verdict.problems) == before:
        verdict.checks.append(
            f"epsilon recomputed from the event tree: {round_up(verdict.epsilon):g} at delta {delta:g} "
            f"(stated: {epsilon:g}), one record added or removed"
        )


def _compare(name: str, stated: Any, recomputed: float, tolerance: float, verdict: Verdict) -> None:
    if not _number(stated) or not math.isfinite(recomputed) or stated < recomputed * (1.0 - tolerance):
        verdict.problems.append(f"{name} is stated as {stated}, but the event tree costs {recomputed:.6g}")
    elif round_up(recomputed * (1.0 + tolerance)) < stated:
        verdict.problems.append(f"{name} is stated as {stated}, and the event tree costs only {recomputed:.6g}")


def _number(value: Any) -> bool:
    """Whether a JSON value is a number that a float can hold (JSON allows whole numbers of any length)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300

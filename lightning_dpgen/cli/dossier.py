"""`dpgen dossier`: what an impact assessment and a registry ask of a release, from its certificate alone."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from lightning_dpgen.cli.arguments import Parser
from lightning_dpgen.common.folders import place_of
from lightning_dpgen.release.files import IN_RELEASE, lies_in_release, read_certificate, release_folder
from lightning_dpgen.runs.interrupts import leaving_at_once
from lightning_dpgen.specs.usage_error import UsageError

_PAGE, _ENTRY = ".md", ".json"


def make_parser() -> Parser:
    parser = Parser(
        prog="dpgen dossier",
        description="Write what a data-protection impact assessment asks of a release, from its certificate alone: who is "
        "protected, how much, against whom, what is assumed, and which questions are left. The release is verified first.",
    )
    parser.add_argument("release", type=release_folder, help="the folder of a release, or of the run that made it")
    parser.add_argument("-o", dest="output", metavar="FILE", help=f"a new file ({_PAGE}, or {_ENTRY} with --registry)")
    parser.add_argument(
        "--registry",
        action="store_true",
        help="write a draft entry for OpenDP's registry of deployments (JSON); null where a certificate does not say it",
    )
    return parser


def run(argv: Sequence[str]) -> int:
    arguments = make_parser().parse_args(argv)
    # Mistakes are reported before the import of what recomputes epsilon.
    place = None
    if arguments.output is not None:
        place = _place(arguments.output, _ENTRY if arguments.registry else _PAGE)
    certificate = read_certificate(arguments.release)
    with leaving_at_once():
        from lightning_dpgen.release.pages.dossier import make_dossier, make_entry, names_of_null
        from lightning_dpgen.verification.verify import verify
    verdict = verify(arguments.release)
    noise = certificate.get("noise")
    if certificate.get("private") is False or (isinstance(noise, dict) and noise.get("seeded") is True):
        raise UsageError(
            f"{arguments.release}: no dossier, since its own certificate says that it is not a private release"
        )
    if not verdict.good:
        raise UsageError(f"{arguments.release}: no dossier, since dpgen verify refuses it: {verdict.reason[:300]}")
    if arguments.registry:
        entry = make_entry(certificate)
        text = json.dumps(entry, indent=2, ensure_ascii=False) + "\n"
    else:
        text = make_dossier(certificate, verdict)
    if place is None:
        print(text, end="")
        return 0
    with open(place, "x", encoding="utf-8") as file:
        file.write(text)
    print(f"written: {place}")
    if arguments.registry:
        print(f"null, for you to fill in: {', '.join(names_of_null(entry))}")
    return 0


def _place(name: str, ending: str) -> Path:
    """Return where the dossier is written.

    Raises:
        UsageError: if it cannot be, or if it would be a file too many of a release.
    """
    place = place_of(name)
    if place.suffix != ending:
        raise UsageError(f"-o {place}: expected a name that ends in {ending}")
    if os.path.lexists(place):
        raise UsageError(f"-o {place}: exists already; choose another name")
    if not place.parent.is_dir():
        raise UsageError(f"-o {place}: there is no folder {place.parent}")
    if lies_in_release(place):
        raise UsageError(f"-o {place}: {IN_RELEASE}")
    return place

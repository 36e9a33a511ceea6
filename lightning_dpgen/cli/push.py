"""`dpgen push`: a release on the Hugging Face Hub, with the user's own token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning_dpgen.cli.arguments import Parser
from lightning_dpgen.release.publishing.hub import DATASET, MODEL, NotPushed, push
from lightning_dpgen.release.verdict import Verdict
from lightning_dpgen.specs.usage_error import UsageError


def make_parser() -> Parser:
    parser = Parser(
        prog="dpgen push",
        description="Publish a release on the Hugging Face Hub, as a new repository, in one commit. The release is "
        "verified first, and nothing is sent if it is refused. The token is that of HF_TOKEN or of 'hf auth login'. "
        "It needs lightning_dpgen[hub].",
    )
    parser.add_argument(
        "release", help="the folder of a release; not that of the run that made it, which is private in part"
    )
    parser.add_argument("--repo", required=True, metavar="USER/NAME", help="the name on the Hub; new, or without files")
    parser.add_argument(
        "--type", dest="kind", choices=(MODEL, DATASET), help="a data set by default, where the release holds records"
    )
    parser.add_argument(
        "--private", action="store_true", help="for you, or your organisation, alone, until this is changed on its page"
    )
    return parser


def _verify(folder: Path) -> Verdict:
    # It takes seconds to import, which mistakes that are found before do not wait for.
    from lightning_dpgen.verification.verify import verify

    return verify(folder)


def run(argv: Sequence[str]) -> int:
    arguments = make_parser().parse_args(argv)
    try:
        address = push(arguments.release, arguments.repo, _verify, kind=arguments.kind, private=arguments.private)
    except NotPushed as error:
        raise UsageError(str(error)) from None
    print(f"published{' as private' if arguments.private else ''}: {address}")
    name, kind = arguments.repo.partition("/")[2], " --repo-type dataset" if "/datasets/" in address else ""
    print("others check it so; the Hub adds two names of its own, which no certificate lists:")
    print(f"  hf download {arguments.repo}{kind} --local-dir {name}")
    print(f"  rm -r {name}/.cache {name}/.gitattributes")
    print(f"  dpgen verify {name}")
    return 0

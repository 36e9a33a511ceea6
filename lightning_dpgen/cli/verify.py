"""`dpgen verify`: is this certificate true to itself and to the files beside it?"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_dpgen.cli.arguments import Parser
from lightning_dpgen.common.folders import place_of
from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.release.files import read_certificate, release_folder
from lightning_dpgen.release.publishing.signature import BadKey, read_public
from lightning_dpgen.runs.interrupts import leaving_at_once
from lightning_dpgen.specs.usage_error import UsageError

# Lines of problems that are printed: one is enough to trust nothing.
_MOST_PRINTED = 20


def make_parser() -> Parser:
    parser = Parser(
        prog="dpgen verify",
        description="Recompute a release's epsilon from its event tree, and check every file. "
        "Exit status 0: consistent; 2: not to be trusted.",
    )
    parser.add_argument("release", type=release_folder, help="the folder of a release, or of the run that made it")
    parser.add_argument(
        "--signer",
        metavar="PUBLIC_KEY",
        help="fail unless the release is signed by this key (Ed25519: PEM, or a line that begins with ssh-ed25519)",
    )
    return parser


def run(argv: Sequence[str]) -> int:
    arguments = make_parser().parse_args(argv)
    # Mistakes are reported before the import of what recomputes epsilon.
    try:
        if arguments.signer is not None:
            read_public(place_of(arguments.signer))
    except BadKey as error:
        raise UsageError(f"--signer {error}") from None
    read_certificate(arguments.release)
    with leaving_at_once():
        from lightning_dpgen.verification.verify import verify
    verdict = verify(arguments.release, arguments.signer)
    problems = verdict.problems[:_MOST_PRINTED]
    for mark, lines in (("ok  ", verdict.checks), ("note", verdict.notes), ("BAD ", problems)):
        for line in lines:
            print(f"  {mark} {_printable(line)}")
    if more := len(verdict.problems) - len(problems):
        print(f"  BAD  and {more:,} more")
    if verdict.good:
        plan = "" if verdict.has_plan else " No settings say whether these events are all that the run needs."
        print(
            f"verdict: CONSISTENT. {_printable(str(arguments.release))} is what its certificate describes, and the "
            f"certificate's epsilon follows from its events.{plan} This does not show that the run took place as described."
        )
        return 0
    if not verdict.problems:
        print(f"verdict: NOT CHECKED. {_printable(verdict.missing or '')}")
        return 2
    print(f"verdict: NOT TO BE TRUSTED ({say_count(len(verdict.problems), 'problem')}).")
    return 2


def _printable(line: str) -> str:
    """Return a line as it is printed: a name of the release with a line break in it must not look like a verdict."""
    return "".join(c if c.isprintable() else "?" for c in line)

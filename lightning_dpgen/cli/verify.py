"""`dpgen verify`: is this certificate true to itself and to the files beside it?"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_dpgen.cli.arguments import Parser
from lightning_dpgen.release.folder import release_folder
from lightning_dpgen.release.verify import verify

# Lines of problems that are printed: one is enough to trust nothing.
_MOST_PRINTED = 20


def run(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="dpgen verify",
        description="Recompute a release's epsilon from its event tree, and check every file. "
        "Exit status 0: consistent; 2: not to be trusted.",
    )
    parser.add_argument("release", type=release_folder, help="the folder of a release, or of the run that made it")
    arguments = parser.parse_args(argv)
    verdict = verify(arguments.release)
    problems = verdict.problems[:_MOST_PRINTED]
    for mark, lines in (("ok  ", verdict.checks), ("note", verdict.notes), ("BAD ", problems)):
        for line in lines:
            print(f"  {mark} {_printable(line)}")
    if more := len(verdict.problems) - len(problems):
        print(f"  BAD  and {more:,} more")
    if verdict.good:
        print(
            f"verdict: CONSISTENT. {_printable(str(arguments.release))} is what its certificate describes, and the "
            "certificate's epsilon follows from its events. This does not show that the run took place as described."
        )
        return 0
    print(f"verdict: NOT TO BE TRUSTED ({len(verdict.problems)} problem{'s' if len(verdict.problems) > 1 else ''}).")
    return 2


def _printable(line: str) -> str:
    """Return a line as it is printed: a name of the release with a line break in it must not look like a verdict."""
    return "".join(c if c.isprintable() else "?" for c in line)

"""`dpgen budget`: the table that `train` would print, without reading a record."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_dpgen.cli import verbose
from lightning_dpgen.cli.imported import imported
from lightning_dpgen.specs.compose import asks_for_selection
from lightning_dpgen.specs.run import check_privacy, read_projection, read_words, with_default_bins

HELP = """usage: dpgen budget [NAME=VALUE ...]

Prints what `dpgen train` with the same settings would spend, stage by stage. Reads no data.

  dpgen budget data=mnist privacy.epsilon=1.74
  dpgen budget experiment=dpgm_mnist

  dpgen budget project [NAME=VALUE ...]      the same for `dpgen project`, and how well each choice keeps distances"""


def run(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv):
        print(f"{HELP}\n\nOptions:\n{verbose.HELP}")
        return 0
    if argv[:1] == ["project"]:
        asked = read_projection(argv[1:])
        return imported("budgeting").tell_projection(asked)
    if asks_for_selection(argv):
        return imported("budgeting").tell_selection(argv)
    # A mistake is told before what a plan needs is imported.
    spec = read_words(argv)
    check_privacy(spec)
    return imported("budgeting").tell_run(with_default_bins(spec))

"""`dpgen audit`: does what the software does look like what it claims?"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_dpgen.cli import verbose
from lightning_dpgen.cli.imported import imported
from lightning_dpgen.specs.run import read_audit
from lightning_dpgen.specs.usage_error import OK

HELP = """usage: dpgen audit [NAME=VALUE ...]

Attacks the mechanisms; then whole runs of measurements as dpgen train makes them, or the private step and one whole
training. Prints how much the attacks show, at least, beside what is claimed. Records are made up, and none are read.

  dpgen audit data=adult model=measured privacy.epsilon=1 audit.draws=500
  dpgen audit data=digits model=vae privacy.epsilon=2
  dpgen audit data=digits model=vae audit.spend=true    canaries among the records, which must be such that no one minds

Settings: those of dpgen train, and audit.canaries, audit.draws, audit.confidence, audit.spend.
Exit status: 0 if no claim is refuted, 1 if one is."""

LIMITS = """What it can see: noise that is missing or half as large, a record that counts for more than its bound, noise
that anybody can draw again, lots that hold a record too often. Whole runs of measurements are attacked at the worst
neighbours of a search. There the lower bound comes within a tenth of the claim, and noise,
a bound or an account that makes mu so much larger is seen. At mechanisms and steps of fixed bounds it comes within a half;
of an adaptive bound, and of one whole training, next to nothing is seen. What it cannot see: a fault that few runs have, or
records unlike the made-up ones; lots whose records depend on each other; one in what is not run here (the split of a
training, several devices, another machine); a number of records, a bound or a category that was read off the data; and that
a claim is true."""


def run(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv):
        print(f"{HELP}\n\nOptions:\n{verbose.HELP}\n")
        print(LIMITS)
        return OK
    spec = read_audit(argv)
    status = imported("auditing").run(spec)
    print(LIMITS)
    return status

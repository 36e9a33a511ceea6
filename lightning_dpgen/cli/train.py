"""`dpgen train`: private records to a release, in one command."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_dpgen.cli.imported import imported
from lightning_dpgen.runs.interrupts import leaving_at_once
from lightning_dpgen.specs.compose import FLAGS, asks_for_selection
from lightning_dpgen.specs.reference import listed
from lightning_dpgen.specs.run import RunSpec, read_run

HELP = """usage: dpgen train [NAME=VALUE ...]

Learns a generative model from private records and writes a release with a privacy certificate.
With nothing else: the digits that come with scikit-learn, into runs/<time>.

  dpgen train data=mnist privacy.epsilon=1.74       MNIST from $DPGEN_DATA/mnist
  dpgen train experiment=dpgm_mnist                 the setting of the DPGM paper
  dpgen train data=mnist model=measured             no network: noisy statistics, measured once
  dpgen train data=mnist model=auto                 what was best on such records, as for tables and baskets
  dpgen train data=images data.path=F.npz data.n=5000 data.height=16 data.width=16
  dpgen train data=table data.path=F.csv data.schema=F.schema.yaml data.n=5000
  dpgen train data=own data.target=package.function data.n=5000 model=own model.target=package.Class
  dpgen train -m privacy.epsilon=1,2,4 model=vae,rbm    a run for each combination, and a table (Hydra's launchers)
  dpgen train model.lr=1e-3,1e-2 privacy.selection=logarithmic privacy.selection_score=fidelity \\
      privacy.fidelity_share=0.1                    the best of a secret number of trials, all of it paid for
  dpgen train privacy=off                           the same without privacy, for comparison
  dpgen train ... run_dir=runs/NAME                 goes on with a run that did not end, given the same settings

Settings (docs/SETTINGS.md says what each is, its range and its default):"""


def run(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv):
        print(f"{HELP}\n{listed(RunSpec)}")
        return 0
    if any(word in FLAGS for word in argv):
        return imported("sweep").run(argv)
    if asks_for_selection(argv):
        return imported("select").run(argv)
    # A mistake in a setting is told before what a run needs is imported.
    with leaving_at_once():
        spec = read_run(argv)
    return imported("training").run(argv, spec)

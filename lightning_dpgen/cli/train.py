"""`dpgen train`: private records to a release, in one command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightning_dpgen.specs.compose import FLAGS, asks_for_selection
from lightning_dpgen.specs.reference import listed
from lightning_dpgen.specs.run import RunSpec, read_run
from lightning_dpgen.specs.usage_error import OK, RANK_LOST, UsageError

if TYPE_CHECKING:
    from lightning_dpgen.runs.folder import RunFolder

HELP = """usage: dpgen train [NAME=VALUE ...]

Learns a generative model from private records and writes a release with a privacy certificate.
With nothing else: the digits that come with scikit-learn, into runs/<time>.

  dpgen train data=mnist privacy.epsilon=1.74       MNIST from $DPGEN_DATA/mnist
  dpgen train experiment=dpgm_mnist                 the setting of the DPGM paper
  dpgen train data=mnist model=measured             no network: noisy statistics, measured once
  dpgen train data=mnist model=auto                 what was best on such records, and why it was taken
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
    if asks_for_selection(argv) and not any(word in FLAGS for word in argv):
        from lightning_dpgen.cli import select

        return select.run(argv)
    if any(word in FLAGS for word in argv):
        from lightning_dpgen.cli import sweep

        return sweep.run(argv)
    # A mistake in a setting is told before what a run needs is imported.
    return _train(argv, read_run(argv))


def _train(argv: Sequence[str], spec: RunSpec) -> int:
    from lightning_dpgen.cli import launch
    from lightning_dpgen.cli.guarded import guarded
    from lightning_dpgen.runs import folder as run_folder
    from lightning_dpgen.runs.reporter import TerminalReporter
    from lightning_dpgen.runs.run import settle, train
    from lightning_dpgen.runs.worker import follow
    from lightning_dpgen.specs.sources import source_of

    several, source = launch.to_launch(spec.trainer), source_of(spec.data)
    folder = run_folder.choose(spec.run_dir)
    if several:
        # Whatever is wrong with the settings is said before processes are started.
        settle(spec, source)
        return launch.launch(argv, folder, spec.trainer.devices)
    with launch.together(spec.trainer) as ranks:
        if not ranks.leads:
            return follow(spec, source, folder, ranks)
        try:
            certificate = guarded(
                "train", argv, folder, lambda asked: train(spec, source, folder, asked, TerminalReporter(), ranks)
            )
        except UsageError as mistake:
            if mistake.status == RANK_LOST and launch.watched():
                return RANK_LOST
            raise
    _tell(certificate, folder)
    return OK


def _tell(certificate: dict[str, Any], folder: RunFolder) -> None:
    print()
    if certificate["private"]:
        unit = "one person" if "max_rows" in certificate["declared"] else "one record"
        print(f"done: epsilon {certificate['epsilon']:g} at delta {certificate['delta']:g}, {unit} added or removed")
    else:
        print(f"done, but NOT A PRIVATE RELEASE: {certificate['statement'].split('. ')[1]}.")
    print(f"  release (may be published{'' if certificate['private'] else ': NO'}):  {folder.release}")
    print(f"  private (must not leave this machine):  {folder.private}")
    print("next:")
    print(f"  dpgen verify {folder.release}")
    print(f"  dpgen sample {folder.release} -n 1000 -o more.parquet")
    print(f"  open {folder.release / 'report.html'} in a browser; tensorboard --logdir {folder.private}")

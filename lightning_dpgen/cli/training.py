"""The command `train` once its settings are read: one run, on one device or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_dpgen.cli import launch
from lightning_dpgen.cli.guarded import guarded
from lightning_dpgen.runs import folder as run_folder
from lightning_dpgen.runs.reporter import TerminalReporter
from lightning_dpgen.runs.run import settle, train
from lightning_dpgen.runs.worker import follow
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.sources import source_of
from lightning_dpgen.specs.usage_error import OK, RANK_LOST, UsageError


def run(argv: Sequence[str], spec: RunSpec) -> int:
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


def _tell(certificate: dict[str, Any], folder: run_folder.RunFolder) -> None:
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
